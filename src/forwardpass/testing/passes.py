"""Knows how to make as many realistic forward passes as a test or benchmark wants, in simulated time."""

from __future__ import annotations

from collections.abc import Iterator

from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.load import Load, arrivals, realistic
from forwardpass.testing.publishers import ListPublisher
from forwardpass.wire.schema import ForwardPassMetrics

__all__ = ["simulated_passes"]


def simulated_passes(
    load: Load | None = None, *, seed: int = 0, dp_rank: int = 0, worker_id: str = "1"
) -> Iterator[ForwardPassMetrics]:
    """Yield the passes of one simulated rank, stamped and numbered, until its load ends (by default never).

    The same arguments give the same passes.
    """
    publisher = ListPublisher(dp_rank, worker_id)
    requests = arrivals(load or realistic(12.0), f"{seed}/{dp_rank}")
    engine = MockEngine(MockConfig(seed=seed), lambda rank: publisher, requests, dp_rank=dp_rank)
    moment, seen = 0.0, 0
    while moment != float("inf"):
        moment = engine.turn(moment)
        if len(publisher.messages) > seen:
            yield from publisher.messages[seen:]
            seen = len(publisher.messages)
