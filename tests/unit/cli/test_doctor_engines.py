"""Why an engine that runs here gives no stream: every reason of the table, and what is none."""

from __future__ import annotations

from typing import Any

import pytest

from forwardpass.cli.doctor_checks import Status
from forwardpass.cli.doctor_engines import REASONS, Server, check_engines, recognise, sockets_of
from forwardpass.engines.roles import Backend
from forwardpass.engines.vllm.launch import SCHEDULER

ON = "--enable-forward-pass-metrics --forward-pass-metrics-ipc-name ipc:///t/s"


def server(backend: Backend, arguments: str, **facts: Any) -> Server:
    """Return what was seen of one engine."""
    return Server(backend, 7, tuple(arguments.split()), **facts)


CASES = [
    (server(Backend.VLLM, "m --runner pooling --convert embed"), "its role, embedding"),
    (server(Backend.VLLM, "m --scheduler-cls mine.S"), "--scheduler-cls is mine.S, not ours"),
    (server(Backend.VLLM, "m", environment={}), "nothing in its environment asks it"),
    (server(Backend.SGLANG, f"--is-embedding {ON}"), "its role, embedding"),
    (server(Backend.SGLANG, "--model-path m"), "without --enable-forward-pass-metrics"),
    (server(Backend.SGLANG, "--enable-forward-pass-metrics"), "whose name it invented"),
    (server(Backend.SGLANG, ON, sockets={"/t/s.0": False}), "its socket /t/s.0 is not there"),
    (server(Backend.SGLANG, ON, sockets={"/t/s.0": True}), "said nothing while doctor listened"),
    (
        server(Backend.TRTLLM, "m", options={"kv_cache_config": {"event_buffer_max_size": 9}}),
        "KV cache events only",
    ),
    (server(Backend.TRTLLM, "m"), "enable_iter_perf_stats is not true"),
]
WELL = [
    server(Backend.VLLM, "m", environment={"DYN_FPM_TRACE": " On "}),
    server(Backend.VLLM, "m", environment={"DYN_FORWARDPASS_METRIC_PORT": "20380"}),
    server(Backend.VLLM, "m", environment=None),
    server(Backend.VLLM, f"m --scheduler-cls {SCHEDULER}", environment={}),
    server(Backend.SGLANG, ON, sockets={"/t/s.0": True}, heard=3),
    server(Backend.TRTLLM, "m", options={"enable_iter_perf_stats": True}),
    server(Backend.MOCK, "--port 1"),
]


@pytest.mark.parametrize(("seen", "words"), CASES, ids=lambda case: str(case)[:40])
def test_each_reason_is_said_with_what_to_do(seen: Server, words: str) -> None:
    """ROLE-04: The first reason that fits is the server's, as a warning with a next step."""
    (check,) = check_engines([seen])

    assert check.status is Status.WARN
    assert words in check.found
    assert check.next_step
    assert check.name.endswith(", pid 7")


def test_every_reason_has_a_case() -> None:
    """ROLE-04: Each row of the table is the reason of exactly one case above."""
    firsts = [
        next(number for number, row in enumerate(REASONS) if row.backend is seen.backend and row.fits(seen))
        for seen, _ in CASES
    ]

    assert sorted(firsts) == list(range(len(REASONS)))


@pytest.mark.parametrize("seen", WELL, ids=lambda seen: f"{seen.backend}-{' '.join(seen.arguments)[:20]}")
def test_a_server_without_a_reason_is_well(seen: Server) -> None:
    """ROLE-04: What is recorded, or cannot be looked into, is no warning."""
    (check,) = check_engines([seen])

    assert check.status is Status.OK
    assert check.found


@pytest.mark.parametrize(
    ("words", "backend", "arguments"),
    [
        ("/usr/bin/python3 -m sglang.launch_server --model-path m", Backend.SGLANG, "--model-path m"),
        ("python /venv/bin/sglang serve --model-path m", Backend.SGLANG, "--model-path m"),
        ("python -m vllm.entrypoints.cli.main serve m", Backend.VLLM, "m"),
        ("python -m vllm.entrypoints.openai.api_server --model m", Backend.VLLM, "--model m"),
        ("/venv/bin/python /venv/bin/vllm serve m", Backend.VLLM, "m"),
        ("python /venv/bin/trtllm-serve m --extra_llm_api_options x", Backend.TRTLLM,
         "m --extra_llm_api_options x"),
        ("python -m forwardpass mock --port 1", Backend.MOCK, "--port 1"),
        ("/venv/bin/forwardpass mock", Backend.MOCK, ""),
    ],
)  # fmt: skip
def test_a_command_line_of_an_engine(words: str, backend: Backend, arguments: str) -> None:
    """ROLE-04: The program and its own arguments are told, however it was started."""
    assert recognise(tuple(words.split())) == (backend, tuple(arguments.split()))


@pytest.mark.parametrize(
    "words",
    ["", "python", "python -m forwardpass sglang serve --model-path m", "vllm bench serve", "sglang version",
     "vim sglang.launch_server", "grep -r sglang.launch_server .", "forwardpass vllm serve m",
     "python -I -S bond.py 1 python -m sglang.launch_server"],
)  # fmt: skip
def test_other_programs_are_no_engines(words: str) -> None:
    """ROLE-04: What only names an engine, ours that start one among them, is none."""
    assert recognise(tuple(words.split())) is None


def test_sockets_follow_from_the_arguments() -> None:
    """ROLE-04, SGL-07: One path for each rank on this node; none where the name is not known."""
    arguments = tuple(f"{ON} --dp-size 2".split())

    assert sockets_of(Backend.SGLANG, arguments) == ("/t/s.0", "/t/s.1")
    assert sockets_of(Backend.SGLANG, ("--enable-forward-pass-metrics",)) == ()
    assert sockets_of(Backend.SGLANG, arguments[1:]) == ()
    assert sockets_of(Backend.VLLM, arguments) == ()


def test_a_strangers_arguments_cannot_drive_a_terminal() -> None:
    """ROLE-04: Any user may name anything in a command line; it is shown with control characters escaped."""
    seen = [
        Server(Backend.VLLM, 1, ("m", "--scheduler-cls", "\x1b[2J")),
        server(Backend.SGLANG, ON, sockets={"/t/\x1b[2J": False}),
    ]

    assert not any("\x1b" in check.found + check.next_step for check in check_engines(seen))
