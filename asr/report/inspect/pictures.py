"""Attention maps and CTC output below the spectrogram they belong to, as figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from asr.recogniser import TokenSpan
from asr.report.inspect.maps import ImpliedMap
from asr.report.plots import COLOURS

WIDTH = 16.0  # inches of a figure, at most
INCHES_PER_SECOND = 1.0  # of a map, so that about twelve tokens a second can be labelled
LABEL = 0.085  # inches that a label takes along the time axis


@dataclass(frozen=True)
class Heard:
    """One utterance: normalised log-mel features (frames, dim), the seconds between them (`hop`) and between frames of
    the encoder (`step`), and what was decoded."""

    id: str
    features: Tensor
    hop: float
    step: float
    spans: Sequence[TokenSpan]

    @property
    def seconds(self) -> float:
        return len(self.features) * self.hop


def map_figure(heard: Heard, one: ImpliedMap, title: str, heads: Sequence[int] | None = None) -> Figure:
    """A panel for each head (those of `heads`, from 1; None: all): keys across, queries down, bright where much is
    taken. Above it the spectrogram, with the decoded tokens where they spike. The scale of brightness is a square root,
    and its own for each head, so that faint weights can be seen.
    """
    chosen = range(len(one.shares)) if heads is None else [head - 1 for head in heads]
    panel = min(max(3.4, INCHES_PER_SECOND * heard.seconds), WIDTH)
    bands = -(-len(chosen) // max(1, int(WIDTH / panel)))
    columns = -(-len(chosen) // bands)
    figure = _figure(columns * panel, bands * (1.25 + min(panel, 6.0)))
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(
        2 * bands, columns, squeeze=False, sharex=True, height_ratios=[1.25, min(panel, 6.0)] * bands
    )
    for place in range(bands * columns):
        above, below = axes[place // columns * 2][place % columns], axes[place // columns * 2 + 1][place % columns]
        if place >= len(chosen):
            above.axis("off")
            below.axis("off")
            continue
        _spectrogram(above, heard, panel)
        _map(below, heard, one, chosen[place])
        if len(one.shares) > 1:
            below.text(
                0.985,
                0.975,
                f"head {chosen[place] + 1}",
                transform=below.transAxes,
                ha="right",
                va="top",
                color="white",
                fontsize=8,
                bbox={"facecolor": "black", "alpha": 0.5, "pad": 1.5, "linewidth": 0},
            )
        if place % columns == 0:
            above.set_ylabel("mel bin", fontsize=8)
            below.set_ylabel("query (s)", fontsize=8)
        if place + columns >= len(chosen):
            below.set_xlabel("key (s)", fontsize=8)
            below.tick_params(labelbottom=True)
    return figure


def ctc_figure(
    heard: Heard, log_probs: Tensor, symbols: Sequence[str], blank: int, reference: Sequence[str] = ()
) -> Figure:
    """Probabilities of blank, of every decoded token and, thinly, of other tokens of a reference over time, below the
    spectrogram.

    log_probs: (time, tokens) natural log.
    """
    width = min(max(6.0, 3 * INCHES_PER_SECOND * heard.seconds), WIDTH)
    figure = _figure(width, 4.2)
    figure.suptitle(f"{heard.id}: CTC output", fontsize=10)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[1.2, 2])
    _spectrogram(above, heard, width)
    above.set_ylabel("mel bin", fontsize=8)
    at = (torch.arange(len(log_probs)) + 0.5) * heard.step
    posteriors = log_probs.exp()
    below.plot(at, posteriors[:, blank], color="#aaaaaa", linewidth=1, linestyle=":", label="blank")
    shown = dict.fromkeys(span.symbol for span in heard.spans)
    for symbol in dict.fromkeys(symbol for symbol in reference if symbol not in shown):
        below.plot(at, posteriors[:, symbols.index(symbol)], color="#999999", linewidth=0.5)
    for index, symbol in enumerate(shown):
        below.plot(at, posteriors[:, symbols.index(symbol)], color=COLOURS[index % len(COLOURS)], linewidth=1.2)
    colour = {symbol: COLOURS[index % len(COLOURS)] for index, symbol in enumerate(shown)}
    for span in heard.spans:
        middle = (span.start_seconds + span.end_seconds) / 2
        below.annotate(span.symbol, (middle, math.exp(span.log_prob)), (0, 2), textcoords="offset points",
                       ha="center", fontsize=7, color=colour[span.symbol])  # fmt: skip
    below.tick_params(labelsize=7)
    below.set_xlim(0, heard.seconds)
    below.set_ylim(0, 1.12)
    below.set_ylabel("probability", fontsize=8)
    below.set_xlabel("time (s)", fontsize=8)
    below.legend(frameon=False, fontsize=7, loc="upper right", bbox_to_anchor=(1, 1.02))
    below.spines[["top", "right"]].set_visible(False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """As PNG; the folder is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def pixels(figure: Figure, dpi: int) -> NDArray[np.uint8]:
    """(height, width, 3) red, green and blue of the figure at so many dots per inch."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _spectrogram(axes: Axes, heard: Heard, width: float) -> None:
    axes.tick_params(labelsize=7)
    image = heard.features.T
    low, high = image.quantile(torch.tensor([0.02, 0.995])).tolist()
    axes.imshow(
        image, origin="lower", aspect="auto", cmap="magma", vmin=low, vmax=max(high, low + 1e-6),
        extent=(0, heard.seconds, 0, len(image)), interpolation="nearest",
    )  # fmt: skip
    apart, last = LABEL / width * heard.seconds, -math.inf
    for span in heard.spans:
        middle = (span.start_seconds + span.end_seconds) / 2
        axes.axvline(middle, color="white", linewidth=0.6, alpha=0.6)
        if middle - last < apart:
            continue  # its line stands there, its name would cover the one before
        last = middle
        axes.annotate(span.symbol, (middle, 1), (0, 2), xycoords=("data", "axes fraction"), rotation=90,
                      textcoords="offset points", ha="center", va="bottom", fontsize=6.5)  # fmt: skip
    axes.set_xlim(0, heard.seconds)


def _map(axes: Axes, heard: Heard, one: ImpliedMap, head: int) -> None:
    axes.tick_params(labelsize=7)
    shares = one.shares[head]
    top = float(shares.flatten()[:: max(1, shares.numel() // 1_000_000)].quantile(0.999))  # `quantile` takes 16 M
    end = shares.shape[1] * heard.step
    axes.imshow(
        shares, origin="upper", aspect="auto", cmap="viridis", norm=PowerNorm(0.5, 0, max(top, 1e-9)),
        extent=(0, end, end, 0), interpolation="nearest",
    )  # fmt: skip
    for span in heard.spans:
        axes.axvline((span.start_seconds + span.end_seconds) / 2, color="white", linewidth=0.4, alpha=0.3)
