"""What happens to an engine whose Forward Pass Metrics cannot be set up."""

from __future__ import annotations

import logging

import pytest

from forwardpass.config.settings import Sources
from forwardpass.engines.vllm.attach import attach_recorder
from forwardpass.engines.vllm.recorder import NullRecorder
from forwardpass.errors import ConfigError

BAD_PORT = {"DYN_FORWARDPASS_METRIC_PORT": "fast"}


def test_a_bad_variable_costs_one_line_and_the_engine_serves(caplog: pytest.LogCaptureFixture) -> None:
    """The line names the variable, what was found, what is accepted and what happens."""
    with caplog.at_level(logging.ERROR):
        recorder = attach_recorder(object(), Sources(BAD_PORT))

    assert isinstance(recorder, NullRecorder)
    assert [record.getMessage() for record in caplog.records] == [
        "DYN_FORWARDPASS_METRIC_PORT='fast': expected an integer from 1024 to 49151; FPM is off for this "
        "engine; serving goes on"
    ]
    assert caplog.records[0].exc_info in (None, False)


def test_strict_raises_what_is_wrong() -> None:
    """``FORWARDPASS_STRICT`` stops the engine's start, as the reference does."""
    with pytest.raises(ConfigError) as caught:
        attach_recorder(object(), Sources({**BAD_PORT, "FORWARDPASS_STRICT": "1"}))

    assert caught.value.variable == "DYN_FORWARDPASS_METRIC_PORT"


def test_a_bad_strict_does_not_raise() -> None:
    """A value of the switch itself that cannot be read turns the feature off, not the engine."""
    sources = Sources({"FORWARDPASS_STRICT": "perhaps"})

    assert isinstance(attach_recorder(object(), sources), NullRecorder)


def test_what_is_no_scheduler_gets_no_recorder(caplog: pytest.LogCaptureFixture) -> None:
    """An error that we did not foresee is logged with its traceback, and the engine serves."""
    with caplog.at_level(logging.ERROR):
        recorder = attach_recorder(object(), Sources({}))

    assert isinstance(recorder, NullRecorder)
    assert caplog.records[0].exc_info
