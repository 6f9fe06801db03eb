"""``forwardpass bench show`` and ``bench diff``, as a user runs them on files that a run has written."""

from __future__ import annotations

import importlib.util
import json
import os
import pty
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from forwardpass.testing.artifacts import made_run
from forwardpass.testing.ports import free_port

GOLDEN = Path(__file__).parents[1] / "golden"
AGG = GOLDEN / "vllm-cpu-bench-agg" / "benchmark_results.json"
COMMAND = [sys.executable, "-m", "forwardpass", "bench"]
FEW = [
    *("--prefill-max-new-token-samples", "3", "--prefill-max-kv-read-token-samples", "2"),
    *("--decode-max-kv-read-token-samples", "3", "--decode-max-batch-size-samples", "3"),
    *("--prefix-max-batch-size-samples", "2", "--quiet"),
]


def environment(**more: str) -> dict[str, str]:
    """Return a clean environment with ports of its own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DYN_")}
    return kept | {"DYN_FORWARDPASS_METRIC_PORT": str(free_port(6))} | more


def bench(*arguments: object, **more: str) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=100, env=environment(**more), check=False
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Measure one rank three times, decodes with seven steps each, and two ranks once."""
    folder = tmp_path_factory.mktemp("runs")
    steps = {"DYN_BENCH_GIANT_KV_THRESHOLD": "1", "DYN_BENCH_GIANT_KV_REPEATS": "7"}
    for name, seed, noise in (("a", "1", "0.02"), ("b", "2", "0.02"), ("noisy", "3", "0.3")):
        path = folder / f"{name}.json"
        done = bench(
            *("run", *FEW, "--seed", seed, "--noise", noise, "--benchmark-output-path", path), **steps
        )
        assert done.returncode == 0, done.stderr
    done = bench("run", *FEW, "--dp", "2", "--benchmark-output-path", folder / "two.json")
    assert done.returncode == 0, done.stderr
    return {path.stem: path for path in folder.iterdir()}


def in_terminal(*arguments: object, columns: int = 80, **more: str) -> tuple[int, str]:
    """Run one command on a terminal of its own; return its exit code and what it wrote there."""
    outer, inner = pty.openpty()
    more = {"TERM": "xterm-256color", "COLUMNS": str(columns), **more}
    process = subprocess.Popen(
        [*COMMAND, *map(str, arguments)], stdout=inner, stderr=subprocess.PIPE, env=environment(**more)
    )
    os.close(inner)
    written = b""
    try:
        while piece := os.read(outer, 1 << 16):
            written += piece
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(outer)
    process.communicate(timeout=60)
    return process.returncode, written.decode().replace("\r\n", "\n")


# --- show -------------------------------------------------------------------------------------------


def test_a_run_of_the_mock_engine_is_shown(runs: dict[str, Path]) -> None:
    """SHOW-01, SHOW-05, SHOW-08: Status, noise, warm-ups, provenance, maps and the end of graphs."""
    done = bench("show", runs["two_merged"])

    assert (done.returncode, done.stderr) == (0, "")
    for words in (
        "merged file, passes of rank 0, 1",
        "complete, valid",
        "between ranks",
        "rank 1: ",
        "1 global",
        "forwardpass mock",
        "not recorded",
        "workers say SIMULATED",
        "prefill, ms of the slowest rank",
        "decode, ms of the slowest rank",
        "no graph from here on",
        "= FULL ",
    ):
        assert words in done.stdout


def test_noise_is_that_of_the_samples(runs: dict[str, Path]) -> None:
    """SHOW-03, SHOW-04: Seven steps of a decode have a spread, a prefill has one sample; noise is seen."""
    quiet, noisy = (json.loads(bench("show", runs[name], "--json").stdout) for name in ("a", "noisy"))
    noise = quiet["overview"]["noise"]
    decode = next(point for point in quiet["points"] if point["point"]["point_type"] == "decode"
                  and len(point["ranks"][0]["samples"]) > 1)  # fmt: skip

    assert noise["several_samples"] > 0
    assert noise["one_sample"] > 0
    assert noise["not_recorded"] == 0
    assert decode["ranks"][0]["spread"]["count"] == 7
    assert decode["ranks"][0]["spread"]["median"] == decode["wall_time"]
    assert noisy["overview"]["noise"]["median_cv"] > 2 * noise["median_cv"]


