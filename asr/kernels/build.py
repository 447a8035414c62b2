"""Compiles csrc/ into shared libraries, once per machine, and loads them.

There are two, because one with CUDA in it cannot be loaded where torch has none: `kernels` for the processor, and
`cuda` for a GPU, which needs an nvcc of the CUDA version that torch was built with, but no GPU.

A library lies in a cache under a name that says what it was made from: the sources, the flags, torch's version and the
processor. One process builds while others wait; a lock that the system releases with its owner cannot go stale. A
build that failed leaves its log and is not tried again until something of that changes, or `asr build`. A wheel made
with `pip install --no-build-isolation` brings the libraries along.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TextIO

import torch

from asr.errors import AsrError
from asr.files import try_lock

TIME_LIMIT = 300.0  # seconds; a build takes some 20 on a free core
# The oldest torch whose stable ABI suffices: a library runs with this version and every later one.
TARGET = "0x020a000000000000"  # 2.10.0
ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)  # of GPUs; those that nvcc knows, and for later ones PTX of its newest
log = logging.getLogger("asr")


class BuildError(AsrError):
    """The kernels cannot be built; says why in one line."""


def sources() -> Path:
    """csrc/: beside the package in a checkout, inside it where it was installed."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "cpu").is_dir():
            return folder
    raise BuildError(f"the sources of the kernels are missing: there is no csrc/cpu in {package} or beside it")


@lru_cache
def compiler() -> tuple[str, str]:
    """(command, version line). Raises BuildError where there is none."""
    for name in filter(None, (os.environ.get("CXX"), "c++", "g++", "clang++")):
        if found := shutil.which(name):
            try:
                answer = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30)
            except (OSError, subprocess.TimeoutExpired):
                continue
            if answer.returncode == 0 and answer.stdout:
                return found, answer.stdout.splitlines()[0]
    raise BuildError("no C++ compiler found (c++, g++, clang++ or $CXX)")


def flags() -> list[str]:
    native = ["-mcpu=native"] if platform.machine() in ("arm64", "ppc64le") else ["-march=native"]
    return ["-O3", *native, "-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", f"-DTORCH_TARGET_VERSION={TARGET}"]


@lru_cache
def nvcc() -> str:
    """The command. Raises BuildError where there is none, or none for torch's CUDA."""
    if torch.version.cuda is None:
        raise BuildError("this torch was built without CUDA")
    wanted = torch.version.cuda.split(".")[0]
    home = os.environ.get("CUDA_HOME")
    reason = f"no nvcc found ($CUDA_HOME/bin, then the PATH); it must be of CUDA {wanted}, as torch is"
    for found in filter(
        None, (shutil.which("nvcc", path=str(Path(home, "bin"))) if home else None, shutil.which("nvcc"))
    ):
        release = re.search(r"release (\d+)", _answer(found, "--version"))
        if release and release[1] == wanted:
            return found
        reason = f"{found} is of CUDA {release[1] if release else '(unknown)'}, but torch of CUDA {wanted}"
    raise BuildError(reason)


def _answer(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def cuda_flags(architectures: tuple[int, ...] = ARCHITECTURES) -> list[str]:
    """Of nvcc. Raises BuildError where it knows none of the architectures."""
    known = set(re.findall(r"sm_(\d+)\b", _answer(nvcc(), "--list-gpu-code")))
    codes = [number for number in architectures if str(number) in known]
    if not codes:
        raise BuildError(f"{nvcc()} knows none of the architectures {', '.join(map(str, architectures))}")
    targets = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in codes]
    targets.append(f"-gencode=arch=compute_{codes[-1]},code=compute_{codes[-1]}")
    return ["-O3", "-std=c++20", "-Xcompiler=-fPIC,-fvisibility=hidden", *targets]


def _processor() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(
        sorted({line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))})
    )


