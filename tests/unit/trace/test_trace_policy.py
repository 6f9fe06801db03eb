"""Whether a worker records a trace: on or off as one unit."""

from __future__ import annotations

import logging

import pytest

from forwardpass.config.settings import CaptureMode, Fsync, Sources, TraceSettings
from forwardpass.trace import policy
from forwardpass.trace.policy import TraceDecision, announce, decide

INVALID = {
    "DYN_FPM_OUTPUT_PATH": "  ",
    "DYN_FPM_MODE": "sometimes",
    "DYN_FPM_SAMPLE_INTERVAL_MS": "0",
    "DYN_FPM_JSONL_GZ_ROLL_BYTES": "-5",
    "DYN_FPM_MAX_SEGMENTS": "",
    "FORWARDPASS_FSYNC": "often",
    "FORWARDPASS_TRACE_QUEUE": "100",
    "FORWARDPASS_DRAIN_SECONDS": "soon",
}


def decided(env: dict[str, str], flag: bool | None = None) -> TraceDecision:
    """Decide from an environment and a flag."""
    return decide(Sources(env), flag)


@pytest.mark.parametrize("word", ["1", "true", "ON", " Yes "])
def test_the_variable_turns_tracing_on(word: str) -> None:
    """TRACE-01: 1, true, on and yes turn tracing on, in any case and with blanks around them."""
    assert decided({"DYN_FPM_TRACE": word}) == TraceDecision(True, TraceSettings())


@pytest.mark.parametrize(
    "env", [{}, *({"DYN_FPM_TRACE": word} for word in ("0", "False", "off", "NO", "", " "))]
)
def test_off_is_silent(env: dict[str, str]) -> None:
    """TRACE-01: unset, false and blank are off, without a warning."""
    assert decided(env) == TraceDecision(False)


@pytest.mark.parametrize("env", [{}, {"DYN_FPM_TRACE": "false"}])
def test_other_variables_do_not_matter_while_off(env: dict[str, str]) -> None:
    """TRACE-04: while tracing is off the other variables are ignored, even if all are invalid."""
    assert decided({**env, **INVALID}) == TraceDecision(False)


@pytest.mark.parametrize("variable", INVALID)
def test_one_invalid_value_turns_everything_off(variable: str) -> None:
    """TRACE-02: any invalid value turns tracing off, with a warning that names it, what was found and why."""
    decision = decided({"DYN_FPM_TRACE": "1", variable: INVALID[variable]})

    assert not decision.enabled
    assert decision.settings is None
    assert decision.warning is not None
    assert decision.warning.startswith(f"{variable}={INVALID[variable]!r}: expected ")
    assert decision.warning.endswith("; tracing is off for this worker")


def test_the_interval_is_checked_in_full_mode_too() -> None:
    """TRACE-02: a value that full mode would not use is still checked."""
    env = {"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": "full", "DYN_FPM_SAMPLE_INTERVAL_MS": "5.0"}

    assert not decided(env).enabled


def test_the_text_of_the_warning() -> None:
    """A warning names the variable, its value, what is accepted and what happens."""
    decision = decided({"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": "sometimes"})

    assert decision.warning == (
        'DYN_FPM_MODE=\'sometimes\': expected "sampled" or "full"; tracing is off for this worker'
    )


def test_all_settings_arrive() -> None:
    """Valid values end up in the settings, the prefix without its suffix."""
    env = {
        "DYN_FPM_TRACE": "1",
        "DYN_FPM_OUTPUT_PATH": " /var/fpm/run.jsonl.gz ",
        "DYN_FPM_MODE": " FULL ",
        "DYN_FPM_SAMPLE_INTERVAL_MS": "+250",
        "DYN_FPM_JSONL_GZ_ROLL_BYTES": "1000",
        "DYN_FPM_MAX_SEGMENTS": "2",
        "FORWARDPASS_FSYNC": "flush",
        "FORWARDPASS_TRACE_QUEUE": "9000",
        "FORWARDPASS_DRAIN_SECONDS": "2.5",
    }

    assert decided(env).settings == TraceSettings(
        "/var/fpm/run", CaptureMode.FULL, 0.25, 1000, 2, 9000, Fsync.FLUSH, 2.5
    )


@pytest.mark.parametrize("text", ["maybe", "2"])
def test_an_invalid_switch_is_off_with_a_warning(text: str) -> None:
    """TRACE-01: a switch that is neither true nor false is off, and says what is accepted."""
    decision = decided({"DYN_FPM_TRACE": text})

    assert decision == TraceDecision(
        False,
        warning=f"DYN_FPM_TRACE={text!r}: expected one of 1/0, true/false, on/off, yes/no; "
        "tracing is off for this worker",
    )


@pytest.mark.parametrize("text", ["0", "maybe"])
def test_the_flag_beats_the_variable(text: str) -> None:
    """TRACE-01: a given flag decides, whatever the variable says, valid or not."""
    assert decided({"DYN_FPM_TRACE": text}, flag=True).enabled
    assert decided({"DYN_FPM_TRACE": "1"}, flag=False) == TraceDecision(False)
    assert decided({"DYN_FPM_TRACE": text}, flag=False) == TraceDecision(False)


def test_a_warning_is_said_once_per_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-01: the same decision announced by several workers of one process is one line."""
    monkeypatch.setattr(policy, "_said", set())
    decision = decided({"DYN_FPM_TRACE": "perhaps"})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            announce(decision)
        announce(TraceDecision(False))

    assert [record.getMessage() for record in caplog.records] == [decision.warning]
