"""What holds for every test of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from engine_process import end_all


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    """End the processes that a test started and, since it failed, did not end: others must not suffer."""
    yield
    end_all()
