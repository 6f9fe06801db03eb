"""Removing what dead producers left, on a real file system and through the command line."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from trace_files import line, make_writer, segment

from forwardpass.cli.trace import trace
from forwardpass.errors import ConfigError, TracePathError
from forwardpass.trace.stale import StaleProducer, remove, survey

HOUR = 3600


def old(path: Path, seconds: float = 48 * HOUR) -> Path:
    """Create a file that was last written some time ago."""
    path.write_bytes(b"0123456789")
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def prune(*arguments: str) -> Result:
    """Run the command."""
    return CliRunner().invoke(trace, ["prune", *arguments])


def test_a_survey_sees_the_segments_of_all_producers(tmp_path: Path) -> None:
    """D-27: segments of this prefix count, whoever wrote them; links, folders and others do not."""
    mine, other = old(segment(tmp_path, 0)), old(segment(tmp_path, 7, "a_b"))
    old(tmp_path / "other.77.000000.jsonl.gz")
    old(tmp_path / "fpm.77.00001.jsonl.gz")
    segment(tmp_path, 1).symlink_to(mine)
    segment(tmp_path, 2).mkdir()
    found = survey(str(tmp_path / "fpm"))

    assert sorted((state.path, state.producer, state.size, state.held) for state in found) == [
        (str(mine), "77", 10, False),
        (str(other), "a_b", 10, False),
    ]


def test_a_writer_at_work_is_noticed(tmp_path: Path) -> None:
    """TRACE-46: the segment that a writer has open is held, and the one it left is not."""
    writer = make_writer(tmp_path, roll_bytes=100)
    writer.append(line(1) + line(2), 2)
    writer.flush()
    during = {state.path: state.held for state in survey(str(tmp_path / "fpm"))}
    writer.close()

    assert during == {str(segment(tmp_path, 0)): False, str(segment(tmp_path, 1)): True}
    assert not any(state.held for state in survey(str(tmp_path / "fpm")))


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    """A prefix in a missing folder is named."""
    with pytest.raises(TracePathError) as caught:
        survey(str(tmp_path / "no" / "fpm"))

    assert caught.value.path == str(tmp_path / "no" / "fpm")


def test_what_cannot_be_deleted_is_returned(tmp_path: Path) -> None:
    """One file that refuses does not keep the others, and a missing one is no error."""
    folder, file = segment(tmp_path, 0), old(segment(tmp_path, 1))
    folder.mkdir()
    stale = StaleProducer("77", (str(folder), str(file), str(segment(tmp_path, 2))), 0, 0)

    assert [type(error).__name__ for error in remove(stale)] == ["IsADirectoryError"]
    assert not file.exists()


def test_the_command_only_shows_at_first(tmp_path: Path) -> None:
    """Without --yes nothing is deleted; the table names the producer, stderr says what to do."""
    file = old(segment(tmp_path, 0))
    result = prune(str(tmp_path / "fpm"))

    assert (result.exit_code, file.exists()) == (0, True)
    assert "77" in result.stdout
    assert result.stderr == "10 B would be deleted; add --yes to do it\n"


def test_the_command_deletes_what_is_old(tmp_path: Path) -> None:
    """With --yes the files of producers that are gone go, and only those."""
    gone, young = old(segment(tmp_path, 0, "1")), old(segment(tmp_path, 0, "2"), 5 * HOUR)
    other = old(tmp_path / "else.1.000000.jsonl.gz")
    result = prune(f"{tmp_path}/fpm.jsonl.gz", "--yes", "--older-than", "6h")

    assert result.exit_code == 0
    assert (gone.exists(), young.exists(), other.exists()) == (False, True, True)
    assert result.stderr == "10 B deleted\n"


def test_a_live_producer_is_spared(tmp_path: Path) -> None:
    """TRACE-46: a producer that has a file open is spared, even if it was silent for days."""
    writer = make_writer(tmp_path)
    writer.append(line(1), 1)
    writer.flush()
    os.utime(segment(tmp_path, 0), (0, 0))
    result = prune(str(tmp_path / "fpm"), "--yes", "--older-than", "1s")
    writer.close()

    assert segment(tmp_path, 0).exists()
    assert (result.stdout, result.stderr) == (
        "",
        "nothing to remove: no producer is gone for so long, or the limits hold\n",
    )


def test_the_command_speaks_json(tmp_path: Path) -> None:
    """One document: the prefix, whether it deleted, each producer with its files, and errors."""
    file = old(segment(tmp_path, 0))
    result = prune(str(tmp_path / "fpm"), "--json")
    document = json.loads(result.stdout)

    assert (document["prefix"], document["deleted"], document["errors"]) == (str(tmp_path / "fpm"), False, [])
    assert [(p["producer"], p["paths"], p["size"]) for p in document["producers"]] == [
        ("77", [str(file)], 10)
    ]
    assert result.stderr == ""


@pytest.mark.parametrize("age", ["", "1", "d", "1w", "-1d", "1.5h", "١d"])
def test_an_age_needs_a_unit(tmp_path: Path, age: str) -> None:
    """A number and s, m, h or d; anything else is wrong use."""
    result = prune(str(tmp_path / "fpm"), "--older-than", age)

    assert isinstance(result.exception, ConfigError)
    assert (result.exception.variable, result.exception.value) == ("--older-than", age)


def test_a_prefix_has_to_name_a_file(tmp_path: Path) -> None:
    """A folder is no prefix."""
    assert isinstance(prune(f"{tmp_path}/").exception, ConfigError)


def test_the_command_keeps_as_much_as_it_may(tmp_path: Path) -> None:
    """D-27: With a limit only the longest silent go, until it holds; live producers count and stay."""
    ages = {"1": 90, "2": 80, "3": 70}
    for producer, hours in ages.items():
        old(segment(tmp_path, 0, producer), hours * HOUR)
    old(segment(tmp_path, 0, "young"), HOUR)
    prefix = str(tmp_path / "fpm")
    by_size = json.loads(prune(prefix, "--keep-bytes", "20", "--json").stdout)
    by_number = json.loads(prune(prefix, "--keep-producers", "3", "--json").stdout)
    enough = json.loads(prune(prefix, "--keep-bytes", "1kB", "--keep-producers", "4", "--json").stdout)
    prune(prefix, "--keep-bytes", "0", "--yes")

    assert [each["producer"] for each in by_size["producers"]] == ["1", "2"]
    assert [each["producer"] for each in by_number["producers"]] == ["1"]
    assert enough["producers"] == []
    assert [path.name for path in tmp_path.iterdir()] == ["fpm.young.000000.jsonl.gz"]


@pytest.mark.parametrize("size", ["", "many", "-1", "1.5GB", "3ib", "2 XB"])
def test_a_size_that_is_none_is_refused(tmp_path: Path, size: str) -> None:
    """The error names the option, what was found and what is accepted."""
    result = prune(str(tmp_path / "fpm"), "--keep-bytes", size)

    assert isinstance(result.exception, ConfigError)
    assert result.exception.variable == "--keep-bytes"
