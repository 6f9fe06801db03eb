"""Knows which checks there are, in the order of the contract's clauses."""

from __future__ import annotations

from torture.apart import check_apart
from torture.clocks import check_clocks
from torture.damage import check_damage
from torture.faults import check_faults
from torture.full_disk import check_full_disk
from torture.identity import check_identity
from torture.kills import check_kills
from torture.meddling import check_meddling
from torture.millions import check_millions
from torture.planted import check_planted
from torture.power import check_power
from torture.restarts import check_restarts
from torture.retention import check_retention
from torture.run import Check
from torture.stops import check_stops
from torture.syscalls import check_syscalls

__all__ = ["CHECKS"]

CHECKS: dict[str, Check] = {
    "stops": check_stops,
    "kills": check_kills,
    "power": check_power,
    "syscalls": check_syscalls,
    "full-disk": check_full_disk,
    "faults": check_faults,
    "damage": check_damage,
    "identity": check_identity,
    "retention": check_retention,
    "apart": check_apart,
    "planted": check_planted,
    "meddling": check_meddling,
    "restarts": check_restarts,
    "clocks": check_clocks,
    "millions": check_millions,
}
"""Name -> check. What each is for stands at the top of its file."""
