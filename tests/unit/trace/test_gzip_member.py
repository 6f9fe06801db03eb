"""Gzip members of every installed compressor."""

from __future__ import annotations

import gzip
import zlib

import pytest

from forwardpass.trace import gzip_member
from forwardpass.trace.gzip_member import Compressor, available, compress_member, compressor_name

COMPRESSORS = available()


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
@pytest.mark.parametrize("data", [b"", b"x", b'{"timestamp":1}\n' * 100_000, bytes(range(256)) * 10])
def test_every_compressor_makes_one_complete_member(compressor: Compressor, data: bytes) -> None:
    """TRACE-41: the output is exactly one gzip member, which the standard library reads back."""
    member = compressor.compress(data)
    inflate = zlib.decompressobj(31)

    assert inflate.decompress(member) == data
    assert inflate.eof
    assert inflate.unused_data == b""


@pytest.mark.parametrize("compressor", COMPRESSORS, ids=lambda c: c.name)
def test_members_of_all_compressors_may_follow_each_other(compressor: Compressor) -> None:
    """TRACE-06: a file may hold members of several writers, one after the other."""
    parts = [other.compress(other.name.encode()) for other in (compressor, *COMPRESSORS)]

    expected = b"".join(other.name.encode() for other in (compressor, *COMPRESSORS))
    assert gzip.decompress(b"".join(parts)) == expected


def test_the_standard_library_is_always_there() -> None:
    """zlib is the last choice and needs nothing installed."""
    assert COMPRESSORS[-1].name == "zlib 6"
    assert compressor_name() == COMPRESSORS[0].name
    assert compress_member(b"abc") == COMPRESSORS[0].compress(b"abc")


def test_libraries_that_are_missing_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the optional libraries zlib does the work."""
    monkeypatch.setitem(__import__("sys").modules, "deflate", None)
    monkeypatch.setitem(__import__("sys").modules, "isal", None)

    assert [compressor.name for compressor in gzip_member.available()] == ["zlib 6"]
