"""Knows the worker's side of KV transfers: when loads arrive, which of them fail, when blocks are read."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from bare_engine import BLOCK_TOKENS
from proof_ledger import Ledger, State


class Load(NamedTuple):
    """KV on its way to a request, or read by the pass that admits it."""

    name: str
    local: int
    """Tokens that were there already."""
    tokens: int
    """Tokens when it has arrived."""
    cut: bool = False
    """Whether a block that it shares was bad: it has fewer tokens than it asked for."""


class Transfers:
    """Everything in transit of one engine."""

    def __init__(self, rng: random.Random, scheduler: Any, ledger: Ledger) -> None:
        self.rng = rng
        self.scheduler = scheduler
        self.ledger = ledger
        self.coming: list[Load] = []
        self.cases: set[str] = set()
        self._read: list[str] = []

    def started(self) -> list[Load]:
        """Return the synchronous loads of the pass that was just scheduled; note the others."""
        connector, synchronous = self.scheduler.connector, []
        for name, is_async, local, tokens in connector.started:
            load = Load(name, local, tokens)
            self.ledger.lives[name].loads += 1
            (self.coming if is_async else synchronous).append(load)
            self.cases.add("load starts" if is_async else "synchronous load")
        connector.started.clear()
        return synchronous

    def report(self, synchronous: list[Load], *, may_fail: bool) -> tuple[Any, bool]:
        """Return what the worker tells with an output, and whether synchronously loaded KV was bad.

        Takes down where each request that a report concerns will go on.
        """
        from vllm.v1.outputs import KVConnectorOutput

        self._read += self.scheduler.connector.held
        self.scheduler.connector.held.clear()
        report = KVConnectorOutput(finished_recving=set(), finished_sending=set())
        for load in [load for load in self.coming if self.rng.random() < 0.3]:
            self.coming.remove(load)
            report.finished_recving.add(load.name)
            self._arrives(load, report)
        for name in [name for name in self._read if self.rng.random() < 0.4]:
            self._read.remove(name)
            report.finished_sending.add(name)
            self.cases.add("held blocks freed")
        lost = may_fail and bool(synchronous) and self.rng.random() < 0.25 and self._fail(synchronous, report)
        return (None, False) if report.is_empty() else (report, lost)

    def _arrives(self, load: Load, report: Any) -> None:
        life = self.ledger.lives.get(load.name)
        if life is None:
            self.cases.add("load of an aborted request")
            return
        position = load.tokens
        draw = 1.0 if load.cut else self.rng.random()
        if draw < 0.15:
            position = self._spoil(load, report)
            self.cases.add("load failed")
        elif draw < 0.25 and hasattr(report, "failed_recving"):  # vLLM 0.28 and 0.29 know bad blocks only
            report.failed_recving.add(load.name)
            position = 0
            self.cases.add("load failed")
        else:
            self.cases.add("load arrives")
        if position < load.tokens and self.rng.random() < 0.5:
            self.scheduler.requests[load.name].kv_transfer_params["tokens"] = 0  # do not try again
        life.position = min(position, life.known - 1)

    def follow(self) -> None:
        """After bad blocks were reported: take down which loads share one of them, on their way or arrived
        but not yet admitted.
        """
        for index, load in enumerate(self.coming):
            if load.name in self.ledger.lives:
                tokens = self.scheduler.requests[load.name].num_computed_tokens
                if tokens < load.tokens:
                    self.coming[index] = load._replace(tokens=tokens, cut=True)
                    self.cases.add("load cut by another's bad block")
        coming = {load.name for load in self.coming}
        for name, life in self.ledger.lives.items():
            request = self.scheduler.requests.get(name)
            if name in coming or request is None or request.status.name != "WAITING_FOR_REMOTE_KVS":
                continue
            if request.num_computed_tokens < life.position:
                life.position = request.num_computed_tokens
                self.cases.add("load cut by another's bad block")

    def _spoil(self, load: Load, report: Any) -> int:
        """Report one of the load's blocks as bad; return the tokens before it."""
        blocks = self.scheduler.kv_cache_manager.get_block_ids(load.name)[0]
        index = self.rng.randrange(load.local // BLOCK_TOKENS, -(-load.tokens // BLOCK_TOKENS))
        report.invalid_block_ids.add(blocks[index])
        return index * BLOCK_TOKENS

    def _fail(self, synchronous: list[Load], report: Any) -> bool:
        load = self.rng.choice(synchronous)
        life = self.ledger.lives.get(load.name)
        if life is None or life.state is not State.RUNNING:
            return False
        self._spoil(load, report)
        return True
