"""The features that a recipe's training and evaluation read, computed ahead of them, on any number of machines."""

from __future__ import annotations

from collections.abc import Iterator

from asr.data.manifest import read_manifest
from asr.data.store_plan import StorePlan
from asr.recipe import Recipe
from asr.train.sets import plan_stores


def needed_stores(recipe: Recipe) -> Iterator[tuple[str, StorePlan]]:
    """Every set and speed, with what to call it. Raises DataError for a manifest in error."""
    for name, manifest in {"train": recipe.data.train, "dev": recipe.data.dev, **recipe.data.test}.items():
        training = name == "train"
        speeds = recipe.training.speeds if training else (1.0,)
        for speed, plan in plan_stores(recipe, read_manifest(manifest), training, speeds).items():
            yield name if speed == 1.0 else f"{name} at speed {speed:g}", plan


def compute_features(recipe: Recipe, shard: tuple[int, int] = (1, 1)) -> Iterator[tuple[str, int, int]]:
    """Compute what is missing in part I of N of every store; yields (what, parts, parts still missing).

    Raises:
        DataError: a manifest in error, or a disk that does not take them.
    """
    number, count = shard
    for name, plan in needed_stores(recipe):
        plan.compute(range(number - 1, plan.count, count), recipe.data.workers)
        yield name, plan.count, len(plan.missing())
