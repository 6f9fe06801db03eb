"""Knows how the files of one run's ranks become one document: all rejections first, then a copy of evidence.

Evidence is carried and not judged: whatever a rank wrote arrives as it wrote it, and nothing is compared
between ranks but what shows that their files belong together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from forwardpass.artifact import rules
from forwardpass.artifact.blocks import Status
from forwardpass.artifact.findings import Problem
from forwardpass.artifact.identity import merged_engine
from forwardpass.artifact.json_text import Rows, object_text
from forwardpass.artifact.names import base_path, merged_path, sidecar_path
from forwardpass.artifact.read import GROUPS, RESULTS
from forwardpass.artifact.rules import Level
from forwardpass.artifact.run import Rank, RankSource, Run, examine
from forwardpass.atomic import remove_stale, write_atomically
from forwardpass.errors import ArtifactPathError, MalformedArtifact, MergeError

__all__ = ["Merge", "merge_ranks", "merge_refusal", "merge_run", "reference_order"]

NOT_LOADED = {"status": "unavailable", "records": [], "reason": "rank_artifact_not_loaded"}
_COUNTS = ("expected_points", "completed_points", "skipped_points")
_GROUP_PLACE = re.compile(r"\$\.iteration_groups\[(\d+)\]")
_AS_REFERENCE = {"status", "coverage", "counts", "outcome"}
"""Rules that the reference asks of the first rank before it looks at groups."""
_SOONER = {rules.RUN.name, rules.DP.name}
"""Rules that it asks of the others when it compares them with the first."""


class Merge:
    """The document that ranks merge into; made as often as it is asked for."""

    def __init__(self, run: Run, output: Path, sidecar: Path) -> None:
        self.output, self.sidecar = output, sidecar
        self._run = run
        engines = [(rank.rank, rank.head.get("engine")) for rank in run.ranks]
        self._engine, self.capture_errors = merged_engine(engines)
        """Rank -> why its engine block was left out; to be warned about once."""

    @property
    def has_engine(self) -> bool:
        """Whether there is an engine block; without one there is no sidecar."""
        return self._engine is not None

    @property
    def status(self) -> Status:
        """How the run ended."""
        return Status(self._run.ranks[0].head.get("status", Status.COMPLETE))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks whose files were read."""
        return tuple(rank.rank for rank in self._run.ranks)

    def chunks(self) -> Iterator[bytes]:
        """Yield the text of the document; raises :class:`MalformedArtifact` where it is nested too deeply."""
        try:
            yield from object_text(self._items())
        except RecursionError as error:
            raise MalformedArtifact(self._run.reference.name, "nested too deeply") from error

    def document(self) -> dict[str, Any]:
        """Return the document as a parsed mapping."""
        parsed: dict[str, Any] = msgspec.json.decode(b"".join(self.chunks()))
        return parsed

    def write(self) -> int:
        """Write the document to its path and return its bytes; a sidecar of an earlier run goes first.

        Raises :class:`~forwardpass.errors.ArtifactPathError`, also if one of the two is a file that was
        merged; nothing half-written has the path's name.
        """
        inputs = {Path(rank.name).resolve() for rank in self._run.ranks}
        for path in (self.output, self.sidecar):
            if path.resolve() in inputs:
                raise ArtifactPathError(str(path), "is one of the files to merge; name another one")
        remove_stale(self.sidecar)
        return write_atomically(self.output, self.chunks())

    def _items(self) -> Iterator[tuple[str, Any]]:
        head = self._run.ranks[0].head
        replaced = self._replaced()
        for key, value in head.items():
            if key == "warmup_evidence" and self._run.promised:
                yield "rank_warmup_evidence", self._ledgers()
            elif key in replaced:
                yield key, replaced.pop(key)
            elif key != "engine":
                yield key, value
        replaced[RESULTS] = Rows(self._rows())
        replaced[GROUPS] = Rows(self._run.reference.groups or ())
        yield from replaced.items()

    def _replaced(self) -> dict[str, Any]:
        run, head = self._run, self._run.ranks[0].head
        size = self._size
        coverage = head["coverage"]
        counted = {key: value * size for key, value in coverage.items() if key in _COUNTS}
        items: dict[str, Any] = {
            "artifact_type": "merged",
            "timing": self._timing(),
            "dp": {
                "ranks": list(range(size)),
                "source_ranks": list(self.ranks),
                "managed_size": len(run.ranks),
                "global_size": size,
            },
            "coverage": {**coverage, **counted},
        }
        if "skipped_points" not in head:
            items["skipped_points"] = []
        if self._engine is not None:
            items["engine"] = self._engine
        items["rank_files"] = [rank.name for rank in run.ranks]
        items["merged_output_path"] = str(self.output)
        if self._engine is not None:
            items["worker_probe_path"] = str(self.sidecar)
        return items

    @property
    def _size(self) -> int:
        return self._run.size or 1

    def _timing(self) -> dict[str, Any]:
        timings = {rank.rank: rank.head["timing"] for rank in self._run.ranks}
        elapsed = {rank: float(timing["benchmark_elapsed_seconds"]) for rank, timing in timings.items()}
        slowest = max(elapsed, key=elapsed.__getitem__)
        return {
            **timings[slowest],
            "benchmark_elapsed_seconds": elapsed[slowest],
            "rank_benchmark_elapsed_seconds": {str(rank): each for rank, each in elapsed.items()},
        }

    def _ledgers(self) -> dict[str, Any]:
        loaded = {rank.rank: rank.head["warmup_evidence"] for rank in self._run.ranks}
        return {str(rank): loaded.get(rank, NOT_LOADED) for rank in range(self._size)}

    def _rows(self) -> Iterator[bytes]:
        """Yield the results by id, then by rank, each rank's pass as the text that stands in the group."""
        groups = self._run.groups
        loaded: dict[int, Rank] = {rank.rank: rank for rank in self._run.ranks}
        for at in sorted(range(len(groups.ids)), key=groups.ids.__getitem__):
            number, point = groups.ids[at], groups.points[at]
            for rank in range(self._size):
                file = loaded.get(rank)
                regime = UNSET if file is None else file.regimes.get(number, UNSET)
                yield msgspec.json.encode(
                    {
                        "point": {**point, "dp_rank": rank},
                        "fpms": groups.fpms[at][rank],
                        **({} if regime is UNSET else {"kv_seed_regime": regime}),
                    }
                )


