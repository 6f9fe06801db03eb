"""One idea per file and per function, measured in lines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILE_LINES = 400
FUNCTION_LINES = 60


def python_files(*folders: str) -> Iterator[Path]:
    """Yield the Python files under the repository's ``folders``."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_files_are_short() -> None:
    """No source, benchmark or script file has more than 400 lines."""
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in python_files("src", "benchmarks", "scripts")
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > FILE_LINES
    }

    assert not found


def test_functions_are_short() -> None:
    """No function of the package, a benchmark or a script has more than 60 lines."""
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": lines
        for path in python_files("src", "benchmarks", "scripts")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or 0) - node.lineno + 1) > FUNCTION_LINES
    }

    assert not found
