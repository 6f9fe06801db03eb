"""Finding engines by name."""

import sys
from importlib.metadata import EntryPoint, EntryPoints

import pytest

from forwardpass.engines import registry
from forwardpass.engines.base import Delivery, FpmSource, TimingScope
from forwardpass.errors import ConfigError, EngineError

OTHER = FpmSource("other", Delivery.POLLED, TimingScope.REPORTED, TimingScope.REPORTED, True)
NOT_A_ROLE = "text"


def offer(monkeypatch, value: str) -> None:
    """Let one more engine be installed, as its distribution's metadata would say it."""
    points = EntryPoints([EntryPoint("other", value, registry.GROUP)])
    monkeypatch.setattr(registry, "entry_points", lambda **query: points.select(**query))


def test_every_engine_of_ours_is_found_under_its_own_name():
    """The table's names and the roles' names agree, and finding vLLM's imports no vLLM."""
    names = registry.engine_names()

    ours = ("mock", "sglang", "trtllm", "vllm")
    assert set(ours) <= set(names)
    assert [registry.find_source(name).engine for name in ours] == list(ours)
    assert "vllm" not in sys.modules


def test_vllm_measures_differently_after_idle():
    """ENG-03: the period between outputs, except for the first pass after an empty step."""
    source = registry.find_source("vllm")

    assert source.wall_time is TimingScope.OUTPUT_PERIOD
    assert source.wall_time_after_idle is TimingScope.SCHEDULE_TO_OUTPUT


def test_sglang_measures_on_the_gpu_and_counts_the_current_token():
    """SGL-08, TRAP-12: Its times are no periods of the host, and its contexts are one token longer."""
    source = registry.find_source("sglang")

    assert (source.wall_time, source.decode_counts_current_token) == (TimingScope.GPU_SPAN, True)
    assert not registry.find_source("vllm").decode_counts_current_token


def test_every_engine_says_what_its_times_are():
    """LEDGER-17: No two engines whose times mean different things share a name for it."""
    scopes = {name: registry.find_source(name).wall_time for name in ("mock", "sglang", "trtllm", "vllm")}

    assert len(set(scopes.values())) == len(scopes)


def test_an_unknown_engine_is_refused_with_the_known_names():
    """The error lists what there is."""
    with pytest.raises(ConfigError) as caught:
        registry.find_source("no-such-engine")

    assert "mock" in caught.value.accepted


def test_a_third_party_engine_is_found_through_its_entry_point(monkeypatch):
    """An installed distribution can add an engine without a change here."""
    offer(monkeypatch, f"{__name__}:OTHER")

    assert "other" in registry.engine_names()
    assert registry.find_source("other") is OTHER


@pytest.mark.parametrize(
    "value", ["no_such_module_anywhere:X", f"{__name__}:MISSING", f"{__name__}:NOT_A_ROLE"]
)
def test_an_adapter_that_does_not_load_is_an_engine_error(monkeypatch, value):
    """A missing module, a missing name and an object of another type are the adapter's fault."""
    offer(monkeypatch, value)

    with pytest.raises(EngineError):
        registry.find_source("other")
