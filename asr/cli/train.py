"""`asr train`: train one recipe."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Optional

import typer


def train(
    recipe: Annotated[Path, typer.Argument(help="Recipe file (YAML).")],
    overrides: Annotated[Optional[list[str]], typer.Argument(help="Changes to it: key.sub=value …")] = None,  # noqa: UP045
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the latest checkpoint of the experiment folder stands.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier training in that folder.")] = False,
    check_resume: Annotated[
        bool,
        typer.Option(
            "--check-resume",
            help="Train nothing, but prove on a few steps of this recipe that killed and resumed equals unbroken.",
        ),
    ] = False,
    find_batch: Annotated[
        bool,
        typer.Option(
            "--find-batch", help="Train nothing, but print the frames per batch that training.batch_frames=auto takes."
        ),
    ] = False,
) -> None:
    """Train a recipe; the experiment folder (key `exp`) holds everything that comes out of it.

    Exit code: 0 done, 1 failed (with --check-resume also: not exact), 2 a mistake in the recipe, 130 interrupted, after
    a checkpoint was saved.

    Several processes or machines: torchrun --nproc-per-node N -m asr train RECIPE, see docs/distributed.md.
    """
    from asr.errors import UsageError
    from asr.recipe_loader import load_recipe

    loaded = load_recipe(recipe, overrides or [], check_files=True)
    if find_batch:
        if resume or overwrite or check_resume:
            raise UsageError("--find-batch trains nothing: leave out the other options")
        from asr.train.prepare import find_batch as find
        from asr.train.world import this_rank

        frames = find(loaded)
        if this_rank() == 0:
            print(frames)
        return
    if check_resume:
        if int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise UsageError("--check-resume starts its own processes: call it without torchrun")
        if resume or overwrite:
            raise UsageError("--check-resume leaves the experiment alone: leave out --resume and --overwrite")
        from asr.train.check_resume import check_resume as check

        verdict = check(loaded, say=lambda line: typer.echo(f"check: {line}", err=True))
        print(verdict.text())
        raise typer.Exit(0 if verdict.exact else 1)
    from asr.train.loop import train as run
    from asr.train.world import this_rank

    folder = run(loaded, resume=resume, overwrite=overwrite)
    if this_rank() == 0:
        print(folder)