def test_every_point_on_request(runs: dict[str, Path]) -> None:
    """SHOW-05: ``--points`` has a line for each point of each rank, with what the engine said of it."""
    document = json.loads(runs["two_merged"].read_text())
    lines = bench("show", runs["two_merged"], "--points").stdout.splitlines()
    table = lines[lines.index("points") + 2 :]

    assert len(table) == 2 * len(document["iteration_groups"])
    assert all(re.match(r"  \d+ +(prefill|decode) ", line) for line in table)


def test_a_terminal_gets_colours_and_its_width(runs: dict[str, Path]) -> None:
    """SHOW-10: Colours on a terminal alone, none with NO_COLOR or TERM=dumb, and no line too wide."""
    code, shown = in_terminal("show", runs["a"], columns=60)
    plain = [in_terminal("show", runs["a"], columns=60, **{name: value})[1] for name, value in (
        ("NO_COLOR", "1"), ("TERM", "dumb"))]  # fmt: skip
    narrow = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]

    assert code == 0
    assert "\x1b[48;5;" in shown
    assert not any("\x1b" in text for text in plain)
    assert max(map(len, narrow[1:])) <= 60  # the first line is the file's name
    assert "\x1b" not in bench("show", runs["a"]).stdout


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("vllm-cpu-bench-timeout", 1, "partial, not valid, not usable, stopped by timeout"),
        ("vllm-cpu-bench-infeasible", 1, "explicit benchmark point is infeasible"),
        ("vllm-cpu-bench-points", 0, "unequal requests"),
    ],
)
def test_runs_that_ended_early_are_shown_too(name: str, code: int, words: str) -> None:
    """SHOW-01: A partial and a failed file of the reference say what they are, with code 1."""
    done = bench("show", GOLDEN / name / "benchmark_results.json")

    assert done.returncode == code
    assert words in " ".join(done.stdout.split())


def test_skipped_points_have_their_reasons(tmp_path: Path) -> None:
    """SHOW-05: What was skipped is counted by reason and listed with its shape; code 1."""
    (document,) = made_run(ranks=1)
    group = document["iteration_groups"].pop()
    document["skipped_points"] = [{"point": group["point"], "reason": "no_fpm_before_deadline"}]
    path = tmp_path / "skips.json"
    path.write_text(json.dumps(document))
    done = bench("show", path)

    assert done.returncode == 1
    assert "1 point: no_fpm_before_deadline" in done.stdout
    assert re.search(r"3 +prefill 192 tokens, 2 requests, reads 0 +no_fpm_before_deadline", done.stdout)


def test_what_cannot_be_shown_is_named(tmp_path: Path, runs: dict[str, Path]) -> None:
    """SHOW-01: A file that is missing, no artifact, or a sidecar: code 3 and one line."""
    (tmp_path / "bad.json").write_text("{")
    for path in (tmp_path / "none.json", tmp_path / "bad.json", runs["two_merged_worker_probe"]):
        done = bench("show", path)
        assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (3, "", 1)
        assert path.name in done.stderr


