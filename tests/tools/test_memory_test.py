"""The memory test in small: it finds the features it made and says what it measures."""

from __future__ import annotations

import re
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_it_reports_every_epoch(tmp_path, run_tool):
    done = run_tool("memory_test", "--utterances", 60, "--epochs", 2, "--out", tmp_path)
    assert done.code == 0, done.err
    assert "features:" not in done.err, "none was computed"
    lines = done.out.splitlines()
    assert [re.sub(r"\d+ (?=MB|open)", "N ", line) for line in lines] == [
        "rank 0 program loaded: N MB of its own, N MB of files, N open files",
        "rank 0 after epoch 1, 60 utterances: N MB of its own, N MB of files, N open files",
        "rank 0 after epoch 2, 60 utterances: N MB of its own, N MB of files, N open files",
    ]
    assert lines[1].split(", ")[-1] == lines[2].split(", ")[-1], "no file is left open by an epoch"
