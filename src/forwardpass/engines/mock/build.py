"""Knows how to put a publishing cluster together: a publisher, a load and the faults of every rank."""

from __future__ import annotations

import msgspec

from forwardpass.config.settings import PublisherSettings
from forwardpass.engines.mock.cluster import FastTime, MockCluster, Pacer, RealTime, TimedAction
from forwardpass.engines.mock.config import MockConfig
from forwardpass.engines.mock.engine import MockEngine
from forwardpass.engines.mock.fault_actions import fault_actions
from forwardpass.engines.mock.faults import Fault, check_ranks
from forwardpass.engines.mock.load import Load, arrivals
from forwardpass.engines.mock.tamper import TamperedSocket, Tampering
from forwardpass.errors import ForwardPassError
from forwardpass.publish.publisher import Publisher, open_publisher

__all__ = ["build_cluster"]


class _Rank:
    """Opens what one rank publishes through; it outlives the rank's restarts."""

    def __init__(self, settings: PublisherSettings, dp_rank: int, dp_size: int, tampered: bool) -> None:
        self.dp_rank = dp_rank
        self.tampering = Tampering()
        self._settings = settings
        self._dp_size = dp_size
        self._tampered = tampered

    def open(self, dp_rank: int) -> Publisher:
        """Open the rank's publisher."""
        if not self._tampered:
            return open_publisher(self._settings, dp_rank=dp_rank, dp_size=self._dp_size)
        return open_publisher(
            self._settings,
            dp_rank=dp_rank,
            dp_size=self._dp_size,
            wrap=lambda socket: TamperedSocket(socket, self.tampering),
        )

    def open_second(self, port: int) -> Publisher:
        """Open another publisher for the same rank, on ``port``."""
        settings = msgspec.structs.replace(self._settings, base_port=port - self.dp_rank)
        return open_publisher(settings, dp_rank=self.dp_rank, dp_size=self._dp_size)


def build_cluster(
    config: MockConfig,
    load: Load,
    settings: PublisherSettings,
    *,
    ranks: int,
    fast: bool = False,
    faults: tuple[Fault, ...] = (),
) -> MockCluster:
    """Return a cluster of ``ranks`` ranks, each with the same ``load`` drawn from its own seed.

    It runs in real time, or if ``fast`` in simulated time, no faster than messages can be sent.
    Every rank's port is bound on return. Raises :class:`~forwardpass.errors.ConfigError` for a fault of
    a rank that there is not, and what :func:`~forwardpass.publish.publisher.open_publisher` raises.
    """
    check_ranks(faults, ranks)
    engines: list[MockEngine] = []
    actions: list[TimedAction] = []
    try:
        for dp_rank in range(ranks):
            mine = [fault for fault in faults if fault.dp_rank == dp_rank]
            rank = _Rank(settings, dp_rank, ranks, tampered=bool(mine))
            requests = arrivals(load, f"{config.seed}/{dp_rank}")
            engines.append(MockEngine(config, rank.open, requests, dp_rank=dp_rank))
            for fault in mine:
                actions += fault_actions(fault, engines[-1], rank.tampering, rank.open_second)
    except ForwardPassError:
        for engine in engines:
            engine.close()
        raise
    pacer: Pacer = RealTime()
    if fast:
        pacer = FastTime(lambda: sum(engine.publisher.counts().pending for engine in engines))
    return MockCluster(engines, actions=actions, pacer=pacer)
