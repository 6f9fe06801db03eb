"""Points files: what is accepted, and everything that is wrong with one."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.bench.manifest import (
    MAX_BYTES,
    manifest_points,
    points_from,
    read_points_file,
)
from forwardpass.bench.points import Phase
from forwardpass.errors import ManifestError

GOLDEN = Path(__file__).parents[2] / "golden"
PREFILL = {"batch_size": 2, "total_prefill_tokens": 64, "total_kv_read_tokens": 32}
DECODE = {"batch_size": 2, "total_kv_read_tokens": 64}
PARTITION = {"axis": "new", "high_count": 1, "fraction": 0.5}
ROWS = [[40, 16], [24, 16]]


def document(*, schema: Any = 3, prefill: Any = (), decode: Any = ()) -> dict[str, Any]:
    return {"schema_version": schema, "prefill": list(prefill), "decode": list(decode)}


def written(folder: Path, content: Any) -> Path:
    path = folder / "points.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def problems(folder: Path, content: Any) -> tuple[str, ...]:
    path = written(folder, content)
    with pytest.raises(ManifestError) as caught:
        read_points_file(path)
    assert str(caught.value).startswith(f"--benchmark-points-file {path}: ")
    return caught.value.problems


def test_a_good_file_gives_its_points_in_order(tmp_path: Path) -> None:
    """GRID-03, GRID-04: Points of the selected phases come in the file's order, each with the entry that it
    was, and are explicit.
    """
    uneven = [{**PREFILL, "partition": PARTITION}, {**PREFILL, "rows": ROWS}]
    file = read_points_file(written(tmp_path, document(prefill=[PREFILL, *uneven], decode=[DECODE])))
    points = manifest_points(file, (Phase.PREFILL, Phase.DECODE))

    assert [entry for entry, _ in points] == ["prefill[0]", "prefill[1]", "prefill[2]", "decode[0]"]
    assert {point.sample_reasons for _, point in points} == {("explicit",)}
    assert [point.is_imbalanced for _, point in points] == [False, True, True, False]
    assert [entry for entry, _ in manifest_points(file, (Phase.DECODE,))] == ["decode[0]"]


def test_uneven_points_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    """GRID-05: Partitions and rows that differ are left out and counted; rows that are all alike stay."""
    alike = {**PREFILL, "rows": [[32, 16], [32, 16]]}
    entries = [PREFILL, {**PREFILL, "partition": PARTITION}, {**PREFILL, "rows": ROWS}, alike]
    file = read_points_file(written(tmp_path, document(prefill=entries)))
    kept, left_out = file.balanced()

    assert left_out == 2
    assert [point.rows for _, point in manifest_points(kept, (Phase.PREFILL,))] == [
        None,
        ((32, 16), (32, 16)),
    ]


def test_what_the_reference_ran_is_accepted() -> None:
    """GRID-03: The files that were given to the reference are good ones, feasible or not."""
    for name in ("points", "infeasible"):
        assert read_points_file(GOLDEN / f"vllm-cpu-bench-{name}" / "points.json").schema_version >= 1


WRONG_TYPES = [
    ("{", "truncated"),
    ("[]", "Expected `object`, got `array`"),
    ('{"prefill": [], "decode": []}', "missing required field `schema_version`"),
    ('{"schema_version": 3, "decode": []}', "missing required field `prefill`"),
    ('{"schema_version": 3, "prefill": []}', "missing required field `decode`"),
    (document(schema="3"), "Expected `int`, got `str` - at `$.schema_version`"),
    (document(schema=True), "Expected `int`, got `bool`"),
    ({**document(), "extra": 1}, "unknown field `extra`"),
    (document(decode=[{**DECODE, "rows": []}]), "unknown field `rows` - at `$.decode[0]`"),
    (
        document(decode=[{**DECODE, "batch_size": 2.0}]),
        "Expected `int`, got `float` - at `$.decode[0].batch_size`",
    ),
    (document(decode=[{"batch_size": 2}]), "missing required field `total_kv_read_tokens`"),
    (document(prefill=[{**PREFILL, "rows": [[1, 2, 3]]}]), "at `$.prefill[0].rows[0]`"),
    (document(prefill=[{**PREFILL, "partition": {**PARTITION, "axis": "x"}}]), "Invalid enum value 'x'"),
    (document(prefill=[{**PREFILL, "partition": {"axis": "new"}}]), "missing required field `high_count`"),
    ('{"schema_version": 3, "prefill": [], "decode": NaN}', "invalid character"),
]


@pytest.mark.parametrize(("content", "words"), WRONG_TYPES)
def test_nothing_is_coerced_and_nothing_unknown_taken(tmp_path: Path, content: Any, words: str) -> None:
    """GRID-03: What is not the format is refused with the path of the field and what was found."""
    (problem,) = problems(tmp_path, content)

    assert words in problem


WRONG_VALUES = [
    (document(schema=4), "$.schema_version: found 4, expected one of 1, 2, 3"),
    (document(schema=0), "$.schema_version: found 0, expected one of 1, 2, 3"),
    (document(decode=[{**DECODE, "batch_size": 0}]), "$.decode[0].batch_size: found 0, expected 1 or more"),
    (
        document(decode=[DECODE, {"batch_size": 4, "total_kv_read_tokens": 3}]),
        "$.decode[1].total_kv_read_tokens: found 3, expected 4 or more",
    ),
    (
        document(prefill=[{**PREFILL, "total_prefill_tokens": 1}]),
        "$.prefill[0].total_prefill_tokens: found 1, expected 2 or more: one for each request",
    ),
    (
        document(prefill=[{**PREFILL, "total_kv_read_tokens": 1}]),
        "$.prefill[0].total_kv_read_tokens: found 1, expected 0, or 2 or more: one for each request",
    ),
    (
        document(prefill=[{**PREFILL, "total_kv_read_tokens": -1}]),
        "$.prefill[0].total_kv_read_tokens: found -1, expected 0, or 2 or more: one for each request",
    ),
    (
        document(schema=1, prefill=[{**PREFILL, "partition": PARTITION}]),
        "$.prefill[0].partition: found it in schema 1, expected schema_version 2 or later",
    ),
    (
        document(schema=2, prefill=[{**PREFILL, "rows": ROWS}]),
        "$.prefill[0].rows: found it in schema 2, expected schema_version 3 or later",
    ),
    (
        document(prefill=[{**PREFILL, "rows": ROWS, "partition": PARTITION}]),
        "$.prefill[0].rows: found partition and rows, expected one of them",
    ),
    (
        document(
            prefill=[{**PREFILL, "batch_size": 1, "partition": PARTITION}],
        ),
        "$.prefill[0].partition: found a batch of 1, expected a batch of 2 or more",
    ),
    (
        document(prefill=[{**PREFILL, "partition": {**PARTITION, "high_count": 2}}]),
        "$.prefill[0].partition.high_count: found 2, expected 1 … 1",
    ),
    (
        document(prefill=[{**PREFILL, "partition": {**PARTITION, "fraction": 1}}]),
        "$.prefill[0].partition.fraction: found 1.0, expected a number between 0 and 1",
    ),
    (
        document(
            prefill=[{**PREFILL, "total_kv_read_tokens": 0, "partition": {**PARTITION, "axis": "both"}}]
        ),
        "$.prefill[0].partition.axis: found 'both' and no tokens to read, "
        "expected total_kv_read_tokens above 0",
    ),
    (
        document(prefill=[{**PREFILL, "rows": [[64, 32]]}]),
        "$.prefill[0].rows: found 1 rows, expected 2, one for each request",
    ),
    (
        document(prefill=[{**PREFILL, "rows": [[64, 16], [0, 16]]}]),
        "$.prefill[0].rows[1][0]: found 0, expected 1 or more",
    ),
    (
        document(prefill=[{**PREFILL, "rows": [[32, 33], [32, -1]]}]),
        "$.prefill[0].rows[1][1]: found -1, expected 0 or more",
    ),
    (
        document(prefill=[{**PREFILL, "rows": [[40, 16], [23, 16]]}]),
        "$.prefill[0].total_prefill_tokens: found 64, expected 63, the sum of the rows",
    ),
    (
        document(prefill=[{**PREFILL, "rows": [[40, 16], [24, 0]]}]),
        "$.prefill[0].total_kv_read_tokens: found 32, expected 16, the sum of the rows",
    ),
]


@pytest.mark.parametrize(("content", "problem"), WRONG_VALUES)
def test_each_rule_names_the_entry(tmp_path: Path, content: Any, problem: str) -> None:
    """GRID-03: A value that breaks a rule is named by its entry and field, with what was found and what is
    accepted.
    """
    assert problems(tmp_path, content) == (problem,)


def test_all_that_is_wrong_is_listed(tmp_path: Path) -> None:
    """GRID-03: Three faults in two entries are three problems; the message has one and how many more."""
    bad = document(
        prefill=[{**PREFILL, "batch_size": 0}], decode=[{"batch_size": 0, "total_kv_read_tokens": 0}]
    )
    path = written(tmp_path, bad)
    with pytest.raises(
        ManifestError, match=r"batch_size: found 0, expected 1 or more \(and 2 more\)"
    ) as caught:
        read_points_file(path)

    assert len(caught.value.problems) == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """GRID-03: No file, a folder and far too many bytes are errors that name the path."""
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(ManifestError, match="cannot be read"):
            read_points_file(path)
    large = tmp_path / "large.json"
    with large.open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    with pytest.raises(ManifestError, match=f"more than {MAX_BYTES} bytes"):
        read_points_file(large)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["schema_version", "prefill", "decode", "rows"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_a_document_is_a_points_file_or_an_error(value: Any) -> None:
    """GRID-03: Whatever is handed over is accepted whole or refused with a reason; nothing else happens."""
    with contextlib.suppress(ManifestError):
        assert points_from(value).schema_version in (1, 2, 3)
