"""What is seen of a training while it runs: bars on a terminal; elsewhere a line of the log now and then.

Bars are on standard error alone, and only where that is a terminal that can be drawn on, so that a file or a cluster's
log never gets their control sequences. There, an epoch that takes long says every minute how far it is.
"""

from __future__ import annotations

import logging
import math
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column
from rich.text import Text

from asr.train.forecast import forecast, spell
from asr.train.measure import peak_memory_mb
from asr.train.state import State

LINE_EVERY = 60.0  # seconds
DRAW_EVERY = 0.5  # seconds: each drawing takes some milliseconds from the training

log = logging.getLogger("asr")


class Progress:
    """Two bars: epochs with the best dev PER, and steps of the current epoch with loss, speed and memory. A context
    manager.

    Args:
        shown: this process tells; with several, rank 0 alone.
    """

    def __init__(self, state: State, shown: bool = True) -> None:
        self._state, self._shown = state, shown
        console = Console(stderr=True)
        drawn = shown and sys.stderr.isatty() and not console.is_dumb_terminal
        self._lines = shown and not drawn
        bar = [BarColumn(40 if console.width >= 120 else 12)] if console.width >= 60 else []
        fixed = Column(no_wrap=True)  # what does not fit is cut from the note
        self._bars = Bars(
            TextColumn("{task.description}", table_column=fixed),
            *bar,
            MofNCompleteColumn(table_column=fixed),
            TextColumn("{task.fields[left]}", table_column=fixed),
            _Note(),
            console=console,
            disable=not drawn,
            transient=True,
            refresh_per_second=1 / DRAW_EVERY,
        )
        counters = state.counters
        self._epochs = self._bars.add_task(
            "epochs", total=state.recipe.training.epochs, completed=counters.epoch, left="", note=""
        )
        self._steps = self._bars.add_task("steps", total=None, left="", note="")
        self._of = 0
        self._said = self._drawn = time.monotonic()

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def epoch(self, steps: int) -> None:
        """An epoch of so many steps begins, or is gone on with."""
        counters = self._state.counters
        self._of, self._said = steps, time.monotonic()
        best = f"best dev PER {counters.best_per:.2f} % ({counters.best_epoch})" if counters.best_epoch else ""
        self._bars.update(self._epochs, completed=counters.epoch, note=best)
        self._bars.update(self._steps, total=steps, completed=counters.group, left="")

    def step(self) -> None:
        """A step was made."""
        if not self._shown:
            return
        now, counters = time.monotonic(), self._state.counters
        done = counters.group == self._of
        if self._lines:
            if now - self._said >= LINE_EVERY and not done:
                self._said = now
                self._say()
        elif done or now - self._drawn >= DRAW_EVERY:
            self._drawn = now
            self._draw(done)

    def _draw(self, done: bool) -> None:
        left = forecast(self._state, self._of)
        self._bars.update(self._epochs, left=_left(left.training))
        self._bars.update(
            self._steps, completed=self._state.counters.group, note=", ".join(self._numbers()),
            left="validating" if done else _left(left.epoch),
        )  # fmt: skip

    def _say(self) -> None:
        counters, left = self._state.counters, forecast(self._state, self._of)
        where = f"epoch {counters.epoch + 1}, step {counters.group} of {self._of}"
        times = f"; left: {spell(left.epoch or 0)} of the epoch, {spell(left.training or 0)} of the training"
        log.info("%s: %s%s", where, ", ".join(self._numbers()), times)

    def _numbers(self) -> list[str]:
        state, memory = self._state, peak_memory_mb(self._state.device)
        loss = state.counters.loss
        numbers = [] if math.isnan(loss) else [f"loss {loss:.3f}"]
        numbers.append(f"{state.frames_per_second:,.0f} frames/s")
        return numbers + ([f"{memory:,.0f} MB"] if memory is not None else [])


class _Note(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields["note"], no_wrap=True, overflow="ellipsis")


def _left(seconds: float | None) -> str:
    return "" if seconds is None else f"{spell(seconds)} left"
