"""Knows how a server's process sees a self-benchmark to its end: wait, merge, ask the workers, put things
back.

It runs beside the engine's client, before the server answers anybody.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from forwardpass.artifact.merge import merge_ranks
from forwardpass.artifact.names import merged_path, rank_path, sidecar_path
from forwardpass.artifact.read import read_artifact
from forwardpass.artifact.run import PathSource
from forwardpass.artifact.sidecar import applied, build_sidecar, write_sidecar
from forwardpass.atomic import remove_stale
from forwardpass.bench.engine_config import from_engine
from forwardpass.bench.environment import BenchEnvironment
from forwardpass.bench.handover import Handover, OnFailure, Order, Outcome, Verdict
from forwardpass.bench.output_paths import LoadBalancing, managed_ranks
from forwardpass.clock import Clock
from forwardpass.config.settings import Sources
from forwardpass.engines.vllm.bench_workers import (
    drop_graph_statistics,
    end_graph_statistics,
    probe_workers,
    release_garbage,
)
from forwardpass.errors import ArtifactError, ArtifactPathError, BenchError

__all__ = ["Conclusion"]

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.1
GRACE_SECONDS = 90.0
"""How long after the soft timeout the ranks' files may still come."""
RESTORE_SECONDS = 30.0


class _Unusable(BenchError):
    """There is no result that anybody can use; the engine is well."""


class _EngineLost(BenchError):
    """The engine cannot serve: it has ended, or goes on measuring."""


def _ranks_of(client: Any) -> range:
    """Return the global ranks whose files this launch waits for."""
    parallel = client.vllm_config.parallel_config
    if parallel.data_parallel_external_lb:
        balancing = LoadBalancing.EXTERNAL
    elif parallel.data_parallel_hybrid_lb:
        balancing = LoadBalancing.HYBRID
    else:
        balancing = LoadBalancing.INTERNAL
    return managed_ranks(
        balancing,
        first_rank=int(parallel.data_parallel_rank),
        local_size=int(parallel.data_parallel_size_local),
        size=int(parallel.data_parallel_size),
    )


