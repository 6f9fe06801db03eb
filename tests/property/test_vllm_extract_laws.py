"""Laws of extraction over made-up schedules: every pass equals a slow count with fractions."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_schedule import Simulation

from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory
from forwardpass.engines.vllm.steady import RunningContexts
from forwardpass.wire.tally import Tally


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_pass_of_a_made_up_schedule_is_counted_right(seed: int, drafts: int, runner_v2: bool) -> None:
    """Chunks, preemptions in prompt and in decode, partial prefix hits on return, drafts and requests that
    vanish: the numbers are those of a count with fractions, and nothing finished is remembered.
    """
    simulation = Simulation(seed, runner_v2=runner_v2, drafts=drafts)
    memory, running = RequestMemory(), RunningContexts()
    for _ in range(600):
        turn = simulation.turn()
        if turn is None:
            continue
        output, expected = turn
        lengths = known_lengths(output.scheduled_new_reqs)
        assert scheduled_metrics(output, lengths, memory, running) == expected

    assert min(simulation.seen[what] for what in ("prefill", "recompute", "decode")) > 50
    alive = {request.name for request in simulation.requests} | simulation.finished
    assert set(memory.lengths) <= alive
    assert set(memory.recomputing) <= alive


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 40))
def test_running_contexts_equal_a_fresh_count(seed: int, many: int, passes: int) -> None:
    """Whatever passes follow each other, the moved-on tally is the tally of the lengths: requests leave,
    come, are left out of a pass, change places, compute chunks or are set back.
    """
    rng, running, born = random.Random(seed), RunningContexts(), many
    requests = [(f"r{number}", rng.randrange(10**9)) for number in range(many)]
    for _ in range(passes):
        earlier = {name for name, _ in requests}
        event = rng.choice(["", "", "leave", "skip", "reorder", "other", "set back", "speculate"])
        if event == "leave":
            gone = rng.randrange(6)
            requests = [each for each in requests if not gone or rng.random() > gone / len(requests)]
        if event == "other" or rng.random() < 0.3:
            new = [(f"r{born + more}", rng.randrange(10**9)) for more in range(rng.randrange(1, 5))]
            requests = ([] if event == "other" else requests) + new
            born += len(new)
        if event == "reorder":
            rng.shuffle(requests)
        if event == "set back":
            requests = [(name, max(0, length - rng.choice([0, 0, 1, 50]))) for name, length in requests]
        ran = [each for each in requests if event != "skip" or rng.random() < 0.9]
        jumps = {place: rng.randrange(1, 300) for place in range(len(ran)) if rng.random() < 0.1}

        lengths = [length for _, length in ran]
        left = earlier - {name for name, _ in requests}  # not all of these ran
        assert running.follow([name for name, _ in ran], lengths, left) == Tally.of(lengths)
        if event == "speculate":
            running.reset()
            grown = {name: rng.randrange(4) for name, _ in ran}
        else:
            running.ran(jumps)
            grown = {name: jumps.get(place, 1) for place, (name, _) in enumerate(ran)}
        requests = [(name, length + grown.get(name, 0)) for name, length in requests]
