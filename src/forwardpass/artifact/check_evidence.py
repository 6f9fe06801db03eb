"""Knows the rules about where one retained number comes from: its samples, their times, and the estimate."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from forwardpass.artifact import rules
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.rules import Rule
from forwardpass.artifact.shape import Path
from forwardpass.bench.digest import canonical_json
from forwardpass.bench.evidence import (
    BenchmarkFpm,
    BenchmarkSample,
    Estimate,
    Measurement,
    Method,
    Observed,
    RecordedPrompts,
)
from forwardpass.bench.limits import GraphMode

__all__ = ["EvidenceCheck", "retained_wall"]

_CLOSE = {"rel_tol": 1e-9, "abs_tol": 1e-9}
_MODES = tuple(mode.value for mode in GraphMode)


class EvidenceCheck(Struct, frozen=True):
    """What is asked of every measurement of a file."""

    file: str
    findings: Findings
    grid_digest: object
    has_protocol: bool
    has_contract: bool
    """Whether the protocol promises evidence of each execution."""
    full: bool = False
    """Whether the format and a strict reader's rules are asked for as well."""

    def fpm(self, fpm: BenchmarkFpm, path: Path, rank: int, key: str | None) -> tuple[int, int] | None:
        """Check a retained pass; return the first and last index of its forwards if they are known.

        ``key`` is the key of its group's point, ``None`` where that cannot be told.
        """
        measurement = fpm.benchmark_measurement
        at = (*path, "benchmark_measurement")
        if fpm.benchmark_sample is not UNSET and self.full:
            self._say(rules.FPM_FORMAT, (*path, "benchmark_sample"), "there", "nothing: raw samples have it")
        if not self.has_protocol:
            if measurement is not UNSET:
                self._say(rules.MEASUREMENT_UNASKED, at, "there", "nothing: there is no protocol", rank)
            return None
        if measurement is UNSET:
            self._say(rules.MEASUREMENT, at, UNSET, "the measurement, as the protocol promises", rank)
            return None
        self._identity(measurement, at, rank, key)
        if self.full:
            self._format(measurement, at, rank)
        if not self.has_contract:
            for index, raw in enumerate(measurement.raw_fpms):
                if raw.benchmark_sample is not UNSET:
                    place = (*at, "raw_fpms", index, "benchmark_sample")
                    self._say(rules.SAMPLE_UNASKED, place, "there", "nothing: no execution_evidence", rank)
            return None
        return self._execution(fpm, measurement, at, rank)

    def _identity(self, measurement: Measurement, at: Path, rank: int, key: str | None) -> None:
        if measurement.dp_rank != rank:
            self._say(rules.MEASUREMENT, (*at, "dp_rank"), measurement.dp_rank, str(rank), rank)
        if key is not None and measurement.point_key != key:
            words = f"{key}, the key of its point"
            self._say(rules.MEASUREMENT, (*at, "point_key"), measurement.point_key, words, rank)
        digest = measurement.preparation.grid_digest
        if digest != self.grid_digest:
            place = (*at, "preparation", "grid_digest")
            self._say(rules.MEASUREMENT, place, digest, f"{self.grid_digest}, the run's", rank)

    def _execution(
        self, fpm: BenchmarkFpm, measurement: Measurement, at: Path, rank: int
    ) -> tuple[int, int] | None:
        raws = measurement.raw_fpms
        if not raws:
            self._say(rules.SAMPLE, (*at, "raw_fpms"), [], "at least one sample", rank)
            return None
        last = -1
        for index, raw in enumerate(raws):
            place = (*at, "raw_fpms", index)
            for name in ("counter_id", "dp_rank", "worker_id"):
                theirs, ours = getattr(raw, name), getattr(fpm, name)
                if theirs != ours:
                    self._say(rules.SAMPLE, (*place, name), theirs, f"{ours!r}, as retained", rank)
            sample = raw.benchmark_sample
            place = (*place, "benchmark_sample")
            if sample is UNSET:
                self._say(rules.SAMPLE, place, UNSET, "the sample's evidence", rank)
                continue
            self._sample(sample, raw.wall_time, index, place, rank)
            if sample.forward_index <= last:
                words = f"more than {last}, the pass before"
                self._say(rules.SAMPLE, (*place, "forward_index"), sample.forward_index, words, rank)
            last = sample.forward_index
        self._estimate(measurement.estimate, [raw.wall_time for raw in raws], fpm, at, rank)
        ends = raws[0].benchmark_sample, raws[-1].benchmark_sample
        if ends[0] is UNSET or ends[1] is UNSET:
            return None
        return ends[0].forward_index, ends[1].forward_index

    def _sample(self, sample: BenchmarkSample, wall: float, index: int, at: Path, rank: int) -> None:
        if sample.sample_index != index:
            words = f"{index}, its place"
            self._say(rules.SAMPLE, (*at, "sample_index"), sample.sample_index, words, rank)
        start, end = sample.timing.start_monotonic, sample.timing.end_monotonic
        place = (*at, "timing", "start_monotonic")
        if start is not None and start > end:
            self._say(rules.SAMPLE_TIMING, place, start, f"at most {end!r}, its end", rank)
        elif start is not None and not math.isclose(end - start, wall, **_CLOSE):
            self._say(rules.SAMPLE_TIMING, place, start, f"{wall!r} s (the wall time) before {end!r}", rank)
        graph = sample.cudagraph
        if isinstance(graph, Observed):
            self._dispatch(graph, (*at, "cudagraph"), rank)
        if self.full and not wall > 0:
            wall_at = (*at[:-1], "wall_time")
            self._say(rules.CONSUMER_SAMPLE, wall_at, wall, "more than 0", rank)

    def _dispatch(self, graph: Observed, at: Path, rank: int) -> None:
        if not graph.runtime_mode:
            self._say(rules.DISPATCH, (*at, "runtime_mode"), graph.runtime_mode, "a mode", rank)
        elif self.full and graph.runtime_mode not in _MODES:
            mode, words = graph.runtime_mode, ", ".join(_MODES)
            self._say(rules.CONSUMER_SAMPLE, (*at, "runtime_mode"), mode, f"one of {words}", rank)
        padded, unpadded = graph.num_padded_tokens, graph.num_unpadded_tokens
        if padded < unpadded:
            self._say(rules.DISPATCH, (*at, "num_padded_tokens"), padded, f"at least {unpadded}", rank)
        elif graph.num_paddings != padded - unpadded:
            words = f"{padded - unpadded}, the difference"
            self._say(rules.DISPATCH, (*at, "num_paddings"), graph.num_paddings, words, rank)

    def _estimate(
        self, estimate: Estimate, walls: Sequence[float], fpm: BenchmarkFpm, at: Path, rank: int
    ) -> None:
        indices = list(estimate.raw_sample_indices)
        wanted = _indices(estimate.method, len(walls))
        place = (*at, "estimate", "raw_sample_indices")
        if wanted is None:
            words = f"a method that can be used on {len(walls)} samples"
            self._say(rules.ESTIMATE, (*at, "estimate", "method"), estimate.method, words, rank)
        elif indices != wanted:
            self._say(rules.ESTIMATE, place, indices, f"{wanted}, by its method", rank)
        elif not math.isclose(fpm.wall_time, retained_wall(walls, indices), **_CLOSE):
            words = f"{retained_wall(walls, indices)!r}, of its samples"
            self._say(rules.ESTIMATE, (*at[:-1], "wall_time"), fpm.wall_time, words, rank)

    def _format(self, measurement: Measurement, at: Path, rank: int) -> None:
        raws, expected = len(measurement.raw_fpms), measurement.expected_internal_samples
        if expected < raws:
            place = (*at, "expected_internal_samples")
            self._say(rules.FPM_FORMAT, place, expected, f"at least {raws}, the samples", rank)
        prompts = measurement.prompts
        if isinstance(prompts, RecordedPrompts):
            listed = msgspec.to_builtins(list(prompts.requests))
            digest = hashlib.sha256(canonical_json(listed).encode()).hexdigest()
            if prompts.sha256 != digest:
                place = (*at, "prompts", "sha256")
                self._say(rules.PROMPTS, place, prompts.sha256, f"{digest}, of its requests", rank)

    def _say(self, rule: Rule, path: Path, value: Any, accepted: str, rank: int | None = None) -> None:
        ranks = () if rank is None else (rank,)
        self.findings.add(rule, self.file, path, value, accepted, ranks=ranks)


def retained_wall(walls: Sequence[float], indices: Sequence[int]) -> float:
    """Return the upper median of the walls at ``indices`` (at least one), in seconds."""
    chosen = sorted(walls[index] for index in indices)
    return chosen[len(chosen) // 2]


def _indices(method: Method, samples: int) -> list[int] | None:
    """Return which samples a method uses of so many, ``None`` if it cannot have been used on them."""
    if method is Method.SINGLE_STEP:
        return [0] if samples == 1 else None
    if method is Method.LAST_STEP:
        return [samples - 1]
    return list(range(1, samples)) if samples > 1 else None
