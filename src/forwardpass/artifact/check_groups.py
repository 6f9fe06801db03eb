"""Knows the rules about groups: one point each, run by all ranks together, with one retained pass of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct, field

from forwardpass.artifact import rules
from forwardpass.artifact.blocks import IterationGroup, PointRecord
from forwardpass.artifact.check_evidence import EvidenceCheck
from forwardpass.artifact.check_ledger import Use
from forwardpass.artifact.findings import Findings
from forwardpass.artifact.paths_to_rules import group_rule
from forwardpass.artifact.read import GROUPS, ArtifactFile, decode_part
from forwardpass.artifact.shape import Path, fit
from forwardpass.bench.digest import point_key
from forwardpass.bench.evidence import BenchmarkFpm, PointPreparation
from forwardpass.bench.points import Phase

__all__ = ["Groups", "are_all", "check_groups", "measured_shape"]


class Groups(Struct):
    """What is kept of the groups of a run once they were checked."""

    ids: list[int] = field(default_factory=list)
    points: list[dict[str, Any]] = field(default_factory=list)
    """As they stand in the file."""
    fpms: list[dict[int, list[Raw]]] = field(default_factory=list)
    """For each group: rank -> its passes, as text."""
    walls: list[float] = field(default_factory=list)
    preparations: dict[int, list[tuple[int, PointPreparation, int | None]]] = field(default_factory=dict)
    """For each rank: group, what went before its point, and the point's first forward."""
    places: dict[int, dict[int, int]] = field(default_factory=dict)
    """For each rank: group -> the place of its result in the group, where that is not the rank itself."""

    def uses(self, rank: int) -> Iterator[Use]:
        """Yield what the points of ``rank`` say about what went before them."""
        for group, preparation, first in self.preparations.get(rank, ()):
            place = self.places.get(rank, {}).get(group, rank)
            yield (
                (GROUPS, group, "rank_results", place, "fpms", 0, "benchmark_measurement", "preparation"),
                preparation,
                first,
            )


class _RankText(Struct):
    dp_rank: int
    fpms: list[Raw]


class _GroupText(Struct):
    point: dict[str, Any]
    rank_results: list[_RankText]


_group_decoder = msgspec.json.Decoder(IterationGroup)
_text_decoder = msgspec.json.Decoder(_GroupText)


def check_groups(file: ArtifactFile, size: int | None, evidence: EvidenceCheck, findings: Findings) -> Groups:
    """Check every group of ``file``, run by ``size`` ranks (``None``: not known); return what is in them.

    Raises :class:`~forwardpass.errors.MalformedArtifact` for text that is no JSON.
    """
    if not file.groups:
        findings.add(rules.GROUP_IDS, file.name, (GROUPS,), file.head.get(GROUPS, []), "at least one group")
        return Groups()
    check = _GroupsCheck(file.name, size, evidence, findings)
    for at, text in enumerate(file.groups):
        check.group(at, text)
    check.contiguous()
    return check.groups


