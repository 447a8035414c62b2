"""One utterance at a glance: what was heard, what should have been, the CTC output, and a layer's attention map."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from asr.ctc.alignment import Counts, align, error_counts, format_edits
from asr.data.tokens import TokenTable
from asr.encoder.model import CtcModel
from asr.recipe import Recipe
from asr.recogniser import Recogniser
from asr.report.inspect.implied import queries_keys
from asr.report.inspect.inspection import file_stem, hear, map_title
from asr.report.inspect.layers import layers_of
from asr.report.inspect.maps import implied_map
from asr.report.inspect.pictures import ctc_figure, map_figure, pixels
from asr.train.sets import LoadedSet
from asr.wording import counted

HEADS = 4  # of an attention map, at most

Draw = Callable[[int], NDArray[np.uint8]]  # dots per inch → (height, width, 3)


@dataclass(frozen=True)
class Glimpse:
    name: str  # of the utterance, fit for a path
    text: str  # reference, hypothesis and their alignment, a line each
    figures: dict[str, Draw]


def glimpses(
    recipe: Recipe,
    tokens: TokenTable,
    model: CtcModel,
    device: torch.device,
    data: LoadedSet,
    rows: Sequence[int],
    layer: int,
) -> Iterator[Glimpse]:
    """Of these utterances, one after the other. The model is left in evaluation mode.

    Args:
        layer: from 1; whose map is drawn, both of them where it runs in two directions, none where it is not exact.
    """
    recogniser = Recogniser(recipe, tokens, data.cmvn, model, device)
    layers = [one for one in layers_of(model) if one.number == layer]
    for row in rows:
        heard, log_probs, inputs = hear(recogniser, data, row, layers)
        reference, hypothesis = tokens.symbols_of(data.targets[row]), [span.symbol for span in heard.spans]
        figures = {"ctc": ctc_figure(heard, log_probs, tokens.symbols, tokens.blank, reference)}
        for one, x in zip(layers, inputs, strict=True):
            if queries_keys(one, x) is not None:
                found = implied_map(one, x)
                heads = range(1, min(len(found.shares), HEADS) + 1)
                name = "-".join([f"layer{one.number}", *([one.direction] if one.direction else [])])
                figures[name] = map_figure(heard, found, map_title(heard, one, found), heads)
        unk = None if tokens.unk is None else tokens.symbols[tokens.unk]
        counts = error_counts(reference, hypothesis, unk)
        text = _text(f"{heard.id}, {heard.seconds:.1f} s", reference, hypothesis, counts, unk)
        yield Glimpse(file_stem(heard.id), text, {name: partial(_drawn, figure) for name, figure in figures.items()})


def _text(title: str, reference: list[str], hypothesis: list[str], counts: Counts, unk: str | None) -> str:
    edits = align([(reference, hypothesis)], unk)[0]
    return "\n".join(
        [
            f"{title}: {counted(counts.errors, 'error')} in {counted(len(reference), 'token')} "
            f"(S {counts.substitutions} D {counts.deletions} I {counts.insertions})",
            f"reference   {' '.join(reference)}",
            f"hypothesis  {' '.join(hypothesis)}",
            f"aligned     {format_edits(edits)}",
        ]
    )


def _drawn(figure: Figure, dpi: int) -> NDArray[np.uint8]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # an empty box stands for it
        return pixels(figure, dpi)
