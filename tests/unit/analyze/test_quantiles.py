"""Exact quantiles of many numbers."""

from __future__ import annotations

import tempfile
from array import array
from pathlib import Path

import pytest

from forwardpass.analyze import quantiles
from forwardpass.analyze.quantiles import Quantiles


def collected(values: list[float]) -> Quantiles:
    """Return a collection of ``values``."""
    found = Quantiles()
    for value in values:
        found.add(value)
    return found


def test_empty_collection_has_no_quantile() -> None:
    """Nothing was observed is not 0."""
    assert Quantiles().quantile(0.5) is None


def test_nearest_rank_of_a_hundred() -> None:
    """The p-th percentile of 1 … 100 is p, whatever the order."""
    values = [float(number) for number in range(1, 101)]
    found = collected(values[::2] + values[1::2])

    assert [found.quantile(p / 100) for p in (1, 7, 29, 50, 57, 58, 90, 99, 100)] == [
        1,
        7,
        29,
        50,
        57,
        58,
        90,
        99,
        100,
    ]


def test_one_number_is_every_quantile() -> None:
    """A single step is its own p50 and p99."""
    found = collected([0.25])

    assert [found.quantile(share) for share in (0.001, 0.5, 0.99, 1.0)] == [0.25] * 4


def test_extremes_are_exact() -> None:
    """The smallest and the largest double are found to the last bit."""
    found = collected([5e-324, 1.7976931348623157e308, 0.1])

    assert (found.quantile(0.01), found.quantile(0.5), found.quantile(1.0)) == (
        5e-324,
        0.1,
        1.7976931348623157e308,
    )


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are sorted in chunks of a fixed size; the quantile is that of all of them."""
    monkeypatch.setattr(quantiles, "_CHUNK", 7)
    values = [((number * 7919) % 1000 + 1) / 10 for number in range(1000)]
    found = collected(values)

    assert len(found._chunks) == 1000 // 7
    assert [found.quantile(p) for p in (0.1, 0.5, 0.999)] == [10.0, 50.0, 99.9]
    assert found.maximum == 100.0


@pytest.mark.parametrize("folder", ["", "not there"])
def test_numbers_in_a_file_do_not_show(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond some chunks numbers are in a nameless temporary file; in memory where none can be made."""
    monkeypatch.setattr(quantiles, "_CHUNK", 7)
    monkeypatch.setattr(quantiles, "_CHUNKS_IN_MEMORY", 3)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / folder))
    values = [((number * 7919) % 1000 + 1) / 10 for number in range(1000)]
    found, other = collected(values), collected([0.05])
    other.extend(found)

    in_memory = sum(isinstance(chunk, array) for chunk in found._chunks)
    assert in_memory == (1000 // 7 if folder else 3)
    assert [found.quantile(p) for p in (0.1, 0.5, 0.999)] == [10.0, 50.0, 99.9]
    assert [other.quantile(p) for p in (0.001, 0.5, 1.0)] == [0.1, 50.0, 100.0]
    assert other.count == 1001
    assert list(tmp_path.iterdir()) == []


def test_asking_early_does_not_disturb() -> None:
    """Quantiles may be asked for between numbers."""
    found = collected([1.0, 3.0])
    assert found.quantile(1.0) == 3.0
    found.add(2.0)

    assert (found.quantile(0.5), found.count, found.total) == (2.0, 3, 6.0)


def test_collections_add_up() -> None:
    """One collection takes all numbers of another."""
    found = collected([1.0, 5.0])
    found.extend(collected([2.0, 3.0, 4.0]))

    assert (found.count, found.quantile(0.5), found.maximum) == (5, 3.0, 5.0)
