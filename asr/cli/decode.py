"""`asr decode`: recordings in, text and token times out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def decode(
    exp: Annotated[Path, typer.Argument(help="Experiment folder, or a checkpoint in it.")],
    audio: Annotated[list[str], typer.Argument(help="Files, folders (searched in depth), or - for standard input.")],
    format: Annotated[
        str, typer.Option("--format", "-f", help="txt, json (lines), tsv or ctm (both a row per token).")
    ] = "txt",
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for one file per input; without it, all go to standard output."),
    ] = None,
    channel: Annotated[
        int | None, typer.Option(min=0, help="Channel to take, from 0; without it, the mean of all.")
    ] = None,
    resample: Annotated[bool, typer.Option("--resample/--no-resample", help="Convert other sample rates.")] = True,
    batch_size: Annotated[int, typer.Option(min=1, help="Inputs per forward pass at most; never changes results.")] = 8,
    max_seconds: Annotated[
        float | None,
        typer.Option(min=0.0, help="Refuse longer audio. Default 600, less where attention memory is quadratic."),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first failure.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that exist under -o.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, …")] = "auto",
) -> None:
    """Decode audio files with a trained model.

    Results alone go to standard output, everything else to standard error. A file that fails is reported and left out.
    Exit code: 0 all decoded, 3 some failed, 4 all failed, 2 wrong usage, 130 interrupted.
    """
    import io
    import logging
    import sys

    from asr.decode.formats import FORMATS
    from asr.decode.inputs import find_inputs
    from asr.decode.loop import Options, decode_files
    from asr.decode.report import summarise
    from asr.decode.sinks import Folder, Stream
    from asr.errors import UsageError

    if format not in FORMATS:
        raise UsageError(f"--format {format}: write one of {', '.join(FORMATS)}")
    inputs, notes = find_inputs(audio)
    if any(item.path is None for item in inputs) and sys.stdin.isatty():
        raise UsageError("- reads audio from standard input, but that is a terminal; pipe a file into it")
    writer = FORMATS[format]()
    sink: Folder | Stream
    if output is not None:
        sink = Folder(output, writer, inputs, overwrite)

    from asr.decode.limits import default_max_seconds
    from asr.recogniser import Recogniser
    from asr.train.run import pick_device

    log = logging.getLogger("asr")
    for note in notes:
        log.warning(note)
    recogniser = Recogniser.load(exp, pick_device(device))
    if output is None:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", newline="\n")  # whatever the locale
        sink = Stream(sys.stdout, writer)
    limit = default_max_seconds(recogniser.recipe) if max_seconds is None else max_seconds
    options = Options(channel, resample, batch_size, limit, fail_fast)
    outcome = decode_files(recogniser, inputs, sink, options)
    summarise(outcome, log)
    raise typer.Exit(outcome.exit_code)
