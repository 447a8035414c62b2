"""How the kernels get into a wheel: their sources always, the compiled library where torch is at hand.

`pip install --no-build-isolation .` builds beside the installed torch, so that the library can be compiled then and
there. In an isolated build there is no torch (it would be a second one, of gigabytes); the library is then built at
first use.
"""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parents[1]


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp", ".cu", ".cuh"))


class BuildPackage(build_py):
    """Adds csrc/ as asr/csrc/, and the compiled library as asr/kernels/prebuilt/."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # csrc/ is found beside the package
            return
        for path in sources():
            target = Path(self.build_lib, "asr", path.relative_to(ROOT))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        if find_spec("torch"):
            sys.path.insert(0, str(ROOT))
            import torch

            from asr.kernels import build

            for cuda in (False, True)[: 1 + torch.cuda.is_available()]:
                try:
                    library = build.build(cuda=cuda)
                except build.BuildError as error:
                    self.announce(f"the {'CUDA ' if cuda else ''}kernels are not in this wheel: {error}", 3)
                    continue
                folder = Path(self.build_lib, "asr", "kernels", "prebuilt")
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(library, folder / library.name)

    def get_source_files(self) -> list[str]:
        """What a source archive holds."""
        return [*super().get_source_files(), *(str(path.relative_to(ROOT)) for path in sources())]


class BuildWheel(bdist_wheel):
    """A wheel with a compiled library is for one kind of machine."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if find_spec("torch"):
            self.root_is_pure = False

    def get_tag(self) -> Any:
        python, abi, platform = super().get_tag()
        return ("py3", "none", platform) if find_spec("torch") else (python, abi, platform)
