"""The sets of utterances that a trained model is tried on: which there are, and their features and targets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from asr.errors import DataError
from asr.recipe import Recipe
from asr.recogniser import Recogniser
from asr.train.sets import LoadedSet, load_set


def choose_sets(recipe: Recipe, sets: Sequence[str] | None, manifests: Sequence[Path]) -> dict[str, Path]:
    """Manifests by the name of their set.

    Args:
        sets: `dev`, names of test sets, or `all`; None: all test sets, or dev where the recipe has none.
        manifests: further sets, named after their file's stem.

    Raises:
        DataError: an unknown set, or two of the same name.
    """
    known = {"dev": recipe.data.dev, **recipe.data.test}
    if sets is None:
        sets = [] if manifests else list(recipe.data.test) or ["dev"]
    chosen = dict(known) if "all" in sets else {}
    for name in sets:
        if name not in (*known, "all"):
            raise DataError(f"no set {name!r} in the recipe; there are {', '.join(known)} (and all)")
        if name != "all":
            chosen[name] = known[name]
    for manifest in manifests:
        if manifest.stem in chosen:
            raise DataError(f"{manifest}: there is another set {manifest.stem!r}; rename the file")
        chosen[manifest.stem] = manifest
    return chosen


@contextmanager
def open_set(recogniser: Recogniser, name: str, manifest: Path) -> Iterator[LoadedSet]:
    """A manifest with features as the model was trained on, in its feature store or, on another machine, for a while.

    Raises:
        DataError: as `asr.train.sets.load_set`.
    """
    recipe = recogniser.recipe
    with ExitStack() as stack:
        if recipe.data.features is None or not recipe.data.features.parent.is_dir():  # moved to another machine
            features = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"features": features})})
        yield load_set(recipe, name, manifest, recogniser.tokens, recogniser.cmvn)
