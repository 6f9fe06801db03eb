"""``forwardpass env``: each setting, its value and where it came from."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from click.testing import CliRunner, Result

from forwardpass.cli.env import _table, env
from forwardpass.cli.main import Exit
from forwardpass.config.settings import Sources
from forwardpass.config.variables import TABLE

CLEAN = dict.fromkeys((variable.name for variable in TABLE), None)


def run(*arguments: str, environment: Mapping[str, str] | None = None) -> Result:
    """Run the command with none of our variables set but those given."""
    return CliRunner().invoke(
        env, arguments, env={**CLEAN, **(environment or {})}, standalone_mode=False, catch_exceptions=False
    )


def document(environment: Mapping[str, str]) -> dict[str, dict[str, object]]:
    """Return the variables of the JSON output by name."""
    result = run("--json", environment=environment)
    return {row["name"]: row for row in json.loads(result.stdout)["variables"]}


def test_every_variable_of_the_table_is_shown() -> None:
    """The table on the screen is the table in the code, in its order."""
    shown = json.loads(run("--json").stdout)["variables"]

    assert [row["name"] for row in shown] == [variable.name for variable in TABLE]
    assert all(row["source"] == "default" and row["found"] is None for row in shown)


def test_a_value_says_where_it_came_from() -> None:
    """A set variable is parsed, and marked as from the environment."""
    rows = document({"DYN_FPM_TRACE": " Yes ", "DYN_FORWARDPASS_METRIC_PORT": "21000"})

    assert (rows["DYN_FPM_TRACE"]["value"], rows["DYN_FPM_TRACE"]["source"]) == (True, "environment")
    assert rows["DYN_FORWARDPASS_METRIC_PORT"]["value"] == 21000
    assert rows["DYN_FPM_MODE"]["source"] == "default"
    assert rows["FORWARDPASS_ENDPOINT"]["value"] == "dynamo.backend.generate"


def test_valid_settings_exit_with_zero() -> None:
    """Nothing is wrong, nothing is said on stderr."""
    result = run(environment={"DYN_FPM_TRACE": "1"})

    assert (result.return_value, result.stderr) == (Exit.DONE, "")
    assert "DYN_FPM_TRACE" in result.stdout


def test_an_invalid_value_exits_with_two_and_one_line() -> None:
    """The line names the variable, what was found, what is accepted and what happens."""
    result = run(environment={"DYN_FPM_TRACE": "1", "DYN_FPM_MODE": "sometimes"})

    assert result.return_value == Exit.USAGE
    (line,) = result.stderr.splitlines()
    assert line == (
        'DYN_FPM_MODE=\'sometimes\': expected "sampled" or "full"; '
        "tracing is off for this worker; serving goes on"
    )


def test_an_invalid_value_keeps_what_was_found_in_the_document() -> None:
    """A program can see which text was refused."""
    rows = document({"DYN_FPM_SAMPLE_INTERVAL_MS": "1_000"})

    assert rows["DYN_FPM_SAMPLE_INTERVAL_MS"]["found"] == "1_000"


def test_what_an_invalid_value_turns_off_depends_on_its_feature() -> None:
    """A port turns the stream off, a heartbeat interval falls back, a trace setting may not matter."""
    port = run(environment={"DYN_FORWARDPASS_METRIC_PORT": "80"}).stderr
    interval = run(environment={"DYN_FPM_HEARTBEAT_INTERVAL_MS": "-1"}).stderr
    unused = run(environment={"DYN_FPM_MAX_SEGMENTS": ""}).stderr

    assert "no forward passes are generated" in port
    assert "1000, is used" in interval
    assert "ignored while tracing is off" in unused


def test_only_what_is_set_can_be_asked_for() -> None:
    """``--set`` leaves the defaults out."""
    result = run("--set", "--json", environment={"FORWARDPASS_PLANE": "memory:x"})

    assert [row["name"] for row in json.loads(result.stdout)["variables"]] == ["FORWARDPASS_PLANE"]


@pytest.mark.parametrize("width", [40, 80, 300])
def test_no_name_is_broken_on_a_narrow_terminal(width: int) -> None:
    """On a terminal of any width a variable's name stays whole, and a wide one has its meaning beside it."""
    lines = _table(Sources({}).all(), width=width)
    names = {line.split()[0] for line in lines if not line.startswith(" ")}

    assert names == {"variable", *(variable.name for variable in TABLE)}
    assert (len(lines) == len(TABLE) + 1) is (width == 300)


def test_nothing_set_is_said_in_words() -> None:
    """``--set`` without any variable set is a sentence on stderr, not an empty table."""
    result = run("--set")

    assert result.stdout == ""
    assert result.stderr == "no variable is set; every setting has its default\n"


@pytest.mark.parametrize("name", ["NATS_AUTH_PASSWORD", "NATS_AUTH_TOKEN", "NATS_AUTH_NKEY"])
def test_a_secret_is_never_shown(name: str) -> None:
    """That a password is set can be seen, and what it is cannot, in neither form."""
    environment = {name: "hunter2 "}

    assert document(environment)[name]["value"] == "(set, not shown)"
    assert "hunter2" not in run("--json", environment=environment).output
    assert "hunter2" not in run(environment=environment).output
    assert document({})[name]["value"] == ""


def test_a_password_in_a_url_is_not_shown() -> None:
    """NATS-05: A URL is shown without the credentials that may stand in it, as text and as JSON."""
    url = "nats://me:hunter2@somewhere:4222"
    environment = {"FORWARDPASS_PLANE": url, "NATS_SERVER": url, "NATS_AUTH_PASSWORD": "hunter2"}
    for options in (["--set"], ["--set", "--json"]):
        done = run(*options, environment=environment)

        assert done.stdout.count("nats://***@somewhere:4222") == 2
        assert "hunter2" not in done.output
