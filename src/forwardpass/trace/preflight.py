"""Knows how to prove, before anything is recorded, that trace files can be written where they should go."""

from __future__ import annotations

import errno
import os

from forwardpass.errors import TracePathError
from forwardpass.trace.folders import CANNOT_SYNC, make_folder, sync_folder

__all__ = ["prove_writable"]

_PROBE_BYTES = b"forwardpass write probe\n"
_PROBE_ATTEMPTS = 100
_PROBE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def prove_writable(prefix: str) -> None:
    """Create the folder of ``prefix`` and write, sync and remove a probe file in it.

    The probe is ``.<file prefix>.write-probe-<pid>-<n>``; a name that is taken (a crash may have left it
    behind, and process ids repeat in containers) is passed over. Raises
    :class:`~forwardpass.errors.TracePathError`.
    """
    directory, name = os.path.split(prefix)
    try:
        if directory:
            _make_lasting(directory)
        path, descriptor = _create_probe(os.path.join(directory, f".{name}.write-probe-{os.getpid()}"))
        try:
            _fill(descriptor)
        finally:
            os.unlink(path)
    except OSError as error:
        raise TracePathError(prefix, f"trace files cannot be written here: {_reason(error)}") from error


def _make_lasting(directory: str) -> None:
    """Make the folder so that it is there after a power loss, if the file system can promise that."""
    for changed in make_folder(directory):
        try:
            sync_folder(changed)
        except OSError as error:
            if error.errno not in CANNOT_SYNC | {errno.EACCES, errno.EPERM}:
                raise


def _reason(error: OSError) -> str:
    """Return what is wrong in words, without the name of the probe."""
    if isinstance(error, FileExistsError | NotADirectoryError):
        return f"{error.filename} is not a folder"
    return error.strerror or str(error)


def _create_probe(stem: str) -> tuple[str, int]:
    for number in range(_PROBE_ATTEMPTS - 1):
        try:
            return f"{stem}-{number}", os.open(f"{stem}-{number}", _PROBE_FLAGS, 0o600)
        except FileExistsError:
            continue
    last = f"{stem}-{_PROBE_ATTEMPTS - 1}"
    return last, os.open(last, _PROBE_FLAGS, 0o600)


def _fill(descriptor: int) -> None:
    try:
        if os.write(descriptor, _PROBE_BYTES) != len(_PROBE_BYTES):
            raise OSError("only a part of the probe was written")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