class _GroupsCheck:
    """One walk over the groups, with what has to be remembered from one to the next."""

    def __init__(self, file: str, size: int | None, evidence: EvidenceCheck, findings: Findings) -> None:
        self.groups = Groups()
        self._file, self._size, self._evidence, self._findings = file, size, evidence, findings
        self._seen: set[int] = set()
        self._last: dict[int, int] = {}
        """The last forward index of each rank so far."""

    def group(self, at: int, text: Raw) -> None:
        path: Path = (GROUPS, at)
        group = self._typed(text, path)
        kept = self._keep(text)
        self._ids(group, path)
        self._ranks(group, path)
        self.groups.ids.append(group.benchmark_id)
        self.groups.walls.append(group.wall_time)
        key = _key(kept.point)
        walls = []
        for place, result in enumerate(group.rank_results):
            here = (*path, "rank_results", place)
            if len(result.fpms) != 1:
                self._findings.add(
                    rules.GROUP_FPM, self._file, (*here, "fpms"), f"{len(result.fpms)} passes", "one",
                    ranks=[result.dp_rank],
                )  # fmt: skip
                continue
            walls.append(result.fpms[0].wall_time)
            self._fpm(result.fpms[0], group, result.dp_rank, at, place, key)
        if walls and group.wall_time != max(walls):
            self._findings.add(
                rules.GROUP_WALL, self._file, (*path, "wall_time"), group.wall_time,
                f"{max(walls)!r}, the slowest rank's",
            )  # fmt: skip

    def contiguous(self) -> None:
        ids = sorted(self._seen)
        if ids != list(range(1, len(self.groups.ids) + 1)):
            missing = next((n for n in range(1, len(self.groups.ids) + 1) if n not in self._seen), None)
            words = f"1 … {len(self.groups.ids)} (no {missing})"
            self._findings.add(rules.CONTIGUOUS, self._file, (GROUPS,), _short(ids), words)

    def _typed(self, text: Raw, path: Path) -> IterationGroup:
        try:
            return _group_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            value = decode_part(text, self._file, f"{GROUPS}[{path[1]}]")
            return fit(value, IterationGroup, path, self._findings.misfit(self._file, group_rule))

    def _keep(self, text: Raw) -> _GroupText:
        try:
            kept = _text_decoder.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            kept = _GroupText({}, [])  # a rule has said what is wrong
        self.groups.points.append(kept.point)
        self.groups.fpms.append({result.dp_rank: result.fpms for result in kept.rank_results})
        return kept

    def _ids(self, group: IterationGroup, path: Path) -> None:
        number = group.benchmark_id
        if number in self._seen:
            self._say(rules.GROUP_IDS, (*path, "benchmark_id"), number, "an id of its own")
        self._seen.add(number)
        if group.point.benchmark_id != number:
            where = (*path, "point", "benchmark_id")
            self._say(rules.GROUP_IDS, where, group.point.benchmark_id, f"{number}, the group's")

    def _ranks(self, group: IterationGroup, path: Path) -> None:
        if group.complete is not True:
            self._say(rules.GROUP_RANKS, (*path, "complete"), group.complete, "true")
        if self._size is None:
            return
        expected = list(group.expected_dp_ranks)
        if not are_all(expected, self._size):
            self._say(rules.GROUP_RANKS, (*path, "expected_dp_ranks"), expected, _ranks(self._size))
        present = [result.dp_rank for result in group.rank_results]
        if not are_all(sorted(present), self._size):
            self._say(
                rules.GROUP_RANKS, (*path, "rank_results"), f"ranks {_short(present)}", _ranks(self._size)
            )

    def _fpm(
        self, fpm: BenchmarkFpm, group: IterationGroup, rank: int, at: int, place: int, key: str | None
    ) -> None:
        path: Path = (GROUPS, at, "rank_results", place, "fpms", 0)
        if fpm.counter_id != group.benchmark_id:
            words = f"{group.benchmark_id}, the point's id"
            self._say(rules.GROUP_FPM, (*path, "counter_id"), fpm.counter_id, words, rank)
        if fpm.dp_rank != rank:
            self._say(rules.GROUP_FPM, (*path, "dp_rank"), fpm.dp_rank, f"{rank}, its result's", rank)
        if self._evidence.full:
            for name, there, wanted in measured_shape(fpm, group.point):
                where = (*path, "scheduled_requests", name)
                self._say(rules.MEASURED_SHAPE, where, there, f"{wanted}, as its point says", rank)
        span = self._evidence.fpm(fpm, path, rank, key)
        measurement = fpm.benchmark_measurement
        if not self._evidence.has_contract or isinstance(measurement, msgspec.UnsetType):
            return
        uses = self.groups.preparations.setdefault(rank, [])
        uses.append((at, measurement.preparation, None if span is None else span[0]))
        if place != rank:
            self.groups.places.setdefault(rank, {})[at] = place
        if span is None:
            return
        last = self._last.get(rank, -1)
        if span[0] <= last:
            where = (*path, "benchmark_measurement", "raw_fpms", 0, "benchmark_sample", "forward_index")
            words = f"more than {last}, where the group before ended"
            self._say(rules.FORWARD_ORDER, where, span[0], words, rank)
        self._last[rank] = max(last, span[1])

    def _say(self, rule: rules.Rule, path: Path, value: Any, accepted: str, rank: int | None = None) -> None:
        self._findings.add(rule, self._file, path, value, accepted, ranks=() if rank is None else (rank,))


def measured_shape(fpm: BenchmarkFpm, point: PointRecord) -> Iterator[tuple[str, int, int]]:
    """Yield where a pass is not what its point says: field, found, wanted."""
    there = fpm.scheduled_requests
    if point.point_type is Phase.PREFILL:
        wanted = (
            ("num_prefill_requests", there.num_prefill_requests, point.batch_size),
            ("sum_prefill_tokens", there.sum_prefill_tokens, point.total_prefill_tokens),
            ("sum_prefill_kv_tokens", there.sum_prefill_kv_tokens, point.total_kv_read_tokens),
            ("num_decode_requests", there.num_decode_requests, 0),
        )
    else:
        wanted = (
            ("num_decode_requests", there.num_decode_requests, point.batch_size),
            ("sum_decode_kv_tokens", there.sum_decode_kv_tokens, point.total_kv_read_tokens),
            ("num_prefill_requests", there.num_prefill_requests, 0),
            ("sum_prefill_tokens", there.sum_prefill_tokens, 0),
        )
    yield from (one for one in wanted if one[1] != one[2])


def are_all(ranks: Sequence[int], size: int) -> bool:
    """Say whether ``ranks`` are 0 … ``size`` - 1, in this order. A stranger's size may be any number."""
    return len(ranks) == size and all(at == rank for at, rank in enumerate(ranks))


def _key(point: dict[str, Any]) -> str | None:
    try:
        return point_key(point) if point else None
    except (TypeError, ValueError, RecursionError):
        return None


def _ranks(size: int) -> str:
    return "rank 0 alone" if size == 1 else f"ranks 0 … {size - 1}"


def _short(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:20]))
    return f"{text}, …" if len(numbers) > 20 else text
