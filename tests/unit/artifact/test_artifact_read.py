"""Files that are read beside another one, which may have the same groups."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from forwardpass.artifact.read import (
    ArtifactFile,
    decode_part,
    parse_artifact,
    rank_hint,
    read_artifact,
    same_bytes,
)
from forwardpass.errors import ArtifactError, ArtifactPathError, MalformedArtifact, UnknownSchema
from forwardpass.testing.artifacts import made_run

FIRST, SECOND = (json.dumps(document, indent=2) for document in made_run(ranks=2))
KEY = '"iteration_groups": '
GROUPS = json.dumps(json.loads(SECOND)["iteration_groups"], indent=2).replace("\n", "\n  ")

VARIANTS = {
    "the same": SECOND,
    "in another style": json.dumps(json.loads(SECOND)),
    "other groups": SECOND.replace('"complete": true', '"complete": false', 1),
    "blanks around": SECOND.replace(KEY, '"iteration_groups"\n\n :\t\n ' + " " * 5000),
    "the key in a text before": SECOND.replace('"error": null', f'"error": {json.dumps(KEY + GROUPS)}'),
    "the key as a value": SECOND.replace('"error": null', '"error": "iteration_groups"'),
    "the key deeper before": SECOND.replace('"coverage": {', f'"coverage": {{{KEY}{GROUPS},', 1),
    "the key twice, the last counts": SECOND.replace('"coverage": {', f'{KEY}[],"coverage": {{', 1),
    "the key twice, the first is the same": SECOND[:-2] + f", {KEY}[]\n}}",
    "something behind": SECOND + "x",
    "cut in the groups": SECOND[: SECOND.index(KEY) + 3000],
    "cut at the key": SECOND[: SECOND.index(KEY) + len(KEY)],
    "large before": SECOND.replace('"error": null', '"error": "' + "x" * 3_000_000 + '"'),
    "no groups": SECOND.replace(KEY, '"other": '),
}


def outcome(file: ArtifactFile | ArtifactError) -> object:
    """Return all that is in a file, or its error."""
    return (file.kind, file.document()) if isinstance(file, ArtifactFile) else (type(file), str(file))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("packed", [False, True])
def test_reading_beside_changes_nothing(tmp_path: Path, name: str, packed: bool) -> None:
    """MERGE-11, ART-01: Whether or not a file is read beside one with the same groups, plain or gzip, from
    the disk or from memory: what is in it, or what is wrong with it, is the same.
    """
    beside = parse_artifact(FIRST.encode(), "first")
    path = tmp_path / "second.json"
    text = VARIANTS[name].encode()
    data = gzip.compress(text, 1) if packed else text
    path.write_bytes(data)
    found = []
    for read in (
        lambda: parse_artifact(text, str(path)),
        lambda: parse_artifact(text, str(path), beside=beside),
        lambda: read_artifact(path),
        lambda: read_artifact(path, beside=beside),
    ):
        try:
            found.append(outcome(read()))
        except ArtifactError as error:
            found.append(outcome(error))

    assert all(one == found[0] for one in found)


def test_the_same_groups_are_not_parsed_again(tmp_path: Path) -> None:
    """MERGE-11: A file with the same groups shares them with the one beside it."""
    beside = parse_artifact(FIRST.encode(), "first")
    path = tmp_path / "second.json"
    path.write_text(SECOND)

    assert read_artifact(path, beside=beside).groups is beside.groups
    assert parse_artifact(SECOND.encode(), "second", beside=beside).groups is beside.groups
    assert parse_artifact(VARIANTS["other groups"].encode(), "o", beside=beside).groups is not beside.groups


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", MalformedArtifact),
        ("[]", MalformedArtifact),
        ('{"schema_version": 2, "artifact_type": "rank", "error": NaN}', MalformedArtifact),
        ('{"schema_version": 2}', UnknownSchema),
        ('{"schema_version": "2", "artifact_type": "rank"}', UnknownSchema),
        ('{"schema_version": 2.0, "artifact_type": "rank"}', UnknownSchema),
        ('{"schema_version": true, "artifact_type": "rank"}', UnknownSchema),
        ('{"schema": "dynamo.fpm.benchmark_worker_probe", "schema_version": 2}', UnknownSchema),
        ('{"schema": {"a": 1}, "schema_version": 1}', UnknownSchema),
    ],
)
def test_what_is_no_artifact_is_refused(text: str, error: type[ArtifactError]) -> None:
    """ART-01: What is no JSON object, and an object of another kind or version, are two errors; each names
    the file.
    """
    with pytest.raises(error, match=r"^file\.json: "):
        parse_artifact(text.encode(), "file.json")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    """ART-01: A folder, a pipe, a missing file and a bad name are refused without waiting for anything."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "none", Path("a\0b")):
        with pytest.raises(ArtifactPathError):
            read_artifact(path)


def test_damaged_gzip_is_refused(tmp_path: Path) -> None:
    """ART-01: Gzip that is cut or damaged, or followed by something else, names the file."""
    packed = gzip.compress(SECOND.encode())
    path = tmp_path / "f.json.gz"
    for data in (packed[:-20], packed[:40] + b"\xff\xff\xff" + packed[43:], packed + b"junk"):
        path.write_bytes(data)
        with pytest.raises(MalformedArtifact, match="gzip"):
            read_artifact(path)


def test_the_rank_is_guessed_from_the_beginning(tmp_path: Path) -> None:
    """MERGE-16: The guess is right for our files and the reference's, and high where there is none."""
    for rank, text in enumerate((FIRST, SECOND)):
        (tmp_path / "f").write_text(text)
        assert rank_hint(tmp_path / "f") == rank
    (tmp_path / "f").write_text("{}")

    assert rank_hint(tmp_path / "f") > 1 << 20
    assert rank_hint(tmp_path / "none") > 1 << 20


def test_buffers_are_compared() -> None:
    """MERGE-11: Same bytes are the same whatever holds them; length and content count."""
    assert same_bytes(b"a" * 3_000_000, bytearray(b"a" * 3_000_000))
    assert not same_bytes(b"a", b"ab")
    assert not same_bytes(b"a" * 2_000_000, b"a" * 1_999_999 + b"b")
    with pytest.raises(MalformedArtifact, match=r"file: here: "):
        decode_part(b"{", "file", "here")
