"""nvcc takes the CUDA kernels, and none of them needs more registers than there are."""

from __future__ import annotations

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
@pytest.mark.parametrize("unit", ["kernels_float", "kernels_bfloat16", "kernels_half"])
def test_no_kernel_spills(unit, tmp_path):
    source = build.sources() / "cuda" / f"{unit}.cu"
    flags = [flag for flag in build.cuda_flags((80, 90)) if "code=compute" not in flag]
    command = [str(nvcc()), "-ccbin", build.compiler()[0], *flags, "-Xptxas", "-v", "-c", str(source)]
    done = subprocess.run([*command, "-o", str(tmp_path / "unit.o")], capture_output=True, text=True, timeout=600)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "warning" not in said.lower(), said
    for architecture in ("sm_80", "sm_90"):
        assert said.count(f"for '{architecture}'") == 6, "six kernels each"
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", said)]
    assert len(spills) == 2 * 2 * 6
    assert not any(spills), said


def test_every_dtype_has_a_unit():
    names = {path.stem for path in (build.sources() / "cuda").glob("*.cu")}
    assert names == {"kernels_float", "kernels_bfloat16", "kernels_half"}
