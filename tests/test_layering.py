"""Who may import whom: the layers of the package and the homes of its third-party modules.

The two tables below are the rule; ``CONTRIBUTING.md`` explains it. Imports inside functions and under
``TYPE_CHECKING`` count like any other.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "forwardpass"
PACKAGE = "forwardpass"

LEVELS: dict[str, int] = {
    **dict.fromkeys(("errors", "clock", "counters", "quiet", "atomic", "jsonsafe", "wire"), 0),
    **dict.fromkeys(("config", "pump"), 1),
    **dict.fromkeys(("publish", "plane", "trace", "bench"), 2),
    **dict.fromkeys(("relay", "columnar", "collect", "artifact"), 3),
    **dict.fromkeys(("engines",), 4),
    **dict.fromkeys(("analyze",), 5),
    **dict.fromkeys(("cli", "testing"), 6),
    **dict.fromkeys(("__init__", "__main__"), 7),
}
SIBLINGS = {2, 3, 5, 6}
"""Levels whose rooms may not import each other either."""

ONLY: dict[str, tuple[str, ...]] = {
    "engines": ("publish", "bench", "artifact"),
    "analyze": (
        "trace.reader",
        "trace.record",
        "trace.report",
        "trace.discover",
        "trace.ledger",
        "trace.ledger_reader",
        "artifact",
        "bench.axes",
        "bench.digest",
        "bench.evidence",
        "bench.outcome",
        "bench.points",
    ),
    "columnar": ("trace",),
    "collect": ("plane", "trace"),
    "artifact": ("bench",),
}
"""Rooms that may import of levels 2 and up just this (and everything of levels 0 and 1)."""

HOMES: dict[str, tuple[str, ...]] = {
    "msgspec": ("",),
    "zmq": ("publish/zmq_pub.py", "relay/zmq_source.py", "plane/zmq/", "bench/sync/zmq_link.py"),
    "nats": ("plane/nats/",),
    "nkeys": ("plane/nats/",),
    "aetcd": ("plane/discovery/etcd.py",),
    "vllm": ("engines/vllm/",),
    "torch": ("engines/vllm/",),
    "click": ("cli/",),
    "rich": ("cli/",),
    "isal": ("trace/gzip_member.py",),
    "deflate": ("trace/gzip_member.py",),
    "pyarrow": ("columnar/",),
    "duckdb": ("columnar/",),
    "matplotlib": ("cli/bench_chart.py",),
    "hypothesis": ("testing/strategies.py",),
    # parts of the standard library that have a home as well
    "asyncio": (
        "relay/",
        "plane/",
        "collect/",
        "cli/",
        "engines/mock/launch.py",
        # what runs in a server's own event loop, before it answers
        "engines/vllm/bench_conclude.py",
        "engines/vllm/bench_middleware.py",
        "engines/vllm/bench_workers.py",
        "engines/trtllm/poller.py",
        "testing/conformance_plane.py",
    ),
    "time": ("clock.py",),
    "datetime": ("clock.py", "cli/", "analyze/", "artifact/from_log.py"),
    "random": ("engines/mock/", "bench/content/", "testing/"),
    "http": ("bench/content/download.py", "engines/trtllm/endpoint.py"),
}
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "urllib.request": ("bench/content/download.py",),
    "urllib.error": ("bench/content/download.py",),
    "urllib.request.urlopen": (),
    "os.environ": ("config/settings.py",),
    "os.getenv": ("config/settings.py",),
    # the pump's; one that sleeps for a minute at a time beside what is timed, where a pump would look every
    # 50 ms; and one that runs an event loop for a subscriber of blocking code, in a consumer's process
    "threading.Thread": ("pump.py", "bench/garbage.py", "plane/loop_thread.py"),
}


def room_of(path: str) -> str:
    """Return the room of a source file, given relative to the package: ``wire/codec.py`` is in ``wire``."""
    return path.split("/")[0].removesuffix(".py")


def imports(tree: ast.AST, path: str) -> Iterator[tuple[int, str]]:
    """Yield line and dotted name of everything imported, relative imports made absolute."""
    here = [PACKAGE, *path.split("/")[:-1]]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level + 1] if node.level else []
            module = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def forbidden_arrow(path: str, name: str) -> str | None:
    """Return what is wrong with ``path`` importing ``name`` of this package, or ``None``."""
    target = name.removeprefix(f"{PACKAGE}.")
    source_room, target_room = room_of(path), target.split(".")[0]
    if target in ("__version__", PACKAGE) or source_room == target_room:
        return None
    if target_room not in LEVELS:
        return f"{target_room} is in no layer"
    source, goal = LEVELS[source_room], LEVELS[target_room]
    if goal > source:
        return f"level {source} may not import level {goal}"
    if goal == source and source in SIBLINGS:
        return f"siblings of level {source} may not import each other"
    if goal >= 2 and source_room in ONLY:
        allowed = ONLY[source_room]
        if not any(target == one or target.startswith(f"{one}.") for one in allowed):
            return f"{source_room} may import only {', '.join(allowed)} of level 2 and up"
    return None


def at_home(path: str, homes: tuple[str, ...]) -> bool:
    """Say whether a file is one of ``homes`` (files, or folders ending in a slash)."""
    return any(path == home or (home.endswith("/") and path.startswith(home)) or not home for home in homes)


def violations(path: str, text: str) -> list[str]:
    """Return every forbidden import of one source file, one line each."""
    tree = ast.parse(text)
    found: list[str] = []
    for line, name in imports(tree, path):
        top = name.split(".")[0]
        if top == PACKAGE:
            problem = forbidden_arrow(path, name)
        elif top in HOMES:
            problem = None if at_home(path, HOMES[top]) else f"only in {', '.join(HOMES[top])}"
        else:
            problem = None if top in sys.stdlib_module_names else "is in no table"
            problem = problem or attribute_problem(path, name)
        if problem:
            found.append(f"{path}:{line}: {room_of(path)} -> {name}: {problem}")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            name = f"{node.value.id}.{node.attr}"
            if problem := attribute_problem(path, name):
                found.append(f"{path}:{node.lineno}: {name}: {problem}")
    return found


def attribute_problem(path: str, name: str) -> str | None:
    """Return what is wrong with ``path`` using ``name`` of the standard library, or ``None``."""
    homes = ATTRIBUTES.get(name)
    return None if homes is None or at_home(path, homes) else f"only in {', '.join(homes)}"


def sources() -> list[Path]:
    """Return every source file of the package."""
    return sorted(SOURCE.rglob("*.py"))


def test_every_import_follows_the_tables() -> None:
    """No arrow points up or sideways, and each third-party module is imported at its home alone."""
    found = [
        line
        for path in sources()
        for line in violations(path.relative_to(SOURCE).as_posix(), path.read_text(encoding="utf-8"))
    ]

    assert not found, "\n".join(["forbidden imports:", *found])


def test_every_room_has_a_level() -> None:
    """A new folder or file at the top must be given its place in the layers."""
    rooms = {room_of(path.relative_to(SOURCE).as_posix()) for path in sources()}

    assert rooms <= LEVELS.keys()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("wire/codec.py", "from forwardpass.config.settings import Sources"),
        ("wire/codec.py", "from forwardpass import pump"),
        ("publish/publisher.py", "import forwardpass.trace.sink"),
        ("trace/sink.py", "from ..plane import base"),
        ("relay/relay.py", "import click"),
        ("analyze/summary.py", "from forwardpass.trace.sink import TraceSink"),
        ("analyze/summary.py", "from forwardpass.publish import publisher"),
        ("artifact/merge.py", "from forwardpass.trace import reader"),
        ("analyze/benchmark/run.py", "from forwardpass.bench.session import Session"),
        ("engines/vllm/launch.py", "from forwardpass.relay.relay import Relay"),
        ("cli/demo.py", "from forwardpass.testing.clock import ManualClock"),
        ("pump.py", "if TYPE_CHECKING:\n    from forwardpass.trace.sink import TraceSink"),
        ("publish/publisher.py", "def f():\n    import zmq"),
        ("cli/tail.py", "import zmq.asyncio"),
        ("trace/sink.py", "import asyncio"),
        ("engines/mock/engine.py", "import torch"),
        ("pump.py", "import time"),
        ("trace/sink.py", "import pandas"),
        ("cli/env.py", "import os\nos.environ['A']"),
        ("bench/content/dataset.py", "import http.client"),
        ("bench/content/dataset.py", "from urllib import request"),
        ("bench/content/dataset.py", "from urllib.request import urlopen"),
        ("bench/grid.py", "import random"),
        ("cli/env.py", "from os import environ"),
        ("trace/sink.py", "import threading\nthreading.Thread()"),
    ],
)
def test_the_rule_sees_a_forbidden_import(path: str, text: str) -> None:
    """Each kind of forbidden import is found, wherever in the file it stands."""
    assert violations(path, text)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("relay/relay.py", "from forwardpass.plane.base import PlanePublisher\nimport asyncio"),
        ("analyze/summary.py", "from forwardpass.trace.record import TraceRecord"),
        ("engines/mock/engine.py", "from forwardpass.publish.publisher import Publisher"),
        ("trace/sink.py", "from forwardpass.pump import Pump\nimport threading\nthreading.Lock()"),
        ("cli/main.py", "import click\nfrom forwardpass import __version__"),
        ("wire/codec.py", "import msgspec\nfrom forwardpass.quiet import QuietLog"),
        ("bench/content/download.py", "import urllib.request\nimport http.client"),
        ("bench/content/pool.py", "import random\nfrom urllib.parse import urlsplit"),
    ],
)
def test_the_rule_lets_allowed_imports_pass(path: str, text: str) -> None:
    """What the tables allow is not reported."""
    assert violations(path, text) == []
