"""Whatever the files say that a benchmark is planned from: a plan, or an error of ours."""

from __future__ import annotations

import contextlib
import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from forwardpass.bench.content.dataset import texts_of
from forwardpass.bench.engine_config import from_engine
from forwardpass.bench.like_artifact import likeness
from forwardpass.bench.limits_file import limits_from
from forwardpass.bench.plan import plan_grid
from forwardpass.errors import BenchError, ConfigError

GOLDEN = Path(__file__).parents[1] / "golden"
ARTIFACT = json.loads((GOLDEN / "vllm-cpu-bench-points" / "benchmark_results.json").read_text())
ARTIFACT["results"] = ARTIFACT["results"][:3]
for row in ARTIFACT["results"]:
    row["fpms"] = []
SAID = {name: ARTIFACT[name] for name in ("config", "limits", "cudagraph", "capacity", "results", "engine")}
HANDED = {
    **ARTIFACT["config"],
    "points": json.loads((GOLDEN / "vllm-cpu-bench-points/points.json").read_text()),
}
LIMITS = {
    "layout": {"groups": [{"block_size": 16, "kind": "recurrent_aligned"}], "block_size": 16,
               "hash_block_size": 16, "graph": {"capture_sizes": [1, 2]}, "long_prefill_threshold": 9},
    "capacity": {"max_model_len": 99, "max_num_scheduled_tokens": 64, "max_num_running_reqs": 4,
                 "usable_blocks_without_watermark": 9, "usable_blocks_with_watermark": 9},
}  # fmt: skip
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from([0, 1, 2, 16])
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places(document: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a document."""
    found = [here] if here else []
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in items:
        found += places(value, (*here, key)) if isinstance(value, dict | list) and value else [(*here, key)]
    return found


@st.composite
def damaged(draw: st.DrawFn, document: Any) -> Any:
    """Draw the document with something else in one or two places, or nothing there."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(places(changed)))
        inner = changed
        for key in path[:-1]:
            inner = inner[key]
        if isinstance(inner, dict) and draw(st.booleans()):
            del inner[path[-1]]
        else:
            inner[path[-1]] = draw(values)
        if not changed:
            break
    return changed


@settings(max_examples=300, deadline=None)
@given(damaged(SAID) | values)
def test_any_artifact_gives_a_plan_or_our_error(document: Any) -> None:
    """GRID-04, GRID-20: An artifact that was changed anywhere is planned, or refused with a name for it."""
    with contextlib.suppress(BenchError):
        if isinstance(document, dict):
            found = likeness(document, "--like", "x")
            if found.limits.capacity.max_num_scheduled_tokens <= 10**6:
                assert plan_grid(found.config, found.limits.layout, found.limits.capacity).grid.digest


@settings(max_examples=300, deadline=None)
@given(damaged(LIMITS) | values)
def test_any_limits_are_limits_or_our_error(document: Any) -> None:
    """GRID-20: So are limits; those that are accepted can be planned for."""
    with contextlib.suppress(BenchError):
        found = limits_from(document, "--limits", "x")
        if found.capacity.max_num_scheduled_tokens <= 4096:
            config = from_engine({"mode": "agg", "decode_max_kv_read_token_samples": 2})
            assert plan_grid(config, found.layout, found.capacity).grid.digest


@settings(max_examples=300, deadline=None)
@given(damaged(HANDED) | st.dictionaries(st.text(max_size=4), values, max_size=3))
def test_any_hand_over_gives_settings_or_our_error(document: dict[str, Any]) -> None:
    """BCONF-22: What the engine is handed is taken or refused, whatever it is."""
    with contextlib.suppress(BenchError, ConfigError):
        assert from_engine(document).timeout_seconds > 0


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_any_dataset_gives_texts_or_our_error(data: bytes) -> None:
    """CONTENT-20: Any bytes are texts, or the reason why there are none."""
    with contextlib.suppress(BenchError):
        assert texts_of(data, "x")
