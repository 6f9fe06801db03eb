"""Every tool on every trace that the reference wrote, whole and damaged."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from forwardpass.cli.main import Exit
from forwardpass.cli.trace import trace
from forwardpass.trace.discover import find_segments, parse_segment_name
from forwardpass.trace.reader import TraceReader

GOLDEN = Path(__file__).parent
TRACES = sorted({path.parent.name for path in GOLDEN.glob("*/*.jsonl.gz") if parse_segment_name(path.name)})


def run(*arguments: object) -> tuple[int, str]:
    """Run a trace command; return its exit code and what it wrote to stdout."""
    result = CliRunner().invoke(trace, [str(each) for each in arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout


@pytest.fixture(params=TRACES)
def whole(request: pytest.FixtureRequest) -> Path:
    """A folder with one of the traces."""
    return GOLDEN / str(request.param)


@pytest.fixture(params=["cut", "flipped", "zeroed"])
def damaged(request: pytest.FixtureRequest, whole: Path, tmp_path: Path) -> Path:
    """A folder with a copy, the first file damaged in its middle."""
    folder = tmp_path / "damaged"
    folder.mkdir()
    for number, path in enumerate(find_segments(whole)):
        data = bytearray(path.read_bytes())
        middle = len(data) // 2
        if number == 0 and request.param == "cut":
            del data[middle:]
        elif number == 0:
            data[middle : middle + 16] = bytes(16) if request.param == "zeroed" else b"\xa5" * 16
        (folder / path.name).write_bytes(bytes(data))
    return folder


def check(folder: Path, out: Path, sound: int, *, intact: bool) -> None:
    """Run every tool on ``folder``, which holds ``sound`` rows that are sure."""
    partial = Exit.DONE if intact else Exit.PARTIAL
    code, text = run("verify", folder, "--json")
    assert (code, json.loads(text)["rows"]) == (Exit.DONE if intact else Exit.FINDING, sound)
    code, text = run("ls", folder, "--count", "--json")
    assert (code, sum(each["rows"] for each in json.loads(text))) == (Exit.DONE, sound)
    code, text = run("cat", folder)
    assert (code, len(text.splitlines())) == (partial, sound)
    code, text = run("stats", folder, "--json")
    assert (code, json.loads(text)["summary"]["rows"]) == (partial, sound)
    code, _ = run("merge", folder, "--output", out / "merged.jsonl.gz")
    assert code == partial
    assert sum(len(batch) for batch in TraceReader(out / "merged.jsonl.gz").batches()) == sound
    code, _ = run("repair", folder, "--output", out / "repaired")
    assert code == Exit.DONE
    repaired = sorted((out / "repaired").iterdir())
    assert sum(gzip.decompress(path.read_bytes()).count(b"\n") for path in repaired) == sound
    code, text = run("gaps", folder, "--json")
    assert (code in (Exit.DONE, Exit.FINDING), json.loads(text)["rows"]) == (True, sound)
    code, text = run("derive", folder)
    assert (code, len(text.splitlines())) == (partial, sound)
    code, text = run("derive", folder, "--iterations")
    assert (code, isinstance(json.loads(text), list)) == (partial, True)
    code, _ = run("export", folder, "--to", out / "rows.csv")
    assert code == partial
    code, text = run("sql", "SELECT count(*) AS n FROM trace", folder, "--json")
    assert (code, json.loads(text)[0]["n"]) == (partial, sound)


def test_the_tools_read_what_the_reference_wrote(whole: Path, tmp_path: Path) -> None:
    """TRACE-60: Every tool sees every row of a trace that another program wrote."""
    rows = sum(len(batch) for batch in TraceReader(find_segments(whole)).batches())

    check(whole, tmp_path, rows, intact=True)
    assert rows > 0


def test_the_tools_agree_about_damaged_copies(damaged: Path, tmp_path: Path) -> None:
    """TRACE-62, TRACE-63: Of a damaged copy every tool takes the rows that are sure, and says so."""
    rows = sum(len(batch) for batch in TraceReader(find_segments(damaged)).batches())

    check(damaged, tmp_path, rows, intact=False)
