"""Laws of extraction over made-up schedules: every pass equals a slow count with fractions."""

from __future__ import annotations

import pytest
from made_up_schedule import Simulation

from forwardpass.engines.vllm.extract import known_lengths, scheduled_metrics
from forwardpass.engines.vllm.requests import RequestMemory


@pytest.mark.parametrize("runner_v2", [False, True], ids=["runner-v1", "runner-v2"])
@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("seed", range(4))
def test_every_pass_of_a_made_up_schedule_is_counted_right(seed: int, drafts: int, runner_v2: bool) -> None:
    """Chunks, preemptions in prompt and in decode, partial prefix hits on return, drafts and requests that
    vanish: the numbers are those of a count with fractions, and nothing finished is remembered.
    """
    simulation = Simulation(seed, runner_v2=runner_v2, drafts=drafts)
    memory = RequestMemory()
    for _ in range(600):
        turn = simulation.turn()
        if turn is None:
            continue
        output, expected = turn
        lengths = known_lengths(output.scheduled_new_reqs)
        assert scheduled_metrics(output, lengths, memory) == expected

    assert min(simulation.seen[what] for what in ("prefill", "recompute", "decode")) > 50
    alive = {request.name for request in simulation.requests} | simulation.finished
    assert set(memory.lengths) <= alive
    assert set(memory.recomputing) <= alive
