"""Plans from an artifact: which kinds of KV blocks its engine has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from forwardpass.bench.config import BenchConfig, BenchMode
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.grid import SampleLimits
from forwardpass.bench.like_artifact import Likeness, likeness
from forwardpass.bench.limits import KvGroup, KvKind
from forwardpass.bench.plan import plan_grid
from forwardpass.bench.sync.group import Group
from forwardpass.config.settings import Sources
from forwardpass.engines.mock.bench_driver import MockBenchConfig
from forwardpass.engines.mock.bench_rank import MockRank
from forwardpass.engines.mock.config import MockConfig

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.mark.parametrize(
    "more",
    [
        (KvGroup(32),),
        (KvGroup(8, KvKind.CROSS_ATTENTION),),
        (KvGroup(16, KvKind.RECURRENT_ALIGNED),),
        (KvGroup(512, KvKind.RECURRENT),),
        (KvGroup(32), KvGroup(16, KvKind.RECURRENT_ALIGNED), KvGroup(512, KvKind.RECURRENT)),
    ],
    ids=["attention", "cross", "aligned", "recurrent", "all"],
)
def test_an_artifact_says_which_groups_of_blocks_there_are(tmp_path: Path, more: tuple[KvGroup, ...]) -> None:
    """GRID-33, BCONF-24: From a run on an engine with several groups in a pool that they fill comes a plan
    with its digest, and not the plan of an engine with one.
    """
    path = tmp_path / "bench.json"
    rank = MockRank(
        engine=MockBenchConfig(
            MockConfig(max_num_seqs=64, max_model_len=512, num_blocks=90), more_groups=more
        ),
        config=BenchConfig(BenchMode.AGG, samples=SampleLimits(5, 2, 2, 4, 5), output_path=str(path)),
        environment=BenchEnvironment.load(Sources({})),
    )
    rank.measure(Group(0, 1))
    document = json.loads(path.read_text())
    found = likeness(document, "--like", "x")
    alone = likeness({**document, "engine": None}, "--like", "x")

    assert _digest(found) == document["grid_digest"]
    assert found.limits.layout.groups == (KvGroup(16), *more)
    assert (_digest(alone) == document["grid_digest"]) == (more[0].kind is KvKind.CROSS_ATTENTION)


def _digest(found: Likeness) -> str:
    return plan_grid(found.config, found.limits.layout, found.limits.capacity).grid.digest


def test_windows_recycle_blocks() -> None:
    """GRID-33: A sliding window holds its tokens and those on their way, a block more; a chunk its own;
    neither more than a whole request. A window of full attention recycles nothing, and a wrapper is as its
    members.
    """
    window = {"type": "SlidingWindowSpec", "block_size": 16, "sliding_window": 128}
    engine = {
        "kv_cache": {
            "enable_prefix_caching": True,
            "groups": [
                {"type": "FullAttentionSpec", "block_size": 16, "sliding_window": 128},
                window,
                {"type": "ChunkedLocalAttentionSpec", "block_size": 32, "attention_chunk_size": 64},
                {"type": "UniformTypeKVCacheSpecs", "block_size": 16, "specs": [window, window]},
                {"type": "MambaSpec", "block_size": 64},
            ],
        },
        "scheduler": {"max_num_batched_tokens": 256, "async_scheduling": True},
        "speculative": {"num_speculative_tokens": 2},
    }
    base = json.loads((GOLDEN / "vllm-cpu-bench-agg" / "benchmark_results.json").read_text())
    limits = {**base["limits"], "max_model_len": 4096}
    layout = likeness({**base, "limits": limits, "engine": engine}, "--like", "x").limits.layout
    groups = layout.groups
    short = likeness({**base, "limits": {**limits, "max_model_len": 200}, "engine": engine}, "--like", "x")

    assert [group.admission_cap for group in groups] == [None, 41, 18, 41, None]
    assert [group.admission_cap for group in short.limits.layout.groups] == [None, 14, 7, 14, None]
    assert (groups[4].kind, groups[4].speculative_blocks) == (KvKind.RECURRENT_ALIGNED, 2)
    assert layout.hash_block_size == 16
