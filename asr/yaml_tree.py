"""YAML as a tree in which every key and value knows the file and line it came from.

Scalars follow YAML 1.2: `1e-4`, `1e4` and `.5` are numbers, `NO`, `on`, `012`, `1:30` and `1_000` are strings, only
`true` and `false` are booleans. Tags, aliases and duplicate keys are refused: nothing in a file can run code, grow
without bound or be dropped without a word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from asr.config import LocatedStr
from asr.errors import RecipeError

_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
NUMBER = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_LONGEST_NUMBER = 40  # characters; Python refuses to convert thousands of digits

_PROBLEMS = {
    "'\\t'": "a tab where YAML wants spaces",
    "mapping values are not allowed": "a key where none may stand: it is indented too far, or its value holds a ': ' "
    "and wants quotes",
    "expected <block end>": "indented as no line before it",
    "<stream end>": "a bracket that is not closed",
    "end of stream": "a quote that is not closed",
}
"""What PyYAML says of the usual slips, and the same in plain words."""


@dataclass(frozen=True)
class Scalar:
    where: str  # `file:line`, or the override's text
    text: str  # as written, without quotes
    value: Any  # None, bool, int, float or LocatedStr
    quoted: bool = False


@dataclass(frozen=True)
class Sequence:
    where: str
    items: list[Node]
    as_tuple: bool = False  # what the recipe's type wants, see recipe_schema.complete


@dataclass(frozen=True)
class Mapping:
    where: str
    items: dict[str, Node]


Node: TypeAlias = Scalar | Sequence | Mapping


def read_yaml(path: Path, label: str | None = None) -> Mapping:
    """The mapping in a YAML file. `label` is what errors call the file (default: the path).

    Raises:
        RecipeError: unreadable, not UTF-8, invalid YAML, empty, not a mapping, a duplicate key, a tag or an alias.
    """
    label = label or str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise RecipeError(f"{label}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecipeError(f"{label}: not UTF-8 (byte {error.start}); save it as UTF-8") from error
    tree = parse_yaml(text, label, path.absolute().parent.resolve())
    if isinstance(tree, Scalar) and tree.value is None:
        raise RecipeError(f"{label}:1: the file is empty; a recipe is a mapping such as `data: {{train: …}}`")
    if not isinstance(tree, Mapping):
        kind = "list" if isinstance(tree, Sequence) else "single value"
        raise RecipeError(f"{label}:1: a {kind} at the top; a recipe is a mapping of `key: value` lines")
    return tree


def parse_yaml(text: str, label: str, folder: Path, where: str | None = None) -> Node:
    """YAML text → tree; strings in it remember `folder`. `where` replaces `label:line` (for text without lines).

    Raises:
        RecipeError: see `read_yaml`.
    """
    builder = _Builder(label, folder, where)
    try:
        node = yaml.compose(text, Loader=_Loader)
        return Scalar(builder.at(None), "", None) if node is None else builder.build(node, builder.at(node), ())
    except yaml.MarkedYAMLError as error:
        problem, mark = error.problem or error.context or "cannot be parsed", error.problem_mark
        if plain_words := next((words for part, words in _PROBLEMS.items() if part in problem), None):
            problem = plain_words
        if "not closed" in problem:  # found missing at the end of the file
            mark = error.context_mark or mark
        raise RecipeError(f"{builder.at(mark)}: invalid YAML: {problem}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise RecipeError(
            f"{where or f'{label}:{line}'}: invalid YAML: character {error.character!r} is not allowed"
        ) from error
    except RecursionError as error:
        raise RecipeError(f"{where or label}: invalid YAML: nested too deeply") from error


def plain(node: Node) -> Any:
    """The tree as dicts, lists (tuples where marked) and scalars."""
    if isinstance(node, Mapping):
        return {key: plain(value) for key, value in node.items.items()}
    if isinstance(node, Sequence):
        return (tuple if node.as_tuple else list)(plain(item) for item in node.items)
    return node.value


def tree_of(value: Any, where: str) -> Node:
    """Dicts, lists and scalars as a tree, for values that did not come out of a file."""
    if isinstance(value, dict):
        return Mapping(where, {str(key): tree_of(item, where) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return Sequence(where, [tree_of(item, where) for item in value])
    return Scalar(where, str(value), value)


def find(tree: Node, keys: Iterable[str | int]) -> Node:
    """The node at a key path, or the nearest one above it."""
    for key in keys:
        if isinstance(tree, Mapping) and key in tree.items:
            tree = tree.items[str(key)]
        elif isinstance(tree, Sequence) and isinstance(key, int) and key < len(tree.items):
            tree = tree.items[key]
        else:
            break
    return tree


def scalar_value(text: str) -> bool | int | float | str | None:
    """What an unquoted scalar means. Whole numbers are integers, also when written `1e4`: that fits both types."""
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if len(text) > _LONGEST_NUMBER or not NUMBER.fullmatch(text):
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


class _Loader(yaml.SafeLoader):
    """Composes nodes only. Plain scalars keep the tag `plain`, so that any other tag was written by hand."""

    def resolve(self, kind: type, value: Any, implicit: Any) -> str:
        return "plain" if kind is yaml.ScalarNode and implicit[0] else "untagged"

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            raise yaml.MarkedYAMLError(
                None, None, f"alias *{event.anchor}: write the value out, or use `extends`", event.start_mark
            )
        return super().compose_node(parent, index)


class _Builder:
    def __init__(self, label: str, folder: Path, where: str | None) -> None:
        self.label, self.folder, self.where = label, folder, where

    def at(self, place: yaml.Node | yaml.Mark | None) -> str:
        mark = place.start_mark if isinstance(place, yaml.Node) else place
        return self.where or f"{self.label}:{mark.line + 1 if mark else 1}"

    def build(self, node: yaml.Node, where: str, keys: tuple[str, ...]) -> Node:
        """`where` is the line of the key that holds the node, which is where a user looks for it."""
        if node.tag not in ("plain", "untagged"):
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")
            raise RecipeError(f"{self.at(node)}: {_path(keys)}YAML tags such as {tag} are not allowed")
        if isinstance(node, yaml.ScalarNode):
            value = scalar_value(node.value) if node.tag == "plain" else node.value
            if isinstance(value, str):
                value = LocatedStr(value, self.folder)
            return Scalar(where, node.value, value, quoted=node.tag != "plain")
        if isinstance(node, yaml.SequenceNode):
            return Sequence(where, [self.build(item, self.at(item), keys) for item in node.value])
        items: dict[str, Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise RecipeError(f"{self.at(key)}: {_path(keys)}a key must be a single word, not a list or mapping")
            path = (*keys, key.value)
            if key.value in items:
                raise RecipeError(f"{self.at(key)}: {_path(path)}given twice, first at {items[key.value].where}")
            items[key.value] = self.build(value, self.at(key), path)
        return Mapping(where, items)


def _path(keys: tuple[str, ...]) -> str:
    return ".".join(keys) + ": " if keys else ""
