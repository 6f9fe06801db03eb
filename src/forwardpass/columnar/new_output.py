"""Knows how an export gets its name: written under a temporary one beside it, and renamed when it is whole.

Whoever looks finds the whole export or none. A process that is killed leaves the temporary name,
``.NAME.PID.part``, which nothing reads.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from forwardpass.errors import TracePathError

__all__ = ["new_file", "new_folder"]


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[BinaryIO]:
    """Give a binary file that becomes ``path`` when the block ends, and nothing if it fails.

    What has that name already is not touched, or with ``force`` replaced, if it is a file. Raises
    :class:`~forwardpass.errors.TracePathError` for such a name and where the disk fails.
    """
    _refuse_what_is_there(path, replaceable=path.is_file() if force else False)
    temporary = _temporary(path)
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        _publish_file(temporary, path, force=force)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        with suppress(OSError):
            os.unlink(temporary)


@contextmanager
def new_folder(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Give a new folder that becomes ``path`` when the block ends, and nothing if it fails.

    A name that is there already is not touched, unless it is an empty folder. With ``force`` a folder that
    holds an export and nothing else is replaced. Raises as :func:`new_file`.
    """
    _refuse_what_is_there(path, replaceable=_is_empty(path) or (force and _is_export(path)))
    temporary = _temporary(path)
    try:
        temporary.mkdir()
        yield temporary
        if path.exists():
            _replace_folder(temporary, path)
        else:
            os.rename(temporary, path)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def _refuse_what_is_there(path: Path, *, replaceable: bool) -> None:
    if os.path.lexists(path) and not replaceable:
        raise TracePathError(str(path), "is there already; name another one (--force replaces an export)")


def _publish_file(temporary: Path, path: Path, *, force: bool) -> None:
    if force:
        os.replace(temporary, path)
        return
    try:
        os.link(temporary, path)  # fails if the name has come into being meanwhile; renaming would not
    except FileExistsError as error:
        raise TracePathError(str(path), "is there already; name another one") from error
    except OSError:  # a file system without hard links
        _refuse_what_is_there(path, replaceable=False)
        os.rename(temporary, path)


def _replace_folder(temporary: Path, path: Path) -> None:
    """Put ``temporary`` in the place of ``path``; what stood there comes back if that fails."""
    old = path.with_name(f".{path.name}.{os.getpid()}.old")
    os.rename(path, old)
    try:
        os.rename(temporary, path)
    except OSError:
        os.rename(old, path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _is_export(path: Path) -> bool:
    """Say whether a folder holds partitions with Parquet files and nothing else."""
    if not path.is_dir() or path.is_symlink():
        return False
    for folder, folders, files in os.walk(path):
        if any("=" not in name or os.path.islink(os.path.join(folder, name)) for name in folders):
            return False
        if any(not name.endswith(".parquet") for name in files):
            return False
    return True


def _refused(path: Path, error: OSError) -> TracePathError:
    return TracePathError(str(path), f"cannot be written: {error.strerror or error}")
