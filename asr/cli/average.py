"""`asr average`: one model from the weights of several epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def average(
    exp: Annotated[Path, typer.Argument(help="Experiment folder, trained with training.average best or last.")],
    best: Annotated[int | None, typer.Option(min=1, help="So many epochs, those of the lowest dev PER.")] = None,
    last: Annotated[int | None, typer.Option(min=1, help="So many epochs, the last that were kept.")] = None,
) -> None:
    """Average the weights of epochs into EXP/averaged.pt, which then decodes and is scored in place of best.pt.

    A training with training.average does so itself at its end; this makes it anew with another number.
    """
    from asr.errors import UsageError
    from asr.train.average import average_experiment

    if (best is None) == (last is None):
        raise UsageError("asr average: give either --best N or --last N")
    by: Literal["best", "last"] = "last" if best is None else "best"
    which = average_experiment(exp, best or last or 1, by)
    print(f"{exp / 'averaged.pt'}: {which}")
