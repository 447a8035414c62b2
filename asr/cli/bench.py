"""`asr bench`: speed of the attention ops against their peers, and of an epoch of the paper's models."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from asr.report.bench_epoch import EpochTime
    from asr.report.bench_kernels import Timing


def bench(
    what: Annotated[Literal["kernels", "epoch"], typer.Argument(help="The ops alone, or whole training steps.")],
    lengths: Annotated[
        str, typer.Option(help="Frames, separated by commas. epoch also takes `wsj`: WSJ's number and lengths.")
    ] = "",
    dims: Annotated[str, typer.Option(help="kernels: widths of a head.")] = "32,64",
    repeats: Annotated[
        int | None, typer.Option(min=1, help="Measurements of each, of which the median counts: 7, epoch: 1.")
    ] = None,
    samples: Annotated[int, typer.Option(min=2, help="epoch: batches measured, the others extrapolated.")] = 6,
    threads: Annotated[int, typer.Option(min=0, help="CPU threads; 0: torch's choice.")] = 0,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the figures to this CSV file.")] = None,
) -> None:
    """Measure speed on this machine, everything in turns in one run; medians.

    kernels: milliseconds of every op, forward and forward with backward, beside fast-transformers, reformer-pytorch,
    performer-pytorch (where they are installed) and torch's softmax attention; batch · frames = 8,192, 6 heads.
    epoch: seconds per epoch of the four models of "Transformers are RNNs" on made-up features.
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, float32")
    rows: list[Timing] | list[EpochTime]
    if what == "kernels":
        rows = _kernels(
            _numbers("--dims", dims), _numbers("--lengths", lengths or "128,256,512,800,2048,8192"), repeats or 7
        )
    else:
        rows = _epoch(lengths or "wsj", samples, repeats or 1)
    if out:
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
    text = f"{timing.forward_ms:.2f} / {timing.both_ms:.2f}"
    if timing is ours:
        return text
    return f"{text} ({timing.forward_ms / ours.forward_ms:.1f} / {timing.both_ms / ours.both_ms:.1f})"


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
