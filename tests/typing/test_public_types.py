"""The types that users of the package see are the ones we say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SOURCE = Path(__file__).parent / "public_types.py"
REVEAL = re.compile(r"^ *reveal_type\(.*\)  # (.+)$")
NOTE = re.compile(r"^\S*public_types\.py:(\d+): note: Revealed type is \"(.+)\"$")
NAMED_TUPLE = re.compile(r"tuple\[[^=]*, fallback=([\w.]+)\]")


@pytest.mark.slow
def test_revealed_types() -> None:
    """A strict type checker reveals exactly the types noted in the file, and finds no error in it."""
    expected = {
        number: match[1]
        for number, line in enumerate(SOURCE.read_text(encoding="utf-8").splitlines(), start=1)
        if (match := REVEAL.match(line))
    }
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--hide-error-context"]
    done = subprocess.run(
        [*command, str(SOURCE)], cwd=ROOT, capture_output=True, text=True, timeout=110, check=False
    )
    notes = [match for line in done.stdout.splitlines() if (match := NOTE.match(line))]
    revealed = {int(match[1]): NAMED_TUPLE.sub(r"\1", match[2]) for match in notes}

    assert revealed == expected, done.stdout
    assert done.returncode == 0, done.stdout
