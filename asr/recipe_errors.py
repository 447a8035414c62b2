"""Pydantic's findings as lines a user can act on: file, line, key path, what is due, what stands there."""

from __future__ import annotations

import difflib
import re
from typing import Literal, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from asr import recipe_schema as schema
from asr.config import Config
from asr.errors import RecipeError
from asr.recipe import Recipe
from asr.yaml_tree import NUMBER, Mapping, Node, Scalar, Sequence, find

_USUAL_NAMES = {"learning_rate": "lr", "d_model": "dim", "batch_size": "batch_frames"}
"""What other toolkits call a key, where spelling alone does not lead to ours."""
_USUAL_KINDS = {
    "mamba": "{kind: ssm, selective: true}",
    "performer": "{kind: linear, feature_map: favor}",
    "reformer": "{kind: lsh}",
    "longformer": "{kind: softmax, window: [16, 16]}",
    "retnet": "{kind: retention}",
    "conformer": "{kind: transformer, block: conformer, convolution: 31}",
    "bpe": "{kind: subwords, model: bpe}",
    "sentencepiece": "{kind: subwords}",
    "graphemes": "{kind: characters}",
}
"""What a kind is known as elsewhere."""


def recipe_error(error: ValidationError, tree: Mapping, root: type[Config] = Recipe) -> RecipeError:
    """One line for each finding, in the order of the recipe's sections; `root` is the class the tree is read as."""
    return RecipeError("\n".join(dict.fromkeys(_line(detail, tree, root) for detail in error.errors())))


def at(tree: Mapping, keys: tuple[str | int, ...], message: str) -> str:
    """`file:line: key.path: message`."""
    path = ".".join(map(str, keys))
    return f"{find(tree, keys).where}: {path}: {message}" if path else f"{find(tree, keys).where}: {message}"


def nearest(word: str, words: list[str], cutoff: float = 0.6) -> str | None:
    """The most similar of some words, if any is similar."""
    return next(iter(difflib.get_close_matches(word, words, n=1, cutoff=cutoff)), None)


def _line(detail: ErrorDetails, tree: Mapping, root: type[Config]) -> str:
    place = schema.resolve(detail["loc"], root)
    keys = place.keys
    match detail["type"]:
        case "extra_forbidden":
            section = schema.resolve(detail["loc"][:-1], root)
            prefix = ".".join(map(str, section.keys)) + ": " if section.keys else ""
            return f"{find(tree, keys).where}: {prefix}{_unknown_key(str(keys[-1]), section, tree, root)}"
        case "missing" if isinstance(keys[-1], int):  # an item of a list of fixed length
            return _wrong_value(schema.resolve(detail["loc"][:-1], root), tree)
        case "missing":
            return at(tree, keys, "is required and missing")
        case "union_tag_invalid" | "union_tag_not_found":
            names = [kind for section in schema.sections(place.annotation) for kind in schema.kinds(section)]
            found = find(tree, keys)
            if isinstance(found, Mapping) and "kind" not in found.items:
                return at(tree, keys, f"kind is required and missing; it is one of {', '.join(names)}")
            return _wrong_value(schema.Place((*keys, "kind"), Literal[tuple(names)]), tree)
        case "value_error":
            return at(tree, keys, detail["msg"].removeprefix("Value error, "))
        case _ if place.annotation is None:  # our types say nothing about it: pydantic's own words are all there is
            return at(tree, keys, detail["msg"])
        case _:
            return _wrong_value(place, tree)


def _wrong_value(place: schema.Place, tree: Mapping) -> str:
    node = find(tree, place.keys)
    hint = _hint(place, node)
    due = schema.describe(place.annotation, place.constraints)
    return at(tree, place.keys, f"must be {due}, got {_got(node)}" + (f"; {hint}" if hint else ""))


def _got(node: Node) -> str:
    if isinstance(node, Mapping):
        return "a mapping"
    if isinstance(node, Sequence):
        return f"a list of {len(node.items)}"
    if node.quoted:
        return f"the quoted string {node.text!r}"
    return repr(node.text) if isinstance(node.value, str) else node.text or "nothing"


