"""Any file is an artifact or a declared error, and so is whatever is then asked of it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.artifact.check_merged import check_merged
from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.read import Kind, parse_artifact
from forwardpass.artifact.run import BytesSource, examine
from forwardpass.errors import ArtifactError
from forwardpass.testing.artifacts import made_run

OUTPUT, SIDECAR = Path("/bench/merged.json"), Path("/bench/probe.json")
RANKS = made_run(ranks=2, points=2)
MERGED = merge_ranks(
    [BytesSource(f"rank{at}", json.dumps(one).encode(), at) for at, one in enumerate(RANKS)],
    output=OUTPUT,
    sidecar=SIDECAR,
).document()

hostile = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        1,
        10**30,
        10**400,
        1e308,
        -0.5,
        "",
        "x",
        "\x1b[31m",
        [],
        [[]],
        {},
        {"": None},
        [1, 2],
    ]
)
values = st.recursive(
    hostile,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def handled(data: bytes) -> str:
    """Do with a file what every command does; return what came of it. Only declared errors are caught."""
    try:
        file = parse_artifact(data, "file")
        if file.kind is Kind.MERGED:
            return f"{check_merged(file).total} problems"
        if file.kind is Kind.RANK:
            run = examine([BytesSource("file", data)], full=True)
            assert all(one.text().isprintable() for one in run.findings.problems)
            merge_ranks([BytesSource("file", data)], output=OUTPUT, sidecar=SIDECAR).document()
            return "merged"
    except ArtifactError as error:
        return str(error)
    return file.kind


def all_places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values, whole objects and lists as well."""
    found = [path] if path else []
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in pairs:
        found += all_places(inner, (*path, key))
    return found


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_handled(data: bytes) -> None:
    """ART-01, ART-12: Bytes of any kind, with gzip's magic before them or not, are an error at worst."""
    assert handled(data)
    assert handled(b"\x1f\x8b\x08" + data)


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from(sorted(RANKS[0])), values), st.sampled_from(["rank", "merged"]))
def test_any_document_is_handled(document: dict[str, Any], kind: str) -> None:
    """ART-12: A document of the right kind may hold anything at all."""
    document = {**document, "schema_version": 2, "artifact_type": kind}

    assert handled(json.dumps(document).encode())


@settings(max_examples=250, deadline=None)
@given(data=st.data(), whole=st.sampled_from(["rank", "merged"]))
def test_a_document_with_anything_anywhere_is_handled(data: st.DataObject, whole: str) -> None:
    """ART-12: Any value in any place of a sound file is found or carried, and never more than that."""
    document = copy.deepcopy(RANKS[0] if whole == "rank" else MERGED)
    for path in data.draw(st.lists(st.sampled_from(all_places(document)), min_size=1, max_size=3)):
        here: Any = document
        try:
            for step in path[:-1]:
                here = here[step]
            here[path[-1]] = data.draw(values)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away

    assert handled(json.dumps(document).encode())


@pytest.mark.parametrize("depth", [90, 400, 900, 5000])
def test_any_depth_is_handled(depth: int) -> None:
    """ART-12: Nesting of any depth, wherever it stands, ends in an answer."""
    deep = "[" * depth + "]" * depth
    for place in (
        '"new_field": 1',
        '"error": null',
        '"worker_id": "4192"',
        '"sample_reasons": ["eager_tail"]',
    ):
        for document in (RANKS[0], MERGED):
            text = json.dumps({**document, "new_field": 1})
            assert place in text
            name = place.split(":")[0]

            assert handled(text.replace(place, f"{name}: {deep}").encode())


@settings(max_examples=60, deadline=None)
@given(cut=st.floats(0, 1), flip=st.integers(1, 255))
def test_a_damaged_file_is_handled(cut: float, flip: int) -> None:
    """ART-12: A file that is cut or has a byte changed is read, or refused by name."""
    text = json.dumps(RANKS[0]).encode()
    at = min(int(cut * len(text)), len(text) - 1)

    assert handled(text[:at])
    assert handled(text[:at] + bytes([text[at] ^ flip]) + text[at + 1 :])
