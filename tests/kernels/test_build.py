"""Building the kernels: once, by one process, in time, and never in the way. The compilers here are scripts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from asr.errors import AsrError
from asr.kernels import backend, build, linear_attention

COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo "test compiler 1.0" && exit 0
echo "$$ $*" >> "{log}"
{action}
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""


@pytest.fixture
def compile_with(tmp_path, monkeypatch):
    """compile_with(shell lines) → a file with one line per call of the compiler. Caches are empty, here and later."""
    cached = (build.compiler, build.nvcc, build.key, build.load, build.load_cuda)
    monkeypatch.setenv("ASR_CACHE", str(tmp_path / "cache"))

    def use(action: str = "") -> Path:
        log, script = tmp_path / "calls", tmp_path / "a compiler"  # a blank in its name
        script.write_text(COMPILER.format(log=log, action=action))
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        for function in cached:
            function.cache_clear()
        return log

    yield use
    for function in cached:
        function.cache_clear()


NVCC = """#!/bin/sh
[ "$1" = --version ] && echo "Cuda compilation tools, release {release}.9, V{release}.9.1" && exit 0
[ "$1" = --list-gpu-code ] && echo "sm_80 sm_90 sm_121" && exit 0
echo "$$ $*" >> "{log}"
while [ $# -gt 0 ]; do [ "$1" = -o ] && : > "$2"; shift; done
"""


@pytest.fixture
def nvcc_of(compile_with, tmp_path, monkeypatch):
    """nvcc_of(CUDA release) → a file with one line per call of nvcc; torch is of CUDA 13."""
    compile_with()
    monkeypatch.setattr(torch.version, "cuda", "13.0")

    def use(release: int, folder: str = "a toolkit") -> Path:
        log, script = tmp_path / f"{folder} calls", tmp_path / folder / "bin" / "nvcc"
        script.parent.mkdir(parents=True)
        script.write_text(NVCC.format(log=log, release=release))
        script.chmod(0o755)
        monkeypatch.setenv("CUDA_HOME", str(tmp_path / folder))
        build.nvcc.cache_clear()
        return log

    return use


def gone(process: int) -> bool:
    """Whether it has ended, after a moment to do so."""
    for _ in range(50):
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def units() -> int:
    return len(list(build.sources().glob("cpu/*.cpp")))


def test_built_once_and_found_again(compile_with):
    calls = compile_with()
    path = build.build()
    assert path == build.compiled_path()
    assert path.exists()
    assert len(calls.read_text().splitlines()) == units() + 1  # and one to link
    assert build.build() == path
    assert len(calls.read_text().splitlines()) == units() + 1
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.stem}.lock"}
    assert re.fullmatch(r"built here by .+ \d+ s", build.made_by(path))


def test_another_torch_another_library(compile_with, monkeypatch):
    compile_with()
    before = build.key()
    monkeypatch.setattr(torch, "__version__", "9.9.9")
    build.key.cache_clear()
    assert build.key() != before


def test_other_sources_another_library(compile_with, monkeypatch, tmp_path):
    compile_with()
    before = build.key()
    (tmp_path / "csrc" / "cpu").mkdir(parents=True)
    (tmp_path / "csrc" / "cpu" / "a.cpp").write_text("int a;")
    monkeypatch.setattr(build, "sources", lambda: tmp_path / "csrc")
    build.key.cache_clear()
    assert build.key() != before


def test_two_processes_build_once(compile_with, tmp_path):
    calls = compile_with("sleep 0.5")
    program = "from asr.kernels import build; print(build.build())"
    processes = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {process.communicate(timeout=120)[0].strip() for process in processes}
    assert paths == {str(build.compiled_path())}
    assert len(calls.read_text().splitlines()) == units() + 1


def test_a_failure_is_explained_and_not_repeated(compile_with):
    calls = compile_with("echo 'error: no such thing as a kernel' >&2; exit 1")
    with pytest.raises(build.BuildError, match=f"failed with exit code 1; see {build.failure_path()}"):
        build.build()
    assert "no such thing as a kernel" in build.failure_path().read_text()
    tried = len(calls.read_text().splitlines())
    with pytest.raises(build.BuildError, match=r"failed before: see .* then run `asr build`"):
        build.build(retry=False)
    assert len(calls.read_text().splitlines()) == tried
    compile_with()
    build.build()  # what `asr build` does
    assert not build.failure_path().exists()


def test_a_time_limit_leaves_no_process_and_no_lock(compile_with):
    calls = compile_with("exec sleep 600")
    start = time.monotonic()
    with pytest.raises(build.BuildError, match="took too long"):
        build.build(limit=1.5)
    assert time.monotonic() - start < 30
    for line in calls.read_text().splitlines():
        assert gone(int(line.split()[0]))
    compile_with()
    assert build.build().exists()


def test_a_lock_dies_with_its_owner(compile_with):
    compile_with()
    lock = build.compiled_path().with_suffix(".lock")
    program = (
        f"import fcntl, time; file = open({str(lock)!r}, 'a'); fcntl.flock(file, fcntl.LOCK_EX);"
        " print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:
        owner.stdout.readline()
        with pytest.raises(build.BuildError, match="another process has been building"):
            build.build(limit=0.3)
        owner.kill()
    assert build.build().exists()


def test_without_a_compiler_everything_runs_in_torch(compile_with, monkeypatch, tmp_path, caplog):
    compile_with()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    build.compiler.cache_clear()
    q = torch.randn(1, 5, 2, 4)
    for _ in range(3):
        assert linear_attention(q, q, q, torch.tensor([5])).shape == q.shape
    assert [record.message for record in caplog.records] == [
        "attention runs in PyTorch: no C++ compiler found (c++, g++, clang++ or $CXX)"
    ]
    monkeypatch.setenv("ASR_KERNELS", "cpp")
    with pytest.raises(backend.KernelError, match="ASR_KERNELS=cpp, but no C\\+\\+ compiler found"):
        linear_attention(q, q, q, torch.tensor([5]))


def test_a_library_that_cannot_be_loaded_is_no_reason_to_stop(compile_with, caplog):
    compile_with()  # makes empty files
    assert "kernels-" in build.load()
    assert len(caplog.records) == 1


def test_no_home_and_no_cache(monkeypatch, tmp_path):
    monkeypatch.delenv("ASR_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless():
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    assert build.cache().parent == tmp_path


def test_a_folder_that_cannot_be_written_or_is_not_ours_is_passed_over(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ASR_CACHE", str(tmp_path / "file" / "cache"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert build.cache() == tmp_path / "xdg" / "asr"
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(build.BuildError, match=r"no folder .* can be written"):
        build.cache()


@pytest.mark.parametrize("value", ["gpu", "CPP", "1"])
def test_unknown_backends_are_refused(monkeypatch, value):
    monkeypatch.setenv("ASR_KERNELS", value)
    with pytest.raises(AsrError, match=f"ASR_KERNELS={value}: must be one of auto, reference, cpp, cuda"):
        backend.choice()


@pytest.mark.usefixtures("kernels")
def test_a_forced_backend_never_falls_back(monkeypatch):
    q = torch.randn(1, 5, 2, 4)
    monkeypatch.setenv("ASR_KERNELS", "cpp")
    linear_attention(q, q, q, torch.tensor([5]))
    with pytest.raises(AsrError, match="float64 is computed by PyTorch only"):
        linear_attention(q.double(), q.double(), q.double(), torch.tensor([5]))
    monkeypatch.setenv("ASR_KERNELS", "cuda")
    with pytest.raises(AsrError, match="ASR_KERNELS=cuda, but the tensors lie on cpu"):
        linear_attention(q, q, q, torch.tensor([5]))


def test_the_cuda_library_is_one_of_its_own(nvcc_of):
    calls = nvcc_of(13)
    path = build.build(cuda=True)
    assert path == build.compiled_path(cuda=True)
    assert path.name.startswith("cuda-")
    lines = calls.read_text().splitlines()
    assert len(lines) == len(list(build.sources().glob("cuda/*.cu"))) + 1
    for target in ("compute_80,code=sm_80", "compute_90,code=sm_90", "compute_90,code=compute_90"):
        assert target in lines[0]
    assert "sm_75" not in lines[0]  # this nvcc does not know it
    assert "sm_121" not in lines[0]
    assert build.build(cuda=True) == path
    assert len(calls.read_text().splitlines()) == len(lines)
    assert not build.compiled_path().exists()


def test_nvcc_must_be_of_the_cuda_that_torch_has(nvcc_of, monkeypatch, tmp_path):
    nvcc_of(12)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.BuildError, match=r"is of CUDA 12, but torch of CUDA 13"):
        build.build(cuda=True)
    nvcc_of(13, "another toolkit")
    monkeypatch.setenv("PATH", str(tmp_path / "another toolkit" / "bin"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "a toolkit"))
    assert build.nvcc() == str(tmp_path / "another toolkit" / "bin" / "nvcc")
    build.nvcc.cache_clear()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(build.BuildError, match="torch was built without CUDA"):
        build.nvcc()


def test_without_nvcc_a_gpu_runs_in_torch(nvcc_of, monkeypatch, tmp_path, caplog):
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    build.nvcc.cache_clear()
    assert not backend._active("cuda", torch.float32, "auto")
    assert [record.message for record in caplog.records] == [
        "attention on the GPU runs in PyTorch: no nvcc found ($CUDA_HOME/bin, then the PATH); it must be of CUDA 13, as"
        " torch is"
    ]
    with pytest.raises(backend.KernelError, match="ASR_KERNELS=cuda, but no nvcc found"):
        backend._active("cuda", torch.float32, "cuda")
    with pytest.raises(backend.KernelError, match="this op has no CUDA kernel"):
        backend._active("cuda", torch.float32, "cuda", False)


def test_other_cuda_sources_another_cuda_library(compile_with, monkeypatch, tmp_path):
    compile_with()
    for name in ("cpu/a.cpp", "cuda/a.cu"):
        (tmp_path / "csrc" / name).parent.mkdir(parents=True)
        (tmp_path / "csrc" / name).write_text("int a;")
    monkeypatch.setattr(build, "sources", lambda: tmp_path / "csrc")
    build.key.cache_clear()
    before = build.key(), build.key(True)
    (tmp_path / "csrc" / "cuda" / "a.cu").write_text("int b;")
    build.key.cache_clear()
    assert build.key() == before[0]
    assert build.key(True) != before[1]
