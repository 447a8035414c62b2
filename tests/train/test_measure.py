"""The stopwatch on a GPU, with events that a test lets happen."""

from __future__ import annotations

import time

import pytest
import torch

from asr.train.measure import Stopwatch


class Event:
    """Of a GPU that has done what `reached` says: the time of an event is its number, in ms."""

    made, reached = 0, 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self, stream):
        Event.made += 1
        self.at = Event.made

    def query(self):
        return self.at <= Event.reached

    def synchronize(self):
        Event.reached = max(Event.reached, self.at)

    def elapsed_time(self, end):
        assert end.query()
        return float(end.at - self.at) * 10


@pytest.fixture
def watch(monkeypatch):
    Event.made = Event.reached = 0
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    return Stopwatch(torch.device("cuda"))


def test_a_gpu_is_not_waited_for(watch):
    for name in ("forward", "backward", "forward"):
        with watch(name):
            pass
    assert dict(watch.seconds) == {}
    Event.reached = 3  # within the second stretch
    with watch("optimiser"):
        pass
    assert dict(watch.seconds) == {"forward": 0.01}
    watch.settle()
    assert dict(watch.seconds) == {"forward": 0.02, "backward": 0.01, "optimiser": 0.01}
    watch.settle()
    assert watch.seconds["forward"] == 0.02


def test_on_a_cpu_the_time_is_there_at_once():
    watch = Stopwatch(torch.device("cpu"))
    with watch("data"):
        time.sleep(0.01)
    watch.settle()
    assert 0.01 <= watch.seconds["data"] < 5
