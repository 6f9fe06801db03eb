"""The probe that proves a folder writable, on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forwardpass.errors import TracePathError
from forwardpass.trace.preflight import prove_writable


def test_folders_are_made_and_nothing_is_left(tmp_path: Path) -> None:
    """TRACE-09: the parents are created, and the probe is gone afterwards."""
    prove_writable(str(tmp_path / "a" / "b" / "fpm"))

    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_prefix_without_a_folder_is_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare file name means the working folder."""
    monkeypatch.chdir(tmp_path)
    prove_writable("fpm")

    assert list(tmp_path.iterdir()) == []


def test_folders_that_are_made_survive_a_power_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LOSS-06: every folder that got a new one is synced; where all are there already none is."""
    real_sync, synced = os.fsync, []

    def watched(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_sync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    prove_writable(str(tmp_path / "a" / "b" / "fpm"))
    assert {str(tmp_path), str(tmp_path / "a")} <= set(synced)
    synced.clear()
    prove_writable(str(tmp_path / "a" / "b" / "fpm"))

    assert [path for path in synced if os.path.isdir(path)] == []


def test_a_file_in_the_way_is_an_error(tmp_path: Path) -> None:
    """TRACE-09: where a parent is a file, the error names the prefix."""
    (tmp_path / "a").write_text("")
    prefix = str(tmp_path / "a" / "fpm")
    with pytest.raises(TracePathError) as caught:
        prove_writable(prefix)

    assert caught.value.path == prefix


def test_what_a_crash_left_does_not_disable_tracing(tmp_path: Path) -> None:
    """A probe of an earlier process with this process id is passed over, and stays."""
    stale = tmp_path / f".fpm.write-probe-{os.getpid()}-0"
    stale.write_text("stale")
    prove_writable(str(tmp_path / "fpm"))

    assert [path.name for path in tmp_path.iterdir()] == [stale.name]
    assert stale.read_text() == "stale"


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """A link planted under the probe's name is not written through."""
    target = tmp_path / "target"
    (tmp_path / f".fpm.write-probe-{os.getpid()}-0").symlink_to(target)
    prove_writable(str(tmp_path / "fpm"))

    assert not target.exists()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that refuses files")
def test_a_folder_that_refuses_files_is_an_error() -> None:
    """TRACE-09: even root cannot create a file in /proc."""
    with pytest.raises(TracePathError):
        prove_writable("/proc/self/fpm")
