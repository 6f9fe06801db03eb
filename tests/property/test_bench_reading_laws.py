"""Laws of showing and comparing: whatever stands in a file is shown or named, and nothing else happens."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forwardpass.analyze.benchmark.comparison import compare
from forwardpass.analyze.benchmark.overview import overview
from forwardpass.analyze.benchmark.run import BenchRun, run_of
from forwardpass.analyze.benchmark.surface import surfaces
from forwardpass.artifact.read import parse_artifact
from forwardpass.cli.bench_diff_view import diff_lines
from forwardpass.cli.bench_page import page
from forwardpass.cli.bench_show_view import show_lines
from forwardpass.errors import ArtifactError
from forwardpass.testing.artifacts import made_run

RANKS = made_run(ranks=2)
GOOD = run_of(parse_artifact(json.dumps(RANKS[0]).encode(), "good.json"))

Place = tuple[str | int, ...]
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53, 2**64, 10**400, -1])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12)
    | st.sampled_from(["\x1b[2J", "<b>", "recorded", "prefill", "decode"])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, at: Place = ()) -> Iterator[Place]:
    """Yield every place in a document but its top."""
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    for step, item in items:
        yield (*at, step)
        yield from places(item, (*at, step))


PLACES = sorted(places(RANKS[0]), key=str)


def changed(at: Place, value: Any) -> dict[str, Any]:
    """Return the document with another value at a place."""
    document: Any = copy.deepcopy(RANKS[0])
    inner = document
    for step in at[:-1]:
        inner = inner[step]
    inner[at[-1]] = value
    return document  # type: ignore[no-any-return]


def check_shown(run: BenchRun) -> None:
    """Show a run in every way, and compare it with a good one both ways round."""
    view, maps = overview(run), surfaces(run.points, run.graphs, lambda point: point.wall_time)
    lines = list(show_lines(run, view, maps, 80, False, every_point=True))
    page(run, view, maps).encode()
    for a, b in ((run, GOOD), (GOOD, run)):
        found = compare([a], [b], force=True)
        msgspec.json.encode(found)
        lines += diff_lines(found, (a, b), 80, False, every_point=True)

    assert all(line.isprintable() for line in lines)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(PLACES), VALUES)
def test_any_value_anywhere_is_shown_or_named(at: Place, value: Any) -> None:
    """SHOW-02, SHOW-09: A file with any value at any place is shown and compared, or refused by our error; a
    point that is not there any more is named.
    """
    document = changed(at, value)
    try:
        run = run_of(parse_artifact(json.dumps(document).encode(), "any.json"))
    except ArtifactError:
        return
    groups = document["iteration_groups"]

    assert run.unread or len(run.points) == len(groups)
    check_shown(run)
