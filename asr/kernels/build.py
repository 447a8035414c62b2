"""Compiles csrc/ into a shared library, once per machine, and loads it.

The library lies in a cache under a name that says what it was made from: the sources, the flags, torch's version and
the processor. One process builds while others wait; a lock that the system releases with its owner cannot go stale. A
build that failed leaves its log and is not tried again until something of that changes, or `asr build`. A wheel made
with `pip install --no-build-isolation` brings the library along.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
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
from typing import Any

import torch

from asr.errors import AsrError

TIME_LIMIT = 300.0  # seconds; a build takes some 20 on a free core
# The oldest torch whose stable ABI suffices: a library runs with this version and every later one.
TARGET = "0x020a000000000000"  # 2.10.0
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
def key() -> str:
    """Names the library: changes with everything that its code depends on."""
    digest = hashlib.sha256()
    for part in (torch.__version__, " ".join(flags()), platform.machine(), _processor()):
        digest.update(part.encode() + b"\0")
    folder = sources()
    for path in sorted(folder.glob("cpu/*")):
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


def library_path() -> Path:
    return cache() / f"kernels-{key()}.so"


def failure_path() -> Path:
    return cache() / f"kernels-{key()}.log"


def build(limit: float = TIME_LIMIT, retry: bool = True) -> Path:
    """The library, built if need be.

    Args:
        limit: seconds, waiting for another process included.
        retry: try again what failed before.

    Raises:
        BuildError: no compiler, or it failed or took too long; the log lies in `failure_path()`.
    """
    shipped = Path(__file__).with_name("prebuilt") / f"kernels-{key()}.so"
    if shipped.exists():
        return shipped
    target = library_path()
    if target.exists():
        return target
    end = time.monotonic() + limit
    with _locked(target.with_suffix(".lock"), end):
        if target.exists():  # another process was faster
            return target
        if failure_path().exists() and not retry:
            raise BuildError(f"building the kernels failed before: see {failure_path()}, then run `asr build`")
        log.info("building the kernels with %s, once for this machine", compiler()[0])
        start = time.monotonic()
        folder = target.with_suffix(".building")  # of nobody else: we hold the lock
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            _compile(folder / target.name, folder, end)
            os.replace(folder / target.name, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        failure_path().unlink(missing_ok=True)
        log.info("built the kernels in %.0f s: %s", time.monotonic() - start, target)
    return target


def _compile(target: Path, folder: Path, end: float) -> None:
    import ninja

    site = Path(torch.__file__).parent
    units = sorted(sources().glob("cpu/*.cpp"))
    quoted = [text.replace("$", "$$").replace(" ", "$ ").replace(":", "$:") for text in map(str, (*units, target))]
    objects = [f"{unit.stem}.o" for unit in units]
    lines = [
        f"cxx = {_shell(compiler()[0])}",
        f"flags = {' '.join(flags())} -isystem {_shell(site / 'include')}",
        f"link = -shared -L{_shell(site / 'lib')} -ltorch -ltorch_cpu -lc10",
        "rule compile",
        "  command = $cxx $flags -c $in -o $out",
        "rule link",
        "  command = $cxx $in $link -o $out",
        *(f"build {made}: compile {unit}" for made, unit in zip(objects, quoted, strict=False)),
        f"build {quoted[-1]}: link {' '.join(objects)}",
        "",
    ]
    if sys.platform == "darwin":
        lines[2] += " -undefined dynamic_lookup"
    Path(folder, "build.ninja").write_text("\n".join(lines), encoding="utf-8")
    command = [str(Path(ninja.BIN_DIR, "ninja")), "-C", str(folder)]
    code, output = _run(command, max(1.0, end - time.monotonic()))
    if code == 0:
        return
    reason = "the compiler took too long" if code is None else f"the compiler failed with exit code {code}"
    failure_path().write_text(f"{' '.join(command)}\n{reason}\n{output}", encoding="utf-8")
    raise BuildError(f"building the kernels failed: {reason}; see {failure_path()}")


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
def _locked(path: Path, end: float) -> Iterator[None]:
    """Holds the lock; the system releases it when the process ends, however that happens."""
    with path.open("a") as file:
        while not _try_lock(file.fileno()):
            if time.monotonic() > end:
                raise BuildError(f"another process has been building the kernels for too long; it holds {path}")
            time.sleep(0.1)
        yield  # closing the file releases the lock


def _try_lock(descriptor: int) -> bool:
    try:
        import fcntl
    except ImportError:  # Windows: builds may run side by side; each replaces the whole file
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@lru_cache
def load() -> str | None:
    """Loads the library, built if need be. → None, or in one line why there is none. Says so once."""
    try:
        if sys.platform == "win32":
            raise BuildError("the kernels are not built on Windows")
        torch.ops.load_library(str(build(retry=False)))
    except (BuildError, OSError) as error:
        reason = " ".join(str(error).split())
        log.warning("attention runs in PyTorch: %s", reason)
        return reason
    return None
