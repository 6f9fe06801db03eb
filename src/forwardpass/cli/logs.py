"""Knows how this package's log lines reach a person: on stderr, one line each, marked as ours.

Messages may quote what strangers sent (a field's name, a worker id), so nothing in them drives a terminal
or begins a line of its own; only a traceback has several lines.
"""

from __future__ import annotations

import logging
import sys

from forwardpass.cli.terminal import printable

__all__ = ["log_to_stderr"]

_PACKAGE = "forwardpass"
_MAX_CHARACTERS = 4000


class _ToStderr(logging.Handler):
    """Writes to whatever stderr is at the time: ``forwardpass: warning: message``."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; the level stands before the message from WARNING on."""
        stream = sys.stderr
        if stream is None or stream.closed:
            return
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        try:
            stream.write(f"{_PACKAGE}: {level}{_one_line(record)}\n{_traceback(record)}")
            stream.flush()
        except OSError:  # the terminal is gone; there is nobody to tell
            return
        except Exception:  # noqa: BLE001  boundary: a log line must not stop what it tells of
            self.handleError(record)


def _one_line(record: logging.LogRecord) -> str:
    return printable(record.getMessage(), _MAX_CHARACTERS)


def _traceback(record: logging.LogRecord) -> str:
    if not record.exc_info or record.exc_info[0] is None:  # False where a caller asks for no traceback
        return ""
    text = logging.Formatter().formatException(record.exc_info)
    return "".join(f"{printable(line, _MAX_CHARACTERS)}\n" for line in text.splitlines())


def log_to_stderr(level: int = logging.INFO) -> None:
    """Send this package's log lines of ``level`` and above to stderr. Idempotent.

    Only a command does this, for its own process: the package itself configures no logging, because an
    engine that it runs in has done so already.
    """
    logger = logging.getLogger(_PACKAGE)
    logger.setLevel(level)
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        logger.addHandler(_ToStderr())
