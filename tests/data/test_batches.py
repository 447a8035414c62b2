"""Batches bounded by padded frames."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asr.data.batches import padded_frames, plan_batches
from asr.errors import DataError


@given(st.lists(st.integers(1, 500), max_size=80), st.integers(500, 2000), st.integers(0, 2**31), st.integers(0, 5))
def test_every_utterance_once_and_no_batch_above_the_limit(frames, limit, seed, epoch):
    plan = plan_batches(frames, limit, seed, epoch)
    assert sorted(i for batch in plan for i in batch) == list(range(len(frames)))
    assert all(max(frames[i] for i in batch) * len(batch) <= limit for batch in plan)


def test_F9_one_long_clip_among_short_ones():
    frames = [100] * 49 + [6000]
    plan = plan_batches(frames, 6000, seed=0, epoch=0)
    assert all(padded_frames(batch, frames) <= 6000 for batch in plan)
    assert plan[0] == [49]  # the worst case comes first
    with pytest.raises(DataError, match=r"1 utterance of .* a batch of 5000 frames cannot hold: long \(6000 frames\)"):
        plan_batches(frames, 5000, seed=0, epoch=0, ids=["x"] * 49 + ["long"])


def test_F9_epoch_0_begins_with_the_two_worst_batches():
    frames = np.random.RandomState(0).randint(20, 900, 500).tolist()
    plan = plan_batches(frames, 5000, seed=3, epoch=0)
    assert padded_frames(plan[0], frames) == max(padded_frames(batch, frames) for batch in plan)
    assert max(frames) in {frames[i] for i in plan[0] + plan[1]}


def test_utterance_without_frames_is_named():
    with pytest.raises(DataError, match=r"index 1 \(0 frames\)"):
        plan_batches([10, 0], 100, seed=0, epoch=0)


def test_a_function_of_seed_and_epoch():
    frames = np.random.RandomState(0).randint(20, 900, 300).tolist()
    plans = {(s, e): plan_batches(frames, 5000, s, e) for s in (0, 1) for e in (0, 1, 2)}
    assert plans[1, 2] == plan_batches(frames, 5000, 1, 2)
    members = [{frozenset(batch) for batch in plan} for plan in plans.values()]
    for i, left in enumerate(members):
        for right in members[i + 1 :]:
            assert len(left & right) < len(left) / 2  # not only the order changes


def test_little_padding():
    frames = np.random.RandomState(0).randint(100, 1500, 3000).tolist()
    plan = plan_batches(frames, 20000, seed=0, epoch=1)
    padded = sum(padded_frames(batch, frames) for batch in plan)
    assert padded < 1.1 * sum(frames)
    assert len(plan) < 1.2 * sum(frames) / 20000


def test_nothing_to_plan():
    assert plan_batches([], 100, seed=0, epoch=0) == []


def test_fast_enough_for_300000_utterances():
    frames = np.random.RandomState(0).randint(100, 3000, 300_000).tolist()
    begin = time.process_time()
    plan_batches(frames, 20000, seed=0, epoch=0)
    assert time.process_time() - begin < 3  # about 0.4 s; the slack is for busy machines
