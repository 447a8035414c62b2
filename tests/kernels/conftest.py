from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from asr.kernels import build

EMULATION = Path(__file__).resolve().parents[1] / "emulation"


class Emulation:
    """A program of tests/emulation: CUDA kernels as plain C++, a thread of the system for each of CUDA's.

    ThreadSanitizer shows a missing barrier, AddressSanitizer a wrong index. Compiled when first asked for.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def program(self, sanitizer: str) -> Path:
        program = self.folder / f"{self.name}-{sanitizer}"
        if program.exists():
            return program
        command = ["g++", "-std=c++20", "-O0", "-g1", f"-fsanitize={sanitizer}", "-fno-omit-frame-pointer", "-pthread"]
        command += [f"-I{EMULATION}", f"-I{self.folder / 'cuda'}", f"-I{build.sources() / 'cuda'}"]
        command += ["-Wall", "-Werror", "-Wno-unknown-pragmas"]
        command += [str(EMULATION / f"{self.name}.cpp"), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True)
        if "‘_Float16’ was not declared" in done.stderr or "'_Float16' was not declared" in done.stderr:
            pytest.skip("this g++ has no _Float16")
        assert done.returncode == 0, done.stderr
        return program

    def barriers(self) -> int:
        return int(
            subprocess.run([self.program("thread")], capture_output=True, text=True, check=True).stdout.split()[0]
        )

    def run(self, sanitizer: str, cases: list, *options: str) -> list[dict[str, torch.Tensor]]:
        """Results of each case; RuntimeError with what a sanitizer said."""
        program, written, results = self.program(sanitizer), self.folder / "cases", self.folder / "results"
        written.write_bytes(b"".join(case.packed() for case in cases))
        environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=1"}
        command = [str(program), str(written), str(results), *options]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
        if done.returncode:
            raise RuntimeError(done.stderr[:3000])
        data, found = results.read_bytes(), []
        for case in cases:
            one, data = case.unpack(data)
            found.append(one)
        assert not data
        return found

    def check(self, sanitizer: str, small: list, cases: list) -> None:
        """The cases come out right and the sanitizer has nothing to say; races are the same in each."""
        chosen = cases if sanitizer == "address" else [*small, *cases[::3]]
        for case, found in zip(chosen, self.run(sanitizer, chosen), strict=True):
            case.check(found)

    def check_barriers(self, small: list) -> None:
        """Without any one of them ThreadSanitizer finds a race: none is missing, none is for nothing."""
        assert self.barriers() > 15
        for number in range(self.barriers()):
            with pytest.raises(RuntimeError, match="data race"):
                self.run("thread", small, str(number))

    def check_fault(self, folder: Path, fault: tuple[str, str, str], cases: list) -> None:
        """AddressSanitizer sees an index that is off by one."""
        with pytest.raises(RuntimeError, match="heap-buffer-overflow"):
            self.with_fault(folder, *fault).run("address", cases)

    def with_fault(self, folder: Path, file: str, right: str, wrong: str) -> Emulation:
        """The same program from a copy of the sources in which `right` is `wrong`."""
        shutil.copytree(build.sources() / "cuda", folder / "cuda")
        text = (folder / "cuda" / file).read_text()
        assert right in text
        (folder / "cuda" / file).write_text(text.replace(right, wrong))
        return Emulation(self.name, folder)


@pytest.fixture(scope="module")
def emulation(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Emulation:
    """The program that the test module names PROGRAM."""
    if not os.environ.get("CI"):
        pytest.skip("takes minutes: CI=true runs it")
    if not shutil.which("g++"):
        pytest.skip("no g++")
    return Emulation(request.module.PROGRAM, tmp_path_factory.mktemp("emulation"))


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
