"""Knows which rule a value belongs to that is not of its type, by where it stands."""

from __future__ import annotations

from forwardpass.artifact import rules
from forwardpass.artifact.read import GROUPS, RESULTS
from forwardpass.artifact.rules import Rule
from forwardpass.artifact.shape import Path

__all__ = ["group_rule", "head_rule", "merged_head_rule", "row_rule"]

_HEAD: dict[str | int, Rule] = {
    "status": rules.STATUS,
    "valid": rules.OUTCOME,
    "usable": rules.OUTCOME,
    "stop_reason": rules.OUTCOME,
    "error": rules.OUTCOME,
    "coverage": rules.COVERAGE,
    "run_id": rules.RUN,
    "grid_digest": rules.RUN,
    "dp": rules.DP,
    "timing": rules.TIMING,
}
_LISTS = ("skipped_points", "missing_phases", RESULTS, GROUPS)
_CARRIED_OF_WARMUPS = (
    "requested_shape",
    "first_scheduled_requests",
    "last_scheduled_requests",
    "completed_points_before",
    "reason",
    "scope",
    "failed_dp_rank",
)
"""Fields of a warm-up that a merge carries and does not judge."""


def head_rule(path: Path) -> Rule:
    """Return the rule of a place outside the rows of a rank's file."""
    top = path[0] if path else ""
    if top in _LISTS:
        return rules.COUNTS if len(path) == 1 else rules.FORMAT
    if top == "measurement_protocol":
        judged = len(path) == 1 or path[1] in ("schema_version", "execution_evidence")
        return rules.PROTOCOL if judged else rules.PROTOCOL_FORMAT
    if top == "warmup_evidence":
        return rules.LEDGER_FORMAT if path[-1] in _CARRIED_OF_WARMUPS else rules.LEDGER
    return _HEAD.get(top, rules.FORMAT)


def merged_head_rule(path: Path) -> Rule:
    """Return the rule of a place outside the rows of a merged file."""
    if path[:1] == ("rank_warmup_evidence",):
        return head_rule(("warmup_evidence", *path[2:]))
    return head_rule(path)


def group_rule(path: Path) -> Rule:
    """Return the rule of a place in a group, given from the top of the file."""
    tail = path[2:]
    if not tail or tail[0] == "benchmark_id":
        return rules.GROUP_IDS
    if tail[0] == "point":
        return rules.GROUP_IDS if tail[1:] in ((), ("benchmark_id",)) else rules.FORMAT
    if tail[0] == "wall_time":
        return rules.GROUP_WALL
    if len(tail) > 3 and tail[2] == "fpms":
        return _fpm_rule(tail[4:])
    return rules.GROUP_FPM if tail[2:] == ("fpms",) else rules.GROUP_RANKS


def row_rule(path: Path) -> Rule:
    """Return the rule of a place in a row of results, given from the top of the file."""
    tail = path[2:]
    if not tail or tail in (("point",), ("point", "benchmark_id"), ("point", "dp_rank"), ("fpms",)):
        return rules.RESULTS
    return _fpm_rule(tail[2:]) if tail[0] == "fpms" else rules.FORMAT


def _fpm_rule(tail: Path) -> Rule:
    if not tail or tail[0] in ("counter_id", "dp_rank"):
        return rules.GROUP_FPM
    if tail[0] == "wall_time":
        return rules.GROUP_WALL
    return _measurement_rule(tail[1:]) if tail[0] == "benchmark_measurement" else rules.FPM_FORMAT


def _measurement_rule(tail: Path) -> Rule:
    if not tail or tail[0] in ("schema_version", "dp_rank", "point_key"):
        return rules.MEASUREMENT
    if tail[0] == "preparation":
        if tail[1:] == ("warmup_records_before",):
            return rules.LEDGER_USE
        return rules.MEASUREMENT if tail[1:] in ((), ("grid_digest",)) else rules.FPM_FORMAT
    if tail[0] == "raw_fpms":
        return _raw_rule(tail[2:])
    return {"prompts": rules.PROMPTS, "estimate": rules.ESTIMATE}.get(str(tail[0]), rules.FPM_FORMAT)


def _raw_rule(tail: Path) -> Rule:
    if not tail or tail[0] in ("counter_id", "dp_rank", "worker_id"):
        return rules.SAMPLE
    if tail[0] == "wall_time":
        return rules.SAMPLE_TIMING
    if tail[0] != "benchmark_sample":
        return rules.FPM_FORMAT
    if len(tail) > 1 and tail[1] == "cudagraph":
        return rules.DISPATCH
    return rules.SAMPLE_TIMING if len(tail) > 1 and tail[1] == "timing" else rules.SAMPLE
