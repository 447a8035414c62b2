"""What came of the trainings: a table, all curves as CSV, and the loss curves as PNG."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr.files import write_atomically
from asr.report.plots import Curve, plot_curves

SOLVED = 0.1  # nats: the table says after how many updates the loss of training stays below


@dataclass(frozen=True)
class Run:
    """One training; `result` is what `copying.training.train` returned."""

    model: str
    seed: int
    result: dict[str, Any]

    @property
    def solved(self) -> float | None:
        """The update from which the curve stays below SOLVED; None: it ends above."""
        above = [point["update"] for point in self.result["curve"] if not point["loss"] < SOLVED]
        later = [point["update"] for point in self.result["curve"] if not above or point["update"] > above[-1]]
        return later[0] if later else None


def write_report(runs: Sequence[Run], out: Path) -> str:
    """Write curves.csv, table.md and loss.png to `out`. Returns the table."""
    table = _table(runs)
    write_atomically(out / "table.md", table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "seed", "update", "loss", "accuracy", "lr"])
    for run in runs:
        for point in run.result["curve"]:
            writer.writerow([run.model, run.seed, *(point[key] for key in ("update", "loss", "accuracy", "lr"))])
    write_atomically(out / "curves.csv", text.getvalue())
    curves = [
        Curve(run.model, *([point[key] for point in run.result["curve"]] for key in ("update", "loss"))) for run in runs
    ]
    plot_curves(curves, "loss of the second half (nats per symbol)", out / "loss.png", xlabel="update")
    return table


def _table(runs: Sequence[Run]) -> str:
    """A row for each model: medians over the seeds, in brackets the least and the greatest."""
    solved = f"loss < {SOLVED} from update"
    head = ["model", "parameters", "seeds", "test loss", "test accuracy %", "whole %", solved, "ms/update"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for model in dict.fromkeys(run.model for run in runs):
        own = [run for run in runs if run.model == model]
        results = [run.result for run in own]
        cells = [
            model,
            f"{results[0]['parameters']:,}",
            str(len(own)),
            _spread([r["test_loss"] for r in results], "{:.2g}".format),
            _spread([100 * r["test_accuracy"] for r in results], "{:.2f}".format),
            _spread([100 * r["test_whole"] for r in results], "{:.1f}".format),
            _spread([float("inf") if run.solved is None else run.solved for run in own], _update),
            _spread([r["update_ms"] for r in results], "{:.1f}".format),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float], form: Callable[[float], str]) -> str:
    middle, low, high = (form(pick(values)) for pick in (statistics.median, min, max))
    return middle if low == high else f"{middle} [{low}, {high}]"


def _update(value: float) -> str:
    return "never" if value == float("inf") else f"{value:.0f}"
