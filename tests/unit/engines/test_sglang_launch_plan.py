"""What is decided before SGLang starts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from forwardpass.engines.sglang.launch import SERVER, Asked, LaunchPlan, plan_launch
from forwardpass.errors import ConfigError

ON = "--enable-forward-pass-metrics"
ID = "--forward-pass-metrics-worker-id"
NAME = "--forward-pass-metrics-ipc-name"
COMMANDS = {
    "aggregated": "--model-path m",
    "prefill": "--model-path m --disaggregation-mode prefill",
    "decode": "--model-path m --disaggregation-mode decode",
    "LLM diffusion": "--model-path m --dllm-algorithm x",
    "multimodal": "--model-path m --enable-multimodal",
    "embedding": "--model-path m --is-embedding",
    "multimodal encoder": "--model-path m --encoder-only",
}
RECORDED = ("aggregated", "prefill", "decode", "LLM diffusion", "multimodal")


def plan(text: str, environment: dict[str, str] | None = None, **asked: Any) -> LaunchPlan:
    """Plan a launch; a trace is asked for unless something else is said."""
    wanted = Asked(**{"trace": True, "worker_id": "7", "ipc_base": "ipc:///t/fpm", **asked})
    return plan_launch("py", text.split(), wanted, environment or {})


@pytest.mark.parametrize(("opted_in", "trace"), list(product((False, True), (False, True))))
@pytest.mark.parametrize("role", COMMANDS)
def test_the_launch_follows_the_table(role: str, opted_in: bool, trace: bool) -> None:
    """ROLE-01, ROLE-02: The switch, the relays, the recording and the warning of every command are those of
    the table.
    """
    launch = plan(COMMANDS[role], opted_in=opted_in, trace=trace)
    on = role in RECORDED and (opted_in or trace)

    assert (ON in launch.command) is on
    assert bool(launch.ranks) is on
    assert launch.activation.persist is (on and trace)
    assert [f"{role!r}" in line for line in launch.activation.warnings] == (
        [True] if role not in RECORDED and (opted_in or trace) else []
    )


def test_ours_go_before_the_operators_arguments() -> None:
    """SGL-02: The operator's arguments keep their order and come last, so that they win."""
    launch = plan("--model-path m --port 1 --dp-size 2")

    assert launch.command == (
        "py", "-m", SERVER, ON, f"{ID}=7", f"{NAME}=ipc:///t/fpm",
        "--model-path", "m", "--port", "1", "--dp-size", "2",
    )  # fmt: skip
    assert (launch.worker_id, launch.ipc_base, launch.ranks) == ("7", "ipc:///t/fpm", (0, 1))


def test_what_the_operator_set_himself_is_used() -> None:
    """SGL-02: An id, a name and the switch that are there already are not given twice, and are read from."""
    launch = plan(f"--model-path m {ON} {ID} mine {NAME}=ipc:///run/mine")

    assert launch.command[3:] == ("--model-path", "m", ON, ID, "mine", f"{NAME}=ipc:///run/mine")
    assert (launch.worker_id, launch.ipc_base) == ("mine", "ipc:///run/mine")


def test_nothing_is_changed_where_nothing_is_asked_for() -> None:
    """SGL-02: Then the command is stock SGLang's, gateway mode included, and its environment is untouched."""
    launch = plan("--model-path m --tokenizer-worker-num 4", {"A": "b"}, trace=False)

    assert launch.command == ("py", "-m", SERVER, "--model-path", "m", "--tokenizer-worker-num", "4")
    assert launch.environment == {"A": "b"}
    assert launch.ranks == ()


@pytest.mark.parametrize(("opted_in", "trace"), [(True, False), (False, True)])
def test_gateway_mode_is_refused(opted_in: bool, trace: bool) -> None:
    """ROLE-03: The error names the option, what was found and what would be accepted."""
    with pytest.raises(ConfigError) as caught:
        plan("--model-path m --tokenizer-worker-num 4", opted_in=opted_in, trace=trace)

    assert (caught.value.variable, caught.value.value) == ("--tokenizer-worker-num", 4)
    assert "--no-fpm-trace" in caught.value.accepted


@pytest.mark.parametrize("text", ["--help", "--model-path m --version"])
def test_help_is_sglangs_own(text: str) -> None:
    """SGL-02: A command that only prints something is switched on by nothing."""
    assert plan(text, opted_in=True).command == ("py", "-m", SERVER, *text.split())


@pytest.mark.parametrize(
    ("environment", "flag", "trace", "expected"),
    [
        ({}, True, True, "1"),
        ({}, None, True, None),
        ({"DYN_FPM_TRACE": "yes"}, None, True, "1"),
        ({"DYN_FPM_TRACE": "yes"}, False, False, "0"),
    ],
)
def test_the_decision_is_left_to_the_child(
    environment: dict[str, str], flag: bool | None, trace: bool, expected: str | None
) -> None:
    """ENG-33: The trace's variable says in the child what was decided, where it is there or a flag is."""
    launch = plan("--model-path m", environment, trace=trace, trace_flag=flag)

    assert launch.environment.get("DYN_FPM_TRACE") == expected
