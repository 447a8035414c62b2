"""`asr validate`: what is in manifests, and what is wrong with them."""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def validate(
    manifests: list[Path] = typer.Argument(..., metavar="MANIFEST", help="Manifests (JSON lines)."),
    audio: bool = typer.Option(True, help="Read the header of every audio file too."),
    decode: bool = typer.Option(False, "--decode", help="Decode every audio file: slow, finds what headers hide."),
) -> None:
    """Check manifests: every line, and that the audio is there and long enough. Exit code 1 if anything is wrong."""
    from asr.data.validate import Report, validate_manifest
    from asr.errors import DataError

    reports: list[Report] = []
    for path in manifests:
        try:
            reports.append(validate_manifest(path, check_audio=audio, decode=decode))
        except DataError as error:
            print(f"error: {error}", file=sys.stderr)
    for report in reports:
        for problem in report.problems:
            print(f"{report.path}:{problem.line}: {f'{problem.id}: ' if problem.id else ''}{problem.what}")
    print_table(
        [
            "manifest",
            "utterances",
            "speakers",
            "hours",
            "seconds min/mean/max",
            "words",
            "distinct",
            "no text",
            "problems",
        ],
        [
            [
                str(r.path),
                f"{r.summary.utterances}",
                f"{r.summary.speakers}",
                f"{r.summary.hours:.2f}",
                f"{r.summary.min_seconds:.2f}/{r.summary.mean_seconds:.2f}/{r.summary.max_seconds:.2f}",
                f"{r.summary.words}",
                f"{r.summary.distinct_words}",
                f"{r.summary.empty_texts}",
                f"{len(r.problems)}",
            ]
            for r in reports
        ],
    )
    if len(reports) < len(manifests) or not all(report.ok for report in reports):
        raise typer.Exit(1)


def print_table(head: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as they need to be; the first is flush left, the others right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, *rows]:
        print("  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]))
