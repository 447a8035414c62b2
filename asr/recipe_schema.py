"""What the recipe's types say about a key path: which section, which kinds, what a value must be."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from asr.config import Config
from asr.recipe import Recipe
from asr.yaml_tree import Mapping, Node, Scalar, Sequence


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, `Annotated` taken off."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [member for part in get_args(annotation) for member in alternatives(part)]
    return [annotation]


def sections(annotation: Any) -> list[type[Config]]:
    """The config classes a key may hold: several when `kind` chooses among them, none when it holds no section."""
    return [a for a in alternatives(annotation) if isinstance(a, type) and issubclass(a, Config)]


def kinds(section: type[Config]) -> tuple[str, ...]:
    """The values of `kind` that select a class; empty where it has no `kind`."""
    field = section.model_fields.get("kind")
    return get_args(field.annotation) if field else ()


def section_of(annotation: Any, kind: Any) -> type[Config] | None:
    """The config class that a mapping with this `kind` is read as."""
    classes = sections(annotation)
    return classes[0] if len(classes) == 1 else next((c for c in classes if kind in kinds(c)), None)


def complete(tree: Mapping, section: type[Config] = Recipe) -> Mapping:
    """The tree with each left-out `kind` that has a default written in, and lists marked where tuples are due."""
    items = dict(tree.items)
    for key, node in tree.items.items():
        if field := section.model_fields.get(key):
            items[key] = _complete(node, field.annotation, field.default)
    return Mapping(tree.where, items)


def _complete(node: Node, annotation: Any, default: Any) -> Node:
    if isinstance(node, Sequence):
        return Sequence(node.where, node.items, any(get_origin(a) is tuple for a in alternatives(annotation)))
    if not isinstance(node, Mapping) or not sections(annotation):
        return node
    if "kind" not in node.items and isinstance(kind := getattr(default, "kind", None), str):
        node = Mapping(node.where, {"kind": Scalar(node.where, kind, kind), **node.items})
    kind_node = node.items.get("kind")
    chosen = section_of(annotation, kind_node.value if isinstance(kind_node, Scalar) else None)
    return complete(node, chosen) if chosen else node


@dataclass(frozen=True)
class Place:
    """A value in a recipe, as its types see it."""

    keys: tuple[str | int, ...]
    annotation: Any = None  # None: the recipe has no such key
    constraints: tuple[Any, ...] = ()
    required: bool = True


def resolve(loc: tuple[str | int, ...]) -> Place:
    """The place that a pydantic error location means.

    Pydantic puts the chosen kind of a union into its locations; it is no key and is taken out.
    """
    place = Place((), Recipe)
    for part in loc:
        classes = sections(place.annotation)
        if len(classes) > 1:
            place = replace(place, annotation=section_of(place.annotation, part))
        elif classes:
            field = classes[0].model_fields.get(str(part))
            known = (field.annotation, tuple(field.metadata), field.is_required()) if field else ()
            place = Place((*place.keys, part), *known)
        else:
            inner = next((get_args(a)[-1] for a in alternatives(place.annotation) if get_args(a)), None)
            place = Place((*place.keys, part), inner)
    return place


def every_key(
    section: type[Config] = Recipe, path: tuple[tuple[str, str | None], ...] = ()
) -> Iterator[tuple[tuple[tuple[str, str | None], ...], str]]:
    """(section path, key) of all keys a recipe may hold; the path consists of (key, kind if that key has several)."""
    for key, field in section.model_fields.items():
        yield path, key
        classes = sections(field.annotation)
        for member in classes:
            yield from every_key(member, (*path, (key, kinds(member)[0] if len(classes) > 1 else None)))


_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", Path: "a path"}
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}


def describe(annotation: Any, constraints: Iterable[Any] = ()) -> str:
    """What a value must be, in words: `an integer >= 1`."""
    words = [_describe(a) for a in alternatives(annotation) if a is not type(None)]
    bounds = [
        f"{sign} {bound:g}"
        for constraint in constraints
        for name, sign in _BOUNDS.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    optional = " or null" if type(None) in alternatives(annotation) else ""
    return " ".join([" or ".join(dict.fromkeys(words)), " and ".join(bounds)]).rstrip() + optional


def _describe(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        return f"a list of {len(args)} {'numbers' if args[0] in (int, float) else 'values'}"
    if origin is list:
        return "a list"
    if origin is dict or sections(annotation):
        return "a mapping"
    return _NAMES.get(annotation, "a value of another type")
