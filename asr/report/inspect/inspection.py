"""`asr inspect`: looks into a trained model while it hears some utterances, and writes down what it finds."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from asr.attention.linear import LinearAttention
from asr.attention.lsh import LshAttention
from asr.errors import DataError, UsageError
from asr.files import write_atomically
from asr.recogniser import Recogniser
from asr.report.inspect.ctc import CtcCounts, count_ctc, spikes_of, summarise_ctc
from asr.report.inspect.implied import queries_keys
from asr.report.inspect.layers import Layer, layers_of, run_through
from asr.report.inspect.linear import normaliser, state_rank, summarise_linear
from asr.report.inspect.lsh import Meetings, meetings, summarise_lsh
from asr.report.inspect.maps import ImpliedMap, MapNumbers, implied_map, map_numbers, summarise_maps
from asr.report.inspect.memory import memory_frames, summarise_memory
from asr.report.inspect.pictures import Heard, ctc_figure, map_figure, save
from asr.report.listing import other_function
from asr.report.sets import choose_sets, open_set
from asr.train.run import pick_device
from asr.train.sets import LoadedSet

UTTERANCES = 4  # of a set, where none are named: its first

log = logging.getLogger(__name__)


def inspect(
    exp: str | Path,
    *,
    set_name: str = "dev",
    utterances: Sequence[str] = (),
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    out: Path | None = None,
    device: str = "auto",
    options: Sequence[str] = (),
) -> dict[str, Any]:
    """Measure a model on some utterances, draw the first of them (all that are named); returns inspect.json's content.

    Numbers are over all utterances together, so that a long one counts for more. Lists of numbers are by head.

    Args:
        exp: experiment folder, or a checkpoint in it.
        set_name: `dev` or a test set of the recipe.
        utterances: their ids; none: the set's first four.
        layers, heads: from 1, those to draw; none: all.
        out: folder of inspect.json and the pictures; None: `inspect` in the experiment folder.
        options: what the model should do otherwise than it was trained; see `asr.recipe_options`.

    Raises:
        DataError: unknown set or utterance, a damaged checkpoint, or weights that are not finite.
        UsageError: there is no such layer or head.
    """
    recogniser = Recogniser.load(exp, device=pick_device(device), options=options)
    if recogniser.changes:
        log.warning("%s: %s", " ".join(options), other_function(recogniser.changes))
    check_finite(recogniser, exp)
    recogniser.model.requires_grad_(False)  # only gradients of inputs are wanted
    if set_name == "all":
        raise UsageError("--set: name one set; `all` is for asr evaluate")
    chosen = choose_sets(recogniser.recipe, [set_name], ())
    folder = out or (Path(exp).parent if Path(exp).is_file() else Path(exp)) / "inspect"
    found = [Findings(layer) for layer in layers_of(recogniser.model)]
    _check_chosen(found, layers, heads)
    counts = []
    with open_set(recogniser, set_name, chosen[set_name]) as data:
        rows = _rows(data, set_name, utterances)
        for row in rows:
            log.info("inspecting %s", data.ids[row])
            draw = folder if utterances or row == rows[0] else None
            counts.append(_inspect_utterance(recogniser, data, row, found, draw, layers, heads))
    hop_ms = recogniser.recipe.features.hop_ms
    frame_ms = hop_ms * recogniser.model.frontend.factor
    result = {
        "model": recogniser.recipe.name,
        "options": list(options),
        "changes": recogniser.changes,
        "set": set_name,
        "utterances": [{"id": data.ids[row], "seconds": data.frames[row] * hop_ms / 1000} for row in rows],
        "frame_ms": frame_ms,
        "ctc": summarise_ctc(counts, frame_ms),
        "layers": [one.summary(frame_ms) for one in found],
    }
    result = _plain(result)
    write_atomically(folder / "inspect.json", json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    return result


@dataclass
class Findings:
    """What was measured of one layer, an entry for each utterance."""

    layer: Layer
    method: str = ""
    maps: list[MapNumbers] = field(default_factory=list)
    meetings: list[Meetings] = field(default_factory=list)
    normalisers: list[Tensor] = field(default_factory=list)
    ranks: list[Tensor] = field(default_factory=list)
    memories: list[Tensor] = field(default_factory=list)

    def add(self, x: Tensor) -> ImpliedMap:
        """Measure the layer on its input for an utterance, (1, time, dim)."""
        mixer = self.layer.module
        one = implied_map(self.layer, x)
        self.method = one.method
        self.maps.append(map_numbers(one))
        qk = queries_keys(self.layer, x)
        if isinstance(mixer, LshAttention) and qk is not None:
            self.meetings.append(meetings(mixer, qk))
        if isinstance(mixer, LinearAttention) and qk is not None:
            _append(self.normalisers, normaliser(mixer, qk, x))
        _append(self.ranks, state_rank(self.layer, qk, x))
        _append(self.memories, memory_frames(self.layer, x))
        return one

    def summary(self, frame_ms: float) -> dict[str, Any]:
        mixer = self.layer.module
        return {
            "layer": self.layer.number,
            "direction": self.layer.direction,
            "mixer": self.layer.kind,
            "map": summarise_maps(self.maps, self.method, frame_ms),
            "lsh": summarise_lsh(self.meetings, mixer) if isinstance(mixer, LshAttention) else None,
            "linear": summarise_linear(self.normalisers, self.ranks) if self.normalisers or self.ranks else None,
            "memory_ms": summarise_memory(self.memories, frame_ms) if self.memories else None,
        }


def check_finite(recogniser: Recogniser, exp: str | Path) -> None:
    """Raises DataError naming the first weight that holds NaN or infinity."""
    for name, weight in recogniser.model.state_dict().items():
        if isinstance(weight, Tensor) and weight.is_floating_point() and not weight.isfinite().all():
            raise DataError(
                f"{exp}: {int((~weight.isfinite()).sum())} values of {name} are NaN or infinite, nothing to inspect; "
                "the training diverged: train anew with a lower learning rate"
            )


def _inspect_utterance(
    recogniser: Recogniser,
    data: LoadedSet,
    row: int,
    found: Sequence[Findings],
    folder: Path | None,
    layers: Sequence[int],
    heads: Sequence[int],
) -> CtcCounts:
    """Measure every layer on one utterance; draw it into a folder, if there is one."""
    heard, log_probs, inputs = hear(recogniser, data, row, [one.layer for one in found])
    stem, blank = file_stem(heard.id), recogniser.tokens.blank
    if folder:
        save(ctc_figure(heard, log_probs, recogniser.tokens.symbols, blank), folder / f"{stem}-ctc.png")
    for findings, x in zip(found, inputs, strict=True):
        one, layer = findings.add(x), findings.layer
        if folder and (not layers or layer.number in layers):
            name = "-".join([stem, f"layer{layer.number}", *([layer.direction] if layer.direction else [])])
            drawn = heads if len(one.shares) > 1 and heads else None
            save(map_figure(heard, one, map_title(heard, layer, one), drawn), folder / f"{name}.png")
    return count_ctc(log_probs, blank, heard.seconds, len(data.targets[row]))


def hear(
    recogniser: Recogniser, data: LoadedSet, row: int, layers: Sequence[Layer]
) -> tuple[Heard, Tensor, list[Tensor]]:
    """Run the model over one utterance: what was heard, log-probabilities (time, tokens), the layers' inputs."""
    hop = recogniser.recipe.features.hop_ms / 1000
    features = data.batch([row]).features[0]
    log_probs, inputs = run_through(recogniser.model, layers, features.to(recogniser.device))
    log_probs = log_probs.cpu()
    spans = recogniser.spans(spikes_of(log_probs, recogniser.tokens.blank), len(features))
    return Heard(data.ids[row], features, hop, hop * recogniser.model.frontend.factor, spans), log_probs, inputs


