from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest
import torch

from asr.audio.cmvn import Cmvn
from asr.audio.config import FeaturesConfig
from asr.errors import DataError


@dataclass
class Spoken:
    id: str
    speaker: str


class Store(dict):
    def __init__(self, items, failed=()):
        super().__init__(items)
        self.failed = dict.fromkeys(failed, "broken")


def features(frames: int, seed: int, offset: float = 5.0) -> torch.Tensor:
    return torch.randn(frames, 4, generator=torch.Generator().manual_seed(seed)) * 3 + offset


ITEMS = {"a1": features(50, 1), "a2": features(70, 2, -2.0), "b1": features(40, 3, 9.0)}
SPOKEN = [Spoken("a1", "a"), Spoken("a2", "a"), Spoken("b1", "b"), Spoken("lost", "b")]


def estimate(kind: str) -> Cmvn:
    return Cmvn.estimate(cast(Any, Store(ITEMS, ["lost"])), SPOKEN, FeaturesConfig(cmvn=cast(Any, kind)))


def whitened(x: torch.Tensor, over: torch.Tensor) -> torch.Tensor:
    over = over.double()
    return ((x.double() - over.mean(0)) / over.std(0, unbiased=False)).float()


def test_each_kind_normalises_over_what_it_says():
    x = ITEMS["a1"]
    assert estimate("none").apply(x, "a") is x
    torch.testing.assert_close(estimate("utterance").apply(x, "a"), whitened(x, x))
    torch.testing.assert_close(estimate("global").apply(x, "a"), whitened(x, torch.cat([*ITEMS.values()])))
    torch.testing.assert_close(estimate("speaker").apply(x, "a"), whitened(x, torch.cat([ITEMS["a1"], ITEMS["a2"]])))


def test_unknown_speaker_is_normalised_over_the_utterance():
    x = features(30, 9)
    for speaker in ("new", None):
        torch.testing.assert_close(estimate("speaker").apply(x, speaker), whitened(x, x))


def test_D3_no_variance_blows_up():
    pinned = features(600, 4)
    pinned[:, 1] = -15.94 + 1e-3 * torch.sin(torch.arange(600.0))
    pinned[:, 2] = -15.94
    one_frame = features(1, 5)
    for x in (pinned, one_frame, pinned[:1].repeat(2, 1)):
        store = Store({"x": x})
        for kind in ("utterance", "speaker", "global"):
            cmvn = Cmvn.estimate(cast(Any, store), [Spoken("x", "s")], FeaturesConfig(cmvn=cast(Any, kind)))
            y = cmvn.apply(x, "s")
            assert bool(y.isfinite().all())
            assert float(y.abs().max()) < 50
            if len(x) == 600:
                assert float(y[:, 2].abs().max()) < 1e-3  # a constant column becomes 0
                torch.testing.assert_close(y[:, 0], whitened(x, x)[:, 0], atol=1e-4, rtol=1e-4)
    assert torch.equal(Cmvn("utterance").apply(one_frame), torch.zeros(1, 4))


def test_input_is_left_alone():
    for kind in ("utterance", "speaker", "global"):
        x = ITEMS["a1"].clone()
        estimate(kind).apply(x, "a")
        assert torch.equal(x, ITEMS["a1"])


@pytest.mark.parametrize("kind", ["none", "utterance", "speaker", "global"])
def test_state_survives_a_checkpoint(tmp_path, kind):
    cmvn = estimate(kind)
    torch.save({"cmvn": cmvn.state_dict()}, tmp_path / "x.pt")
    again = Cmvn.from_state(torch.load(tmp_path / "x.pt", weights_only=True)["cmvn"])
    for speaker in ("a", "b", "new"):
        assert torch.equal(again.apply(ITEMS["b1"], speaker), cmvn.apply(ITEMS["b1"], speaker))


def test_nothing_to_estimate_from():
    with pytest.raises(DataError, match="no utterance with features"):
        Cmvn.estimate(cast(Any, Store({}, ["lost"])), [Spoken("lost", "b")], FeaturesConfig(cmvn="global"))
