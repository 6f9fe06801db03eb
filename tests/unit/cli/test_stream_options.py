"""Which streams a command reads, and what its flags mean."""

from __future__ import annotations

import pytest

from forwardpass.cli.stream_options import checked_flags, choose_targets
from forwardpass.config import variables as v
from forwardpass.config.settings import Sources
from forwardpass.errors import ConfigError
from forwardpass.relay.targets import RelayTarget

NOTHING = Sources({})


@pytest.mark.parametrize(
    ("urls", "ranks", "env", "expected"),
    [
        ([], None, {}, [("tcp://127.0.0.1:20380", 0)]),
        ([], 2, {}, [("tcp://127.0.0.1:20380", 0), ("tcp://127.0.0.1:20381", 1)]),
        ([], None, {"DYN_FORWARDPASS_METRIC_PORT": "21000"}, [("tcp://127.0.0.1:21000", 0)]),
        ([], None, {"DYN_FORWARDPASS_METRIC_PORT": " "}, [("tcp://127.0.0.1:20380", 0)]),
        (["tcp://h:5"], None, {}, [("tcp://h:5", None)]),
        (["tcp://h:5"], 2, {}, [("tcp://h:5", 0), ("tcp://h:6", 1)]),
        (["ipc:///tmp/f"], 2, {}, [("ipc:///tmp/f.0", 0), ("ipc:///tmp/f.1", 1)]),
        (["tcp://h:5", "tcp://g:5"], None, {}, [("tcp://h:5", None), ("tcp://g:5", None)]),
        (["tcp://h:5", "tcp://h:5"], None, {}, [("tcp://h:5", None)]),
    ],
)
def test_targets(
    urls: list[str], ranks: int | None, env: dict[str, str], expected: list[tuple[str, int | None]]
) -> None:
    """URLs as given; one URL and ranks counted up; without a URL the local ranks from the base port on."""
    assert choose_targets(urls, ranks, Sources(env)) == tuple(RelayTarget(*one) for one in expected)


def test_ranks_with_several_urls() -> None:
    """Ranks cannot be counted from several URLs."""
    with pytest.raises(ConfigError) as caught:
        choose_targets(["tcp://h:5", "tcp://g:5"], 2, NOTHING)

    assert caught.value.variable == "--ranks"


def test_a_wrong_base_port_names_its_variable() -> None:
    """A base port that is not accepted is reported by the variable's name."""
    with pytest.raises(ConfigError) as caught:
        choose_targets([], None, Sources({"DYN_FORWARDPASS_METRIC_PORT": "80"}))

    assert (caught.value.variable, caught.value.value) == ("DYN_FORWARDPASS_METRIC_PORT", "80")


def test_flags_become_variables() -> None:
    """Flags that were given stand for their variables; others are absent."""
    given = [("--mode", v.MODE, "full"), ("--output", v.OUTPUT_PATH, None)]

    assert checked_flags(given) == {"DYN_FPM_MODE": "full"}


def test_a_wrong_flag_is_named_as_the_flag() -> None:
    """A text that is not accepted is reported by the flag's name, with what would be accepted."""
    with pytest.raises(ConfigError) as caught:
        checked_flags([("--mode", v.MODE, "sometimes")])

    assert (caught.value.variable, caught.value.value) == ("--mode", "sometimes")
    assert caught.value.accepted == v.MODE.accepted
