"""The source against vLLM's real scheduler under random workloads of every kind; the proof in small.

``make prove-vllm`` runs the same for a million passes; docs/reference/proof.md is what it last found. It runs
with every release from 0.28 on. Where they differ in what the engine does (what is dropped after a
preemption, what a session keeps, how a load of KV fails), the proof looks for the feature, not the version.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.usefixtures("vllm"),
    # vLLM's own use of xgrammar; as an error it would be taken for a bad grammar
    pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated:DeprecationWarning"),
]

SEEDS = range(80)
GROUP = 10
REGRESSIONS: dict[int, str] = {
    7: "a synchronous KV load failed: the asynchronous class kept a placeholder in a synchronous engine",
    14: "the same with drafts",
    32: "the same, late in a run",
    51: "the same in the very first passes",
    20619: "the queue was not noted before an empty step, in which a load of KV began",
}
"""Seeds that have found a fault once, and which; run with the others, and to be kept when those change."""

STEPS = 700


@cache
def prove(model: str, seed: int) -> tuple[int, Counter[str]]:
    """Run one seed, once in this process; return its passes and what they covered."""
    from proof_workload import RandomWorkload

    engine = RandomWorkload(model, seed).run(STEPS)
    return engine.passes, engine.coverage


@pytest.mark.slow
@pytest.mark.timeout(600)  # ten engines: 3 s on an idle core
@pytest.mark.parametrize("first", range(SEEDS.start, SEEDS.stop, GROUP))
def test_every_message_of_a_random_engine_is_right(tiny_model: str, first: int) -> None:
    """ENG-01, ENG-03, ENG-04, ENG-05, ENG-06, ENG-07, ENG-08, ENG-09: Whatever the engine and its workload
    are, every message equals the counts from the live requests, contexts are what the clients know, and
    each request computes what it knows less what was cached, for every time it was admitted.
    """
    for seed in range(first, first + GROUP):
        passes, _ = prove(tiny_model, seed)
        assert passes > 0


@pytest.mark.parametrize("seed", [seed for seed in REGRESSIONS if seed not in SEEDS] or [min(REGRESSIONS)])
def test_seeds_that_found_a_fault_find_none(tiny_model: str, seed: int) -> None:
    """Each seed that has ever found a fault is run for good."""
    passes, _ = prove(tiny_model, seed)

    assert passes > 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # runs what the tests above have not run yet
def test_the_seeds_cover_every_case(tiny_model: str) -> None:
    """A proof says nothing of what it did not meet: each case is in at least one pass of these seeds."""
    from proof_cases import missing

    coverage: Counter[str] = Counter()
    total = 0
    for seed in SEEDS:
        passes, covered = prove(tiny_model, seed)
        total += passes
        coverage += covered

    assert missing(coverage, passes=total) == []
    assert total > 20_000


def run_seeds(model: str, seeds: range) -> None:
    """Run engines that nobody has run before in this process."""
    from proof_workload import RandomWorkload

    for seed in seeds:
        RandomWorkload(model, seed).run(STEPS)


def mistakes() -> list[str]:
    """Return the names of all mistakes; none where there is no vLLM to make them in."""
    from proof_mistakes import MISTAKES

    return list(MISTAKES)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", mistakes())
def test_the_proof_finds_mistakes(tiny_model: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof can fail: with any one of these mistakes in the product, a few seeds find a miscount."""
    from proof_ledger import Miscount
    from proof_mistakes import MISTAKES

    make, seed = MISTAKES[name]
    make(monkeypatch)

    with pytest.raises(Miscount):
        run_seeds(tiny_model, range(seed, seed + 20))


def test_an_engine_that_runs_unknown_tokens_is_found(
    tiny_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENG-01: In a synchronous pipeline vLLM's asynchronous class would schedule decodes of tokens that
    nobody has; the proof sees it in the engine itself, whose messages would be consistent.
    """
    from proof_ledger import Miscount

    from forwardpass.engines.vllm import scheduler

    monkeypatch.setattr(scheduler, "follow_engine", lambda *_: None)

    with pytest.raises(Miscount, match="nobody knows yet"):
        run_seeds(tiny_model, range(20))


def test_the_same_seed_does_the_same(tiny_model: str) -> None:
    """A seed that finds something can be run again."""
    from proof_workload import RandomWorkload

    first, second = (RandomWorkload(tiny_model, 3).run(300) for _ in range(2))

    assert first.passes == second.passes
    assert first.proof.generated == second.proof.generated
    assert first.coverage == second.coverage
