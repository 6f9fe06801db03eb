"""Offline ``LLM(...)`` in a program that knows nothing of us: what the variables alone do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from plain_vllm import clean, none_left

from forwardpass.engines.vllm.launch import SCHEDULER
from forwardpass.testing.ports import free_port
from forwardpass.trace.reader import read_trace
from forwardpass.trace.record import TraceRecord

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400), pytest.mark.usefixtures("vllm")]

HERE = Path(__file__).parent
LIMIT_SECONDS = 180
DERIVED = "derived_scheduler.Derived"
STOCK = "vllm.v1.core.sched.scheduler.Scheduler"

LOOK = """
import json, sys
from importlib import import_module
from vllm.plugins import load_general_plugins
load_general_plugins()
CLASSES = ("vllm.engine.arg_utils.EngineArgs", "vllm.v1.engine.core.EngineCore",
           "vllm.v1.core.sched.scheduler.Scheduler", "vllm.v1.core.sched.async_scheduler.AsyncScheduler")

def seen(value):
    while hasattr(value, "__func__"):
        value = value.__func__
    code = getattr(getattr(value, "fget", value), "__code__", None)
    where = (code.co_filename, code.co_firstlineno, code.co_code.hex()) if code else ()
    return [type(value).__name__, getattr(value, "__module__", None), str(where)]

look = {}
for path in CLASSES:
    module, _, name = path.rpartition(".")
    owner = getattr(import_module(module), name)
    look[path] = {key: seen(value) for key, value in vars(owner).items()}
ours = sorted(name for name in sys.modules if name.split(".")[0] == "forwardpass")
print("LOOK " + json.dumps({"classes": look, "ours": ours}))
"""


def look(environment: dict[str, str]) -> tuple[dict[str, Any], str]:
    """Return vLLM's classes as they are in a fresh process that has loaded its plugins, and its words."""
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS,
        check=True,
    )  # fmt: skip
    before, _, after = done.stdout.partition("LOOK ")
    found: dict[str, Any] = json.loads(after)
    return found, before + done.stderr


@pytest.mark.slow
def test_whoever_did_not_ask_runs_unpatched_vllm(vllm_environment: dict[str, str]) -> None:
    """ENG-40: With the package installed and nothing asked for, every attribute of vLLM's classes is what it
    is without it; one class has another method where something is asked for.
    """
    plain = {**clean(vllm_environment), "VLLM_LOGGING_LEVEL": "INFO"}
    without, _ = look({**plain, "VLLM_PLUGINS": "lora_filesystem_resolver"})
    untouched, words = look({**plain, "DYN_FPM_TRACE": "0", "DYN_FPM_MODE": "full"})
    asked, _ = look({**plain, "DYN_FPM_TRACE": "1"})

    assert without["ours"] == []
    assert untouched["classes"] == without["classes"]
    assert "forwardpass" not in words
    assert "Forward Pass" not in words
    loaded = {name.removeprefix("forwardpass.") for name in untouched["ours"]}
    assert "engines.vllm.plugin" in loaded
    assert not any(name.startswith(("publish", "relay", "trace", "cli")) for name in loaded)
    assert not loaded & {f"engines.vllm.{name}" for name in ("scheduler", "wrap", "inject", "attach")}
    changed = {
        (path, name)
        for path, names in asked["classes"].items()
        for name, value in names.items()
        if without["classes"][path].get(name) != value
    }
    assert changed == {("vllm.engine.arg_utils.EngineArgs", "create_engine_config")}


class Offline:
    """What one program did: its engines' results, its words, and the trace that came of it."""

    def __init__(
        self,
        model: str,
        folder: Path,
        environment: dict[str, str],
        cases: Sequence[dict[str, Any]],
        status: int = 0,
    ) -> None:
        self.prefix = folder / "fpm"
        command = [sys.executable, str(HERE / "plugin_run.py"), model, *map(json.dumps, cases)]
        done = subprocess.run(
            command,
            env={**environment, "DYN_FPM_OUTPUT_PATH": str(self.prefix), "DYN_FPM_MODE": "full"},
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )
        assert done.returncode == status, done.stderr[-3000:]
        lines = done.stdout.splitlines()
        self.said = [json.loads(line[7:]) for line in lines if line.startswith("RESULT ")]
        self.words = [
            line
            for line in done.stderr.splitlines()
            if "forwardpass:" in line or "Forward Pass Metrics" in line
        ]

    def rows(self) -> list[TraceRecord]:
        """Return the trace, once nobody writes it any more."""
        assert none_left(self.prefix)
        return list(read_trace(sorted(self.prefix.parent.glob("fpm.*.jsonl.gz"))))


def tokens(rows: list[TraceRecord], worker_id: str) -> tuple[int, int]:
    """Return prefill tokens and decodes of one worker's rows."""
    scheduled = [row.metrics.scheduled_requests for row in rows if row.metrics.worker_id == worker_id]
    return sum(one.sum_prefill_tokens for one in scheduled), sum(one.num_decode_requests for one in scheduled)


def expected(said: dict[str, Any], requests: int = 12) -> tuple[int, int]:
    """Return the same numbers from what the engine answered."""
    return said["prompt"] - said["cached"], said["output"] - requests


