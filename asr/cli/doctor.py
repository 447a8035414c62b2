"""`asr doctor`: does everything this toolkit stands on work on this machine?"""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import typer

from asr.wording import counted

Check = Callable[[], str]  # returns what it found, raises what is wrong


def doctor() -> None:
    """Check the installation: versions, devices, audio formats, and one training step with each mixer."""
    failed = 0
    for name, check in checks():
        start = time.perf_counter()
        try:
            print(f"ok    {name}: {check()}", end="")
            print(f" ({seconds:.1f} s)" if (seconds := time.perf_counter() - start) > 0.5 else "", flush=True)
        except Exception as error:  # whatever is broken, the other checks still run
            failed += 1
            print(f"FAIL  {name}: {type(error).__name__}: {' '.join(str(error).split())}", flush=True)
    if failed:
        print(f"{failed} of the checks failed", file=sys.stderr)
        raise typer.Exit(1)


def checks() -> Iterator[tuple[str, Check]]:
    """(name, check) in the order in which one depends on another."""
    yield "asr", lambda: f"{metadata.version('asr')} in {Path(__file__).parents[1]}"
    yield "python", lambda: f"{platform.python_version()} on {platform.platform()}"
    for package, extra in requirements():
        yield package, lambda package=package, extra=extra: _version(package, extra)  # type: ignore[misc]
    yield "torch and torchaudio", _torch_pair
    yield "cpu", _cpu
    yield "gpu", _gpu
    yield "temporary folder", _temporary_folder
    yield "audio formats", _formats
    yield "audio", _audio
    yield "kernels", _kernels
    yield "kernels for the GPU", _gpu_kernels
    for name in operations():
        yield f"kernel {name}", lambda name=name: _operation(name)  # type: ignore[misc]
    for kind in mixers():
        yield f"training step with {kind}", lambda kind=kind: training_step(kind)  # type: ignore[misc]


def requirements() -> Iterator[tuple[str, str]]:
    """(package, extra it belongs to or "") as the installed package declares them, without the extra `dev`."""
    for line in metadata.requires("asr") or []:
        extra = re.search(r"extra == ['\"](\w+)['\"]", line)
        if extra is None or extra[1] != "dev":
            yield re.split(r"[^\w.-]", line)[0], extra[1] if extra else ""