def _hint(place: schema.Place, node: Node) -> str | None:
    types = schema.alternatives(place.annotation)
    if isinstance(node, Sequence) and schema.sections(place.annotation):
        return "write its keys without '-' before them"
    if not isinstance(node, Scalar):
        return None
    text = node.text
    choices = [str(choice) for a in types if get_origin(a) is Literal for choice in get_args(a)]
    if choices:
        usual = _USUAL_KINDS.get(nearest(text.lower(), list(_USUAL_KINDS), 0.8) or "", "")
        if any(f"kind: {choice}" in usual for choice in choices):
            return f"here that is {usual}"
        match = nearest(text, choices)
        return f"did you mean {match!r}?" if match else None
    for section in schema.sections(place.annotation):  # the bare name of a kind that one of its keys takes
        for key, field in section.model_fields.items():
            if text in (kind for inner in schema.sections(field.annotation) for kind in schema.kinds(inner)):
                return f"write {{{key}: {text}}}"
    if node.value is None:
        below = "indent what belongs to it, or " if schema.sections(place.annotation) else ""
        return None if place.required else f"{below}leave the key out to get its default"
    if schema.sections(place.annotation) and re.match(r"\w+( =|:\S)", text):
        return "a key, a colon, a space and a value are due"
    origins = [get_origin(t) for t in types]
    if dict in origins:
        return f"write {{{place.keys[-1]}: {text}}}"
    if list in origins and int not in types:
        return f"write [{text}]"
    if bool in types:
        words = {"true": ("yes", "on", "true", "1"), "false": ("no", "off", "false", "0")}
        return next((f"write {word}" for word, others in words.items() if text.lower() in others), None)
    if int in types or float in types:
        return _number_hint(node)
    if not isinstance(node.value, str) and any(t is str or t.__name__ == "Path" for t in types if isinstance(t, type)):
        return f"put it in quotes: '{text}'"
    return None


def _number_hint(node: Scalar) -> str | None:
    if node.quoted and NUMBER.fullmatch(node.text):
        return f"write {node.text} without quotes"
    if node.text.lower().lstrip("+-.") in ("inf", "nan") or node.value in (float("inf"), float("-inf")):
        return "write a finite number"
    if re.fullmatch(r"[-+]?[0-9]+,[0-9]+", node.text):
        return f"write {node.text.replace(',', '.')}"
    if share := re.fullmatch(r"([0-9.]+) ?%", node.text):
        return f"write {float(share[1]) / 100:g}"
    digits = node.text.replace("_", "")
    sign = "-" if digits.startswith("-") else ""
    digits = sign + (digits.lstrip("+-0") or "0")
    if isinstance(node.value, str) and NUMBER.fullmatch(digits):
        return f"write {digits}"
    if ":" in node.text:
        return "write one decimal number, without ':'"
    return None


def _unknown_key(key: str, section: schema.Place, tree: Mapping, root: type[Config]) -> str:
    """The message for a key its section does not have: a near name here, else where in the recipe it belongs."""
    message = f"unknown key {key!r}"
    if ":" in key:
        return f"{message}; a colon wants a space after it"
    here = list(section.annotation.model_fields)
    usual = nearest(key, list(_USUAL_NAMES), 0.8)
    names = {key, _USUAL_NAMES[usual]} if usual else {key}
    if near := next((name for name in here if name in names), None) or nearest(key, here):
        return f"{message}; did you mean {near!r}?"

    if kinds := [schema.kinds(other)[0] for other in section.among if names & set(other.model_fields)]:
        own = _got(find(tree, (*section.keys, "kind"))).strip("'")  # a class may stand for several kinds
        return f"{message} for kind: {own}; it belongs to kind: {' or '.join(kinds)}"
    if places := _places(names, root):
        labels = [f"{place} (kind: {kinds[0]})" if len(kinds) == 1 else place for place, kinds in places.items()]
        renamed = "" if usual is None else f" as {_USUAL_NAMES[usual]!r}"
        return f"{message}; it belongs under {' or '.join(labels)}{renamed}"

    everywhere = {name: [*place, (name, None)] for place, name in reversed(list(schema.every_key(root)))}
    if far := nearest(key, list(everywhere), 0.75):
        return f"{message}; did you mean {'.'.join(name for name, _ in everywhere[far])}?"
    return f"{message}; the keys here are {', '.join(here)}"


def _places(names: set[str], root: type[Config]) -> dict[str, list[str]]:
    """Sections that have a key of one of these names → the kinds they have it for (empty: they have no kinds)."""
    places: dict[str, list[str]] = {}
    for path, name in schema.every_key(root):
        if name in names and path:
            kinds = places.setdefault(".".join(key for key, _ in path), [])
            if path[-1][1] and path[-1][1] not in kinds:
                kinds.append(path[-1][1])
    return places
