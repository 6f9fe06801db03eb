"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.atomic import remove_stale, write_atomically
from forwardpass.errors import ArtifactPathError


def test_a_file_is_written_and_replaced(tmp_path: Path) -> None:
    """ART-03: A file gets its chunks in order, a second write takes the place of the first, and nothing else
    is left in the folder.
    """
    path = tmp_path / "results.json"

    assert write_atomically(path, [b"old"]) == 3
    assert write_atomically(path, iter([b"{", b"}"])) == 2
    assert path.read_bytes() == b"{}"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_halfway_leaves_the_old_file(tmp_path: Path) -> None:
    """ART-03: When making the chunks fails, the old file stays and no rest is left."""
    path = tmp_path / "results.json"
    path.write_bytes(b"old")

    def chunks() -> Iterator[bytes]:
        yield b"new"
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        write_atomically(path, chunks())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """ART-03: A temporary file of the same name is replaced, also if it is a link to something."""
    path, other = tmp_path / "results.json", tmp_path / "other"
    other.write_bytes(b"theirs")
    path.with_name(f"results.json.{os.getpid()}.tmp").symlink_to(other)
    write_atomically(path, [b"new"])

    assert path.read_bytes() == b"new"
    assert other.read_bytes() == b"theirs"
    assert sorted(tmp_path.iterdir()) == [other, path]


@pytest.mark.parametrize("kind", ["link", "dangling", "folder", "fifo"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """ART-03: A link, a folder or a pipe of that name is neither written, followed nor removed."""
    path, other = tmp_path / "results.json", tmp_path / "other"
    if kind == "link":
        other.write_bytes(b"theirs")
        path.symlink_to(other)
    elif kind == "dangling":
        path.symlink_to(tmp_path / "nothing")
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    before = sorted(tmp_path.iterdir())
    for action in (lambda: write_atomically(path, [b"x"]), lambda: remove_stale(path)):
        with pytest.raises(ArtifactPathError) as caught:
            action()
        assert caught.value.path == str(path)
    assert sorted(tmp_path.iterdir()) == before
    assert not other.exists() or other.read_bytes() == b"theirs"


def test_a_stale_file_goes(tmp_path: Path) -> None:
    """ART-03: Removing says whether there was something to remove."""
    path = tmp_path / "results.json"
    path.write_bytes(b"old")

    assert remove_stale(path)
    assert not remove_stale(path)
    assert not path.exists()


def test_a_folder_that_is_not_there_is_named() -> None:
    """A path in no folder, or one with a null byte, is a declared error that names it."""
    for path in (Path("/nonexistent/folder/results.json"), Path("a\0b")):
        with pytest.raises(ArtifactPathError) as caught:
            write_atomically(path, [b"x"])
        assert caught.value.path == str(path)