@pytest.mark.slow
def test_an_engine_core_of_its_own_is_recorded(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-44, D-29: One variable, ``LLM(...)`` in its usual form: every token is in the trace when the
    program has ended, under one drawn id, and no process is left.
    """
    environment = clean(vllm_environment, DYN_FPM_TRACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    environment["DYN_FORWARDPASS_METRIC_PORT"] = str(free_port())
    run = Offline(tiny_model, tmp_path, environment, [{}])
    (said,) = run.said
    rows = run.rows()

    assert said["scheduler"] == SCHEDULER
    assert tokens(rows, said["worker_id"]) == expected(said)
    assert {row.metrics.worker_id for row in rows} == {row.source.producer_id for row in rows}
    assert len(run.words) == 3


@pytest.mark.slow
def test_a_class_derived_from_ours_is_recorded(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-43: Given by its path, to an engine core of its own: it stays, and every token is recorded."""
    environment = clean(vllm_environment, DYN_FPM_TRACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="1")
    environment["DYN_FORWARDPASS_METRIC_PORT"] = str(free_port())
    run = Offline(tiny_model, tmp_path, environment, [{"llm": {"scheduler_cls": DERIVED}}])
    (said,) = run.said
    rows = run.rows()

    assert said["scheduler"] == DERIVED
    assert tokens(rows, said["worker_id"]) == expected(said)


def test_engines_in_the_programs_own_process_are_recorded(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-44, ENG-45: One after the other at one port share a recorder and an id; at another port an engine
    has its own. Each one's tokens are in the trace, from its first pass on.
    """
    first, second = free_port(), free_port(first=22_000)
    environment = clean(vllm_environment, DYN_FPM_TRACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    ports = [
        {"env": {"DYN_FORWARDPASS_METRIC_PORT": str(port)}, "end": True} for port in (first, first, second)
    ]
    run = Offline(tiny_model, tmp_path, environment, ports)
    rows = run.rows()
    one, two, three = run.said

    assert one["worker_id"] == two["worker_id"] != three["worker_id"]
    together = tuple(a + b for a, b in zip(expected(one), expected(two), strict=True))
    assert tokens(rows, one["worker_id"]) == together
    assert tokens(rows, three["worker_id"]) == expected(three)


def test_what_is_not_recorded_is_served_all_the_same(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-31, ENG-32, ENG-43: A port alone generates; a pooling model and a scheduler of the user's are left
    alone, with one warning each. None of them has a recorder.
    """
    environment = clean(vllm_environment, VLLM_ENABLE_V1_MULTIPROCESSING="0", DYN_FPM_WORKER_ID="41")
    environment["DYN_FORWARDPASS_METRIC_PORT"] = str(free_port())
    traced = {"DYN_FPM_TRACE": "1", "DYN_FORWARDPASS_METRIC_PORT": ""}
    run = Offline(
        tiny_model,
        tmp_path,
        environment,
        [
            {},
            {"env": traced, "llm": {"runner": "pooling"}},
            {"env": traced, "llm": {"scheduler_cls": STOCK}},
        ],
    )
    port, pooling, foreign = run.said

    assert (port["scheduler"], port["worker_id"]) == (SCHEDULER, "41")
    assert (pooling["scheduler"], pooling["vectors"]) == ("None", 2)
    assert foreign["scheduler"] == STOCK
    assert run.rows() == []
    assert ["'embedding'" in line for line in run.words] == [True, False]
    assert [f"{STOCK} is kept" in line for line in run.words] == [False, True]


def test_a_killed_program_leaves_what_it_computed(
    tiny_model: str, tmp_path: Path, vllm_environment: dict[str, str]
) -> None:
    """ENG-46: SIGKILL with everything computed a moment ago: the passes that were sent are in the trace."""
    environment = clean(vllm_environment, DYN_FPM_TRACE="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    environment["DYN_FORWARDPASS_METRIC_PORT"] = str(free_port())
    run = Offline(tiny_model, tmp_path, environment, [{"kill": True}], status=-9)
    rows = run.rows()
    scheduled = [row.metrics.scheduled_requests for row in rows]
    counters = [row.metrics.counter_id for row in rows]

    # the last passes may be younger than the publisher's last look at its queue, on a busy machine several
    assert sum(one.num_decode_requests for one in scheduled) >= 12 * 12
    assert counters == list(range(counters[0], counters[0] + len(counters)))


def test_an_invalid_value_is_said_once_and_costs_only_the_recording(
    vllm_environment: dict[str, str],
) -> None:
    """ENG-41: vLLM stays as it is, and a warning names the variable, once for all processes of a server."""
    again = (
        "import subprocess, sys\n"
        "from forwardpass.engines.vllm.plugin import register\n"
        "register(); register()\n"
        "if len(sys.argv) > 1: subprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", again, again], env=clean(vllm_environment, DYN_FPM_TRACE="sometimes"),
        capture_output=True, text=True, timeout=LIMIT_SECONDS, check=True,
    )  # fmt: skip

    assert len(done.stderr.splitlines()) == 1
    assert 'DYN_FPM_TRACE="sometimes"' in done.stderr.replace("'", '"')
