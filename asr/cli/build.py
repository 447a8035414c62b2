"""`asr build`: compile the attention kernels ahead of time."""

from __future__ import annotations

from typing import Annotated

import typer


def build(
    limit: Annotated[float, typer.Option(min=1, help="Give up after so many seconds.")] = 300.0,
    cuda: Annotated[bool, typer.Option("--cuda", help="The CUDA kernels too, even without a GPU here.")] = False,
) -> None:
    """Compile the attention kernels for this machine, also where that failed before. Prints where they lie."""
    import torch  # seconds to load: not for --help

    from asr.kernels import build as kernels

    print(kernels.build(limit))
    if cuda or torch.cuda.is_available():
        print(kernels.build(limit, cuda=True))