class Conclusion:
    """One benchmark's end, in the server's process that leads."""

    def __init__(self, client: Any, handover: Handover, order: Order, clock: Clock, sources: Sources) -> None:
        self._client, self._handover, self._clock = client, handover, clock
        self._on_failure, self._prepared = order.on_failure, order.prepared
        self._environment = BenchEnvironment.load(sources)
        self._config = self._environment.applied_to(from_engine(order.benchmark))
        base, ranks = Path(self._config.output_path), _ranks_of(client)
        self._files = [rank_path(base, rank) for rank in ranks]
        self._merged = merged_path(base, ranks.start)
        self._sidecar = sidecar_path(self._merged)
        self._warnings: list[str] = []

    async def reach(self) -> tuple[Outcome, bytes | None]:
        """Wait for every rank's file, and return how it ended and the document to serve.

        What was turned on for the benchmark is turned off, however it ended. Raises nothing that is foreseen.
        """
        try:
            outcome, served = await self._result()
        except _EngineLost as error:
            outcome, served = self._failed(error, serving=False), None
        except (BenchError, ArtifactError) as error:
            outcome, served = self._failed(error, serving=self._on_failure is OnFailure.SERVE), None
        finally:
            problem = await self._restore()
        if problem and outcome.verdict is not Verdict.FAILED:
            return self._failed(_EngineLost(problem), serving=False), None
        if self._handover.stop_asked():
            return msgspec.structs.replace(outcome, verdict=Verdict.INTERRUPTED, serving=False), None
        return outcome, served

    async def _result(self) -> tuple[Outcome, bytes]:
        if not self._prepared:
            raise _EngineLost(
                "vLLM did not load the plugin that prepares its engine; `forwardpass doctor` may know"
            )
        for path in (self._merged, self._sidecar):
            remove_stale(path)
        await self._wait()
        self._look_for_failures(self._files)
        document = await asyncio.to_thread(self._merge)
        served = await self._probe(document)
        coverage, size = document["coverage"], document["dp"]["global_size"]
        outcome = Outcome(
            verdict=Verdict(document["status"]),
            serving=True,
            points=coverage["completed_points"] // size,
            skipped=coverage["skipped_points"] // size,
            rank_files=tuple(map(str, self._files)),
            merged=str(self._merged),
            worker_probe=str(self._sidecar) if self._sidecar.exists() else None,
            warnings=tuple(self._warnings),
        )
        return outcome, msgspec.json.encode(served)

    async def _wait(self) -> None:
        began, warned = self._clock.monotonic(), False
        limit = self._config.timeout_seconds
        while missing := [path for path in self._files if not path.exists()]:
            if self._client.errored:
                self._look_for_failures(path for path in self._files if path.exists())
                raise _EngineLost(f"the engine ended before every rank had written its file ({self._far()})")
            waited = self._clock.monotonic() - began
            if waited > limit and not warned:
                warned = True
                logger.warning("the self-benchmark takes longer than its %g s", limit)
            if waited > limit + GRACE_SECONDS:
                names = ", ".join(map(str, missing))
                raise _EngineLost(f"no file after {limit + GRACE_SECONDS:g} s (the limit and 90 s): {names}")
            await asyncio.sleep(POLL_SECONDS)

    def _far(self) -> str:
        """Return how far each rank had come, in words."""
        said = self._handover.progress()
        words = [f"rank {rank}: {each.settled:,} of {each.expected:,} points" for rank, each in said.items()]
        return "; ".join(sorted(words)) or "no rank had begun"

    def _look_for_failures(self, files: Any) -> None:
        """Raise what the ranks' files say went wrong, the same reason once."""
        reasons: dict[str, str] = {}
        for path in files:
            head = read_artifact(path).head
            if head.get("status") == "failed":
                reasons.setdefault(str(head.get("error") or "no reason is given"), str(path))
        if reasons:
            text = "; ".join(f"{reason} (in {path})" for reason, path in reasons.items())
            raise _EngineLost(text) if self._client.errored else _Unusable(text)

    def _merge(self) -> dict[str, Any]:
        sources: Sequence[PathSource] = [PathSource(path) for path in self._files]
        merge = merge_ranks(sources, output=self._merged, sidecar=self._sidecar)
        for rank, reason in merge.capture_errors.items():
            self._warnings.append(f"rank {rank} does not say which engine it is: {reason}")
        merge.write()
        return merge.document()

    async def _probe(self, document: dict[str, Any]) -> dict[str, Any]:
        """Ask the workers, write down what they say, and return the document with it."""
        if not isinstance(document.get("engine"), dict):
            return document
        sidecar = build_sidecar(document, await probe_workers(self._client, self._config))
        if sidecar is None:
            return document
        try:
            write_sidecar(self._sidecar, sidecar)
        except ArtifactPathError as error:
            self._warnings.append(f"what the workers said is not kept: {error}")
        return applied(document, sidecar.merged)

    async def _restore(self) -> str:
        """Turn off what was turned on; return what went wrong."""
        try:
            drop_graph_statistics(self._client, self._config)
            if not self._client.errored:
                async with asyncio.timeout(RESTORE_SECONDS):
                    await release_garbage(self._client, self._config, self._environment)
                    await end_graph_statistics(self._client, self._config)
        except Exception as error:  # boundary: an error of the benchmark itself must not be covered
            logger.warning("the engine may not be as it was before the self-benchmark", exc_info=True)
            return f"the engine could not be put back as it was: {type(error).__name__}: {error}"
        return ""

    def _failed(self, error: BaseException, *, serving: bool) -> Outcome:
        written = tuple(str(path) for path in self._files if path.exists())
        return Outcome(
            Verdict.FAILED,
            serving=serving,
            message=str(error),
            rank_files=written,
            warnings=tuple(self._warnings),
        )
