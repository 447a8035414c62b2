"""Are two trainings the same, bit for bit? What differs between two checkpoints, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asr.train.checkpoint import load_checkpoint
from asr.train.run import FREE_ON_RESUME

# Clocks differ between any two runs, and settings may that do not change what is learnt; versions are no result.
ASIDE = {"training.counters.elapsed", "training.counters.seconds", "versions", *(f"recipe.{k}" for k in FREE_ON_RESUME)}


def compare_trainings(a: Path, b: Path, names: tuple[str, ...] = ("last.pt", "best.pt")) -> tuple[int, list[str]]:
    """Compare the checkpoints of two experiment folders: (values compared, one line for each that differs).

    A tensor is one value, whatever its size; it is equal if every bit is, NaN included.

    Raises:
        DataError: a checkpoint is missing or damaged.
    """
    count, lines = 0, []
    for name in names:
        left, right = _flat(load_checkpoint(a / name)), _flat(load_checkpoint(b / name))
        for key in {**left, **right}:
            count += 1
            if key not in left or key not in right:
                lines.append(f"{name}: {key}: in one of them only")
            elif difference := _difference(left[key], right[key]):
                lines.append(f"{name}: {key}: {difference}")
    return count, lines


def _flat(tree: Any, path: str = "") -> dict[str, Any]:
    if path in ASIDE:
        return {}
    if isinstance(tree, dict) or (isinstance(tree, (list, tuple)) and tree):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {k: v for key, value in items for k, v in _flat(value, f"{path}.{key}" if path else f"{key}").items()}
    return {path: tree}


def _difference(a: Any, b: Any) -> str:
    """Empty where there is none."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return "" if type(a) is type(b) and repr(a) == repr(b) else f"{a!r} and {b!r}"  # repr: NaN is equal to itself
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    if torch.equal(_bits(a), _bits(b)):
        return ""
    different = ~((a == b) | (a.isnan() & b.isnan()))
    apart = (a.double() - b.double()).abs()[different]
    return f"{len(apart)} of {a.numel()} numbers, by {float(apart.max()) if len(apart) else 0.0:.2g} at most"


def _bits(x: Tensor) -> Tensor:
    return x.contiguous().reshape(-1).view(torch.uint8)