class Tables(HTMLParser):
    """The cells of all tables, and the names of all elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.names: set[str] = set()
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self._inside = tag in ("td", "th")
        if self._inside:
            self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.cells[-1] += data.rstrip("\n")


def test_a_page_has_everything_and_needs_nothing(tmp_path: Path, runs: dict[str, Path]) -> None:
    """SHOW-09: The page has facts, maps and points as tables, and neither script nor address."""
    page = tmp_path / "a.html"
    done = bench("show", runs["a"], "--html", page, "--json")
    tables = Tables(page.read_text(encoding="utf-8"))
    points = json.loads(done.stdout)["points"]

    assert done.returncode == 0
    assert str(page) in done.stderr
    assert tables.names.isdisjoint({"script", "link", "img", "iframe", "object", "svg", "a"})
    assert "complete, valid" in tables.cells
    assert sum("request" in cell and "reads" in cell for cell in tables.cells) >= len(points)
    assert bench("show", runs["b"], "--html", page).returncode == 0  # an earlier page may be replaced


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_another_file_is_not_written_over(tmp_path: Path, option: str) -> None:
    """A page does not replace the benchmark's own file, nor anything else that is no such page: code 3."""
    path = tmp_path / "results.json"
    path.write_bytes(AGG.read_bytes())
    done = bench("show", path, option, path)

    assert done.returncode == 3
    assert "is there already and is something else" in done.stderr
    assert path.read_bytes() == AGG.read_bytes()


def test_a_picture_without_its_library_says_what_to_install(tmp_path: Path) -> None:
    """Where matplotlib cannot be imported a picture is one line that names the extra, code 2, and nothing is
    written.
    """
    broken = tmp_path / "matplotlib"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('not for this interpreter')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = bench("show", AGG, "--png", tmp_path / "a.png", PYTHONPATH=path)

    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'forwardpass[plot]'" in done.stderr
    assert not (tmp_path / "a.png").exists()


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs forwardpass[plot]")
def test_a_picture_is_a_picture(tmp_path: Path) -> None:
    """With matplotlib a picture of the maps is written, whatever signs the file's name has; a file without
    points has none.
    """
    odd = tmp_path / "$\\frac{x$_\u202e.json"
    odd.write_bytes(AGG.read_bytes())
    picture = tmp_path / "a.png"
    done = bench("show", odd, "--png", picture)
    empty = bench("show", GOLDEN / "vllm-cpu-bench-timeout" / "benchmark_results.json", "--png", picture)
    written = picture.read_bytes()

    assert done.returncode == 0, done.stderr
    assert written.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(written[16:20]) > 400  # its width
    assert empty.returncode == 2
    assert "at least one measured point" in empty.stderr


# --- diff -------------------------------------------------------------------------------------------


def test_two_launches_of_the_same_engine_are_not_told_apart(runs: dict[str, Path]) -> None:
    """DIFF-08, DIFF-11, DIFF-14: Other noise is no finding, and the output says what is not known."""
    done = bench("diff", runs["a"], runs["b"])

    assert (done.returncode, done.stderr) == (0, "")
    for words in ("planned alike", "the tokenizer", "one launch each", "of 9", "chance explains it"):
        assert words in " ".join(done.stdout.split())


def test_the_same_file_differs_in_nothing(runs: dict[str, Path]) -> None:
    """DIFF-14: A file beside itself: code 0, every ratio is 1, and it is said that it is one launch."""
    done = bench("diff", runs["a"], runs["a"], "--json")
    found = json.loads(done.stdout)

    assert done.returncode == 0
    assert {point["ratio"] for point in found["timing"]["points"]} == {1.0}
    assert (found["a"], found["b"], found["findings"]) == ([str(runs["a"])], [str(runs["a"])], False)
    assert any("of one launch" in caveat for caveat in found["caveats"])


def slowed(source: Path, target: Path, factor: float, run_id: str) -> Path:
    """Write a run in which everything takes so much longer."""

    def scale(value: Any) -> None:
        if isinstance(value, dict):
            if "wall_time" in value:
                value["wall_time"] *= factor
            for item in value.values():
                scale(item)
        elif isinstance(value, list):
            for item in value:
                scale(item)

    document = json.loads(source.read_text())
    document["run_id"] = run_id
    scale(document["iteration_groups"])
    target.write_text(json.dumps(document))
    return target


