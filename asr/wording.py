"""Words of messages and tables."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """A number and its noun, in the plural where it is not one.

    Example:
        >>> counted(1, "epoch"), counted(20_000, "utterance"), counted(2, "process")
        ('1 epoch', '20000 utterances', '2 processes')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
