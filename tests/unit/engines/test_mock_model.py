"""The cost model."""

import pytest

from forwardpass.engines.mock.model import CostModel
from forwardpass.errors import ConfigError


def seconds(**work: int) -> float:
    return CostModel().gpu_seconds(
        **{"prefill_tokens": 0, "pairs": 0, "decode_requests": 0, "kv_tokens": 0, **work}
    )


def test_an_empty_pass_takes_no_time():
    """No tokens, no pass."""
    assert seconds() == 0.0


def test_a_small_batch_costs_the_reading_of_the_weights():
    """Below about 150 tokens the products hide behind the weights."""
    assert seconds(prefill_tokens=1) == seconds(prefill_tokens=100) == CostModel().weights_seconds


def test_a_large_prefill_costs_its_tokens():
    """2,048 tokens of an 8-billion model on one GPU: some 75 ms."""
    assert 0.06 < seconds(prefill_tokens=2048, pairs=2048 * 2049 // 2) < 0.09


@pytest.mark.parametrize("work", ["prefill_tokens", "pairs", "decode_requests", "kv_tokens"])
def test_more_work_never_takes_less_time(work):
    """The duration does not fall in any of its terms."""
    base = {"prefill_tokens": 300, "pairs": 300, "decode_requests": 10, "kv_tokens": 5000}

    assert seconds(**base) < seconds(**{**base, work: base[work] * 2})


@pytest.mark.parametrize(
    ("field", "value"), [("weights_seconds", 0.0), ("token_seconds", -1.0), ("host_seconds", float("nan"))]
)
def test_constants_must_be_times(field, value):
    """A negative or undefined time is refused by name; so is a pass without duration."""
    with pytest.raises(ConfigError) as caught:
        CostModel(**{field: value})

    assert caught.value.variable == f"CostModel.{field}"
