from __future__ import annotations

import pytest
import torch

from asr.kernels import build


@pytest.fixture(scope="session")
def kernels() -> None:
    """The compiled kernels, loaded; skips where they cannot be built, e.g. for want of a compiler."""
    if reason := build.load():
        pytest.skip(reason)


@pytest.fixture(scope="session", params=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device whose kernels this machine can run."""
    if request.param == "cuda" and (reason := build.load_cuda()):
        pytest.skip(reason)
    return request.param


@pytest.fixture
def threads():
    """Call it with a number of threads; the old number comes back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
