"""Knows the folder of file discovery: one small file per record, which its owner touches to stay alive.

The rules are Dynamo's, because its programs and ours share the folder: a file appears whole under its name
(a temporary name, then a hard link, which also refuses a name that is taken); the folder is locked while it
is changed or listed; a file that nobody touched for 10 s is deleted by whoever sees it. Anyone may write
into such a folder, so only small regular files are opened, and no link is followed. Nothing here waits for
long: a lock that someone never gives back is passed over, and then no file of others is deleted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from forwardpass.clock import Clock
from forwardpass.plane.discovery.base import MAX_RECORD_BYTES
from forwardpass.plane.discovery.file_names import TEMPORARY_PREFIX, file_name, path_of

__all__ = ["LIFETIME_SECONDS", "FileStore", "Stamp"]

LIFETIME_SECONDS = 10.0
"""A record that was not touched for so long is dead."""
LOCK_TRIES = 40
LOCK_PAUSE_SECONDS = 0.005
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Stamp(Struct, frozen=True):
    """What tells one content of a file from another without reading it."""

    mtime_ns: int
    size: int
    inode: int


class FileStore:
    """One bucket's folder. Every method may block for as long as the file system does; raises ``OSError``."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.folder = folder
        self._clock = clock

    def create(self, path: str, value: bytes) -> None:
        """Write a record; raises ``FileExistsError`` where there is one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            self._create(path, value)

    def refresh(self, path: str, value: bytes) -> None:
        """Say that a record lives; one that somebody deleted is written again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._locked():
            try:
                self._touch(self.folder / file_name(path))
            except FileNotFoundError:
                self._create(path, value)

    def remove(self, path: str) -> None:
        """Delete a record; one that is gone already is no error."""
        with contextlib.suppress(FileNotFoundError), self._locked():
            (self.folder / file_name(path)).unlink()

    def scan(self, prefix: str) -> dict[str, Stamp]:
        """Return the living records whose paths begin with ``prefix``; delete every dead one."""
        found: dict[str, Stamp] = {}
        try:
            with self._locked() as held, os.scandir(self.folder) as entries:
                for entry in entries:
                    path, status = _record(entry)
                    if path is None or status is None:
                        continue
                    if self._is_dead(status):
                        if held:
                            with contextlib.suppress(OSError):
                                os.unlink(entry.path)
                    elif path.startswith(prefix):
                        found[path] = Stamp(status.st_mtime_ns, status.st_size, status.st_ino)
        except FileNotFoundError:
            return {}  # nobody has published here yet
        return found

    def read(self, path: str) -> bytes | None:
        """Return the content of a record; ``None`` for what is no regular file or too large."""
        descriptor = os.open(self.folder / file_name(path), _READ)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with open(descriptor, "rb", closefd=False) as file:
                value = file.read(MAX_RECORD_BYTES + 1)
        finally:
            os.close(descriptor)
        return value if len(value) <= MAX_RECORD_BYTES else None

    def _create(self, path: str, value: bytes) -> None:
        temporary = self.folder / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with open(descriptor, "wb") as file:
                file.write(value)
            self._touch(temporary)
            os.link(temporary, self.folder / file_name(path))
        finally:
            temporary.unlink(missing_ok=True)

    def _touch(self, file: Path) -> None:
        now_ns = self._clock.unix_ms() * 1_000_000
        os.utime(file, ns=(now_ns, now_ns), follow_symlinks=False)

    def _is_dead(self, status: os.stat_result) -> bool:
        return self._clock.unix_ms() / 1000 - status.st_mtime > LIFETIME_SECONDS

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the folder's lock; yields whether it was got within 0.2 s."""
        descriptor = os.open(self.folder, _FOLDER)
        try:
            yield _lock(descriptor)
        finally:
            os.close(descriptor)  # which also gives the lock back


def _lock(descriptor: int) -> bool:
    pause = threading.Event()
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause.wait(LOCK_PAUSE_SECONDS)
        except OSError:
            return False  # a file system without locks
        else:
            return True
    return False


def _record(entry: os.DirEntry[str]) -> tuple[str | None, os.stat_result | None]:
    """Return path and status of a record's file, nothing for any other entry."""
    if entry.name.startswith(TEMPORARY_PREFIX):
        return None, None
    path = path_of(entry.name)
    if path is None:
        return None, None
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        return None, None
    return (path, status) if stat.S_ISREG(status.st_mode) else (None, None)
