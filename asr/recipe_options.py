"""`attention.rounds=1,2,4,8`: other options for a trained model, as overrides of its recipe.

`attention.KEY` reaches the mixers of all layers that have KEY; a whole key, such as `model.encoder.positions`, reaches
that one place. A mixer that is swapped for one of another kind keeps what both kinds have a key for (`causal`,
`shared_qk`, …), unless the options say otherwise: that belongs to what was trained, not to how it is run. What only
training uses is no option. `asr.recipe_changes` says which options make another function of the weights.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from asr.attention.config import AttentionConfig
from asr.attention.mixer import MixerConfig
from asr.encoder.config import BilstmConfig
from asr.errors import RecipeError
from asr.recipe import Recipe
from asr.recipe_loader import change_recipe, recipe_from_dict, recipe_to_dict
from asr.recipe_schema import section_of
from asr.yaml_tree import parse_yaml, plain

_IN_TRAINING = ("dropout", "layer_drop", "stochastic_depth", "redraw")
# A comma inside brackets or quotes belongs to the value.
_VALUE = re.compile(r"""(?:[^,\[{'"]|\[[^\]]*\]|\{[^}]*\}|'[^']*'|"[^"]*")+""")


def combinations(options: Sequence[str]) -> list[tuple[str, ...]]:
    """`a=1,2 b=3` as (a=1, b=3), (a=2, b=3); a key given twice has both its values.

    Raises:
        RecipeError: an option is not KEY=VALUE, its key lies outside the model, or it has no effect on a trained one.
    """
    values: dict[str, list[str]] = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"option {option!r}: write KEY=VALUE, for example attention.rounds=1,2,4,8")
        if key.split(".")[0] not in ("attention", "model"):
            raise RecipeError(f"option {option!r}: a trained model takes keys below attention. or model. only")
        if (last := key.strip().split(".")[-1]) in _IN_TRAINING:
            raise RecipeError(
                f"option {option!r}: {last} works in training only; a trained model does the same with any"
            )
        values.setdefault(key.strip(), []).extend(_VALUE.findall(value) or [value])
    choices = [[f"{key}={value}" for value in dict.fromkeys(map(str.strip, found))] for key, found in values.items()]
    return list(itertools.product(*choices)) if choices else []


def short(options: Sequence[str]) -> list[str]:
    """As in tables and file names: `rounds=8` for `attention.rounds=8`."""
    return [option.removeprefix("attention.") for option in options]


def with_options(recipe: Recipe, options: Sequence[str], source: str) -> Recipe:
    """A trained model's recipe with one combination of options.

    Raises:
        RecipeError: as `load_recipe`. `source` is what errors call the recipe.
    """
    swaps = [swap for option in options for whole in _whole_keys(recipe, option) if (swap := _swap(recipe, whole))]
    recipe = _swapped(recipe, dict(swaps), source)
    return change_recipe(recipe, [whole for option in options for whole in _whole_keys(recipe, option)], source)


def _mixer_places(recipe: Recipe) -> dict[str, MixerConfig]:
    """Where in the recipe a mixer stands."""
    encoder = recipe.model.encoder
    if isinstance(encoder, BilstmConfig):
        return {}
    places: dict[str, MixerConfig] = {}
    if encoder.attention is not None:
        places["model.encoder.attention"] = encoder.attention
    if isinstance(encoder.layers, list):
        own = {f"model.encoder.layers.{i}.attention": entry.attention for i, entry in enumerate(encoder.layers)}
        places |= {place: mixer for place, mixer in own.items() if mixer is not None}
    return places


def _whole_keys(recipe: Recipe, option: str) -> list[str]:
    """The overrides that an option is short for."""
    path, _, _ = option.partition("=")
    first, *rest = path.strip().split(".")
    if first != "attention":
        return [option]
    places = _mixer_places(recipe)
    having = [place for place, mixer in places.items() if not rest or rest[0] in type(mixer).model_fields]
    # Where no mixer has the key, one place is enough for an error that says so.
    having = having or [*places, "model.encoder.attention"][:1]
    return [place + option.strip().removeprefix("attention") for place in having]


def _swap(recipe: Recipe, override: str) -> tuple[str, str] | None:
    """(place of a mixer, kind) where an override names a mixer of another kind."""
    key, _, text = override.partition("=")
    place = key.removesuffix(".kind")
    value = plain(parse_yaml(text, override, Path.cwd(), f"option {override!r}"))
    kind = value.get("kind") if isinstance(value, dict) else value
    old = _mixer_places(recipe).get(place)
    new = section_of(AttentionConfig, kind)
    return (place, str(kind)) if old is not None and new is not None and new is not type(old) else None


def _swapped(recipe: Recipe, swaps: Mapping[str, str], source: str) -> Recipe:
    """Mixers of other kinds, with the keys that they have in common with those whose places they take."""
    values = recipe_to_dict(recipe)
    for place, kind in swaps.items():
        *path, last = place.split(".")
        holder: Any = values
        for part in path:
            holder = holder[int(part) if isinstance(holder, list) else part]
        new = section_of(AttentionConfig, kind)
        assert new is not None
        old = _mixer_places(recipe)[place]
        theirs = {key: field for key, field in type(old).model_fields.items() if key not in old.computing}
        kept = {
            key: value
            for key, value in holder[last].items()
            if key in theirs and key in new.model_fields and new.model_fields[key].annotation == theirs[key].annotation
        }
        holder[last] = {**kept, "kind": kind}
    return recipe_from_dict(values, source)
