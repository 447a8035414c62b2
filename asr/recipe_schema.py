"""What the recipe's types say about a key path: which section, which kinds, what a value must be."""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import Tag
from pydantic.fields import FieldInfo

from asr.config import Config
from asr.recipe import Recipe
from asr.yaml_tree import Mapping, Node, Scalar, Sequence


def alternatives(annotation: Any) -> list[Any]:
    """The members of a union, `Annotated` taken off."""
    return [member for member, _ in _members(annotation)]


def _members(annotation: Any, marks: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """(type, what `Annotated` says about it) of each member of a union."""
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        yield from _members(inner, (*marks, *more))
    elif get_origin(annotation) in (Union, types.UnionType):
        for part in get_args(annotation):
            yield from _members(part, marks)
    else:
        yield annotation, marks


def _tags(annotation: Any) -> list[str]:
    return [mark.tag for _, marks in _members(annotation) for mark in marks if isinstance(mark, Tag)]


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


def spell_out(node: Node, annotation: Any = Recipe) -> Node:
    """The tree with the bare name of a kind as what it is short for: `attention: lsh` is `attention: {kind: lsh}`."""
    classes = sections(annotation)
    if isinstance(node, Sequence):
        return replace(node, items=[spell_out(item, item_of(annotation)) for item in node.items])
    if isinstance(node, Mapping):
        kind = node.items.get("kind")
        chosen = section_of(annotation, kind.value) if isinstance(kind, Scalar) else None
        items = {}
        for key, value in node.items.items():
            found = [c.model_fields[key].annotation for c in ([chosen] if chosen else classes) if key in c.model_fields]
            inner = Union[tuple(found)] if found else item_of(annotation)  # noqa: UP007  # an item by its place
            items[key] = spell_out(value, inner)
        return Mapping(node.where, items)
    # Where the kind above is not known yet, a word may be the whole value for one of its kinds; `complete` comes later.
    whole = any(a is str or (get_origin(a) is Literal and node.value in get_args(a)) for a in alternatives(annotation))
    names = [name for c in classes for name in kinds(c)]
    if isinstance(node.value, str) and not whole and (node.value in names if _or_number(annotation) else names):
        return Mapping(node.where, {"kind": node})
    return node


def _or_number(annotation: Any) -> bool:
    """Whether a number may stand here; then a word that is no kind is rather a number in error."""
    return any(a in (int, float) for a in alternatives(annotation))


def item_of(annotation: Any) -> Any:
    """What the items of a list are; None where no list may stand."""
    return next((get_args(a)[0] for a in alternatives(annotation) if get_origin(a) in (list, tuple)), None)


def complete(tree: Mapping, section: type[Config] = Recipe) -> Mapping:
    """The tree with each left-out `kind` that has a default written in, and lists marked where tuples are due."""
    items = dict(tree.items)
    for key, node in tree.items.items():
        if field := section.model_fields.get(key):
            items[key] = _complete(node, field.annotation, field.default)
    return Mapping(tree.where, items)


def _complete(node: Node, annotation: Any, default: Any) -> Node:
    node = spell_out(node, annotation)
    if isinstance(node, Sequence):
        items = [_complete(item, item_of(annotation), None) for item in node.items]
        return Sequence(node.where, items, any(get_origin(a) is tuple for a in alternatives(annotation)))
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
    among: tuple[type[Config], ...] = ()  # where `kind` chose: all classes it chose among


def resolve(loc: tuple[str | int, ...], root: type[Config] = Recipe) -> Place:
    """The place that a pydantic error location below `root` means.

    Pydantic puts the chosen kind or tag of a union into its locations; it is no key and is taken out.
    """
    place = Place((), root)
    for part in loc:
        classes = sections(place.annotation)
        if len(classes) > 1:
            place = replace(place, annotation=section_of(place.annotation, part), among=tuple(classes))
        elif part in _tags(place.annotation):
            if chosen := next((a for a, marks in _members(place.annotation) if Tag(str(part)) in marks), None):
                place = replace(place, annotation=chosen) if sections(chosen) else place
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
    members = [(a, marks) for a, marks in _members(annotation) if a is not type(None)]
    short = _or_number(annotation)  # then the name of a kind is what most will write
    words = [_bounded(" or ".join(kinds(a)) if short and sections(a) else _describe(a), marks) for a, marks in members]
    optional = " or null" if type(None) in alternatives(annotation) else ""
    return _bounded(" or ".join(dict.fromkeys(words)), constraints) + optional


def _bounded(words: str, constraints: Iterable[Any]) -> str:
    plain = [part for one in constraints for part in (one.metadata if isinstance(one, FieldInfo) else [one])]
    bounds = [
        f"{sign} {bound if isinstance(bound, int) else format(bound, 'g')}"
        for constraint in plain
        for name, sign in _BOUNDS.items()
        if (bound := getattr(constraint, name, None)) is not None
    ]
    return f"{words} {' and '.join(bounds)}".rstrip()


def _describe(annotation: Any) -> str:
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return "one of " + ", ".join(map(str, args))
    if origin is tuple:
        numbers = all(member in (int, float) for member in alternatives(args[0]))
        return f"a list of {len(args)} {'numbers' if numbers else 'values'}"
    if origin is list:
        return "a list"
    if origin is dict or sections(annotation):
        return "a mapping"
    return _NAMES.get(annotation, "a value of another type")
