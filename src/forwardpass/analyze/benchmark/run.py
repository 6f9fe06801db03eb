"""Knows how an artifact becomes a run to look at: points, what each rank retained, and of which samples.

Rows that are not as documented are left out and named: a stand-in is no measurement.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from forwardpass.artifact.blocks import CudaGraphs, IterationGroup, PointRecord, RankResult, SkippedPoint
from forwardpass.artifact.names import sidecar_path
from forwardpass.artifact.read import GROUPS, ArtifactFile, Kind, decode_part, read_artifact
from forwardpass.artifact.shape import Misfit, fit, found, path_text
from forwardpass.artifact.sidecar import NoSidecar, sidecar_beside
from forwardpass.bench.digest import point_key
from forwardpass.bench.evidence import BenchmarkFpm, Observed, RecordedPrompts, WarmupLedger
from forwardpass.errors import UnknownSchema
from forwardpass.wire.codec import BYTES_ERRORS

__all__ = ["BenchRun", "MeasuredPoint", "RankTime", "Unread", "load_run", "run_of"]

T = TypeVar("T")
_MOST = 1 << 53
_LONGEST = 1e6
"""Seconds; a pass that is said to have taken longer is taken for a damaged row."""


class RankTime(Struct, frozen=True, kw_only=True):
    """What one rank retained of one point."""

    rank: int
    wall_time: float
    """Seconds; what was retained."""
    method: str | None = None
    """How it came of the samples; ``None`` where the file does not say (a run without a protocol)."""
    samples: tuple[float, ...] = ()
    """Seconds of the samples behind it, in the order of collection: those that the estimate names, so no
    admission step. They are adjacent steps of one launch, no independent repetitions. Empty: not recorded."""
    prompts_sha256: str | None = None
    """Hash over the prompts that were injected; ``None``: not known, which matches nothing."""
    dispatch: tuple[str, ...] = ()
    """What the engine said of each of these samples, ``unavailable`` where it said nothing. Equal words are
    no equal executions: they name neither the graph nor the kernel."""
    kv_seed_regime: str | None = None


class MeasuredPoint(Struct, frozen=True, kw_only=True):
    """One point that was measured."""

    point: PointRecord
    key: str
    """Identity of the coordinate, the same in every grid."""
    occurrence: int
    """0 for the first point of this key in the file, 1 for the next …"""
    wall_time: float
    """Seconds, of the slowest rank."""
    ranks: tuple[RankTime, ...]

    @property
    def place(self) -> tuple[str, int]:
        """Return what the same point of another run is found by."""
        return self.key, self.occurrence


class Unread(Struct, frozen=True):
    """Something of the file that could not be read, and is therefore missing here."""

    where: str
    found: str
    accepted: str


class BenchRun(Struct, frozen=True, kw_only=True):
    """One run, as one file tells it. What it claims of itself is carried, not checked."""

    file: str
    kind: Kind
    head: dict[str, Any]
    """The document without its rows, as it stands in the file."""
    ranks: tuple[int, ...]
    """The ranks that have passes in it."""
    points: tuple[MeasuredPoint, ...]
    """In the order of execution."""
    skipped: tuple[SkippedPoint, ...]
    graphs: CudaGraphs | None
    ledgers: dict[int, WarmupLedger]
    """Rank -> its warm-ups; ranks without one are missing."""
    workers: dict[str, Any] | None
    """The verdict on what workers replied, of the sidecar beside a merged file."""
    workers_missing: str | None
    """Why there is none."""
    unread: tuple[Unread, ...]

    def block(self, name: str) -> dict[str, Any]:
        """Return an object of the head; an empty one if it is missing or none."""
        value = self.head.get(name)
        return value if isinstance(value, dict) else {}

    @property
    def is_whole(self) -> bool:
        """Whether it says that it is complete and valid, and every row could be read."""
        complete = self.head.get("status", "complete") == "complete" and self.head.get("valid") is True
        return complete and not self.skipped and not self.unread

    @property
    def size(self) -> int | None:
        """Return the number of data-parallel ranks, ``None`` if it is not said."""
        name = "size" if self.kind is Kind.RANK else "global_size"
        value = self.block("dp").get(name)
        return value if type(value) is int and 0 < value <= _MOST else None


def load_run(path: Path) -> BenchRun:
    """Return the run in a rank's or a merged file, with the sidecar that stands beside a merged one.

    Raises what :func:`~forwardpass.artifact.read.read_artifact` raises, and
    :class:`~forwardpass.errors.UnknownSchema` for a sidecar.
    """
    file = read_artifact(path)
    workers, missing = _workers(file, sidecar_path(path))
    return run_of(file, workers, missing)


def run_of(
    file: ArtifactFile, workers: dict[str, Any] | None = None, workers_missing: str | None = None
) -> BenchRun:
    """Return the run in a file that was read. Raises as :func:`load_run`."""
    if file.kind is Kind.PROBE:
        raise UnknownSchema(file.name, file.kind.value, 1, "the file of a rank, or a merged one")
    notes: list[Unread] = []
    points = tuple(_points(file, notes))
    ranks = sorted({time.rank for point in points for time in point.ranks})
    skipped = _fitted(file, "skipped_points", tuple[SkippedPoint, ...], notes) or ()
    if (problem := _too_large(number for row in skipped for number in _numbers(row.point))) is not None:
        notes.append(Unread("$.skipped_points", *problem))
        skipped = ()
    graphs = _fitted(file, "cudagraph", CudaGraphs, notes)
    if graphs is not None and (problem := _too_large(graphs.capture_sizes)) is not None:
        notes.append(Unread("$.cudagraph", *problem))
        graphs = None
    return BenchRun(
        file=file.name,
        kind=file.kind,
        head=file.head,
        ranks=tuple(ranks),
        points=points,
        skipped=skipped,
        graphs=graphs,
        ledgers=_ledgers(file, notes),
        workers=workers,
        workers_missing=workers_missing,
        unread=tuple(notes),
    )


def _workers(file: ArtifactFile, beside: Path) -> tuple[dict[str, Any] | None, str | None]:
    if file.kind is not Kind.MERGED:
        return None, "it stands beside merged files only"
    sidecar = sidecar_beside(beside, file.head)
    if isinstance(sidecar, NoSidecar):
        return None, sidecar.reason
    verdict: dict[str, Any] = msgspec.to_builtins(sidecar.merged)
    return verdict, None


# --- rows -------------------------------------------------------------------------------------------


def _points(file: ArtifactFile, notes: list[Unread]) -> Iterator[MeasuredPoint]:
    if file.groups is None:
        notes.append(Unread(f"$.{GROUPS}", found(file.head.get(GROUPS, UNSET)), "a list"))
        return
    regimes = _regimes(file)
    seen: dict[str, int] = {}
    for at, text in enumerate(file.groups):
        group = _group(file, text, at, notes)
        if group is None:
            continue
        key = point_key(msgspec.structs.asdict(group.point))
        occurrence = seen[key] = seen.get(key, -1) + 1
        yield MeasuredPoint(
            point=group.point,
            key=key,
            occurrence=occurrence,
            wall_time=group.wall_time,
            ranks=tuple(_rank_time(result, group.benchmark_id, regimes) for result in group.rank_results),
        )


def _group(file: ArtifactFile, text: Raw, at: int, notes: list[Unread]) -> IterationGroup | None:
    """Return one row, or note the first thing that is wrong with it."""
    try:
        group = msgspec.json.decode(text, type=IterationGroup)
    except BYTES_ERRORS:
        misfits: list[Misfit] = []
        fit(decode_part(text, file.name, GROUPS), IterationGroup, (GROUPS, at), misfits.append)
        if not misfits:  # such as a number too large for any field
            misfits = [Misfit((GROUPS, at), "a row that is not as documented", "one that is")]
        notes += [Unread(path_text(one.path), one.found, one.accepted) for one in misfits[:1]]
        return None
    problem = _improbable(group)
    if problem is not None:
        notes.append(Unread(path_text((GROUPS, at)), *problem))
        return None
    return group


def _too_large(numbers: Iterable[int]) -> tuple[str, str] | None:
    """Return what is said of counts that no run has, and that few programs can print."""
    return ("a count of more than 2^53", "a smaller one") if max(numbers, default=0) > _MOST else None


def _numbers(point: PointRecord) -> Iterator[int]:
    yield from (point.benchmark_id, point.total_prefill_tokens, point.total_kv_read_tokens, point.batch_size)
    yield from (point.expected_capture_size or 0, point.padding_tokens or 0)


def _improbable(group: IterationGroup) -> tuple[str, str] | None:
    """Return what was found and what is accepted, of what a type cannot say."""
    walls = [group.wall_time]
    for result in group.rank_results:
        measurement = result.fpms[0].benchmark_measurement
        walls.append(result.fpms[0].wall_time)
        if not isinstance(measurement, UnsetType):
            walls += [raw.wall_time for raw in measurement.raw_fpms]
            indices, count = measurement.estimate.raw_sample_indices, len(measurement.raw_fpms)
            if any(index >= count for index in indices):
                return f"sample {max(indices)} of {count}", "indices of samples that are there"
    if not group.rank_results:
        return "no rank", "a result of each rank"
    counts = [*_numbers(group.point), *(result.dp_rank for result in group.rank_results)]
    if (problem := _too_large(counts)) is not None:
        return problem
    worst = max(walls)
    return None if worst <= _LONGEST else (f"{worst:g} seconds", f"at most {_LONGEST:g}")


class _RowPoint(Struct, frozen=True):
    benchmark_id: int
    dp_rank: int | None = None


class _Row(Struct, frozen=True):
    point: _RowPoint
    kv_seed_regime: str | None = None


def _regimes(file: ArtifactFile) -> Mapping[tuple[int, int], str | None]:
    """Return (point, rank) -> KV regime as the rows of results say it."""
    own = file.head["dp"].get("rank") if isinstance(file.head.get("dp"), dict) else None
    regimes: dict[tuple[int, int], str | None] = {}
    for text in file.results or ():
        try:
            row = msgspec.json.decode(text, type=_Row)
        except BYTES_ERRORS:
            continue  # the group's row is what counts; a validation names this one
        rank = own if row.point.dp_rank is None else row.point.dp_rank
        if type(rank) is int:
            regimes[row.point.benchmark_id, rank] = row.kv_seed_regime
    return regimes


def _rank_time(result: RankResult, number: int, regimes: Mapping[tuple[int, int], str | None]) -> RankTime:
    fpm: BenchmarkFpm = result.fpms[0]
    measurement = fpm.benchmark_measurement
    regime = regimes.get((number, result.dp_rank))
    if isinstance(measurement, UnsetType):
        return RankTime(rank=result.dp_rank, wall_time=fpm.wall_time, kv_seed_regime=regime)
    used = [measurement.raw_fpms[index] for index in measurement.estimate.raw_sample_indices]
    prompts = measurement.prompts
    return RankTime(
        rank=result.dp_rank,
        wall_time=fpm.wall_time,
        method=measurement.estimate.method.value,
        samples=tuple(raw.wall_time for raw in used),
        prompts_sha256=prompts.sha256 if isinstance(prompts, RecordedPrompts) else None,
        dispatch=tuple(_dispatch(raw) for raw in used),
        kv_seed_regime=measurement.preparation.kv_seed_regime,
    )


def _dispatch(raw: BenchmarkFpm) -> str:
    sample = raw.benchmark_sample
    if isinstance(sample, UnsetType) or not isinstance(sample.cudagraph, Observed):
        return "unavailable"
    return f"{sample.cudagraph.runtime_mode} {sample.cudagraph.num_padded_tokens}"


# --- the head ---------------------------------------------------------------------------------------


def _fitted(file: ArtifactFile, name: str, kind: type[T], notes: list[Unread]) -> T | None:
    """Return a part of the head; ``None``, with a note, where it is missing or not as documented."""
    misfits: list[Misfit] = []
    value = fit(file.head.get(name, UNSET), kind, (name,), misfits.append)
    notes += [Unread(path_text(one.path), one.found, one.accepted) for one in misfits[:1]]
    return None if misfits else value


def _ledgers(file: ArtifactFile, notes: list[Unread]) -> dict[int, WarmupLedger]:
    if file.kind is Kind.RANK:
        rank = file.head["dp"].get("rank") if isinstance(file.head.get("dp"), dict) else None
        texts = {str(rank): file.head["warmup_evidence"]} if "warmup_evidence" in file.head else {}
        name: tuple[str, ...] = ("warmup_evidence",)
    else:
        by_rank = file.head.get("rank_warmup_evidence")
        texts = by_rank if isinstance(by_rank, dict) else {}
        name = ("rank_warmup_evidence",)
    ledgers: dict[int, WarmupLedger] = {}
    for key, value in texts.items():
        misfits: list[Misfit] = []
        ledger: Any = fit(value, WarmupLedger, name, misfits.append)  # type: ignore[arg-type]
        if misfits or not key.isdecimal():
            notes += [Unread(path_text(one.path), one.found, one.accepted) for one in misfits[:1]]
        else:
            ledgers[int(key)] = ledger
    return ledgers
