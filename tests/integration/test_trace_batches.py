"""Batches of the trace writer share their room in memory; nothing of one gets into another."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_files import line, make_writer, members, segment

from forwardpass.counters import Counters, DropReason
from forwardpass.trace import writer as trace_writer
from forwardpass.trace.writer import FLUSH_BYTES


def test_a_member_holds_its_own_batch_alone(tmp_path: Path) -> None:
    """TRACE-41: after a longer batch, and after a row longer than any batch, a short one is just itself."""
    sizes = [9_000, 50, 3 * FLUSH_BYTES, 60, FLUSH_BYTES - 1, 10_000, 10]
    writer = make_writer(tmp_path, roll_bytes=16 * FLUSH_BYTES)
    batches = [line(number, size) for number, size in enumerate(sizes)]
    for batch in batches:
        writer.append(batch, 1)
        writer.flush()
    writer.close()

    assert members(segment(tmp_path, 0)) == batches


def test_a_batch_that_cannot_be_compressed_is_not_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRACE-44: a batch that memory does not suffice for is lost and counted; the one after it is whole."""

    def out_of_memory(text: memoryview) -> bytes:
        raise MemoryError

    counters = Counters()
    writer = make_writer(tmp_path, counters=counters)
    with monkeypatch.context() as patch:
        patch.setattr(trace_writer, "compress_member", out_of_memory)
        writer.append(line(0, 3 * FLUSH_BYTES), 1)
        writer.flush()
    writer.append(line(1), 1)
    writer.close()

    assert members(segment(tmp_path, 0)) == [line(1)]
    assert counters.lost == {DropReason.INTERNAL_ERROR: 1}