def test_a_slower_engine_is_a_finding(tmp_path: Path, runs: dict[str, Path]) -> None:
    """DIFF-10, DIFF-12, DIFF-14: Times that are a quarter longer are slower wherever there are samples
    enough; code 1.
    """
    other = slowed(runs["b"], tmp_path / "slow.json", 1.25, "e" * 32)
    found = json.loads(bench("diff", runs["a"], other, "--json").stdout)
    done = bench("diff", runs["a"], other)
    timing = found["timing"]

    assert done.returncode == 1
    assert timing["verdicts"]["slower"] == timing["chance"]["tests"] > 0
    assert timing["verdicts"]["faster"] == 0
    assert found["findings"]
    assert all(phase["interval"]["low"] > 1 for phase in timing["phases"])
    assert "is more than chance explains" in " ".join(done.stdout.split())
    assert ">" in done.stdout


def test_more_launches_conclude_what_two_cannot(tmp_path: Path, runs: dict[str, Path]) -> None:
    """DIFF-08, DIFF-13: With four launches on each side prefills are told apart too; the same launch twice is
    refused as a repetition.
    """
    a, b = (
        [
            slowed(runs["a"], tmp_path / f"{name}{at}.json", by + at / 1000, f"{at}{name}" * 16)
            for at in range(4)
        ]
        for name, by in (("x", 1.0), ("y", 1.5))
    )
    again = [
        part
        for name, side in (("a", a), ("b", b))
        for other in side[1:]
        for part in (f"--again-{name}", other)
    ]
    done = bench("diff", a[0], b[0], *again, "--json")
    refused = bench("diff", a[0], b[0], "--again-a", a[0])
    timing = json.loads(done.stdout)["timing"]

    assert timing["launches"] == [4, 4]
    assert timing["verdicts"]["slower"] == len(timing["points"])
    assert refused.returncode == 2
    assert "it is the same launch" in refused.stderr


def test_other_quantities_are_refused_and_can_be_forced(tmp_path: Path, runs: dict[str, Path]) -> None:
    """DIFF-02, DIFF-14: One rank beside two: code 4, fields and grid and no times; --force has them."""
    done = bench("diff", runs["a"], runs["two"])
    forced = bench("diff", runs["a"], runs["two"], "--force")
    document = json.loads(bench("diff", runs["a"], runs["two"], "--json").stdout)

    assert done.returncode == 4
    assert "engine.parallel.data_parallel_size: A has 1, B has 2" in done.stdout
    assert "times, B by A" not in done.stdout
    assert "--force" in done.stderr
    assert forced.returncode == 1
    assert "forced" in forced.stdout
    assert "times, B by A" in forced.stdout
    assert (document["timing"], bool(document["refused"])) == (None, True)


def test_hostile_fields_do_not_drive_the_terminal(tmp_path: Path) -> None:
    """SHOW-09: Values that differ are shown without what a terminal may obey, as lines and as JSON."""
    paths = []
    for at in range(2):
        (document,) = made_run(ranks=1)
        document["run_id"] = str(at) * 32
        document["engine"]["versions"] = {"vllm": f"\x1b]0;{at}\x07\u202e", f"k\x1b[31m{at}": 1}
        document["status"] = f"\x9b31m{at}"
        document["cudagraph"]["decode_mode"] = "\x1b[2J"
        paths.append(tmp_path / f"{at}.json")
        paths[-1].write_text(json.dumps(document))
    text = bench("diff", *paths, "--points")
    document = bench("diff", *paths, "--points", "--json")

    assert text.returncode == document.returncode == 1
    assert all(line.isprintable() for line in text.stdout.splitlines())
    assert json.loads(document.stdout)["fields"]
    assert not re.search("[\x1b\x9b\u202e]", document.stdout)


def test_a_reader_that_has_seen_enough_is_no_failure(runs: dict[str, Path]) -> None:
    """``| head -1`` ends without a word."""
    script = 'set -o pipefail; "$@" | head -1'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *COMMAND, "show", str(runs["a"]), "--points"],
        capture_output=True, text=True, timeout=60, env=environment(), check=False,
    )  # fmt: skip

    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diff", "a"], "Missing argument 'B'"),
        (["diff", "a", "b", "--confidence", "100"], "--confidence='100': expected a number from 50 to 99.9"),
        (["show"], "Missing argument 'FILE'"),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], words: str) -> None:
    """A missing file and a confidence that cannot be had are named, code 2."""
    done = bench(*arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
