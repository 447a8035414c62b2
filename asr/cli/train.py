"""`asr train`: train one recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    overrides: Annotated[Optional[list[str]], typer.Argument(help="Changes to it: key.sub=value …")] = None,  # noqa: UP045
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the experiment folder's last.pt stands.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier training in that folder.")] = False,
) -> None:
    """Train a recipe; the experiment folder (key `exp`) holds everything that comes out of it."""
    from asr.recipe_loader import load_recipe
    from asr.train.loop import train as run

    print(run(load_recipe(recipe, overrides or [], check_files=True), resume=resume, overwrite=overwrite))
