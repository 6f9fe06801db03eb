"""The folder of SGLang's sockets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from forwardpass.config.handover import process_start
from forwardpass.engines.sglang.ipc_folder import MAX_PATH_BYTES, ipc_folder, sweep
from forwardpass.relay.targets import rank_url


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Return a folder whose path leaves room for a socket's; pytest's own may be too deep."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_the_folder_goes_with_everything_in_it(monkeypatch: pytest.MonkeyPatch, short_folder: Path) -> None:
    """SGL-03, D-16: The base can be bound and connected to, and nothing is left, also after an error."""
    monkeypatch.setattr(tempfile, "tempdir", str(short_folder))

    def use_it_and_fail() -> None:
        with ipc_folder() as base:
            assert rank_url(base, 9999)
            Path(f"{base.removeprefix('ipc://')}.0").write_text("a socket that a killed server left")
            assert list(short_folder.iterdir())
            raise KeyError

    with pytest.raises(KeyError):
        use_it_and_fail()
    assert list(short_folder.iterdir()) == []


def test_a_long_temporary_folder_is_not_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SGL-03: A socket's path has 107 bytes at most, so a deep TMPDIR is left for /tmp."""
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with ipc_folder() as base:
        assert base.startswith("ipc:///tmp/fpm-sgl-")
        assert len(f"{base.removeprefix('ipc://')}.9999") <= MAX_PATH_BYTES


def test_what_a_killed_launcher_left_is_swept(tmp_path: Path) -> None:
    """SGL-03: Folders of processes that are gone are removed; those that run, and other names, stay."""
    pid = os.getpid()
    alive = tmp_path / f"fpm-sgl-{pid}-{process_start(pid)}-abc"
    another_life = tmp_path / f"fpm-sgl-{pid}-1-abc"
    others = [tmp_path / name for name in ("fpm-sgl-x-1-abc", "fpm-sgl-1", "fpm-sgl-", "fpm")]
    for folder in (alive, another_life, *others):
        folder.mkdir()
    (another_life / "fpm.0").write_text("")
    (tmp_path / f"fpm-sgl-{pid}-2-abc").symlink_to(alive)  # a link is not followed

    assert sweep(tmp_path) == 1
    assert alive.is_dir()
    assert all(folder.is_dir() for folder in others)
    assert not another_life.exists()
