"""`asr schema`: a JSON Schema of recipe files, with which editors complete keys and mark errors.

Write it once, and name it in the first line of a recipe; VS Code (YAML extension) and every editor that uses
yaml-language-server then complete keys, show defaults and underline mistakes:

    asr schema > recipe.schema.json

    # yaml-language-server: $schema=recipe.schema.json
    extends: base.yaml
"""

from __future__ import annotations

import json
from typing import Any


def schema() -> None:
    """Print a JSON Schema of recipe files, for completion in editors: `asr schema > recipe.schema.json`."""
    print(json.dumps(recipe_schema(), indent=2))


def recipe_schema() -> dict[str, Any]:
    """The schema of one file: no key is required, since `extends` may bring in any of them."""
    from asr.recipe import Recipe

    document = Recipe.model_json_schema()
    whole = _relaxed(document, document["$defs"])
    extends = {"type": "string", "description": "The recipe file this one is written on top of, relative to this file"}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **whole,
        "properties": {"extends": extends, **whole["properties"]},
    }


def _relaxed(node: Any, definitions: dict[str, Any]) -> Any:
    """Without `required`, and with `anyOf` where kind chooses: a file that leaves `kind` out may fit several.

    There the bare name of a kind will do as well.
    """
    if isinstance(node, list):
        return [_relaxed(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    chosen = [definitions[one["$ref"].split("/")[-1]] for one in node.get("oneOf", ()) if "$ref" in one]
    kinds = list(node.get("discriminator", {}).get("mapping", {}))
    kinds = kinds or [one["properties"]["kind"]["const"] for one in chosen]
    if kinds:
        node = {**node, "oneOf": [{"enum": kinds}, *node["oneOf"]]}
    renamed = {"oneOf": "anyOf"}
    unwanted = ("discriminator",) if "required" not in node else ("discriminator", "required")
    return {renamed.get(key, key): _relaxed(value, definitions) for key, value in node.items() if key not in unwanted}
