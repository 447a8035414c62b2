"""Figures of a comparison as PNG: error by epoch, loss by epoch, error against time per epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter
from matplotlib.transforms import Bbox

from asr.report.table import Rate, Row

# Okabe and Ito's colours, told apart also by colour-blind readers; markers and dashes for print without colour.
COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"]
MARKERS = ["o", "s", "^", "D", "v", "P", "X"]
DASHES: list[Any] = ["-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1.5, 1, 1.5))]
MARK = 12  # pixels around a point that no name may cover
CAP = 6  # and of an interval bar with its caps
LINE = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 5}  # from a name to its point
FEW = 8  # models that an ordinary figure has room for


@dataclass(frozen=True)
class Curve:
    """One line of a plot by epoch, or by what `plot_curves` is told."""

    model: str
    steps: list[int]
    values: list[float]


def plot_curves(curves: Sequence[Curve], ylabel: str, path: Path, xlabel: str = "epoch") -> None:
    """One line per curve; the vertical axis is logarithmic where the values span more than a factor 5.

    Several curves of one model, its seeds, are thin lines of one colour under one name.
    """
    models = list(dict.fromkeys(curve.model for curve in curves))
    figure, (axes,) = _figure(1, len(models))
    width = 1.6 if len(models) == len(curves) else 0.8
    for index, curve in enumerate(curves):
        style = _style(models.index(curve.model))
        every = max(1, len(curve.steps) // 15)
        first = all(curve.model != other.model for other in curves[:index])
        axes.plot(
            curve.steps, curve.values, label=curve.model if first else None, markevery=every,
            markersize=4.5 if width > 1 else 2.5, linewidth=width, **style,
        )  # fmt: skip
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if max((max(curve.steps, default=1) for curve in curves), default=1) == 1:
        axes.set_xlim(0, 2)  # by itself the axis would show thousandths of an epoch
    _scale(axes, "y", [v for curve in curves for v in curve.values])
    if len(models) > FEW:  # over the curves they would hide them
        figure.legend(frameon=False, loc="outside right upper", fontsize=9)
    elif curves:
        axes.legend(frameon=False)
    _save(figure, path)


def plot_rate_by_time(rows: Sequence[Row], path: Path) -> None:
    """Error rate with its interval against seconds per training epoch, one panel per evaluated set.

    Lower left is better. A published result is hollow and has the colour of our model of the same name; its epoch
    time comes from other hardware.
    """
    models = list(dict.fromkeys(row.model for row in rows))
    points = [point for row in rows for point in _points(row, dev=any(r.published and r.dev_rate for r in rows))]
    sets = list(dict.fromkeys(point.panel for point in points))
    figure, panels = _figure(max(1, len(sets)), len(models))
    for name, axes in zip(sets, panels, strict=False):
        shown = [point for point in points if point.panel == name]
        for point in shown:
            style = {**_style(models.index(point.row.model)), "linestyle": "none"}
            face = "white" if point.row.published else style["color"]
            axes.errorbar(point.x, point.y, yerr=point.bars, capsize=3, markersize=7, markerfacecolor=face, **style)
        axes.set_xlabel("seconds per training epoch")
        axes.set_ylabel(f"{name} (%)")
        axes.margins(0.2)
        _scale(axes, "x", [point.x for point in shown])
        _scale(axes, "y", [point.y for point in shown])
        _label(axes, shown, [_style(models.index(point.row.model))["color"] for point in shown])
    _save(figure, path)


@dataclass(frozen=True)
class _Point:
    panel: str
    row: Row
    x: float
    y: float
    bars: list[list[float]] | None  # lengths below and above, as errorbar wants them


def _points(row: Row, dev: bool) -> list[_Point]:
    """Where a row stands in each panel; `dev`: also by its best validation, which is what papers publish."""
    if not row.epoch_seconds:
        return []
    rates = {f"{name} {rate.unit}": rate for name, rate in row.rates.items()}
    if dev and row.dev_rate is not None:
        rates["best dev"] = Rate("", row.dev_rate)
    points = []
    for panel, (_, value, low, high) in rates.items():
        if value is None:
            continue
        bars = None if low is None or high is None else [[max(0.0, value - low)], [max(0.0, high - value)]]
        points.append(_Point(panel, row, row.epoch_seconds, value, bars))
    return points


def _style(index: int) -> dict[str, Any]:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": DASHES[index % len(DASHES)],
    }


def _figure(panels: int, models: int = 1) -> tuple[Figure, list[Axes]]:
    size = 1 + 0.04 * max(0, models - FEW)
    figure = Figure(figsize=(6.4 * size * panels, 4.2 * size), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(1, panels, squeeze=False)[0])
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.grid(True, which="major", color="#dddddd", linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes


def _scale(axes: Axes, side: str, values: Sequence[float]) -> None:
    """Logarithmic where it spreads the values out, with plain numbers at the ticks; else linear."""
    if not values or min(values) <= 0 or max(values) < 5 * min(values):
        return
    axis = axes.xaxis if side == "x" else axes.yaxis
    (axes.set_xscale if side == "x" else axes.set_yscale)("log")
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    formatter = ScalarFormatter()
    formatter.set_scientific(False)
    axis.set_major_formatter(formatter)
    axis.set_minor_formatter(NullFormatter())


def _label(axes: Axes, points: Sequence[_Point], colours: Sequence[str]) -> None:
    """Name each point beside it, where no point, interval or other name is hidden, or the least of them.

    A name that is not right beside its point has a line to it.
    """
    canvas = FigureCanvasAgg(axes.get_figure(root=True))
    canvas.draw()  # positions in pixels exist only after a layout
    taken = []
    for point in points:
        x, y = axes.transData.transform((point.x, point.y))
        taken.append(Bbox.from_extents(x - MARK, y - MARK, x + MARK, y + MARK))
        if point.bars:
            (below,), (above,) = point.bars
            ends = [(point.x, point.y - below), (point.x, point.y + above)]
            (_, low), (_, high) = axes.transData.transform(ends)
            taken.append(Bbox.from_extents(x - CAP, low, x + CAP, high))
    sides = [(9, "left"), (-9, "right"), (0, "center")]
    heights = (5, -11, 17, -23, 29, -35, 41, -47, 53, -59)
    places = [(dx, dy, align) for dy in heights for dx, align in sides if dx or abs(dy) > 11]
    places += [(4 * dx, dy, align) for dx, dy, align in places if dx]
    for point, colour in zip(points, colours, strict=True):
        name, spot = point.row.label, (point.x, point.y)
        labels = [
            axes.annotate(
                name,
                spot,
                (dx, dy),
                textcoords="offset points",
                ha=align,
                color=colour,
                fontsize=9,
                arrowprops={**LINE, "color": colour} if abs(dy) > 11 or abs(dx) > 9 else None,
            )
            for dx, dy, align in places
        ]
        for label in labels:
            label.update_positions(canvas.get_renderer())
        boxes = [Text.get_window_extent(label, canvas.get_renderer()) for label in labels]  # without the lines
        inside = [i for i, box in enumerate(boxes) if axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)]
        best = min(inside, key=lambda i: sum(boxes[i].overlaps(other) for other in taken), default=0)
        taken.append(boxes[best])
        labels[best].set_in_layout(False)  # else the panel would shrink by what it was measured with
        for i, label in enumerate(labels):
            if i != best:
                label.remove()


def _save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
