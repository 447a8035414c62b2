"""Recipe files: YAML with `extends` and command-line overrides → one checked `Recipe`, and back.

    recipe = load_recipe("recipes/an4/linear.yaml", ["training.optimiser.lr=1e-3", "model.encoder.attention.kind=lsh"])

Mappings merge key by key, everything else is replaced. A mapping that names another `kind` than the inherited one
replaces it whole, since the keys of one kind mean nothing to another. Where kind is all there is to say, its name will
do: `attention: lsh` is `attention: {kind: lsh}`. All overrides together are one such layer on top of the file, so
their order matters only where one key is given twice; they reach an item of a list by its place, `layers.0.repeat=2`.
A relative path is relative to the file that holds it, in an override to the current folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from asr.config import Config
from asr.errors import RecipeError
from asr.recipe import Recipe
from asr.recipe_errors import at, recipe_error
from asr.recipe_schema import complete, spell_out
from asr.train.checkpoint import decodable
from asr.yaml_tree import NUMBER, Mapping, Node, Scalar, parse_yaml, plain, read_yaml, tree_of
from asr.yaml_tree import Sequence as List

C = TypeVar("C", bound=Config)


def load_recipe(path: str | Path, overrides: Sequence[str] = (), check_files: bool = False) -> Recipe:
    """Read a recipe file; `overrides` are `key.sub=value`, the value in YAML.

    `name`, `exp` and `data.features` are always filled in, and every path is absolute. With `check_files` the data
    sets and the lexicon must exist.

    Raises:
        RecipeError: one line for each thing that is wrong, with file and line (or the override) and the key path.
    """
    path = Path(path)
    tree = _tree(Recipe, path, overrides)
    recipe = _located(_validate(Recipe, tree), path)
    if check_files and (missing := [at(tree, keys, problem) for keys, problem in _missing_files(recipe)]):
        raise RecipeError("\n".join(missing))
    return recipe


def load_config(root: type[C], path: str | Path, overrides: Sequence[str] = ()) -> C:
    """A file of the recipe's form that holds something else: `extends`, overrides and errors are the same.

    Raises:
        RecipeError: as `load_recipe`.
    """
    return _validate(root, _tree(root, Path(path), overrides))


def change_recipe(recipe: Recipe, overrides: Sequence[str], source: str = "recipe") -> Recipe:
    """The recipe with overrides as `load_recipe` takes them. `source` is what errors call the recipe itself.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree = tree_of(recipe_to_dict(recipe), source)
    assert isinstance(tree, Mapping)
    return _validate(Recipe, _overridden(Recipe, tree, overrides))


