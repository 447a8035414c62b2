"""Targets that CTC cannot align are found before training."""

from __future__ import annotations

import pytest
import torch

from asr.data.feasible import required_frames, why_infeasible


@pytest.mark.parametrize("target", [[], [1], [1, 1, 2], [1, 2, 1], [2, 2, 2], [1, 1, 2, 2, 1]])
def test_E1_required_frames_is_the_least_with_a_finite_loss(target):
    def loss(frames: int) -> float:
        log_probs = torch.zeros(frames, 1, 3).log_softmax(-1)
        return torch.nn.functional.ctc_loss(
            log_probs, torch.tensor([target]), torch.tensor([frames]), torch.tensor([len(target)]), reduction="sum"
        ).item()

    need = required_frames(target)
    assert loss(max(need, 1)) < float("inf")
    if need > 1:
        assert loss(need - 1) == float("inf")


def test_E1_the_encoders_own_output_length_counts():
    utterances = {"a": ([1, 1, 2], 8), "b": ([1, 1, 2], 9), "c": ([], 1), "d": ([], 0)}

    def feasible(output_length):
        return [id for id, (target, frames) in utterances.items() if not why_infeasible(target, frames, output_length)]

    assert feasible(lambda n: -(-n // 3)) == ["c"]
    assert feasible(lambda n: -(-n // 2)) == ["a", "b", "c"]
    assert why_infeasible([1, 1, 2], 9, lambda n: n // 3) == "3 labels need 4 encoder frames, 9 feature frames give 3"
