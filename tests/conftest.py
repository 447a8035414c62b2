"""Shared by all tests: one thread, and where real recorded speech lies."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)

# A shell starts background jobs with SIGINT ignored, and their children inherit that: tests that send it would wait in
# vain for an end.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def corpus():
    """`corpus("an4")` is the folder of a real corpus; the test skips where it is absent.

    The corpora are looked for in $ASR_TEST_DATA, else in `shared/data` beside the checkout.
    """
    root = Path(os.environ.get("ASR_TEST_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")

    def find(name: str) -> Path:
        if not (root / name).is_dir():
            pytest.skip(f"needs the corpus {name} in {root} (set ASR_TEST_DATA)")
        return root / name

    return find