def file_stem(id: str) -> str:
    """The id without what some system would not allow in a file's name."""
    return re.sub(r"[^\w.=+-]", "_", id)


def map_title(heard: Heard, layer: Layer, one: ImpliedMap) -> str:
    return f"{heard.id}: layer {layer.label}, {layer.kind}, {METHODS[one.method]}"


METHODS = {"values": "weights on values", "jacobian": "size of the Jacobian"}


def _rows(data: LoadedSet, set_name: str, ids: Sequence[str]) -> list[int]:
    if not ids:
        return list(range(min(UTTERANCES, len(data.ids))))
    where = {id: row for row, id in enumerate(data.ids)}
    for id in ids:
        if id in data.dropped:
            raise DataError(f"utterance {id!r} of {set_name} cannot be used: {data.dropped[id]}")
        if id not in where:
            raise DataError(f"no utterance {id!r} in {set_name}; its first are {', '.join(data.ids[:3])}")
    return [where[id] for id in dict.fromkeys(ids)]


def _check_chosen(found: Sequence[Findings], layers: Sequence[int], heads: Sequence[int]) -> None:
    last = found[-1].layer.number
    most = max(getattr(one.layer.module, "heads", 1) for one in found)
    for what, numbers, limit in (("layer", layers, last), ("head", heads, most)):
        for number in numbers:
            if not 1 <= number <= limit:
                raise UsageError(f"--{what} {number}: there are {what}s 1 to {limit}")


def _append(values: list[Tensor], value: Tensor | None) -> None:
    if value is not None:
        values.append(value.cpu())


def _plain(value: Any) -> Any:
    """With null for numbers that are not finite, which JSON does not have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
