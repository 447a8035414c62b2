"""An op with a gradient in Python, called for half of what torch's dispatcher asks for such ops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import library

from asr.kernels.backend import LIBRARY


def differentiable(
    name: str, save: Callable[[Any, Any, Any], None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """Register the gradient of `asr::name`, and return what calls the op.

    Tracers find the op whole, with the gradient registered. Everything else goes through an autograd function of the
    same two parts, below which the op is only looked up: a step has some fifty of these calls.

    Args:
        save, backward: `setup_context` and `backward` of torch's `register_autograd`.
    """
    library.register_autograd(f"asr::{name}", backward, setup_context=save, lib=LIBRARY)
    op = getattr(torch.ops.asr, name).default

    def forward(ctx: Any, *inputs: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            output = op(*inputs)
        save(ctx, inputs, output)
        return output

    function: Any = type(  # a profiler shows this name
        name, (torch.autograd.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    )

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*inputs)
        return function.apply(*inputs)

    return call
