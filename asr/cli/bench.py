"""`asr bench`: speed of the attention ops against their peers, cost of the mixers, time of the paper's models."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from asr.wording import counted

if TYPE_CHECKING:
    from asr.report.bench_epoch import EpochTime
    from asr.report.bench_kernels import Timing
    from asr.report.bench_mixers import Cost
    from asr.report.bench_scaling import Ratio
    from asr.report.bench_train import Figure


def bench(
    what: Annotated[
        Literal["kernels", "scaling", "mixers", "epoch", "train"],
        typer.Argument(
            help="The attention ops beside others, or beside themselves; one layer of each mixer; the paper's models; "
            "a recipe's training."
        ),
    ],
    recipe: Annotated[Optional[Path], typer.Argument(help="train: the recipe file.")] = None,  # noqa: UP045
    overrides: Annotated[Optional[list[str]], typer.Argument(help="Changes to it: key.sub=value …")] = None,  # noqa: UP045
    lengths: Annotated[
        str,
        typer.Option(
            help="Frames, separated by commas; or, of epoch and train, `wsj`: WSJ's number and lengths. Without it "
            "train takes those of the recipe's manifests, if they are there."
        ),
    ] = "",
    dims: Annotated[str, typer.Option(help="kernels, scaling: widths of a head.")] = "32,64",
    repeats: Annotated[
        int | None,
        typer.Option(min=1, help="Measurements of each, whose median counts: 7, scaling: 9, mixers: 5, epoch: 1."),
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="epoch: batches measured, the others extrapolated.")] = 6,
    steps: Annotated[
        int, typer.Option(min=0, help="train: steps measured; 0: an epoch's, its validation and a checkpoint.")
    ] = 40,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's choice.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Also write the figures to this file, .json or CSV.")
    ] = None,
) -> None:
    """Measure speed on this machine, everything in turns in one run; medians.

    kernels: milliseconds of every op, forward and forward with backward, beside fast-transformers, reformer-pytorch,
    performer-pytorch (where they are installed) and torch's softmax attention; batch · frames = 8,192, 6 heads.
    scaling: the ops with one head on one thread and on all, in bfloat16, and frame by frame.
    mixers: parameters, size of the streaming state, milliseconds and peak memory of one layer of every mixer, and the
    ratio to softmax attention; batch · frames = 8,192, width 192, 6 heads; frames 512, 2,048 and 8,192.
    epoch: seconds per epoch of the four models of "Transformers are RNNs" on made-up features.
    train: where the time of a recipe's training goes, by part and by kind of operator, on made-up features of its
    corpus' lengths; beside a loop written by hand.
    """
    import torch

    from asr.errors import UsageError

    if (recipe is not None) != (what == "train"):
        raise UsageError("asr bench train RECIPE: the recipe and its changes belong to `train`, and it needs one")
    if threads:
        torch.set_num_threads(threads)
    rows: list[Timing] | list[Ratio] | list[Cost] | list[EpochTime] | list[Figure]
    if recipe is None:
        print(f"{counted(torch.get_num_threads(), 'thread')}, torch {torch.__version__}, float32")
    if recipe is not None:
        rows = _train(recipe, overrides or [], lengths, steps, threads)
    elif what == "kernels":
        rows = _kernels(
            _numbers("--dims", dims), _numbers("--lengths", lengths or "128,256,512,800,2048,8192"), repeats or 7
        )
    elif what == "scaling":
        rows = _scaling(_numbers("--dims", dims), repeats or 9)
    elif what == "mixers":
        rows = _mixers(_numbers("--lengths", lengths or "512,2048,8192"), repeats or 5)
    else:
        rows = _epoch(lengths or "wsj", samples, repeats or 1)
    _write(out, rows)


def _write(out: Path | None, rows: Sequence[Any]) -> None:
    """A line, or an object, for each NamedTuple."""
    if out is None:
        return
    if out.suffix == ".json":
        out.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n", encoding="utf-8")
        return
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(rows[0]._fields)
        writer.writerows(rows)


def _numbers(option: str, text: str) -> list[int]:
    from asr.errors import UsageError

    try:
        numbers = [int(part) for part in text.split(",")]
        if min(numbers) < 1:
            raise ValueError
    except ValueError:
        raise UsageError(f"{option} {text}: numbers from 1, separated by commas, are expected") from None
    return numbers


def _progress(line: str) -> None:
    print(line, file=sys.stderr)


def _kernels(dims: list[int], lengths: list[int], repeats: int) -> list[Timing]:
    from asr.report import bench_kernels

    if absent := bench_kernels.missing():
        print(f"not installed, so left out: {', '.join(absent)}")
    rate = bench_kernels.gemm_rate()
    print(f"torch.mm: {rate / 1e9:.0f} GFLOP/s")
    timings = bench_kernels.measure(dims, lengths, repeats=repeats, report=_progress)
    for op in dict.fromkeys(t.op for t in timings):
        for dim in dims:
            print(f"\n{op}, dim {dim}: ms forward / forward and backward (times ours)\n")
            print("| method | " + " | ".join(f"N = {n}" for n in lengths) + " |")
            print("|---" * (len(lengths) + 1) + "|")
            found = {(t.method, t.time): t for t in timings if t.op == op and t.dim == dim}
            for method in dict.fromkeys(t.method for t in timings if t.op == op):
                cells = [_cell(found.get((method, n)), found[("asr", n)]) for n in lengths]
                print(f"| {method} | " + " | ".join(cells) + " |")
    return timings


def _cell(timing: Timing | None, ours: Timing) -> str:
    if timing is None:
        return "–"
    return _pair(timing.forward_ms, timing.both_ms, None if timing is ours else (ours.forward_ms, ours.both_ms))


def _pair(forward: float, both: float, base: tuple[float, float] | None) -> str:
    text = f"{forward:.2f} / {both:.2f}"
    return text if base is None else f"{text} ({forward / base[0]:.1f} / {both / base[1]:.1f})"


def _scaling(dims: list[int], repeats: int) -> list[Ratio]:
    import torch

    from asr.kernels import backend, prepare
    from asr.report import bench_scaling

    prepare()
    rows = [r for dim in dims for r in bench_scaling.threads(dim, repeats=repeats)]
    rows += [r for dim in dims for r in bench_scaling.half(dim, repeats=repeats)]
    print("\none head of 8,192 frames on one thread and on all; 16 × 512 frames in float32 and in bfloat16\n")
    table = []
    for r in rows:
        cells = [f"{a:.2f} → {b:.2f} ({a / b:.2f} times as fast)" for a, b in (r.forward_ms, r.both_ms)]
        table.append([r.what, str(r.dim), *cells])
    _table(["op", "dim", "ms forward", "ms forward and backward"], table)
    if backend.compiled(torch.zeros(1)):
        print("\none frame, heads of 32, µs\n")
        steps = [[str(h), *(f"{us:.1f}" for us in bench_scaling.step(32, h))] for h in (1, 6)]
        _table(["heads", "causal_linear_step", "its op", "its op on an empty batch"], steps)
    return rows


def _mixers(lengths: list[int], repeats: int) -> list[Cost]:
    from asr.report import bench_mixers

    costs = bench_mixers.measure(lengths, repeats=repeats, report=_progress)
    base = {c.frames: c.ms for c in costs if c.mixer == bench_mixers.BASELINE}
    sizes = list(dict.fromkeys(f"{c.batch} × {c.frames}" for c in costs))
    times, memory = [], []
    for name in dict.fromkeys(c.mixer for c in costs):
        row = [c for c in costs if c.mixer == name]
        state = "–" if row[0].state_bytes is None else f"{row[0].state_bytes:,}"
        against = {} if name == bench_mixers.BASELINE else base
        cells = ["–" if c.ms is None else _pair(*c.ms, against.get(c.frames)) for c in row]
        times.append([name, f"{row[0].parameters:,}", row[0].causal, state, *cells])
        memory.append([name, *("–" if c.mb is None else f"{c.mb[0]:.0f} / {c.mb[1]:.0f}" for c in row)])
    print(f"\nbatch × frames: ms forward / forward and backward (times {bench_mixers.BASELINE}, which is torch's)\n")
    _table(["mixer", "parameters", "causal form", "state, bytes", *sizes], times)
    print("\nbatch × frames: peak memory, MB, forward / forward and backward\n")
    _table(["mixer", *sizes], memory)
    for c in costs:
        if c.left_out:
            print(f"\n{c.mixer}, {c.batch} × {c.frames}: left out, {c.left_out}")
    return costs


def _table(head: list[str], rows: list[list[str]]) -> None:
    print("| " + " | ".join(head) + " |")
    print("|---" * len(head) + "|")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def _epoch(lengths: str, samples: int, repeats: int) -> list[EpochTime]:
    from asr.report import bench_epoch

    rows = []
    cases: dict[str, list[int]] = {}
    if lengths == "wsj":
        cases["WSJ's lengths, 37,416 utterances"] = bench_epoch.wsj_lengths()
    else:
        cases = {f"10,000 utterances of {n} frames each": [n] * 10_000 for n in _numbers("--lengths", lengths)}
    for name, sizes in cases.items():
        few = samples if lengths == "wsj" else 2
        found = bench_epoch.measure(sizes, samples=few, repeats=repeats, report=_progress)
        base = next(t for t in found if t.model == "linear")
        print(f"\n{name}: one epoch, extrapolated from {few} batches\n")
        print("| model | seconds | frames/s | ÷ linear | the paper's ÷ linear |")
        print("|---|---|---|---|---|")
        for t in found:
            paper = (
                f"{bench_epoch.PAPER[t.model] / bench_epoch.PAPER['linear']:.2f}"
                if t.model in bench_epoch.PAPER
                else ""
            )
            ratio = t.seconds / base.seconds
            print(f"| {t.model} | {t.seconds:.0f} | {t.frames_per_second:.0f} | {ratio:.2f} | {paper} |")
        print(f"\nlinear attention itself: {base.attention_share:.1%} of its training step")
        rows += found
    return rows


def _train(recipe: Path, overrides: list[str], lengths: str, steps: int, threads: int) -> list[Figure]:
    import torch

    from asr.recipe_loader import load_recipe
    from asr.report import bench_epoch, bench_train

    loaded = load_recipe(recipe, [*overrides, *([f"training.threads={threads}"] if threads else [])])
    if not lengths and not loaded.data.train.exists():
        print(f"{loaded.data.train} is not there: WSJ's lengths instead")
        lengths = "wsj"
    made_up = None
    if lengths:
        numbers = [] if lengths == "wsj" else _numbers("--lengths", lengths)
        made_up = bench_epoch.wsj_lengths() if lengths == "wsj" else numbers * (10_000 // len(numbers))
    figures = bench_train.measure(loaded, made_up, steps or None, report=_progress)
    print(f"{loaded.name}: {torch.get_num_threads()} threads, torch {torch.__version__}, {loaded.training.precision}\n")
    rows: dict[tuple[str, str], list[str]] = {}
    for f in figures:
        rows.setdefault((f.part, f.name), []).append(f"{f.value:,.{1 if abs(f.value) >= 10 else 2}f} {f.unit}".rstrip())
    _table(["part", "", ""], [[part, name, ", ".join(values)] for (part, name), values in rows.items()])
    return figures
