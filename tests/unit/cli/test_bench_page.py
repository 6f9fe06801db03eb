"""The page of a run, as a browser would take it apart."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from typing import Any

import pytest

from forwardpass.analyze.benchmark.overview import overview
from forwardpass.analyze.benchmark.run import BenchRun, run_of
from forwardpass.artifact.read import parse_artifact
from forwardpass.cli.bench_page import MOST_POINTS, page, shade
from forwardpass.cli.bench_show import time_maps
from forwardpass.cli.bench_show_view import show_lines
from forwardpass.testing.artifacts import made_run

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</td></table><h1>",
    "\x1b]0;owned\x07\x1b[31mred",
    "a\u202eb\u2066c\u200b",
    "a\nb\rc\x00d\x9b31m",
    "javascript:alert(1) http://example.org/x.js url(http://example.org)",
    "&lt;script&gt; &#60;b&#62;",
)
ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "div"),
    *("table", "caption", "tr", "th", "td"),
}


class Taken(HTMLParser):
    """What a browser sees: elements with their attributes, and text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def hostile(value: Any, text: str) -> Any:
    """Return a document in which every text that is free is ``text``."""
    if isinstance(value, dict):
        kept = {"artifact_type", "point_type", "status", "kind", "method", "basis"}
        return {key: item if key in kept else hostile(item, text) for key, item in value.items()}
    if isinstance(value, list):
        return [hostile(item, text) for item in value]
    return text if isinstance(value, str) else value


def hostile_run(text: str) -> BenchRun:
    """Return a run whose every free text is ``text``, its points readable."""
    document = made_run(ranks=1)[0]
    kept = {name: document[name] for name in ("iteration_groups", "results", "cudagraph")}
    for group in kept["iteration_groups"]:
        group["point"]["expected_cudagraph_mode"] = text
        measurement = group["rank_results"][0]["fpms"][0]["benchmark_measurement"]
        measurement["preparation"]["kv_seed_regime"] = text
    kept["cudagraph"].update(mode=text, decode_mode=text, decode_capture_sizes=[2], prefill_mode=text)
    skipped = [{"point": kept["iteration_groups"][0]["point"], "reason": text}]
    engine = hostile(document["engine"], text) | {"device": {text: text}, "capture_error": text}
    document = hostile(document, text) | kept | {"skipped_points": skipped, "engine": engine}
    document |= {"status": text, "error": text, "stop_reason": {text: text}, "missing_phases": [text]}
    return run_of(parse_artifact(json.dumps(document).encode(), f"{text}.json"))


def page_of(run: BenchRun) -> str:
    """Return the page of a run."""
    return page(run, overview(run), time_maps(run))


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_file_is_text_on_the_page(text: str) -> None:
    """SHOW-09: Whatever stands in a file, the page has its own elements and attributes alone, all closed, and
    no control character or direction mark.
    """
    run = hostile_run(text)
    assert len(run.points) == 3
    taken = Taken(page_of(run))

    assert {tag for tag, _ in taken.elements} <= ALLOWED
    names = {name for _, attributes in taken.elements for name in attributes}
    assert names <= {"lang", "charset", "http-equiv", "content", "name", "class", "style", "scope"}
    assert taken.open == []
    assert all(letter.isprintable() or letter == "\n" for part in taken.text for letter in part)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_of_a_file_does_not_drive_a_terminal(text: str) -> None:
    """SHOW-09: Every line for a terminal is printable, whatever stands in the file."""
    run = hostile_run(text)
    lines = list(show_lines(run, overview(run), time_maps(run), 100, False, every_point=True))

    assert len(lines) > 20
    assert all(line.isprintable() for line in lines)


def test_hostile_text_can_be_read_on_the_page() -> None:
    """SHOW-09: What is escaped is shown as it was written, not dropped."""
    taken = Taken(page_of(hostile_run("<script>alert(1)</script>")))

    assert any("<script>alert(1)</script>" in part for part in taken.text)


def test_a_page_loads_nothing() -> None:
    """SHOW-09: Its policy forbids scripts and loading, and no attribute names an address."""
    text = page_of(run_of(parse_artifact(json.dumps(made_run(ranks=1)[0]).encode(), "r.json")))
    taken = Taken(text)
    (policy,) = [one["content"] for tag, one in taken.elements if one.get("http-equiv")]

    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "http" not in text.replace("http-equiv", "")
    assert "url(" not in text
    assert "@import" not in text


def test_every_point_stands_on_the_page() -> None:
    """SHOW-05: Times, spread and what was skipped are on the page as tables, no script needed to see them."""
    run = run_of(parse_artifact(json.dumps(made_run(ranks=2, points=6)[0]).encode(), "r.json"))
    text = page_of(run)

    assert text.count('<tr><td class="text">') == 12
    assert all(f">{point.wall_time * 1e3:.0f}<" in text for point in run.points)
    assert "adjacent_upper_median" not in text


def test_a_page_of_very_many_points_says_what_it_leaves_out() -> None:
    """SHOW-05: A browser is not given more lines than it can show, and the page says so."""
    document = made_run(ranks=1, points=1, protocol=False, contract=False)[0]
    group = document["iteration_groups"][0]
    result = group["rank_results"][0]
    group["rank_results"] = [{**result, "dp_rank": rank} for rank in range(MOST_POINTS + 5)]
    run = run_of(parse_artifact(json.dumps(document).encode(), "r.json"))
    text = page_of(run)

    assert "20,000 of 20,005 lines; --json has all." in text
    assert text.count('<tr><td class="text">') == MOST_POINTS


def test_shades_go_from_one_end_to_the_other() -> None:
    """SHOW-09: A warmth is a colour of the page, also beyond the ends."""
    assert (shade(0), shade(-1)) == ("#2e4082", "#2e4082")
    assert (shade(1), shade(7)) == ("#ffdc50", "#ffdc50")
    assert shade(0.5) not in (shade(0), shade(1))
