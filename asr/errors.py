"""Errors a user can act on: one line that names the file, line, utterance or key, and what to do."""

from __future__ import annotations


class AsrError(Exception):
    """The base of every error this package raises on purpose. The command line prints it without a traceback."""

    exit_code = 1


class RecipeError(AsrError):
    """A recipe or an override is wrong: names file, line, key path and, where there is one, the nearest match."""

    exit_code = 2


class UsageError(AsrError):
    """The command line asks for what cannot be done: names the option or the path."""

    exit_code = 2


class AudioError(AsrError):
    """One audio file cannot be used: names the file and the reason."""


class DataError(AsrError):
    """A manifest, lexicon, token table or feature store is wrong: names the file and line, or the utterance id."""
