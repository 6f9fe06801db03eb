"""Which files a prefix, a folder or a name stands for."""

from __future__ import annotations

from pathlib import Path

import pytest

from forwardpass.errors import TracePathError
from forwardpass.trace.reader import find_segments


def touch(folder: Path, *names: str) -> None:
    """Make empty files."""
    for name in names:
        (folder / name).touch()


def names(found: list[Path]) -> list[str]:
    """Return file names in order."""
    return [path.name for path in found]


def test_prefix_finds_its_segments_in_natural_order(tmp_path: Path) -> None:
    """TRACE-60: by producer and then by index as numbers, not as text; nothing else in the folder counts."""
    touch(
        tmp_path,
        "fpm.9.1000000.jsonl.gz",
        "fpm.9.999999.jsonl.gz",
        "fpm.10.000002.jsonl.gz",
        "fpm.10.000010.jsonl.gz",
        "fpm.name.000000.jsonl.gz",
        "fpm.9.0000001.jsonl.gz",
        "fpm.9.000001.jsonl.gz.lock",
        ".fpm.write-probe-1-1",
        "fpm2.9.000000.jsonl.gz",
        "fpm.old.9.000000.jsonl.gz",
    )
    (tmp_path / "fpm.9.000003.jsonl.gz").mkdir()

    assert names(find_segments(tmp_path / "fpm")) == [
        "fpm.9.999999.jsonl.gz",
        "fpm.9.1000000.jsonl.gz",
        "fpm.10.000002.jsonl.gz",
        "fpm.10.000010.jsonl.gz",
        "fpm.name.000000.jsonl.gz",
    ]


@pytest.mark.parametrize("suffix", ["", ".jsonl", ".jsonl.gz"])
def test_prefix_may_carry_the_suffix(tmp_path: Path, suffix: str) -> None:
    """TRACE-03: the prefix is found as it may be written in a setting."""
    touch(tmp_path, "run.7.000000.jsonl.gz")

    assert names(find_segments(f"{tmp_path}/run{suffix}")) == ["run.7.000000.jsonl.gz"]


def test_folder_stands_for_its_segments(tmp_path: Path) -> None:
    """Captures and notes beside the segments are not part of the trace."""
    touch(
        tmp_path,
        "b.1.000001.jsonl.gz",
        "b.1.000000.jsonl.gz",
        "a.2.000000.jsonl.gz",
        "raw.jsonl.gz",
        "notes.txt",
    )

    assert names(find_segments(tmp_path)) == [
        "a.2.000000.jsonl.gz",
        "b.1.000000.jsonl.gz",
        "b.1.000001.jsonl.gz",
    ]


def test_folder_without_segments_stands_for_its_json_lines(tmp_path: Path) -> None:
    """A folder of renamed or copied traces is read as it is."""
    touch(tmp_path, "two.jsonl.gz", "one.jsonl", "notes.txt")

    assert names(find_segments(tmp_path)) == ["one.jsonl", "two.jsonl.gz"]


def test_folder_of_the_prefix_name_does_not_hide_the_segments(tmp_path: Path) -> None:
    """A prefix that is also a folder stands for both."""
    touch(tmp_path, "fpm.1.000000.jsonl.gz")
    (tmp_path / "fpm").mkdir()
    touch(tmp_path / "fpm", "other.2.000000.jsonl.gz")

    assert sorted(names(find_segments(tmp_path / "fpm"))) == [
        "fpm.1.000000.jsonl.gz",
        "other.2.000000.jsonl.gz",
    ]


def test_files_of_any_name_are_taken(tmp_path: Path) -> None:
    """Named files come once and in the order given, after the segments."""
    touch(tmp_path, "z", "a", "fpm.1.000001.jsonl.gz", "fpm.1.000000.jsonl.gz")
    given = [tmp_path / name for name in ("z", "a", "fpm.1.000001.jsonl.gz", "z", "fpm.1.000000.jsonl.gz")]

    assert names(find_segments(given)) == ["fpm.1.000000.jsonl.gz", "fpm.1.000001.jsonl.gz", "z", "a"]


def test_relative_paths_stay_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are given back as the user would write them."""
    touch(tmp_path, "fpm.1.000000.jsonl.gz")
    monkeypatch.chdir(tmp_path)

    assert [str(path) for path in find_segments("fpm")] == ["fpm.1.000000.jsonl.gz"]
    assert [str(path) for path in find_segments(".")] == ["fpm.1.000000.jsonl.gz"]


@pytest.mark.parametrize("name", ["missing", "no/such/folder/fpm", "bad\0name", "x" * 5000])
def test_path_that_stands_for_nothing_is_an_error(tmp_path: Path, name: str) -> None:
    """The error carries the path as it was given."""
    touch(tmp_path, "fpm.1.000000.jsonl.gz")
    path = f"{tmp_path}/{name}"

    with pytest.raises(TracePathError) as caught:
        find_segments([tmp_path, path])
    assert caught.value.path == path


def test_empty_folder_is_an_error(tmp_path: Path) -> None:
    """A folder without traces is not an empty trace."""
    touch(tmp_path, "notes.txt")

    with pytest.raises(TracePathError):
        find_segments(tmp_path)
