"""The tables `asr inspect` prints: one row for each layer, a cell's numbers by head."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich.table import Table

from asr.wording import counted

WIDE = 6  # heads up to which a cell shows each one; of more the smallest and the largest


def inspect_tables(result: Mapping[str, Any]) -> list[Table]:
    """Of `asr.report.inspect.inspection.inspect`'s result, those for which the model has something to say."""
    layers = result["layers"]
    tables = [_ctc(result["ctc"]), _maps(layers)]
    tables += [make(layers) for make, key in ((_lsh, "lsh"), (_linear, "linear"), (_memory, "memory_ms")) if any(
        layer[key] for layer in layers
    )]  # fmt: skip
    return tables


def _ctc(ctc: Mapping[str, Any]) -> Table:
    table = Table(title="CTC output")
    columns = [
        ("blank is likeliest", "blank_share", lambda v: f"{100 * v:.1f} % of frames"),
        ("blank posterior", "blank_posterior", lambda v: f"{v:.3f}"),
        ("entropy", "entropy", lambda v: f"{v:.3f} nats"),
        ("spike posterior", "spike_posterior", lambda v: f"{v:.3f}"),
        ("spike width", "spike_width_ms", lambda v: f"{v:.0f} ms"),
        ("spikes", "spikes_per_second", lambda v: f"{v:.1f} /s"),
        ("reference tokens", "reference_per_second", lambda v: f"{v:.1f} /s"),
    ]
    for header, *_ in columns:
        table.add_column(header, justify="right")
    table.add_row(*("–" if ctc[key] is None else form(ctc[key]) for _, key, form in columns))
    return table


def _maps(layers: Sequence[Mapping[str, Any]]) -> Table:
    def row(layer: Mapping[str, Any]) -> list[str]:
        one = layer["map"]
        return [one["method"], *(_cell(one[key], form) for key, form in keys.items())]

    keys = {"softmax_distance": ".2f", "frames": ".1f", "lag_ms": ".0f", "dead_share": ".1%"}
    headers = ["map of", "distance to softmax", "frames attended", "mean distance in ms"]
    if any(share for layer in layers for share in layer["map"]["dead_share"]):
        headers.append("queries that take nothing")
    return _table("Attention maps", headers, layers, row)


def _lsh(layers: Sequence[Mapping[str, Any]]) -> Table:
    rounds = next(layer["lsh"]["recall"] for layer in layers if layer["lsh"])

    def row(layer: Mapping[str, Any]) -> list[str]:
        one = layer["lsh"]
        b = one["buckets"]

        def mean(name: str) -> list[str]:
            return [_number(_mean(one[name][r]), ".2f") for r in rounds]

        sizes = f"{b['p5']:.0f} / {b['median']:.0f} / {b['p95']:.0f} / {b['max']:.0f}"
        return [sizes, f"{b['empty_share']:.0%}", *(" ".join(mean(name)) for name in ("recall", "mass", "met"))]

    of = next(layer["lsh"] for layer in layers if layer["lsh"])
    by = f"{' '.join(rounds)} rounds"
    title = f"LSH: {counted(of['rounds'], 'round')}, buckets of {counted(of['bucket_size'], 'frame')}"
    headers = ["bucket sizes 5 % / 50 % / 95 % / max", "empty", f"recall of top {of['top']}: {by}",
               f"softmax mass met: {by}", f"keys met: {by}"]  # fmt: skip
    return _table(title, headers, [layer for layer in layers if layer["lsh"]], row)


def _linear(layers: Sequence[Mapping[str, Any]]) -> Table:
    def row(layer: Mapping[str, Any]) -> list[str]:
        one, sizes = layer["linear"], layer["linear"]["normaliser"] or {}
        return [*(_cell(sizes.get(key), "g") for key in ("min", "median", "max")), _cell(one["state_rank"], ".1f")]

    headers = ["normaliser min", "median", "max", "effective rank of the state"]
    return _table("Linear attention", headers, [layer for layer in layers if layer["linear"]], row)


def _memory(layers: Sequence[Mapping[str, Any]]) -> Table:
    def row(layer: Mapping[str, Any]) -> list[str]:
        one = layer["memory_ms"]
        return [_cell(one[key], ".0f") for key in ("median", "p5", "p95")]

    headers = ["memory in ms, median", "5 %", "95 %"]
    if all(one["p5"] == one["p95"] for one in (layer["memory_ms"] or {"p5": 0, "p95": 0} for layer in layers)):
        headers = ["memory in ms"]
    return _table("Memory", headers, [layer for layer in layers if layer["memory_ms"]], row)


def _table(
    title: str,
    headers: Sequence[str],
    layers: Sequence[Mapping[str, Any]],
    row: Callable[[Mapping[str, Any]], Sequence[str]],
) -> Table:
    table = Table(title=title)
    table.add_column("layer", no_wrap=True)
    table.add_column("mixer", no_wrap=True)
    for header in headers:
        table.add_column(header, justify="right")
    arrows = {None: "", "forward": " →", "backward": " ←"}
    for layer in layers:
        cells = row(layer)[: len(headers)]
        table.add_row(f"{layer['layer']}{arrows[layer['direction']]}", layer["mixer"], *cells)
    return table


def _cell(values: Sequence[float | None] | None, form: str) -> str:
    if values is None:
        return "–"
    known = [value for value in values if value is not None]
    if len(values) > WIDE and known:
        return f"{_number(min(known), form)} … {_number(max(known), form)}"
    return " ".join(_number(value, form) for value in values)


def _number(value: float | None, form: str) -> str:
    if form == "g" and value is not None:  # no powers of ten where there is room for the number
        form = ".0f" if 100 <= value < 1e6 else ".3g"
    return "–" if value is None else format(value, form)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