def merge_ranks(
    sources: Sequence[RankSource],
    *,
    output: Path | None = None,
    sidecar: Path | None = None,
    expected: Sequence[int] | None = None,
    first_only: bool = False,
) -> Merge:
    """Return what the files of ``sources`` merge into. Nothing is written.

    ``output`` and ``sidecar`` are the paths that the document names; without them they follow from the name
    of the lowest rank's file. The result does not depend on the order
    of ``sources``, unless ``expected`` says which rank each is of. Raises
    :class:`~forwardpass.errors.MergeError` with every problem, or with ``first_only`` just the one that the
    reference would have stopped at; and what reading raises.
    """
    if not sources:
        raise MergeError("rank_files", (), ("nothing",), ["no rank's file was given"])
    return merge_run(examine(sources, expected=expected), output, sidecar, first_only=first_only)


def merge_run(
    run: Run, output: Path | None = None, sidecar: Path | None = None, *, first_only: bool = False
) -> Merge:
    """Return what files that were gone through merge into; see :func:`merge_ranks`."""
    problems = run.findings.of(Level.MERGE)
    if problems:
        raise merge_refusal(problems, run.reference.name, first_only=first_only)
    if output is None:
        output = merged_path(base_path(Path(run.ranks[0].name), run.ranks[0].rank), run.ranks[0].rank)
    return Merge(run, output, sidecar or sidecar_path(output))


def reference_order(problems: Sequence[Problem], first_file: str) -> list[Problem]:
    """Return problems in the order in which the reference's merge would meet them."""

    def place(item: tuple[int, Problem]) -> tuple[int, int, int]:
        at, problem = item
        step = _step(problem, is_first=problem.file == first_file)
        group = _GROUP_PLACE.match(problem.path) if step == 5 else None
        return step, int(group[1]) if group else 0, at

    return [problem for _, problem in sorted(enumerate(problems), key=place)]


def _step(problem: Problem, *, is_first: bool) -> int:
    """Return when the reference asks: some things of the first rank's file sooner than of the others'."""
    if problem.rule in _AS_REFERENCE:
        return 4 if is_first else 7
    if problem.rule in _SOONER and (not is_first or problem.path == "$.dp.rank"):
        return 7
    return rules.STEPS[problem.rule]


def merge_refusal(problems: Sequence[Problem], first_file: str, *, first_only: bool = False) -> MergeError:
    """Return the error for at least one problem, in the reference's order."""
    ordered = reference_order(problems, first_file)
    if first_only:
        ordered = ordered[:1]
    first = ordered[0]
    values = first.values or (first.found, first.accepted)
    field = first.path.removeprefix("$.")
    return MergeError(field, first.ranks, values, [problem.text() for problem in ordered])
