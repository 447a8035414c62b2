"""Which operators the time of a piece of work goes into, by kind; measured by torch.profiler."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from asr.train.measure import synchronise

KINDS = {  # the first pattern that fits an operator's name says its kind
    "dropout": r"dropout|random_|bernoulli",
    "products": r"aten::(addmm|mm|bmm|baddbmm|addbmm|dot|mv|addmv|_scaled_mm)$|mkldnn_linear|linear_pointwise",
    "convolutions": r"conv",
    "mixer ops": r"(linear|lsh|flash|efficient)_attention|linear_step|scaled_dot_product|rnn|lstm",
    "CTC": r"ctc|log_softmax|LogSoftmax",
    "norms": r"layer_norm|rms_norm",
    "element by element, copies": r"aten::|zero_padding|gate|triton|Compiled",
}
SCOPES = {"data": "data", "optimiser": "clip and optimiser"}  # all that runs within these parts of a step
REST = "autograd, Python, waiting"  # between operators, and what autograd itself does
HEAVY = ("products", "convolutions", "mixer ops")  # what a model computes; the rest is what it takes to get there
ALL = (*KINDS, *SCOPES.values(), REST)


def operator_seconds(runs: Sequence[Callable[[], object]], device: torch.device) -> dict[str, float]:
    """Seconds by kind, one for each of `ALL`: on a GPU of its kernels, whose idle time is the rest; else of the host.

    Every run is made twice, without the profiler and with it. The profiler costs a microsecond or more for each of some
    thousand operators a step. That is nothing to those that are `HEAVY`; what these leave of the time without it is
    shared out among the other kinds as the profiler sees them, after a microsecond for each operator is taken from what
    it is part of.
    """
    gpu = device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells stderr that it starts, and that there is no GPU
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    cost = 0.0 if gpu else _cost_of_an_event()
    alone, seconds = 0.0, dict.fromkeys(ALL, 0.0)
    for run in runs:
        alone += timed(run, device)[0]
        with profile(activities=activities) as found, torch.profiler.record_function("all of it"):
            timed(run, device)
        for event in found.events():
            if event.device_type == torch.autograd.DeviceType.CPU and not event.is_async:
                own = event.self_device_time_total if gpu else event.self_cpu_time_total
                seconds[_kind(event)] += own / 1e6 - cost * len(event.cpu_children)
    seconds = {kind: max(0.0, value) for kind, value in seconds.items()}
    if gpu:
        return seconds | {REST: max(0.0, alone - sum(seconds.values()) + seconds[REST])}
    left = max(0.0, alone - sum(seconds[kind] for kind in HEAVY))
    others = sum(value for kind, value in seconds.items() if kind not in HEAVY)
    return {kind: value if kind in HEAVY else value * left / others for kind, value in seconds.items()}


def timed(run: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds, and seconds of the processor, until the device has done it."""
    synchronise(device)
    start, processor = time.perf_counter(), time.process_time()
    run()
    synchronise(device)
    return time.perf_counter() - start, time.process_time() - processor


def _cost_of_an_event(events: int = 3000) -> float:
    """Seconds that the profiler takes for one operator."""
    x = torch.zeros(1)

    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(events):
            x.view(1)
        return time.perf_counter() - start

    seconds()
    alone = seconds()
    with profile(activities=[ProfilerActivity.CPU]):
        seconds()
        watched = seconds()
    return max(0.0, watched - alone) / events


def _kind(event: Any) -> str:
    within = event
    while within is not None:
        if within.name in SCOPES:
            return SCOPES[within.name]
        within = within.cpu_parent
    return next((kind for kind, names in KINDS.items() if re.search(names, event.name)), REST)
