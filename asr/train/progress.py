"""Live progress on a terminal; where stderr is no terminal, the log's line per epoch is all there is."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Two bars: epochs, and steps of the current epoch with loss and speed."""

    def __init__(self, epochs: int, shown: bool = True) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not (shown and sys.stderr.isatty()),
            transient=True,
        )
        self._epochs = self._bars.add_task("epochs", total=epochs, note="")
        self._steps = self._bars.add_task("steps", total=None, note="")

    def __enter__(self) -> Progress:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def epoch(self, number: int, steps: int, done: int = 0) -> None:
        self._bars.update(self._epochs, completed=number - 1)
        self._bars.reset(self._steps, total=steps, completed=done)

    def step(self, loss: float, frames_per_second: float) -> None:
        self._bars.update(self._steps, advance=1, note=f"loss {loss:.3f}, {frames_per_second:,.0f} frames/s")
