"""Knows what the workers' replies amount to for a group of ranks: coverage, agreement, and one verdict."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from forwardpass.artifact.probe import (
    ProbeFailed,
    ProbeReplies,
    ProbeSkipped,
    Response,
    responses_of,
)

__all__ = [
    "SCOPE",
    "AttentionResolved",
    "Coverage",
    "ProbeResult",
    "Topology",
    "WorkerProbe",
    "judge_probe",
    "judge_view",
    "topology_of",
]

SCOPE = "post_collection_collective_rpc"
MIXED = "worker_probe_mixed"
_AXES = ("tp_rank", "pp_rank", "pcp_rank")


class Topology(Struct, frozen=True):
    """How many workers there are along each axis; ``None`` where the engine block does not say."""

    tensor: int | None
    pipeline: int | None
    prefill_context: int | None

    @property
    def workers(self) -> int | None:
        """Return how many workers a DP rank has, ``None`` if that is not known."""
        sizes = [self.tensor, self.pipeline, self.prefill_context]
        return None if None in sizes else prod(size for size in sizes if size is not None)


class Coverage(Struct, frozen=True, kw_only=True):
    """Which workers were heard of those that there should be."""

    scope: str = "artifact_workers"
    expected_dp_ranks: list[int] | None
    expected_workers_per_dp: int | None
    observed_workers: list[dict[str, int | None]]
    missing_dp_ranks: list[int] | None
    complete: bool


class WorkerProbe(Struct, frozen=True, kw_only=True):
    """All replies and what is to be said of them."""

    schema_version: int = 1
    scope: str = SCOPE
    responses: list[Response]
    coverage: Coverage
    disagreements: dict[str, Any]
    """Field -> the values that were seen."""
    error: str | None


class AttentionResolved(Struct, frozen=True, kw_only=True):
    """The attention backends that run."""

    backend_resolved: str | None
    mla_prefill_backend_resolved: str | None
    resolution: str


class ProbeResult(Struct, frozen=True, kw_only=True):
    """What a view amounts to."""

    resolved: dict[str, Any] | None
    """The first usable reply."""
    resolved_scope: str | None
    resolution: str
    worker_probe: WorkerProbe
    attention: AttentionResolved | UnsetType = UNSET
    """Only if the engine block has one."""


def topology_of(engine: Mapping[str, Any]) -> Topology:
    """Return the sizes that an engine block names."""
    parallel = engine.get("parallel")
    sizes = parallel if isinstance(parallel, dict) else {}

    def size(name: str) -> int | None:
        value = sizes.get(name)
        return value if type(value) is int and value > 0 else None

    return Topology(
        size("tensor_parallel_size"),
        size("pipeline_parallel_size"),
        size("prefill_context_parallel_size"),
    )


def judge_probe(outcome: ProbeReplies | ProbeFailed | ProbeSkipped) -> tuple[list[Response], str | None]:
    """Return the replies of a call, and what is to be said instead of a verdict if it failed."""
    if isinstance(outcome, ProbeSkipped):
        return [], f"probe_skipped: {outcome.reason}"
    if isinstance(outcome, ProbeFailed):
        return [], f"probe_failed: {outcome.error}"
    responses = responses_of(outcome.result)
    if not responses:
        return responses, "probe_failed: no worker replied"
    if all(response.issues for response in responses):
        return responses, "probe_failed: every reply has issues"
    return responses, None


def judge_view(
    responses: Sequence[Response],
    failure: str | None,
    engine: Mapping[str, Any],
    expected: Sequence[int] | None,
) -> ProbeResult:
    """Return what the replies amount to for the DP ranks ``expected`` (``None``: not known)."""
    view = _View([copy.deepcopy(response) for response in responses], topology_of(engine), expected)
    usable = view.usable()
    disagreements = _disagreements(usable)
    coverage = view.coverage(usable)
    if failure is not None:
        resolution = failure
    elif not usable:
        resolution = "worker_probe_unobserved"
    elif disagreements:
        resolution = MIXED
    else:
        resolution = "worker_probe" if coverage.complete else "worker_probe_partial"
    return ProbeResult(
        resolved=copy.deepcopy(usable[0].response) if usable else None,
        resolved_scope="representative_worker" if usable else None,
        resolution=resolution,
        worker_probe=WorkerProbe(
            responses=view.responses, coverage=coverage, disagreements=disagreements, error=failure
        ),
        attention=_attention(usable, resolution) if isinstance(engine.get("attention"), dict) else UNSET,
    )


class _View:
    """Replies of one view, with the issues that they have only in it."""

    def __init__(self, responses: list[Response], topology: Topology, expected: Sequence[int] | None) -> None:
        self.responses = responses
        self._topology, self._expected = topology, expected
        self._contradictions()
        self._shared_slots()

    def usable(self) -> list[Response]:
        return [one for one in self.responses if not one.issues and self._in_scope(one)]

    def coverage(self, usable: Sequence[Response]) -> Coverage:
        names = ("dp_rank", "worker_rank", "tp_rank", "pp_rank", "pcp_rank")
        workers, expected = self._topology.workers, self._expected
        observed = {response.number("dp_rank") for response in usable}
        counted = expected is not None and workers is not None and len(usable) == len(expected) * workers
        return Coverage(
            expected_dp_ranks=None if expected is None else list(expected),
            expected_workers_per_dp=workers,
            observed_workers=[{name: one.number(name) for name in names} for one in usable],
            missing_dp_ranks=None if expected is None else sorted(set(expected) - observed),
            complete=counted
            and not any(response.issues for response in self.responses)
            and not any(response.response.get("capture_errors") for response in usable),
        )

    def _in_scope(self, response: Response) -> bool:
        return self._expected is None or response.number("dp_rank") in self._expected

    def _contradictions(self) -> None:
        """Mark replies whose ranks cannot be those of the worker that they name."""
        for response in self.responses:
            places = self._places(response)
            if response.issues or places is None:
                continue
            wrong = [name for name, rank in places.items() if response.number(name) not in (rank, None)]
            if wrong:
                worker = response.number("worker_rank")
                response.issues.append(f"{', '.join(wrong)} of worker {worker} contradict the parallel sizes")

    def _shared_slots(self) -> None:
        """Mark replies of different workers that say that they are at one place."""
        slots: dict[tuple[int | None, ...], list[Response]] = {}
        for response in self.responses:
            places = self._places(response) or {}
            named = [response.number(name) for name in _AXES]
            slot = [
                places.get(name) if rank is None else rank for name, rank in zip(_AXES, named, strict=True)
            ]
            if not response.issues and None not in slot:
                slots.setdefault((response.number("dp_rank"), *slot), []).append(response)
        for slot_at, sharing in slots.items():
            if len(sharing) > 1:
                for response in sharing:
                    words = f"{len(sharing)} replies in the place {slot_at} of dp, tp, pp, pcp"
                    response.issues.append(words)

    def _places(self, response: Response) -> dict[str, int] | None:
        """Return where its worker is along each axis, ``None`` if that cannot be told."""
        sizes, worker = self._topology, response.number("worker_rank")
        if sizes.tensor is None or sizes.pipeline is None or sizes.prefill_context is None or worker is None:
            return None
        return {
            "tp_rank": worker % sizes.tensor,
            "pcp_rank": (worker // sizes.tensor) % sizes.prefill_context,
            "pp_rank": (worker // (sizes.tensor * sizes.prefill_context)) % sizes.pipeline,
        }


def _disagreements(usable: Sequence[Response]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    layers: dict[str, list[str]] = {}
    for response in usable:
        for layer, name in response.response.get("attention_backends", {}).items():
            layers.setdefault(layer, []).append(name)
    mixed = {layer: sorted(set(names)) for layer, names in sorted(layers.items()) if len(set(names)) > 1}
    if mixed:
        found["attention_backends"] = mixed
    for name in ("mla_prefill_backend", "cudagraph_mode_resolved", "cudagraph_capture_sizes_resolved"):
        values: list[Any] = []
        for response in usable:
            value = response.response.get(name)
            if value is not None and value not in values:
                values.append(value)
        if len(values) > 1:
            found[name] = values
    return found


def _attention(usable: Sequence[Response], resolution: str) -> AttentionResolved:
    backends = {
        name for response in usable for name in response.response.get("attention_backends", {}).values()
    }
    prefill = {response.response.get("mla_prefill_backend") for response in usable}
    return AttentionResolved(
        backend_resolved=next(iter(backends)) if len(backends) == 1 else None,
        mla_prefill_backend_resolved=next(iter(prefill)) if len(prefill) == 1 else None,
        resolution=MIXED if len(backends) > 1 else resolution,
    )
