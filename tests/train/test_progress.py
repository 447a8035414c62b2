"""What is seen of a training while it runs: bars on a terminal, else a line now and then, and how long it takes."""

from __future__ import annotations

import io
import logging
import math
import re
import sys
from types import SimpleNamespace

import pytest
import torch

from asr.train import progress
from asr.train.forecast import Forecast, forecast, spell
from asr.train.progress import Progress

CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def a_state(epoch=4, group=30, epochs=10, max_minutes=None, elapsed=400.0, here=60.0):
    """In its fifth epoch, whose 30 steps took 60 s; each of those before took 100 s in all."""
    training = SimpleNamespace(epochs=epochs, max_minutes=max_minutes)
    counters = SimpleNamespace(epoch=epoch, group=group, loss=1.2345, best_per=12.345, best_epoch=3, elapsed=elapsed)
    return SimpleNamespace(
        counters=counters, recipe=SimpleNamespace(training=training), device=torch.device("cpu"), train_seconds=here,
        seconds={"forward": here}, elapsed=elapsed + here, frames_per_second=12345.6,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("state", "wanted"),
    [
        (a_state(), (20, 40 + 5 * 100)),  # 20 s of steps, and the validation that the others had too
        (a_state(epoch=0, elapsed=0.0), (20, 80 * 10 - 60)),  # the first: as long as its steps
        (a_state(max_minutes=15), (20, 40 + 4 * 100)),  # 900 s: passed by the ninth epoch, after which 900 are spent
        (a_state(max_minutes=15.01), (20, 40 + 5 * 100)),
        (a_state(max_minutes=8), (20, 40)),  # this is the last
        (a_state(epoch=9, elapsed=900.0), (20, 40)),
        (a_state(group=40, here=130.0), (32.5, 32.5 + 5 * 100)),  # slower than those before
        (a_state(group=0, here=0.0), (None, None)),
    ],
)
def test_how_long_it_will_take(state, wanted):
    steps = 50 if state.counters.group == 40 else 40
    assert forecast(state, steps) == (Forecast(*wanted) if wanted[0] is None else pytest.approx(wanted))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "0 s"), (99, "99 s"), (100, "2 min"), (5900, "98 min"), (6000, "1 h 40 min"), (11100, "3 h 05 min"),
        (47.99 * 3600, "47 h 59 min"), (55 * 3600, "2 d 7 h"),
    ],
)  # fmt: skip
def test_times_in_words(seconds, text):
    assert spell(seconds) == text


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def steps_of(shown, clock, state, seconds, count=40):
    for step in range(1, count + 1):
        clock.now += seconds
        state.counters.group = step
        shown.step()


def test_a_file_gets_a_line_a_minute_of_a_long_epoch_and_nothing_of_a_short_one(clock, caplog, monkeypatch):
    monkeypatch.setattr("sys.stderr", io.StringIO())
    monkeypatch.setenv("FORCE_COLOR", "1")  # as some build servers set it
    state = a_state(group=0)
    caplog.set_level(logging.INFO, "asr")
    with Progress(state) as shown:
        shown.epoch(40)
        steps_of(shown, clock, state, seconds=1)
        assert caplog.messages == []
        shown.epoch(40)
        steps_of(shown, clock, state, seconds=7)
    assert len(caplog.messages) == 280 // 63
    assert re.fullmatch(
        r"epoch 5, step 9 of 40: loss 1\.234, 12,346 frames/s, [\d,]+ MB; "
        r"left: 3 min of the epoch, \d+ min of the training",
        caplog.messages[0],
    )
    assert sys.stderr.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


def on_a_terminal(clock, monkeypatch, width, **environment):
    """What is drawn of an epoch in which a message comes up."""
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"TERM": "xterm-256color", "COLUMNS": str(width), **environment}.items():
        monkeypatch.setenv(name, value)
    state = a_state(group=0)
    with Progress(state) as shown:
        shown.epoch(40)
        shown.step()
        steps_of(shown, clock, state, seconds=7, count=30)
        shown._bars.refresh()
    return terminal.getvalue()


def test_bars_on_a_terminal(clock, monkeypatch):
    drawn = on_a_terminal(clock, monkeypatch, 120)
    lines = CONTROL.sub("", drawn).replace("\r", "\n").splitlines()
    (epochs,) = {line.strip() for line in lines if line.startswith("epochs") and "left" in line}
    assert re.fullmatch(r"epochs ━.*━  4/10 9 min left best dev PER 12\.35 % \(3\)", epochs)
    steps = [line.strip() for line in lines if line.startswith("steps") and "30/40" in line]
    assert re.fullmatch(r"steps  ━.*━ 30/40 20 s left  loss 1\.234, 12,346 frames/s, [\d,]+ MB", steps[-1])
    assert re.search(r"\x1b\[[0-9;]*3\dm|\x1b\[38;", drawn), "in colour"


def test_no_color_is_heeded_and_a_narrow_terminal_keeps_the_numbers_that_matter(clock, monkeypatch):
    drawn = on_a_terminal(clock, monkeypatch, 44, NO_COLOR="1")
    assert not re.search(r"\x1b\[[0-9;]*3\dm|\x1b\[38;", drawn)
    lines = CONTROL.sub("", drawn).replace("\r", "\n").splitlines()
    assert max(map(len, lines)) <= 44
    assert any(re.match(r"steps  30/40 20 s left  loss 1\.234,", line) for line in lines)
    assert any(re.match(r"epochs  4/10 9 min left best dev PER", line) for line in lines)


def test_a_terminal_that_cannot_draw_gets_lines(clock, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "asr")
    assert on_a_terminal(clock, monkeypatch, 80, TERM="dumb") == ""
    assert len(caplog.messages) == 210 // 63


def test_other_ranks_are_silent_and_a_loss_that_is_none_is_left_out(clock, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "asr")
    monkeypatch.setattr("sys.stderr", Terminal())
    state = a_state(group=0)
    with Progress(state, shown=False) as shown:
        shown.epoch(40)
        steps_of(shown, clock, state, seconds=70)
    assert caplog.messages == []
    assert sys.stderr.getvalue() == ""
    state.counters.loss = math.nan  # no step was finite yet
    assert Progress(state)._numbers()[0] == "12,346 frames/s"