def _version(package: str, extra: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        if extra:
            return f"not installed (optional; pip install 'asr[{extra}]')"
        raise RuntimeError(f"not installed; pip install {package}") from None


def _torch_pair() -> str:
    import torch
    import torchaudio

    # An operator from torchaudio's compiled part: a pair that does not fit imports, and fails here.
    log_probs = torch.tensor([[[0.1, 0.9], [0.9, 0.1]]]).log()
    path, _ = torchaudio.functional.forced_align(log_probs, torch.tensor([[1]], dtype=torch.int32))
    if path.tolist() != [[1, 0]]:
        raise RuntimeError(f"forced_align gave {path.tolist()} instead of [[1, 0]]")
    return f"{torch.__version__} and {torchaudio.__version__} work together"


def _cpu() -> str:
    import torch

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = counted(torch.get_num_threads(), "thread")
    return f"{platform.machine()}, {counted(usable or 1, 'core')} usable, torch uses {threads}"


def _gpu() -> str:
    import torch

    if not torch.cuda.is_available():
        return "none, training runs on the CPU"
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    for i in range(len(names)):
        torch.ones(8, 8, device=f"cuda:{i}").sum().item()
    return f"{', '.join(names)} (CUDA {torch.version.cuda})"


def _temporary_folder() -> str:
    with tempfile.TemporaryFile() as file:
        file.write(b"asr")
    return f"{tempfile.gettempdir()} can be written"


def _formats() -> str:
    import av
    import soundfile

    decoders = [name for name in ("mp3", "aac", "opus", "vorbis", "shorten") if name in av.codecs_available]
    return f"libsndfile {', '.join(soundfile.available_formats())}; FFmpeg decodes {', '.join(decoders)}"


def _audio() -> str:
    import numpy as np
    import soundfile

    from asr.audio.read import read_audio

    wave = np.sin(np.arange(1600) * 0.1).astype(np.float32) / 2
    with tempfile.TemporaryDirectory() as folder:
        for name in ("test.wav", "test.flac"):
            soundfile.write(Path(folder, name), wave, 16000)
            error = float(np.abs(read_audio(Path(folder, name)).samples.numpy() - wave).max())
            if error > 2**-15:
                raise RuntimeError(f"{name} came back {error:g} away from what was written")
    return "WAV and FLAC come back as written"


def _kernels() -> str:
    from asr.kernels import backend, build

    wanted = backend.choice()
    if wanted == "reference":
        return "PyTorch, as ASR_KERNELS=reference says"
    if reason := build.load():
        if wanted != "auto":
            raise RuntimeError(reason)
        return f"PyTorch: {reason}"
    library = build.build()
    return f"C++, {' '.join(build.flags())}; {build.made_by(library)}: {library}"


def _gpu_kernels() -> str:
    import torch

    from asr.kernels import backend, build

    if not torch.cuda.is_available() or backend.choice() in ("reference", "cpp"):
        return "not used"
    if reason := build.load_cuda():
        if backend.choice() == "cuda":
            raise RuntimeError(reason)
        return f"PyTorch: {reason}"
    library = build.build(cuda=True)
    return f"CUDA, {' '.join(build.cuda_flags())}; {build.made_by(library)}: {library}"


def operations() -> list[str]:
    """The ops of `asr.kernels`."""
    try:
        from asr.kernels.check import CASES
    except Exception as error:
        return [f"of any kind ({error})"]
    return list(CASES)


def _operation(name: str) -> str:
    from asr.kernels.check import measure

    found = measure(name)
    if found.error > found.tolerance:
        raise RuntimeError(f"{found.error:.1e} away from the float64 reference, more than {found.tolerance:.0e}")
    speed = "" if found.backend == "PyTorch" else f", {found.speed:.1f} times as fast as PyTorch"
    return f"{found.backend}, {found.error:.1e} from the float64 reference{speed}"


def mixers() -> list[str]:
    """Every kind of mixer that a recipe can name, and `bilstm`."""
    try:
        from asr.encoder.config import TransformerConfig
        from asr.recipe_schema import kinds, sections
    except Exception as error:
        return [f"any mixer ({error})"]
    attention = TransformerConfig.model_fields["attention"].annotation
    return [kind for section in sections(attention) for kind in kinds(section)] + ["bilstm"]


def training_step(kind: str) -> str:
    """Noise → fbank → a small encoder → CTC loss → gradients; all must be finite."""
    import torch

    from asr.audio.config import FeaturesConfig
    from asr.audio.fbank import fbank
    from asr.ctc.loss import ctc_loss_sum
    from asr.encoder.model import CtcModel
    from asr.recipe_loader import recipe_from_dict

    small = {"kind": "transformer", "layers": 1, "dim": 16, "heads": 2, "feedforward": 32, "attention": {"kind": kind}}
    encoder = {"kind": kind, "layers": 1, "hidden": 16} if kind == "bilstm" else small
    config = recipe_from_dict({"data": {"train": "-", "dev": "-"}, "model": {"encoder": encoder}}, "doctor").model
    features = fbank(torch.rand(16000, generator=torch.Generator().manual_seed(0)) - 0.5, FeaturesConfig())
    model = CtcModel(config, features.shape[1], tokens=5)
    log_probs, lengths = model(features[None], torch.tensor([len(features)]))
    loss = ctc_loss_sum(log_probs, lengths, [[1, 2, 2, 3]])
    loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not parameter.grad.isfinite().all():
            raise RuntimeError(f"the gradient of {name} is {'missing' if parameter.grad is None else 'not finite'}")
    if not loss.isfinite():
        raise RuntimeError(f"the loss is {loss.item()}")
    return f"loss {loss.item():.2f}, gradients finite"
