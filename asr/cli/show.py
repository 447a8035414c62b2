"""`asr show`: a recipe with everything it inherits and every default."""

from __future__ import annotations

from pathlib import Path

import typer


def show(
    recipe: Path = typer.Argument(..., metavar="RECIPE", help="A recipe file."),
    overrides: list[str] | None = typer.Argument(
        None, metavar="KEY=VALUE", help="For example training.epochs=3 model.encoder.attention.kind=lsh"
    ),
    check_files: bool = typer.Option(False, "--check-files", help="Data sets and lexicon must exist."),
) -> None:
    """Print the resolved recipe: what `extends` brings in, overrides, every default, absolute paths."""
    from asr.recipe_loader import dump_recipe, load_recipe

    print(dump_recipe(load_recipe(recipe, overrides or (), check_files)), end="")
