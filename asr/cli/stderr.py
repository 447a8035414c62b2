"""Where the package's log goes while a command runs: standard error, one plain line a record."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Stderr(logging.Handler):
    """Asks for sys.stderr at every record: progress bars put their own in its place while they are drawn."""

    def emit(self, record: logging.LogRecord) -> None:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        try:
            print(level + self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


@contextmanager
def log_to_stderr() -> Iterator[logging.Logger]:
    """The package's log, INFO and above, goes to standard error while the block runs."""
    logger = logging.getLogger("asr")
    handler = _Stderr()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield logger
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate
