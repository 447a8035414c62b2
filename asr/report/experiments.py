"""What `asr compare` is given: experiment folders and recipes, as one list of models to put side by side."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from asr.errors import RecipeError
from asr.recipe import Recipe
from asr.recipe_loader import load_recipe, recipe_to_dict
from asr.report.log import read_log
from asr.train.run import resumable

# Nothing here changes what a training does.
REPORTING = (
    "name",
    "exp",
    "published",
    "scoring",
    "data.test",
    "data.workers",
    "data.features",
    "training.tensorboard",
    "training.ledger",
    "training.pictures",
    "training.save_minutes",
    "training.max_nonfinite",
)
# Where two models differ in one of these, or in their batches, their rates or times are not comparable.
SHARED = ("seed", "data", "tokens", "scoring", "training.device", "training.threads")
MISSING = "(absent)"


@dataclass(frozen=True)
class Experiment:
    """One model of a comparison; `recipe_file` is None where a folder was given, which is never trained."""

    name: str
    exp: Path
    recipe: Recipe
    recipe_file: Path | None
    overrides: tuple[str, ...] = ()

    @property
    def finished(self) -> bool:
        return (self.exp / "best.pt").is_file() and read_log(self.exp).finished

    @property
    def resumable(self) -> bool:
        return resumable(self.exp)

    @property
    def fixed_batch(self) -> bool:
        """Whether its recipe gives the frames per batch as a number."""
        return isinstance(self.recipe.training.batch_frames, int)

    def batch_frames(self, retrain: bool = False) -> int | None:
        """Padded frames per batch that it was or will be trained with; None: its training is still to find them."""
        training, saved = self.recipe.training, self.exp / "recipe.yaml"
        if training.batch_is_open and not retrain and saved.is_file() and (self.finished or self.resumable):
            training = load_recipe(saved).training
        return None if training.batch_is_open else training.frames_per_batch


def resolve(targets: Sequence[Path], overrides: Sequence[str] = ()) -> list[Experiment]:
    """Experiments of folders (or checkpoints in them) and recipe files, in the order given, with distinct names.

    Raises:
        RecipeError: a target is neither, two share an experiment folder, or overrides are given for a folder.
    """
    found = [_resolve(target, tuple(overrides)) for target in targets]
    seen: dict[Path, Path] = {}
    for target, one in zip(targets, found, strict=True):
        if one.exp in seen:
            raise RecipeError(
                f"{seen[one.exp]} and {target} share the experiment folder {one.exp}; give one of them `exp:`"
            )
        seen[one.exp] = target
    return [_told_apart(one, [other.exp for other in found if other.name == one.name]) for one in found]


def _told_apart(one: Experiment, exps: Sequence[Path]) -> Experiment:
    """With its folder, below what the folders of equal names have in common, in the name where that is not alone."""
    if len(exps) == 1:
        return one
    try:
        common = os.path.commonpath([exp.parent for exp in exps])
    except ValueError:  # Windows: several drives have nothing in common
        common = one.exp.anchor
    place = one.exp.relative_to(common)
    return replace(one, name=f"{one.name} ({place.as_posix()})")


def _resolve(target: Path, overrides: tuple[str, ...]) -> Experiment:
    if target.suffix == ".pt" or target.is_dir():
        exp = (target.parent if target.suffix == ".pt" else target).resolve()
        if not (exp / "recipe.yaml").is_file():
            raise RecipeError(f"{target}: no recipe.yaml in {exp}, so it is not an experiment folder")
        if overrides:
            raise RecipeError(
                f"{target}: {overrides[0]} changes nothing in a trained experiment; give its recipe instead"
            )
        recipe = load_recipe(exp / "recipe.yaml")
        return Experiment(recipe.name, exp, recipe, None)
    if not target.is_file():
        raise RecipeError(f"{target}: no such recipe or experiment folder")
    recipe = load_recipe(target, overrides)
    assert recipe.exp is not None  # load_recipe fills it
    return Experiment(recipe.name, recipe.exp.resolve(), recipe, target, overrides)


def changed_since_training(experiment: Experiment) -> list[str]:
    """Settings in which the recipe now differs from the one the folder was trained with: `key: then → now`."""
    saved = experiment.exp / "recipe.yaml"
    if experiment.recipe_file is None or not saved.is_file():
        return []
    then = load_recipe(saved)
    return differences(then, experiment.recipe.settled(then.training.found), leave_out=REPORTING)


def unfair(experiments: Sequence[Experiment], retrain: bool = False, own_batches: bool = False) -> list[str]:
    """Why some numbers of a comparison are not comparable, one line for each setting that should be shared.

    Args:
        retrain: all that have a recipe are trained anew.
        own_batches: a recipe with `training.batch_frames: auto` has batches of its own because that was asked for.
    """
    lines = []
    first, *others = experiments
    for other in others:
        found = differences(first.recipe, other.recipe, only=SHARED, leave_out=("data.features", "data.workers"))
        a, b = first.batch_frames(retrain), other.batch_frames(retrain)
        wanted = own_batches and not (first.fixed_batch and other.fixed_batch)
        if a != b and a is not None and b is not None and not wanted:
            found.append(f"training.batch_frames: {a} → {b}")
        lines += [f"{first.name} and {other.name} differ in {change}" for change in found]
    return lines


def differences(a: Recipe, b: Recipe, only: Iterable[str] = (), leave_out: Iterable[str] = ()) -> list[str]:
    """Dotted keys in which two recipes differ, as `key: value in a → value in b`."""
    left, right = dict(_flatten(recipe_to_dict(a))), dict(_flatten(recipe_to_dict(b)))
    lines = []
    for key in dict.fromkeys([*left, *right]):
        if (only and not _under(key, only)) or _under(key, leave_out):
            continue
        one, other = left.get(key, MISSING), right.get(key, MISSING)
        if one != other:
            lines.append(f"{key}: {one} → {other}")
    return lines


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _under(key: str, prefixes: Iterable[str]) -> bool:
    return any(key == prefix or key.startswith(f"{prefix}.") for prefix in prefixes)
