"""What every section of a recipe has in common: unknown keys, wrong types and non-finite numbers are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Config(BaseModel):
    """Base of all recipe sections. Frozen, so that a recipe read is a recipe run."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, validate_default=True)


class LocatedStr(str):
    """A string that came out of a recipe file and remembers that file's folder.

    Relative paths in a recipe are relative to the file that holds them, also when another file extends it.
    """

    base: Path

    def __new__(cls, value: str, base: Path) -> LocatedStr:
        self = super().__new__(cls, value)
        self.base = base
        return self


def _to_path(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if not value:
        raise ValueError("an empty path")
    try:
        path = Path(str(value)).expanduser()
    except RuntimeError as error:  # ~user without a home
        raise ValueError(f"{error} ({value})") from error
    return Path(os.path.normpath(value.base / path)) if isinstance(value, LocatedStr) else path


RecipePath = Annotated[Path, BeforeValidator(_to_path)]
"""A path key of a recipe; see `LocatedStr` for what a relative path is relative to."""