@lru_cache
def key(cuda: bool = False) -> str:
    """Names the library: changes with everything that its code depends on. The one with CUDA serves any processor."""
    digest = hashlib.sha256()
    if cuda:
        parts = (torch.__version__, str(torch.version.cuda), platform.machine(), str(ARCHITECTURES))
    else:
        parts = (torch.__version__, " ".join(flags()), platform.machine(), _processor())
    for part in parts:
        digest.update(part.encode() + b"\0")
    folder = sources()
    for path in sorted(path for name in ("cpu", "cuda")[: 1 + cuda] for path in folder.glob(f"{name}/*")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def cache() -> Path:
    """The first folder of our own that can be written: $ASR_CACHE, the user's cache, or one in the temporary folder."""
    wanted = [Path(root) for name in ("ASR_CACHE",) if (root := os.environ.get(name))]
    if root := os.environ.get("XDG_CACHE_HOME"):
        wanted.append(Path(root, "asr"))
    with suppress(RuntimeError):  # no home
        wanted.append(Path.home() / ".cache" / "asr")
    user = os.getuid() if hasattr(os, "getuid") else "user"
    wanted.append(Path(tempfile.gettempdir(), f"asr-{user}"))
    for folder in wanted:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Code is loaded from here: nobody else may own it.
            if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
                continue
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError:
            continue
    raise BuildError(f"no folder for the compiled kernels can be written: tried {', '.join(map(str, wanted))}")


def _name(cuda: bool) -> str:
    return f"{'cuda' if cuda else 'kernels'}-{key(cuda)}"


def compiled_path(cuda: bool = False) -> Path:
    return cache() / f"{_name(cuda)}.so"


def failure_path(cuda: bool = False) -> Path:
    return cache() / f"{_name(cuda)}.log"


def build(limit: float = TIME_LIMIT, retry: bool = True, cuda: bool = False) -> Path:
    """The library, built if need be.

    Args:
        limit: seconds, waiting for another process included.
        retry: try again what failed before.
        cuda: the one for GPUs.

    Raises:
        BuildError: no compiler, or it failed or took too long; the log lies in `failure_path()`.
    """
    shipped = Path(__file__).with_name("prebuilt") / f"{_name(cuda)}.so"
    if shipped.exists():
        return shipped
    target = compiled_path(cuda)
    if target.exists():
        return target
    end = time.monotonic() + limit
    with _locked(target.with_suffix(".lock"), end) as lock:
        if target.exists():  # another process was faster
            return target
        failure, what = failure_path(cuda), "the CUDA kernels" if cuda else "the kernels"
        if failure.exists() and not retry:
            raise BuildError(f"building {what} failed before: see {failure}, then run `asr build`")
        log.info("building %s with %s, once for this machine", what, nvcc() if cuda else compiler()[0])
        start = time.monotonic()
        folder = target.with_suffix(".building")  # of nobody else: we hold the lock
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            _compile(folder / target.name, folder, end, cuda)
            os.replace(folder / target.name, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failure.unlink(missing_ok=True)
        seconds = time.monotonic() - start
        lock.truncate(0)
        lock.write(f"{nvcc() if cuda else ' '.join(compiler())}, {seconds:.0f} s")
        log.info("built %s in %.0f s: %s", what, seconds, target)
    return target


def made_by(library: Path) -> str:
    """Compiler and seconds of a library that `build` returned, which its lock file keeps; or that it came so."""
    lock = library.with_suffix(".lock")
    return f"built here by {lock.read_text(encoding='utf-8')}" if lock.exists() else "came with the package"


def _compile(target: Path, folder: Path, end: float, cuda: bool) -> None:
    import ninja

    Path(folder, "build.ninja").write_text("\n".join(_ninja(target, cuda)), encoding="utf-8")
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(folder)]
    code, output = _run(command, max(1.0, end - time.monotonic()))
    if code == 0:
        return
    reason = "the compiler took too long" if code is None else f"the compiler failed with exit code {code}"
    failure_path(cuda).write_text(f"{' '.join(command)}\n{reason}\n{output}", encoding="utf-8")
    raise BuildError(f"building the {'CUDA ' if cuda else ''}kernels failed: {reason}; see {failure_path(cuda)}")


def _ninja(target: Path, cuda: bool) -> list[str]:
    site = Path(torch.__file__).parent
    torch_flags = f"-isystem {_shell(site / 'include')}"
    link = f"-shared -L{_shell(site / 'lib')} -ltorch -ltorch_cpu -lc10"
    cxx, rules = _shell(compiler()[0]), []
    if cuda:
        portable = [flag for flag in flags() if not flag.endswith("=native")]
        rules = [
            f"nvcc = {_shell(nvcc())} -ccbin {cxx}",
            "rule kernels",
            f"  command = $nvcc {' '.join(map(_shell, cuda_flags()))} -c $in -o $out",
        ]
        compile_flags = [*portable, "-DUSE_CUDA"]
        linker, link = "$nvcc --cudart=shared", f"{link} -ltorch_cuda"  # torch's runtime, not a second one
    else:
        compile_flags, linker = flags(), "$cxx"
        if sys.platform == "darwin":
            link += " -undefined dynamic_lookup"
    units = sorted(path for path in sources().glob(f"{'cuda' if cuda else 'cpu'}/*") if path.suffix in (".cpp", ".cu"))
    quoted = [text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:") for text in map(str, (*units, target))]
    objects = [f"{unit.stem}.o" for unit in units]
    kinds = ["kernels" if unit.suffix == ".cu" else "compile" for unit in units]
    return [
        f"cxx = {cxx}",
        *rules,
        "rule compile",
        f"  command = $cxx {' '.join(compile_flags)} {torch_flags} -c $in -o $out",
        "rule link",
        f"  command = {linker} $in {link} -o $out",
        *(f"build {made}: {kind} {unit}" for made, kind, unit in zip(objects, kinds, quoted, strict=False)),
        f"build {quoted[-1]}: link {' '.join(objects)}",
        "",
    ]


def _shell(path: str | Path) -> str:
    """A path inside a command of a ninja file: ninja expands `$` and hands the rest to a shell."""
    return shlex.quote(str(path)).replace("$", "$$")


def _run(command: list[str], limit: float) -> tuple[int | None, str]:
    """Exit code, None after `limit` seconds, and what it printed. Leaves no process behind."""
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            output, _ = process.communicate(timeout=limit)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            return None, ""
        finally:
            if process.poll() is None:
                process.terminate()  # ninja then ends the compilers it started
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()


@contextmanager
def _locked(path: Path, end: float) -> Iterator[TextIO]:
    """Holds the lock; the system releases it when the process ends, however that happens."""
    with path.open("a", encoding="utf-8") as file:
        while not try_lock(file.fileno()):  # Windows has none: builds side by side each replace the whole file
            if time.monotonic() > end:
                raise BuildError(f"another process has been building the kernels for too long; it holds {path}")
            time.sleep(0.1)
        yield file  # closing the file releases the lock


@lru_cache
def load() -> str | None:
    """Loads the library, built if need be. → None, or in one line why there is none. Says so once."""
    return _load(False)


@lru_cache
def load_cuda() -> str | None:
    """The same for the library of the GPU."""
    return _load(True)


def _load(cuda: bool) -> str | None:
    try:
        if sys.platform == "win32":
            raise BuildError("the kernels are not built on Windows")
        torch.ops.load_library(str(build(retry=False, cuda=cuda)))
    except (BuildError, OSError) as error:
        reason = " ".join(str(error).split())
        log.warning("attention %sruns in PyTorch: %s", "on the GPU " if cuda else "", reason)
        return reason
    return None
