"""What options make of a trained model: the function its weights were fitted to, or another one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from asr.config import Config
from asr.encoder.config import ModelConfig, TransformerConfig


def changes(trained: ModelConfig, run: ModelConfig) -> list[str]:
    """In what a model is run as another function than its weights were fitted to: `key: then → now`.

    More rounds of LSH attention come nearer to the same function and are no change; making softmax causal is one.
    """
    lines = _different(_own(trained.frontend), _own(run.frontend), "frontend.")
    lines += _different(_own(trained.encoder), _own(run.encoder))
    if isinstance(trained.encoder, TransformerConfig) and isinstance(run.encoder, TransformerConfig):
        for old, new in zip(trained.encoder.mixers, run.encoder.mixers, strict=False):
            then, now = old.meaning(), new.meaning()
            if old.kind == new.kind and then["kind"] != now["kind"]:  # as favor, which means softmax, and another map
                then, now = old.model_dump(), new.model_dump()
            elif then != now and old.kind != new.kind:
                lines.append(f"attention: {old.kind} → {new.kind}")
                then["kind"] = now["kind"]  # that is said
            lines += _different(then, now)
    return list(dict.fromkeys(lines))


def _own(section: Config) -> dict[str, Any]:
    """Without the mixers, which are compared one by one."""
    return section.model_dump(exclude={"attention", "layers"})


def _different(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Of the keys that both have."""
    return [
        f"{prefix}{key}: {_text(then[key])} → {_text(now[key])}" for key in then if key in now and then[key] != now[key]
    ]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
