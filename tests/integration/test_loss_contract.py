"""The loss contract in short forms; ``make torture`` runs the same checks at length.

Each check runs in a process of its own, because it forks, mounts, kills and, in the last tests, breaks the
product.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torture.checks import CHECKS
from torture.mistakes import MISTAKES, Mistake

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "torture_trace.py"
LIMIT_SECONDS = 100


def torture(folder: Path, check: str, *options: str) -> dict[str, Any]:
    """Run one check; return what it found."""
    found = folder / "found.json"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--check", check, "--json", str(found), *options],
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert found.is_file(), done.stdout + done.stderr
    result: dict[str, Any] = json.loads(found.read_text(encoding="utf-8"))[check]
    return result


def check_rules(folder: Path, check: str, *clauses: str) -> None:
    """Assert that rules of all these clauses were looked at, and that every rule holds."""
    result = torture(folder, check)
    if not result["rules"]:
        pytest.skip(str(result["skipped"]))
    broken = {rule["rule"]: rule["examples"] for rule in result["rules"] if rule["broken"]}
    assert broken == {}
    assert {rule["rule"].partition(":")[0] for rule in result["rules"] if rule["looked"]} >= set(clauses)


def test_stops(tmp_path: Path) -> None:
    """LOSS-01: SIGTERM and a close beside threads that offer lose no accepted payload."""
    check_rules(tmp_path, "stops", "LOSS-01")


def test_kills(tmp_path: Path) -> None:
    """LOSS-02, LOSS-03: SIGKILL at a random moment costs the last 1.05 seconds at most, and a torn end."""
    check_rules(tmp_path, "kills", "LOSS-02", "LOSS-03")


def test_power_losses(tmp_path: Path) -> None:
    """LOSS-04, LOSS-05, LOSS-06: what each mode of FORWARDPASS_FSYNC forces to the disk is left by a power
    loss after any write, and the folders that were made are left with it.
    """
    check_rules(tmp_path, "power", "LOSS-04", "LOSS-05", "LOSS-06")


def test_what_the_kernel_saw(tmp_path: Path) -> None:
    """LOSS-06: by strace's account each write to a segment is forced before the next, with the new names."""
    check_rules(tmp_path, "syscalls", "LOSS-06")


def test_full_disks(tmp_path: Path) -> None:
    """LOSS-07, LOSS-08: a small disk that is filled, freed and filled again, by others or by the producer's
    own segments, and a limit of the file size, leave no damage and end no recording.
    """
    check_rules(tmp_path, "full-disk", "LOSS-07", "LOSS-08")


def test_disks_that_fail(tmp_path: Path) -> None:
    """LOSS-07, LOSS-08: whatever fails at random, the files hold what counts as written."""
    check_rules(tmp_path, "faults", "LOSS-07", "LOSS-08")


def test_damage(tmp_path: Path) -> None:
    """LOSS-09: cut at every byte, with flipped bits or other damage, a segment gives its intact members."""
    check_rules(tmp_path, "damage", "LOSS-09")


def test_the_identity(tmp_path: Path) -> None:
    """LOSS-10: whoever looks at the counts at any instant finds every payload somewhere, once."""
    check_rules(tmp_path, "identity", "LOSS-10")


def test_retention(tmp_path: Path) -> None:
    """LOSS-11, LOSS-12: retention removes no live or foreign file, and keeps its limit."""
    check_rules(tmp_path, "retention", "LOSS-11", "LOSS-12")


def test_one_delays_no_other(tmp_path: Path) -> None:
    """LOSS-13: while a producer's disk, an event plane or a reader hangs or fails, all the others go on."""
    check_rules(tmp_path, "apart", "LOSS-13")


def test_planted_names(tmp_path: Path) -> None:
    """LOSS-14: nothing is written through, into or over what is planted at a segment's or a probe's name."""
    check_rules(tmp_path, "planted", "LOSS-14")


def test_meddling(tmp_path: Path) -> None:
    """LOSS-15: segments that are moved, cut or deleted while they are written cost what was in them."""
    check_rules(tmp_path, "meddling", "LOSS-15")


def test_restarts_and_forks(tmp_path: Path) -> None:
    """LOSS-16: restarts in a row and at once, and forks in the middle, lose no row and share no file."""
    check_rules(tmp_path, "restarts", "LOSS-16")


def test_clock_steps(tmp_path: Path) -> None:
    """LOSS-17: a wall clock that jumps at every look changes the stamps and nothing else."""
    check_rules(tmp_path, "clocks", "LOSS-17")


def test_many_records(tmp_path: Path) -> None:
    """LOSS-10, LOSS-12: some hundred thousand records at full speed are written, the limit is kept."""
    check_rules(tmp_path, "millions", "LOSS-10", "LOSS-12")


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.words)
def test_each_mistake_is_found(tmp_path: Path, mistake: Mistake) -> None:
    """The checks can fail: a product with this mistake breaks the clause, and the named check says so."""
    result = torture(tmp_path, mistake.check, "--mistake", mistake.words)
    broken = {rule["rule"].partition(":")[0] for rule in result["rules"] if rule["broken"]}
    if mistake.clause not in broken and result["skipped"]:
        pytest.skip(str(result["skipped"]))

    assert mistake.clause in broken


def test_each_clause_has_a_mistake() -> None:
    """No clause of the contract is without a mistake that breaks it, and each names a check that there is."""
    text = (ROOT / "docs" / "spec" / "loss-v1.md").read_text(encoding="utf-8")
    clauses = {line[4:11] for line in text.splitlines() if line.startswith("- **LOSS-")}

    assert {mistake.clause for mistake in MISTAKES} == clauses
    assert {mistake.check for mistake in MISTAKES} <= set(CHECKS)
