"""Which operators the time of a piece of work goes into, by kind; measured by torch.profiler."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

KINDS = {  # the first pattern that fits an operator's name says its kind
    "dropout": r"dropout|random_|bernoulli",
    "products": r"aten::(addmm|mm|bmm|baddbmm|addbmm|dot|mv|addmv|_scaled_mm)$|mkldnn_linear|linear_pointwise",
    "convolutions": r"conv",
    "mixer ops": r"asr(::|_)(?!zero_padding)|scaled_dot_product|flash_attention|efficient_attention|rnn|lstm",
    "CTC": r"ctc|log_softmax|LogSoftmax",
    "norms": r"layer_norm|rms_norm",
    "element by element, copies": r"aten::|zero_padding|triton|Compiled",
}
WHOLE = "asr: profiled"
SCOPES = {"data": "data", "optimiser": "clip and optimiser"}  # all that runs within these parts of a step
REST = "autograd, Python, waiting"  # between operators, and what autograd itself does
HEAVY = ("products", "convolutions", "mixer ops")  # what a model computes; the rest is what it takes to get there
ALL = (*KINDS, *SCOPES.values(), REST)


def operator_seconds(run: Callable[[], object], device: torch.device, alone: float | None = None) -> dict[str, float]:
    """Seconds by kind, one for each of `ALL`: on a GPU of its kernels, whose idle time is the rest; else of the host.

    alone: seconds that `run` takes without a profiler, which adds a microsecond or two to each of some thousand
        operators a step and most of that to the rest; the rest is then what remains of these.
    """
    gpu = device.type == "cuda"
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it tells stderr that it starts, and that there is no GPU
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * gpu
    with profile(activities=activities) as found:
        with torch.profiler.record_function(WHOLE):
            run()
        if gpu:
            torch.cuda.synchronize(device)
    seconds = dict.fromkeys(ALL, 0.0)
    total = 0.0
    for event in found.events():
        if event.device_type != torch.autograd.DeviceType.CPU or event.is_async:
            continue
        if event.name == WHOLE:
            total = event.cpu_time_total / 1e6
        seconds[_kind(event)] += (event.self_device_time_total if gpu else event.self_cpu_time_total) / 1e6
    others = sum(seconds.values()) - seconds[REST]
    seconds[REST] = max(0.0, (alone or total) - others)
    return seconds


def _kind(event: Any) -> str:
    within = event
    while within is not None:
        if within.name in SCOPES:
            return SCOPES[within.name]
        within = within.cpu_parent
    return next((kind for kind, names in KINDS.items() if re.search(names, event.name)), REST)
