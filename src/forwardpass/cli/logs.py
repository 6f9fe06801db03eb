"""Knows how this package's log lines reach a person: on stderr, one line each, marked as ours."""

from __future__ import annotations

import logging
import sys

__all__ = ["log_to_stderr"]

_PACKAGE = "forwardpass"


class _ToStderr(logging.Handler):
    """Writes to whatever stderr is at the time: ``forwardpass: warning: message``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; the level stands before the message from WARNING on."""
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        try:
            sys.stderr.write(f"{_PACKAGE}: {level}{self.format(record)}\n")
            sys.stderr.flush()
        except OSError:  # the terminal is gone; there is nobody to tell
            return


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send this package's log lines of ``level`` and above to stderr. Idempotent.

    Only a command does this, for its own process: the package itself configures no logging, because an
    engine that it runs in has done so already.
    """
    logger = logging.getLogger(_PACKAGE)
    logger.setLevel(level)
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        logger.addHandler(_ToStderr())
