"""The command `asr`. Each sub-command is the function of its name in the module `asr.cli.<name>`."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module, metadata
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from asr.cli.stderr import log_to_stderr
from asr.errors import AsrError, UsageError

COMMANDS = (
    "show",
    "features",
    "train",
    "average",
    "evaluate",
    "compare",
    "log",
    "runs",
    "inspect",
    "decode",
    "validate",
    "bench",
    "build",
    "doctor",
    "schema",
)
INTERRUPTED = 130  # exit code of a program that Ctrl-C or SIGTERM ended
PLAIN: dict[str, Any] = {"rich_markup_mode": None, "pretty_exceptions_enable": False, "add_completion": False}


class Commands(TyperGroup):
    """Imports a command when it is asked for, and turns the errors a user can act on into one line each."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name != "train" and int(os.environ.get("WORLD_SIZE", 1)) > 1:
            raise UsageError(f"asr {cmd_name} is one process: call it without torchrun, which is for asr train")
        single = typer.Typer(**PLAIN)
        single.command(cmd_name)(getattr(import_module(f"asr.cli.{cmd_name}"), cmd_name))
        return typer.main.get_command(single)

    def invoke(self, ctx: Any) -> Any:
        try:
            with log_to_stderr():
                result = super().invoke(ctx)
            sys.stdout.flush()  # here, where a closed pipe ends the program without a word
            return result
        except AsrError as error:
            for line in str(error).splitlines():
                print(line if error.exit_code == INTERRUPTED else f"error: {line}", file=sys.stderr)
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            sys.exit(INTERRUPTED)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **PLAIN,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"asr {metadata.version('asr')}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    """Train speech recognisers with interchangeable sequence mixers, and compare their error rates and speed."""


def _terminated(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, _terminated)  # like Ctrl-C: clean up, leave no process behind, exit 130
    try:
        app()
    except KeyboardInterrupt:  # before or after a command runs
        sys.exit(INTERRUPTED)
