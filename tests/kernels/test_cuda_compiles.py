"""nvcc takes the CUDA kernels, and none of them needs more registers than there are."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from asr.kernels import build


def nvcc() -> str | None:
    try:
        return build.nvcc()
    except build.BuildError:
        return None


@pytest.mark.skipif(nvcc() is None, reason="no nvcc of the CUDA version that torch has")
@pytest.mark.skipif(not os.environ.get("CI"), reason="takes minutes: CI=true runs it")
@pytest.mark.parametrize("ops", ["kernels", "lsh"])
@pytest.mark.parametrize(
    ("dtype", "architectures"),
    [("float", (80, 90)), ("bfloat16", (80, 90)), ("half", (75, 80, 90))],  # 75: no TF32
)
def test_no_kernel_spills(ops, dtype, architectures, tmp_path):
    source = build.sources() / "cuda" / f"{ops}_{dtype}.cu"
    flags = [flag for flag in build.cuda_flags(architectures) if "code=compute" not in flag]
    command = [str(nvcc()), "-ccbin", build.compiler()[0], *flags, "-Xptxas", "-v", "-c", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "unit.o")], capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "warning" not in said.lower(), said
    for architecture in architectures:
        kernels = re.findall(
            rf"for 'sm_{architecture}'.*?(\d+) bytes spill stores, (\d+) bytes spill loads", said, re.S
        )
        assert len(kernels) == 6
        assert architecture < 80 or set(kernels) == {("0", "0")}, said


def test_every_dtype_has_a_unit():
    names = {path.stem for path in (build.sources() / "cuda").glob("*.cu")}
    assert names == {f"{ops}_{dtype}" for ops in ("kernels", "lsh") for dtype in ("float", "bfloat16", "half")}
