"""Knows how a file comes into being whole or not at all: written beside its name, forced out, renamed.

A process that is killed leaves the temporary name, ``NAME.PID.tmp``, which nothing reads. A name that is a
symbolic link or no file is refused, not followed: results go to folders that others may write to as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from forwardpass.errors import ArtifactPathError

__all__ = ["remove_stale", "write_atomically"]


def write_atomically(path: Path, chunks: Iterable[bytes]) -> int:
    """Make ``path`` a file of ``chunks``, in the place of a file that is there; return its bytes.

    Whoever looks finds the old file or the whole new one. Raises
    :class:`~forwardpass.errors.ArtifactPathError` where the name is taken by something else or the disk
    fails; whatever making the chunks raises goes through, and nothing is left behind.
    """
    _is_plain_file(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    created = False
    try:
        descriptor = _create(temporary)
        created = True
        written = 0
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                written += file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        created = False
        _sync_folder(path.parent)
    except OSError as error:
        raise _refused(path, "written", error) from error
    finally:
        if created:
            with suppress(OSError):
                os.unlink(temporary)
    return written


def remove_stale(path: Path) -> bool:
    """Remove the file ``path`` that an earlier run left; return whether there was one.

    Raises :class:`~forwardpass.errors.ArtifactPathError` for a link or a folder, and where it cannot be
    removed: what stays would be taken for this run's.
    """
    if not _is_plain_file(path):
        return False
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise _refused(path, "removed", error) from error
    return True


def _create(path: Path) -> int:
    """Create a new file; one of the same name is of an earlier process with our id, and goes."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o644)
    except FileExistsError:
        os.unlink(path)
        return os.open(path, flags, 0o644)


def _is_plain_file(path: Path) -> bool:
    """Return whether ``path`` is a file, ``False`` if nothing is there; refuse everything else."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except (OSError, ValueError) as error:
        raise ArtifactPathError(str(path), f"cannot be used: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISLNK(mode):
        raise ArtifactPathError(str(path), "is a symbolic link, expected a file or nothing")
    if not stat.S_ISREG(mode):
        raise ArtifactPathError(str(path), "is not a file, expected a file or nothing")
    return True


def _sync_folder(folder: Path) -> None:
    """Force the new name out. A file system that cannot do that for folders has no more to give."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _refused(path: Path, what: str, error: OSError) -> ArtifactPathError:
    return ArtifactPathError(str(path), f"cannot be {what}: {error.strerror or error}")
