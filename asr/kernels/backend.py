"""Which implementation of the ops is active.

`ASR_KERNELS` says which: `auto` (default) takes the compiled one where there is one and PyTorch elsewhere, `reference`
always PyTorch, `cpp` and `cuda` only the compiled one: what it cannot do is an error, never a silent fallback.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, library

from asr.errors import AsrError
from asr.kernels import build

LIBRARY = library.Library("asr", "DEF")  # schemas stand beside each op; csrc/ registers what computes them
CHOICES = ("auto", "reference", "cpp", "cuda")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class KernelError(AsrError):
    """The implementation that `ASR_KERNELS` demands is not available."""


def choice() -> str:
    """The value of `ASR_KERNELS`. Raises KernelError for an unknown one."""
    value = os.environ.get("ASR_KERNELS", "auto") or "auto"
    if value not in CHOICES:
        raise KernelError(f"ASR_KERNELS={value}: must be one of {', '.join(CHOICES)}")
    return value


@torch.compiler.assume_constant_result
def _active(device: str, dtype: torch.dtype, wanted: str, cuda: bool = True, cpp: bool = True) -> bool:
    if wanted == "reference":
        return False
    problem = None
    if (
        device not in ("cpu", "cuda")
        or (wanted == "cpp" and device != "cpu")
        or (wanted == "cuda" and device != "cuda")
    ):
        problem = f"the tensors lie on {device}"
    elif dtype not in DTYPES:
        problem = f"{str(dtype).removeprefix('torch.')} is computed by PyTorch only"
    elif device == "cuda":
        problem = build.load_cuda() if cuda else "this op has no CUDA kernel"
    else:
        problem = build.load() if cpp else "this op has no C++ kernel"
    if problem is not None and wanted != "auto":
        raise KernelError(f"ASR_KERNELS={wanted}, but {problem}")
    return problem is None


@contextmanager
def forced(name: str) -> Iterator[None]:
    """`ASR_KERNELS` set to `name` within a `with`."""
    before = os.environ.get("ASR_KERNELS")
    os.environ["ASR_KERNELS"] = name
    try:
        yield
    finally:
        if before is None:
            del os.environ["ASR_KERNELS"]
        else:
            os.environ["ASR_KERNELS"] = before


def prepare() -> None:
    """Builds and loads the libraries now: for whoever would else do so in the middle of something measured."""
    if choice() in ("auto", "cpp"):
        build.load()
    if choice() in ("auto", "cuda") and torch.cuda.is_available():
        build.load_cuda()


def on_cpu(x: Tensor) -> bool:
    """Whether C++ computes a helper of this tensor, one that `ASR_KERNELS` never demands: PyTorch does it elsewhere."""
    return x.device.type == "cpu" and choice() in ("auto", "cpp") and _active("cpu", torch.float32, "auto")


def compiled(*tensors: Tensor, cuda: bool = True, cpp: bool = True) -> bool:
    """Whether the compiled implementation computes these. Builds it at the first call that could use it.

    Args:
        cuda, cpp: whether the op has a CUDA kernel, and one for the CPU.

    Raises:
        KernelError: `ASR_KERNELS` demands an implementation that is not available for these tensors.
    """
    dtype = tensors[0].dtype
    for tensor in tensors[1:]:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return _active(tensors[0].device.type, dtype, choice(), cuda, cpp)
