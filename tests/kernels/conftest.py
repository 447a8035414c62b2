from __future__ import annotations

import pytest
import torch

from asr.kernels import build


@pytest.fixture(scope="session")
def kernels() -> None:
    """The compiled kernels, loaded; skips where they cannot be built, e.g. for want of a compiler."""
    if reason := build.load():
        pytest.skip(reason)


@pytest.fixture
def threads():
    """Call it with a number of threads; the old number comes back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
