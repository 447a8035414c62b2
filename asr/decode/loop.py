"""Decode many inputs, whatever is wrong with some of them."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from asr.audio.read import Audio, audio_info, read_audio
from asr.decode.formats import Result, Span
from asr.decode.inputs import Input
from asr.decode.sinks import Sink
from asr.errors import AsrError, AudioError

log = logging.getLogger(__name__)

EXIT_SOME_FAILED = 3
EXIT_ALL_FAILED = 4


class Hypothesis(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def tokens(self) -> Sequence[Span]: ...
    @property
    def log_prob(self) -> float: ...


class Recogniser(Protocol):
    """What decoding needs of a trained model; `asr.recogniser.Recogniser` is the real one."""

    @property
    def sample_rate(self) -> int: ...
    def transcribe(self, batch: list[Audio], /) -> Sequence[Hypothesis]: ...


@dataclass
class Outcome:
    """What became of the inputs. `failures` holds (name, reason); `seconds` is the audio decoded."""

    inputs: int
    decoded: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    wall_seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """0: all decoded; 3: some failed; 4: all failed."""
        if not self.failures:
            return 0
        return EXIT_SOME_FAILED if self.decoded else EXIT_ALL_FAILED


@dataclass(frozen=True)
class Options:
    """How inputs are read and grouped.

    Args:
        channel: which channel to take, from 0; None: the mean of all.
        resample: bring other rates to the model's; off: refuse them.
        batch_size: inputs per forward pass at most. It changes the speed, never a result.
        max_seconds: longer audio is refused before it is decoded; also bounds the padded audio of a batch.
        fail_fast: stop at the first failure.
    """

    channel: int | None = None
    resample: bool = True
    batch_size: int = 8
    max_seconds: float = 600.0
    fail_fast: bool = False


def decode_files(
    recogniser: Recogniser,
    inputs: Sequence[Input],
    sink: Sink,
    options: Options = Options(),
    stdin: BinaryIO | None = None,
) -> Outcome:
    """Recognise every input and write each result as soon as it is there, in the order of the inputs.

    An input that fails is logged as an error, counted and left out; the others go on. Audio too short for the model
    gives an empty text and a warning.

    Args:
        stdin: where the input `-` comes from; None: the process's standard input.

    Raises:
        KeyboardInterrupt, BrokenPipeError: what is already written stays.
    """
    outcome = Outcome(len(inputs))
    began = time.perf_counter()
    batch: list[tuple[Input, Audio]] = []

    def fail(item: Input, error: BaseException | str) -> None:
        reason = _reason(item, error)
        outcome.failures.append((item.name, reason))
        log.error("%s: %s", item.name, reason)

    def flush() -> None:
        for item, audio, hypothesis in _transcribe(recogniser, batch, fail):
            result = _result(item, audio, hypothesis, options)
            if not hypothesis.tokens and not hypothesis.text:
                log.warning("%s: nothing recognised in %.4g s of audio", item.name, result.duration)
            try:
                sink.write(result)
            except BrokenPipeError:
                raise
            except (OSError, ValueError) as error:
                fail(item, error)
                continue
            outcome.decoded += 1
            outcome.seconds += result.duration
        batch.clear()

    for item in inputs:
        if options.fail_fast and outcome.failures:
            break
        try:
            audio = _read(item, recogniser.sample_rate, options, stdin)
        except Exception as error:  # a reader may fail in ways nobody foresaw; the other files must not pay for it
            fail(item, error)
            continue
        longest = max([audio.seconds, *(other.seconds for _, other in batch)])
        if batch and longest * (len(batch) + 1) > options.max_seconds:
            flush()
        batch.append((item, audio))
        if len(batch) >= options.batch_size:
            flush()
    flush()
    outcome.wall_seconds = time.perf_counter() - began
    return outcome


def _read(item: Input, sample_rate: int, options: Options, stdin: BinaryIO | None) -> Audio:
    if item.problem:
        raise AudioError(item.problem)
    source: Path | BinaryIO
    if item.path is None:
        source = stdin or sys.stdin.buffer
    else:
        source = item.path
        info = audio_info(item.path)
        if not info.estimated:  # a compressed format's own word on its length is not to be trusted
            _check_length(info.seconds, options.max_seconds)
    audio = read_audio(source, sample_rate=sample_rate if options.resample else None, channel=options.channel)
    if audio.rate != sample_rate:
        raise AudioError(
            f"is at {audio.rate} Hz but the model was trained at {sample_rate} Hz; convert it, or drop --no-resample"
        )
    _check_length(audio.seconds, options.max_seconds)
    return audio


def _check_length(seconds: float, limit: float) -> None:
    if seconds > limit:
        raise AudioError(f"lasts {seconds:.1f} s, the limit is {limit:g} s; cut it, or raise --max-seconds")


def _transcribe(
    recogniser: Recogniser, batch: list[tuple[Input, Audio]], fail: Callable[[Input, BaseException], None]
) -> list[tuple[Input, Audio, Hypothesis]]:
    if not batch:
        return []
    try:
        hypotheses = recogniser.transcribe([audio for _, audio in batch])
        return [(item, audio, hypothesis) for (item, audio), hypothesis in zip(batch, hypotheses, strict=True)]
    except (AsrError, MemoryError, RuntimeError) as error:  # torch reports a lack of memory as RuntimeError
        if len(batch) == 1:
            fail(batch[0][0], error)
            return []
    # One of several is at fault, or together they are too much: each gets its own try.
    return [done for pair in batch for done in _transcribe(recogniser, [pair], fail)]


def _result(item: Input, audio: Audio, hypothesis: Hypothesis, options: Options) -> Result:
    return Result(
        id=item.id,
        audio=item.name,
        text=hypothesis.text,
        tokens=hypothesis.tokens,
        log_prob=hypothesis.log_prob,
        duration=audio.seconds,
        rate=audio.source_rate,
        channel=1 + (options.channel or 0),
    )


def _reason(item: Input, error: BaseException | str) -> str:
    """One line without the file's name in front: the caller prints that."""
    text = " ".join(str(error).split()) or type(error).__name__
    if not isinstance(error, (AsrError, str)):
        text = f"{type(error).__name__}: {text}"
    for name in (item.name, str(item.path), "<stdin>", "<stream>"):
        text = text.removeprefix(f"{name}: ")
    return text
