"""`asr features`: compute the features of a recipe's sets ahead of its training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def features(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A recipe file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="For example training.speeds=[0.9,1.0,1.1]")
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="Only part I of N: the others elsewhere, or at the same time.")
    ] = "1/1",
) -> None:
    """Compute the features of all sets, or a part of them; a training computes what is then missing.

    Several machines that see the same data and feature folder (data.features) compute a part each. What is there
    already, whole, is not computed again: after a kill, start the same command.
    """
    from asr.recipe_loader import load_recipe
    from asr.train.features import compute_features
    from asr.wording import counted

    part = _shard(shard)
    for name, parts, missing in compute_features(load_recipe(recipe, overrides or (), check_files=True), part):
        print(f"{name}: {parts - missing} of {counted(parts, 'part')}", flush=True)


def _shard(text: str) -> tuple[int, int]:
    from asr.errors import UsageError

    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise UsageError(f"--shard {text}: I/N is expected with I from 1 to N, such as 1/4")
    return int(number), int(count)
