"""The generated pages are what the code says now, and the specification's clauses hang together."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
DECISION = re.compile(r"\bD-\d+\b")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")


def generator() -> ModuleType:
    """Import the script that writes the pages."""
    path = ROOT / "scripts" / "generate_docs.py"
    spec = importlib.util.spec_from_file_location("generate_docs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its structs' annotations are looked up there
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_fresh() -> None:
    """Each page under docs/reference is what ``make docs`` would write now, and there is no other."""
    pages = generator().pages()
    found = {
        path.relative_to(REFERENCE).as_posix(): path.read_text(encoding="utf-8")
        for path in REFERENCE.rglob("*")
        if path.is_file()
    }

    assert sorted(found) == sorted(pages)
    stale = [name for name, text in pages.items() if found[name] != text]
    assert not stale, "run make docs"


def test_clauses_are_numbered_once() -> None:
    """No two clauses have one number, and those of a page stand in order."""
    ids = generator().clause_ids()

    assert len(set(ids)) == len(ids)
    for family in {name.partition("-")[0] for name in ids}:
        numbers = [name for name in ids if name.startswith(family)]
        assert numbers == sorted(numbers)


def test_tests_name_clauses_that_exist() -> None:
    """A clause that a test names stands in a specification."""
    module = generator()

    assert set(module.named_clauses()) <= set(module.clause_ids())


_SHOWN = ("CASE-", "TRAP-", "LOSS-", "ART-", "MERGE-", "EVID-", "PROBE-", "PIT-", "SHOW-", "DIFF-")


def test_every_special_case_and_trap_has_a_test() -> None:
    """Each special case of vLLM, each known trap and pitfall that concerns us, each clause of the loss
    contract and of a benchmark's files is named by a test that shows it.
    """
    module = generator()
    cases = {name for name in module.clause_ids() if name.startswith(_SHOWN)}

    assert cases - set(module.named_clauses()) == set()
    assert len(cases) > 30


def test_decisions_that_are_named_are_written_down() -> None:
    """Every decision D-n that code, a test or a page names stands in the list of decisions."""
    listed = set(DECISION.findall((ROOT / "docs" / "spec" / "decisions.md").read_text(encoding="utf-8")))
    named = {
        name
        for folder in ("src", "tests", "docs")
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".md") and "golden" not in path.parts
        for name in DECISION.findall(path.read_text(encoding="utf-8"))
    }

    assert named <= listed


@pytest.mark.parametrize(
    "page", sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]), ids=lambda p: p.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Each relative link of a page leads to a file or folder that exists."""
    broken = [
        target
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]

    assert not broken
