"""Laws of quantiles."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from forwardpass.analyze.quantiles import Quantiles

positive = st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False)


@given(st.lists(positive, min_size=1, max_size=60), st.integers(1, 100))
def test_quantile_is_the_nearest_rank(values: list[float], percent: int) -> None:
    """The quantile is the element at the ceiling of share times count in the sorted numbers."""
    found = Quantiles()
    for value in values:
        found.add(value)

    rank = math.ceil(percent * len(values) / 100 - 1e-9)
    assert found.quantile(percent / 100) == sorted(values)[rank - 1]
