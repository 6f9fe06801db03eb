"""Settings are built from flags, then the environment, then defaults, one feature at a time."""

from __future__ import annotations

import logging
import os

import pytest

from forwardpass.config import bench_variables, plane_variables, variables
from forwardpass.config.settings import (
    CaptureMode,
    Fsync,
    HeartbeatMode,
    PublisherSettings,
    RelaySettings,
    Sources,
    TraceSettings,
    process_environment,
)
from forwardpass.config.variables import TABLE, Feature, Variable
from forwardpass.errors import ConfigError
from forwardpass.wire.keys import Endpoint

LOADERS = {
    Feature.STREAM: PublisherSettings,
    Feature.TRACE: TraceSettings,
    Feature.RELAY: RelaySettings,
}


def test_the_table_holds_every_variable_once() -> None:
    """Each variable defined in the three files stands in the table, and no name twice."""
    named = [vars(module) for module in (variables, plane_variables, bench_variables)]
    defined = [value for names in named for value in names.values() if isinstance(value, Variable)]
    defined += [alias for alias, _ in bench_variables.ALIASES]

    assert sorted(v.name for v in defined) == sorted(v.name for v in TABLE)
    assert len({v.name for v in TABLE}) == len(TABLE)


@pytest.mark.parametrize("variable", TABLE, ids=lambda v: v.name)
def test_every_row_is_complete(variable: Variable) -> None:
    """A row says what is accepted and what it means, in words, and its name tells whose variable it is."""
    assert variable.name.startswith(("DYN_", "FORWARDPASS_", "ETCD_", "NATS_", "HF_"))
    assert variable.accepted
    assert variable.meaning.endswith(".")
    assert variable.since


def test_defaults_are_the_documented_ones() -> None:
    """TRACE-01, TRACE-02, WIRE-35, D-3, D-9, D-26: nothing set gives the documented defaults."""
    empty = Sources({})

    assert PublisherSettings.load(empty) == PublisherSettings(
        20380, "127.0.0.1", "", HeartbeatMode.WHEN_IDLE, 1.0, 10_000, 100_000, False
    )
    assert TraceSettings.load(empty) == TraceSettings(
        "/tmp/dynamo-fpm", CaptureMode.SAMPLED, 5.0, 268_435_456, 4, 8192, Fsync.NEVER, 10.0
    )
    assert RelaySettings.load(empty) == RelaySettings(Endpoint("dynamo", "backend", "generate"), None, "")


@pytest.mark.parametrize("settings", [PublisherSettings, TraceSettings, RelaySettings])
def test_struct_defaults_equal_the_table(
    settings: type[PublisherSettings] | type[TraceSettings] | type[RelaySettings],
) -> None:
    """A settings value built without arguments is the one that an empty environment gives."""
    assert settings() == settings.load(Sources({}))


def test_every_value_reaches_its_field() -> None:
    """Each variable of a feature sets the field it is named after."""
    env = {
        "DYN_FORWARDPASS_METRIC_PORT": " 21000 ",
        "FORWARDPASS_BIND_HOST": "*",
        "DYN_FPM_WORKER_ID": "99",
        "FORWARDPASS_HEARTBEAT": "Always-Zero",
        "DYN_FPM_HEARTBEAT_INTERVAL_MS": "250",
        "FORWARDPASS_PUBLISH_QUEUE": "5",
        "FORWARDPASS_SEND_HWM": "6",
        "FORWARDPASS_STRICT": "on",
        "DYN_FPM_OUTPUT_PATH": "/d/x.jsonl.gz",
        "DYN_FPM_MODE": "FULL",
        "DYN_FPM_SAMPLE_INTERVAL_MS": "200",
        "DYN_FPM_JSONL_GZ_ROLL_BYTES": "+3000",
        "DYN_FPM_MAX_SEGMENTS": "2",
        "FORWARDPASS_TRACE_QUEUE": "9000",
        "FORWARDPASS_FSYNC": "flush",
        "FORWARDPASS_DRAIN_SECONDS": "1.5",
        "FORWARDPASS_ENDPOINT": "a.b.c",
        "FORWARDPASS_PLANE": "memory:x",
        "FORWARDPASS_PRODUCER_ID": "host-1",
    }
    sources = Sources(env)

    assert PublisherSettings.load(sources) == PublisherSettings(
        21000, "*", "99", HeartbeatMode.ALWAYS_ZERO, 0.25, 5, 6, True
    )
    assert TraceSettings.load(sources) == TraceSettings(
        "/d/x", CaptureMode.FULL, 0.2, 3000, 2, 9000, Fsync.FLUSH, 1.5
    )
    assert RelaySettings.load(sources) == RelaySettings(Endpoint("a", "b", "c"), "memory:x", "host-1")


