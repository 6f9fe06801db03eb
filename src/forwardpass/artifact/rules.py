"""Knows the rules for a benchmark's files by name: their clauses, and who refuses a file that breaks them."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

__all__ = [
    "ALL",
    "CONSUMER_LEDGER",
    "CONSUMER_PREPARATION",
    "CONSUMER_PROTOCOL",
    "CONSUMER_SAMPLE",
    "CONTIGUOUS",
    "COUNTS",
    "COVERAGE",
    "DISPATCH",
    "DP",
    "ENGINE_IDENTITY",
    "ESTIMATE",
    "FORMAT",
    "FORWARD_ORDER",
    "FPM_FORMAT",
    "GROUPS_EQUAL",
    "GROUP_FPM",
    "GROUP_IDS",
    "GROUP_RANKS",
    "GROUP_WALL",
    "LEDGER",
    "LEDGER_FORMAT",
    "LEDGER_UNASKED",
    "LEDGER_USE",
    "MEASURED_SHAPE",
    "MEASUREMENT",
    "MEASUREMENT_UNASKED",
    "MERGED",
    "NO_RANKS",
    "OUTCOME",
    "PROBE_FORMAT",
    "PROBE_PAIR",
    "PROMPTS",
    "PROTOCOL",
    "PROTOCOL_FORMAT",
    "RANK_AGREEMENT",
    "RESULTS",
    "ROW_ORDER",
    "RUN",
    "SAMPLE",
    "SAMPLE_TIMING",
    "SAMPLE_UNASKED",
    "STATUS",
    "STEPS",
    "TIMING",
    "VERDICT",
    "Level",
    "Rule",
]


class Level(StrEnum):
    """Who refuses a file that breaks a rule."""

    MERGE = "merge"
    """A merge, the reference's too."""
    FORMAT = "format"
    """The documented format; a merge lets it pass."""
    CONSUMER = "consumer"
    """A strict reader of finished files."""


class Rule(Struct, frozen=True):
    """One rule."""

    name: str
    clause: str
    level: Level = Level.MERGE
    step: int = 7
    """When the reference's merge asks it, 1 to 7: it stops at the first answer that it does not like."""


NO_RANKS = Rule("no-ranks", "MERGE-01", step=1)
RUN = Rule("run", "MERGE-01", step=1)
PROTOCOL = Rule("protocol", "MERGE-02", step=2)
LEDGER = Rule("ledger", "EVID-11", step=3)
LEDGER_UNASKED = Rule("ledger-unasked", "EVID-04", step=3)
STATUS = Rule("status", "ART-04")
COVERAGE = Rule("coverage", "ART-05")
COUNTS = Rule("counts", "ART-06")
OUTCOME = Rule("outcome", "ART-07")
DP = Rule("dp", "MERGE-04", step=4)
GROUP_IDS = Rule("group-ids", "MERGE-05", step=5)
GROUP_RANKS = Rule("group-ranks", "MERGE-05", step=5)
GROUP_FPM = Rule("group-fpm", "MERGE-06", step=5)
GROUP_WALL = Rule("group-wall-time", "MERGE-07", step=5)
MEASUREMENT = Rule("measurement", "EVID-02", step=5)
MEASUREMENT_UNASKED = Rule("measurement-unasked", "EVID-03", step=5)
SAMPLE_UNASKED = Rule("sample-unasked", "EVID-04", step=5)
SAMPLE = Rule("sample", "EVID-05", step=5)
SAMPLE_TIMING = Rule("sample-timing", "EVID-06", step=5)
DISPATCH = Rule("dispatch", "EVID-07", step=5)
ESTIMATE = Rule("estimate", "EVID-08", step=5)
FORWARD_ORDER = Rule("forward-order", "EVID-09", step=5)
LEDGER_USE = Rule("ledger-use", "EVID-10", step=5)
CONTIGUOUS = Rule("contiguous-ids", "MERGE-08", step=6)
RANK_AGREEMENT = Rule("rank-agreement", "MERGE-09")
ENGINE_IDENTITY = Rule("engine-identity", "MERGE-10")
GROUPS_EQUAL = Rule("groups-equal", "MERGE-11")
TIMING = Rule("timing", "MERGE-12")
RESULTS = Rule("results", "MERGE-13")

MERGED = Rule("merged", "MERGE-14", Level.FORMAT)
FORMAT = Rule("format", "ART-09", Level.FORMAT)
FPM_FORMAT = Rule("fpm-format", "ART-10", Level.FORMAT)
MEASURED_SHAPE = Rule("measured-shape", "ART-10", Level.FORMAT)
LEDGER_FORMAT = Rule("ledger-format", "EVID-11", Level.FORMAT)
ROW_ORDER = Rule("row-order", "ART-10", Level.FORMAT)
VERDICT = Rule("verdict", "ART-08", Level.FORMAT)
PROTOCOL_FORMAT = Rule("protocol-format", "EVID-01", Level.FORMAT)
PROMPTS = Rule("prompts", "EVID-14", Level.FORMAT)
PROBE_FORMAT = Rule("probe-format", "PROBE-09", Level.FORMAT)
PROBE_PAIR = Rule("probe-pair", "PROBE-09", Level.FORMAT)

CONSUMER_PROTOCOL = Rule("consumer-protocol", "EVID-12", Level.CONSUMER)
CONSUMER_SAMPLE = Rule("consumer-sample", "EVID-12", Level.CONSUMER)
CONSUMER_PREPARATION = Rule("consumer-preparation", "EVID-12", Level.CONSUMER)
CONSUMER_LEDGER = Rule("consumer-ledger", "EVID-13", Level.CONSUMER)

ALL: tuple[Rule, ...] = tuple(value for value in dict(globals()).values() if isinstance(value, Rule))
STEPS: dict[str, int] = {rule.name: rule.step for rule in ALL}
"""Name of a rule -> when the reference's merge asks it."""
