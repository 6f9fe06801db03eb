"""The folder of file discovery."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.plane.discovery.base import MAX_RECORD_BYTES
from forwardpass.plane.discovery.file_store import FileStore
from forwardpass.testing.clock import ManualClock

NOW_MS = 1_700_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    """Return a clock that stands still."""
    return ManualClock(unix_ms=NOW_MS)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> FileStore:
    """Return a store in a folder that does not exist yet."""
    return FileStore(tmp_path / "v1" / "bucket", clock)


@pytest.fixture
def lock(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Hold the folder's lock as a program that never gives it back."""
    monkeypatch.setattr("forwardpass.plane.discovery.file_store.LOCK_TRIES", 2)
    store.create("x/held", b"1")
    descriptor = os.open(store.folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def age(path: Path, seconds: float) -> None:
    """Let a file be last touched so long ago."""
    then = NOW_MS / 1000 - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def test_a_record_appears_whole(store: FileStore) -> None:
    """PLANE-12: A record is one file, named by its path, with nothing of its making left behind."""
    store.create("a b/c", b"content")

    assert [path.name for path in store.folder.iterdir()] == ["a%20b%2Fc"]
    assert store.read("a b/c") == b"content"
    assert list(store.scan("a")) == ["a b/c"]
    assert list(store.scan("b")) == []
    assert (store.folder / "a%20b%2Fc").stat().st_mode & 0o777 == 0o644
    assert (store.folder / "a%20b%2Fc").stat().st_mtime == NOW_MS / 1000


def test_a_taken_name_is_not_overwritten(store: FileStore) -> None:
    """PLANE-12: Creating is refused where there is a record, and leaves no temporary file."""
    store.create("a", b"first")
    with pytest.raises(FileExistsError):
        store.create("a", b"second")

    assert store.read("a") == b"first"
    assert len(list(store.folder.iterdir())) == 1


def test_what_nobody_touches_dies(store: FileStore, clock: ManualClock) -> None:
    """PLANE-14: A record lives for 10 s after its last touch; then whoever lists the folder deletes it,
    whoever's it is.
    """
    for path in ("mine", "other"):
        store.create(path, b"1")
    age(store.folder / "mine", 9.9)
    age(store.folder / "other", 10.1)

    assert list(store.scan("m")) == ["mine"]
    assert [path.name for path in store.folder.iterdir()] == ["mine"]
    store.refresh("mine", b"1")
    assert (store.folder / "mine").stat().st_mtime == NOW_MS / 1000


def test_a_deleted_record_is_written_again(store: FileStore) -> None:
    """PLANE-14: A record that others deleted, its owner having been stopped for a while, comes back with the
    next touch.
    """
    store.create("a", b"1")
    (store.folder / "a").unlink()
    store.refresh("a", b"1")
    assert store.read("a") == b"1"

    shutil.rmtree(store.folder)
    store.refresh("a", b"1")
    assert store.read("a") == b"1"


def test_removal(store: FileStore) -> None:
    """PLANE-12: A record is deleted when its owner leaves; one that is gone already is no error."""
    store.create("a", b"1")
    store.remove("a")
    store.remove("a")

    assert list(store.folder.iterdir()) == []


def test_no_folder_is_an_empty_one(store: FileStore) -> None:
    """Looking into a folder that nobody has made finds nothing and makes nothing."""
    assert store.scan("") == {}
    assert not store.folder.exists()


def test_what_is_no_record_is_left_alone(store: FileStore, tmp_path: Path) -> None:
    """PLANE-13: Links, folders, FIFOs, files being written and names that no path has are neither listed nor
    read nor deleted, however old.
    """
    store.create("a", b"1")
    outside = tmp_path / "outside"
    outside.write_bytes(b"secret")
    names = ("link", "folder", "fifo", ".tmp_0123456789abcdef", "not%a%name", "hello world", "%FF")
    (store.folder / "link").symlink_to(outside)
    (store.folder / "folder").mkdir()
    os.mkfifo(store.folder / "fifo")
    for name in names[3:]:
        (store.folder / name).write_bytes(b"x")
    for name in names:
        age(store.folder / name, 1000)

    assert list(store.scan("")) == ["a"]
    assert {path.name for path in store.folder.iterdir()} == {"a", *names}
    with pytest.raises(OSError):
        store.read("link")
    assert store.read("fifo") is None
    assert outside.read_bytes() == b"secret"


def test_large_records_are_not_read(store: FileStore) -> None:
    """PLANE-13: A file of more than a mebibyte is not taken into memory."""
    store.create("large", bytes(MAX_RECORD_BYTES + 1))
    store.create("largest", bytes(MAX_RECORD_BYTES))
    with open(store.folder / "sparse", "wb") as file:
        file.truncate(1 << 40)

    assert store.read("large") is None
    assert store.read("sparse") is None
    assert store.read("largest") == bytes(MAX_RECORD_BYTES)


@pytest.mark.usefixtures("lock")
def test_a_lock_that_is_never_given_back(store: FileStore) -> None:
    """PLANE-14: With the folder locked by others for good, records are still written, touched, listed and
    removed, but those of others are not deleted: their owners may be waiting to touch them.
    """
    store.create("mine", b"1")
    store.create("old", b"1")
    age(store.folder / "old", 11)
    store.refresh("mine", b"1")

    assert sorted(store.scan("")) == ["mine", "x/held"]
    assert (store.folder / "old").exists()
    store.remove("mine")
    assert not (store.folder / "mine").exists()


def test_a_record_that_is_replaced_looks_different(store: FileStore) -> None:
    """A record that was deleted and written again within one tick of the clock has another stamp."""
    store.create("a", b"1")
    before = store.scan("")
    (store.folder / "a").rename(store.folder / "b")
    store.create("a", b"2")

    assert store.scan("")["a"] != before["a"]