def dump_recipe(recipe: Recipe) -> str:
    """The whole tree with every default as YAML; `load_recipe` of it gives an equal recipe."""
    return yaml.dump(recipe_to_dict(recipe), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def recipe_to_dict(recipe: Recipe) -> dict[str, Any]:
    """The recipe as plain types (paths are strings), for checkpoints."""
    return recipe.model_dump(mode="json")


def recipe_from_dict(values: dict[str, Any], source: str = "recipe") -> Recipe:
    """The inverse of `recipe_to_dict`. `source` is what errors call the place it came from.

    Raises:
        RecipeError: as `load_recipe`.
    """
    tree = tree_of(values, source)
    if not isinstance(tree, Mapping):
        raise RecipeError(f"{source}: must be a mapping")
    return _validate(Recipe, complete(tree))


def _tree(root: type[Config], path: Path, overrides: Sequence[str]) -> Mapping:
    return _overridden(root, _read_extended(root, path, ()), overrides)


def _read_extended(root: type[Config], path: Path, above: tuple[Path, ...]) -> Mapping:
    """The file's tree on top of the file it extends. `above` are the files that led here."""
    tree = _spelled_out(root, read_yaml(path))
    node = tree.items.pop("extends", None)
    if node is None:
        return tree
    if not isinstance(node, Scalar) or not isinstance(node.value, str) or not node.value:
        raise RecipeError(f"{node.where}: extends: must be the name of one recipe file")
    base = Path(path.parent, node.value).expanduser()
    chain = (*above, path)
    if base.resolve() in [file.resolve() for file in chain]:
        names = " → ".join(file.name for file in (*chain, base))
        raise RecipeError(f"{node.where}: extends: the files extend each other in a circle: {names}")
    if not base.is_file():
        raise RecipeError(f"{node.where}: extends: no such file: {base}")
    return _merge(complete(_read_extended(root, base, chain), root), tree)


def _overridden(root: type[Config], tree: Mapping, overrides: Sequence[str]) -> Mapping:
    """The whole tree, completed, with overrides on top."""
    layer = Mapping("command line", {})
    for override in overrides:
        layer = _merge(layer, _override(root, override))
    return complete(_merge(complete(tree, root), layer) if layer.items else tree, root)


def _merge(base: Mapping, child: Mapping) -> Mapping:
    """`child` on top of `base`."""
    items = dict(base.items)
    for key, node in child.items.items():
        items[key] = _merged(items[key], node) if key in items else node
    return Mapping(child.where, items)


def _merged(old: Node, node: Node) -> Node:
    if isinstance(old, Mapping) and isinstance(node, Mapping) and not _other_kind(old, node):
        return _merge(old, node)
    if isinstance(old, List) and isinstance(node, Mapping) and node.items:
        places = {str(i): item for i, item in enumerate(old.items)}
        if set(node.items) <= set(places):
            return List(old.where, [_merged(item, node.items.get(i, item)) for i, item in places.items()])
        if beyond := [key for key in node.items if key.isdigit() and key not in places]:
            raise RecipeError(f"{node.where}: no item {beyond[0]} in the list, which has {len(places)}, counted from 0")
    return node


def _other_kind(base: Mapping, child: Mapping) -> bool:
    old, new = base.items.get("kind"), child.items.get("kind")
    return isinstance(old, Scalar) and isinstance(new, Scalar) and old.value != new.value


def _override(root: type[Config], text: str) -> Mapping:
    """`a.b=value` as the tree {a: {b: value}}."""
    where = f"override {text!r}"
    key, equals, value = text.partition("=")
    keys = key.strip().split(".")
    if not equals or not all(keys):
        raise RecipeError(f"{where}: write key.sub=value, for example training.epochs=3")
    if keys[0] == "extends":
        raise RecipeError(f"{where}: extends stands in a recipe file only")
    layer = Mapping(where, {keys[-1]: parse_yaml(value, where, Path.cwd(), where)})
    for part in reversed(keys[:-1]):
        layer = Mapping(where, {part: layer})
    return _spelled_out(root, layer)


def _spelled_out(root: type[Config], tree: Mapping) -> Mapping:
    spelled = spell_out(tree, root)
    assert isinstance(spelled, Mapping)
    return spelled


def _validate(root: type[C], tree: Mapping) -> C:
    try:
        return root.model_validate(plain(tree))
    except ValidationError as error:
        raise recipe_error(error, tree, root) from error


def _located(recipe: Recipe, path: Path) -> Recipe:
    """Fill in what follows from where the files lie: name, experiment folder, feature folder."""
    name = recipe.name or path.stem
    exp = recipe.exp or path.absolute().parent.resolve() / "exp" / name
    features = recipe.data.features or recipe.data.train.parent / "features"
    data = recipe.data.model_copy(update={"features": features})
    return recipe.model_copy(update={"name": name, "exp": exp, "data": data})


def _missing_files(recipe: Recipe) -> Iterator[tuple[tuple[str, ...], str]]:
    """(key path, problem) of each input file that is not there."""
    files: dict[tuple[str, ...], Path] = {("data", "train"): recipe.data.train, ("data", "dev"): recipe.data.dev}
    files |= {("data", "test", name): path for name, path in recipe.data.test.items()}
    if lexicon := getattr(recipe.tokens, "lexicon", None):
        files["tokens", "lexicon"] = lexicon
    init = recipe.training.init
    if init is not None and not decodable(init).is_file():
        yield ("training", "init"), f"neither an experiment folder with a best.pt nor a checkpoint: {init}"
    for keys, path in files.items():
        if not path.is_file():
            prepared = "" if path.parent.exists() else " (nor its folder: has the corpus been prepared?)"
            yield keys, f"{'not a file' if path.exists() else 'no such file'}: {path}{prepared}"


class _Dumper(yaml.SafeDumper):
    """Lists of scalars on one line; strings that our reader would take for numbers in quotes."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_list_of(self, data: list[Any]) -> yaml.Node:
        scalars = not any(isinstance(item, dict) for item in data)
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=scalars)


_Dumper.add_representer(list, _Dumper.represent_list_of)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", NUMBER, list("-+.0123456789"))
