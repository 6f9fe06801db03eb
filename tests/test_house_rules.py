"""Rules of the house that a linter has no name for."""

from __future__ import annotations

import ast
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "forwardpass"
TESTS = ROOT / "tests"

UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X|HA" + r"CK)\b")
WORKPLACE = re.compile(
    r"/wo" + r"rk/|\bsha" + r"red/(spec|golden|design|style|seed|engines|hooks)|\.lib" + r"rary/"
    r"|engines-he" + r"re|\bhelper [A-Z]{4,}\b"
)
"""Written in pieces so that this file does not match itself."""

TEXT_SUFFIXES = {".py", ".md", ".toml", ".json", ".txt", ".sh", ".yml", ".cfg", ".in", ""}


def tracked_files() -> list[Path]:
    """Return every text file that is in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.suffix in TEXT_SUFFIXES and path.is_file()]


def parsed(folder: Path, pattern: str = "*.py") -> Iterator[tuple[Path, ast.Module]]:
    """Yield every Python file under ``folder`` with its syntax tree."""
    for path in sorted(folder.rglob(pattern)):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def functions_of_tests() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Return every test function of the project, with where it stands."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node)
        for path, tree in parsed(TESTS, "test_*.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]


def swallowing_handlers(tree: ast.AST) -> Iterator[ast.ExceptHandler]:
    """Yield the handlers that catch every exception and do not end by raising it again."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ExceptHandler):
            continue
        caught = {"BaseException"} if node.type is None else set(re.findall(r"\w+", ast.unparse(node.type)))
        raises_again = isinstance(node.body[-1], ast.Raise) and node.body[-1].exc is None
        if caught & {"Exception", "BaseException"} and not raises_again:
            yield node


def test_broad_excepts_are_boundaries() -> None:
    """Whatever swallows every exception says ``# boundary:`` and why, on the same line."""
    found = [
        f"{path.relative_to(ROOT)}:{handler.lineno}"
        for path, tree in parsed(SOURCE)
        for handler in swallowing_handlers(tree)
        if "boundary: " not in path.read_text(encoding="utf-8").splitlines()[handler.lineno - 1]
    ]

    assert not found


@pytest.mark.parametrize(
    ("handler", "swallows"),
    [
        ("except:\n  pass", True),
        ("except Exception:\n  pass", True),
        ("except BaseException as error:\n  raise ValueError from error", True),
        ("except (Exception, OSError):\n  pass", True),
        ("except BaseException:\n  clean_up()\n  raise", False),
        ("except ValueError:\n  pass", False),
        ("except (OSError, ValueError) as error:\n  pass", False),
    ],
)
def test_what_counts_as_swallowing(handler: str, swallows: bool) -> None:
    """Bare and broad handlers count, unless they only clean up and raise again."""
    assert bool(list(swallowing_handlers(ast.parse(f"try:\n  pass\n{handler}")))) == swallows


def test_nothing_is_left_for_later() -> None:
    """No file carries a note of unfinished work."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if UNFINISHED.search(line)
    ]

    assert not found


def test_nothing_names_the_place_where_it_was_written() -> None:
    """No file names a path or a tool of the machine it was developed on."""
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if WORKPLACE.search(line)
    ]

    assert not found


def test_every_module_says_what_it_knows() -> None:
    """The first line of a module finishes "this file knows …"; a package says what it holds."""
    found = [
        path.relative_to(ROOT).as_posix()
        for path, tree in parsed(SOURCE)
        if not (doc := ast.get_docstring(tree))
        or (path.name not in ("__init__.py", "__main__.py") and doc.split()[0] not in ("Knows", "Every"))
    ]

    assert not found


def test_every_test_states_a_fact() -> None:
    """Each test has a docstring, and the docstring is a sentence."""
    found = [
        where
        for where, node in functions_of_tests()
        if not (doc := ast.get_docstring(node)) or not doc.rstrip().endswith((".", "?"))
    ]

    assert not found


def test_docstrings_cite_what_a_reader_has() -> None:
    """A docstring names clauses and decisions of the specification here, no section of any other text."""
    cited = re.compile(r"\((live spec )?\d\.\d{1,2}[,:)]|^\d\.\d{1,2}[,:] |\btrap \d+\)|live spec")
    found = [
        f"{path.relative_to(ROOT)}:{node.body[0].lineno}"
        for folder in (SOURCE, TESTS, ROOT / "benchmarks", ROOT / "scripts")
        for path, tree in parsed(folder)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and cited.search(ast.get_docstring(node) or "")
        and path != Path(__file__)
    ]

    assert not found


def asserts(node: ast.AST) -> bool:
    """Say whether code asserts something, expects an error, or fails on purpose."""
    return any(
        isinstance(inner, ast.Assert)
        or (isinstance(inner, ast.Attribute) and inner.attr in ("raises", "fail"))
        for inner in ast.walk(node)
    )


def test_every_test_can_fail() -> None:
    """Each test asserts something, or hands over to a check that does."""
    found = []
    for path, tree in parsed(TESTS, "test_*.py"):
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
        checks = {node.name for node in functions if asserts(node)}
        for node in functions:
            called = {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
            handed_over = any(name in checks or name.startswith(("check", "assert_")) for name in called)
            if node.name.startswith("test_") and not asserts(node) and not handed_over:
                found.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")

    assert not found


def test_tests_use_no_mocks() -> None:
    """Fakes are small real implementations: nothing imports a mocking library."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path, tree in parsed(TESTS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any("mock" in name.name.split(".")[-1] and "unittest" in ast.unparse(node) for name in node.names)
    ]

    assert not found


def test_unit_tests_touch_nothing() -> None:
    """Unit tests import no socket, process or engine and do not sleep."""
    banned = {"zmq", "socket", "subprocess", "vllm", "torch", "multiprocessing"}
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}"
        for path, tree in parsed(TESTS / "unit")
        for node in ast.walk(tree)
        if (isinstance(node, ast.Import) and {a.name.split(".")[0] for a in node.names} & banned)
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in banned)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "time.sleep")
    ]

    assert not found


def test_test_files_can_be_told_apart() -> None:
    """Test files have names of their own and no packages around them, as pytest's imports need."""
    names = Counter(path.name for path in TESTS.rglob("*.py") if path.name != "conftest.py")

    assert [name for name, count in names.items() if count > 1] == []
    assert list(TESTS.rglob("__init__.py")) == []


def test_fragments_are_for_users() -> None:
    """Each changelog fragment has a kind that the changelog knows, and is short."""
    fragments = [path for path in (ROOT / "changelog.d").iterdir() if path.suffix == ".md"]
    kinds = {path.name.split(".")[1] for path in fragments if path.name != "README.md"}

    assert kinds <= {"added", "changed", "fixed"}
    assert [
        p.name for p in fragments if len(p.read_text(encoding="utf-8")) > 600 and p.name != "README.md"
    ] == []
