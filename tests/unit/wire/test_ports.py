"""Which ports a worker occupies, and when the kernel may take one first."""

from __future__ import annotations

import pytest

from forwardpass.wire.ports import PortBlock, ephemeral_warning, parse_port_range, rank_port

DEBIAN = PortBlock(32768, 60999)


@pytest.mark.parametrize(
    ("base", "dp_size", "expected"),
    [(20380, 0, "20380-20380"), (20380, 1, "20380-20380"), (20380, 2, "20380-20382"), (1024, 8, "1024-1032")],
)
def test_block_of_a_worker(base: int, dp_size: int, expected: str) -> None:
    """WIRE-37, D-14: with several ranks the block holds the synchroniser's port, base + dp_size, too."""
    assert str(PortBlock.of(base, dp_size)) == expected


def test_rank_port() -> None:
    """WIRE-35: a rank binds base plus its global rank."""
    assert rank_port(20380, 3) == 20383


@pytest.mark.parametrize(
    ("base", "dp_size", "block"),
    [
        (20380, 1, None),
        (32767, 1, None),
        (32766, 1, None),
        (32767, 2, "32767-32769"),
        (32766, 2, "32766-32768"),
        (32765, 2, None),
        (40000, 1, "40000-40000"),
        (32768, 1, "32768-32768"),
        (60999, 1, "60999-60999"),
        (60999, 4, "60999-61003"),
        (61000, 1, None),
    ],
)
def test_when_a_block_overlaps(base: int, dp_size: int, block: str | None) -> None:
    """WIRE-37, D-14, PIT-46: overlap is inclusive at both ends; the documented vectors hold."""
    warning = ephemeral_warning(base, dp_size, DEBIAN)

    assert (warning is None) == (block is None)
    assert warning is None or warning.startswith(f"FPM ports {block} overlap")


def test_the_warning_word_for_word() -> None:
    """WIRE-37: the text is the documented one to the letter, because operators search for it."""
    assert ephemeral_warning(40000, 2, DEBIAN) == (
        "FPM ports 40000-40002 overlap this host's ephemeral port range 32768-60999; an outbound connection "
        "can take one of them first and the publisher bind then fails intermittently. "
        "Set DYN_FORWARDPASS_METRIC_PORT to a base below 32768."
    )


def test_no_warning_without_a_range() -> None:
    """WIRE-37: where the range cannot be read nothing is said."""
    assert ephemeral_warning(40000, 2, None) is None


@pytest.mark.parametrize("text", ["32768\t60999\n", " 32768 60999 "])
def test_the_kernel_file(text: str) -> None:
    """WIRE-37: the kernel's two numbers are read whatever blanks stand around them."""
    assert parse_port_range(text) == DEBIAN


@pytest.mark.parametrize(
    "text", ["", "32768", "1 2 3", "a b", "-1 5", "1.0 2", "١ ٢", "1_0 20", "9" * 5000 + " 1", "+1 2"]
)
def test_other_files(text: str) -> None:
    """WIRE-37: anything but two plain numbers is as good as no file."""
    assert parse_port_range(text) is None


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((1, 4), (4, 9), True), ((1, 3), (4, 9), False), ((5, 6), (4, 9), True), ((9, 12), (4, 9), True)],
)
def test_blocks_overlap(first: tuple[int, int], second: tuple[int, int], expected: bool) -> None:
    """Blocks are inclusive, and overlapping does not depend on which is asked."""
    one, other = PortBlock(*first), PortBlock(*second)

    assert one.overlaps(other) == other.overlaps(one) == expected