def test_flag_beats_variable_beats_default() -> None:
    """A flag wins over the environment, which wins over the default, and each says where it came from."""
    env = {"DYN_FPM_MODE": "full", "DYN_FPM_MAX_SEGMENTS": "9"}
    sources = Sources(env, {"DYN_FPM_MODE": "sampled"})
    found = {r.variable.name: (r.value, r.source) for r in sources.all()}

    assert found["DYN_FPM_MODE"] == ("sampled", "flag")
    assert found["DYN_FPM_MAX_SEGMENTS"] == (9, "environment")
    assert found["DYN_FPM_SAMPLE_INTERVAL_MS"] == (5000, "default")
    assert len(found) == len(TABLE)


def test_a_valid_flag_hides_a_wrong_variable() -> None:
    """The environment's text is not looked at where a flag was given."""
    sources = Sources({"DYN_FPM_MODE": "bogus"}, {"DYN_FPM_MODE": "full"})

    assert TraceSettings.load(sources).mode is CaptureMode.FULL


BAD: list[tuple[str, str]] = [
    ("DYN_FPM_OUTPUT_PATH", "  "),
    ("DYN_FPM_MODE", "bogus"),
    ("DYN_FPM_SAMPLE_INTERVAL_MS", "0"),
    ("DYN_FPM_SAMPLE_INTERVAL_MS", ""),
    ("DYN_FPM_JSONL_GZ_ROLL_BYTES", "-5"),
    ("DYN_FPM_MAX_SEGMENTS", "1.5"),
    ("FORWARDPASS_FSYNC", "always"),
    ("FORWARDPASS_TRACE_QUEUE", "8191"),
    ("FORWARDPASS_DRAIN_SECONDS", "soon"),
    ("DYN_FORWARDPASS_METRIC_PORT", "1023"),
    ("FORWARDPASS_HEARTBEAT", "never"),
    ("FORWARDPASS_PUBLISH_QUEUE", "0"),
    ("FORWARDPASS_SEND_HWM", "2147483648"),
    ("FORWARDPASS_STRICT", "perhaps"),
    ("FORWARDPASS_ENDPOINT", "a.b"),
]


@pytest.mark.parametrize(("name", "text"), BAD)
def test_a_wrong_value_turns_off_its_feature_only(name: str, text: str) -> None:
    """TRACE-02: the error names variable, value and what is accepted; other features load as usual."""
    sources = Sources({name: text})
    variable = next(v for v in TABLE if v.name == name)
    with pytest.raises(ConfigError) as caught:
        LOADERS[variable.feature].load(sources)

    assert (caught.value.variable, caught.value.value) == (name, text)
    assert caught.value.accepted == variable.accepted
    for feature, settings in LOADERS.items():
        if feature is not variable.feature:
            assert settings.load(sources) == settings()


@pytest.mark.parametrize("text", ["0", "junk", "-5", "300001", ""])
def test_heartbeat_interval_falls_back(text: str, caplog: pytest.LogCaptureFixture) -> None:
    """WIRE-44: a wrong interval is warned about, with its name, and the default is used."""
    with caplog.at_level(logging.WARNING):
        settings = PublisherSettings.load(Sources({"DYN_FPM_HEARTBEAT_INTERVAL_MS": text}))

    assert settings.heartbeat_interval_seconds == 1.0
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "DYN_FPM_HEARTBEAT_INTERVAL_MS" in caplog.messages[0]


@pytest.mark.parametrize("text", ["", "   "])
def test_blank_port_and_host_are_unset(text: str) -> None:
    """WIRE-35, D-12: blank means unset, so the defaults hold."""
    sources = Sources({"DYN_FORWARDPASS_METRIC_PORT": text, "FORWARDPASS_BIND_HOST": text})

    assert PublisherSettings.load(sources) == PublisherSettings()
    assert not sources.is_set(variables.METRIC_PORT)


def test_is_set_does_not_judge() -> None:
    """A variable with a wrong value is set, all the same."""
    assert Sources({"DYN_FORWARDPASS_METRIC_PORT": "x"}).is_set(variables.METRIC_PORT)
    assert Sources({}, {"DYN_FORWARDPASS_METRIC_PORT": "1"}).is_set(variables.METRIC_PORT)
    assert not Sources({}).is_set(variables.METRIC_PORT)


def test_resolve_reports_instead_of_raising() -> None:
    """What shows settings gets the default and the error side by side."""
    resolved = Sources({"DYN_FPM_MODE": "bogus"}).resolve(variables.MODE)

    assert (resolved.value, resolved.source) == ("sampled", "environment")
    assert isinstance(resolved.error, ConfigError)
    assert resolved.error.accepted == '"sampled" or "full"'


def test_sources_read_this_process_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mapping the process's environment is copied when the sources are built."""
    monkeypatch.setenv("DYN_FPM_MODE", "full")
    sources = Sources()
    monkeypatch.setenv("DYN_FPM_MODE", "sampled")

    assert sources.value(variables.MODE) == "full"
    assert dict(process_environment()) == dict(os.environ)


def test_settings_cannot_change() -> None:
    """Settings are frozen values."""
    with pytest.raises(AttributeError):
        TraceSettings().mode = CaptureMode.FULL  # type: ignore[misc]
