"""How the text of a variable becomes a value, and which texts are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from forwardpass.config import parse
from forwardpass.wire.keys import Endpoint


@pytest.mark.parametrize("text", ["1", "true", "TRUE", " on ", "Yes", "\tyEs\n"])
def test_true(text: str) -> None:
    """TRACE-01: these words switch on, in any case, with blanks around them."""
    assert parse.boolean(text) is True


@pytest.mark.parametrize("text", ["0", "false", "OFF", " no ", "", "   "])
def test_false(text: str) -> None:
    """TRACE-01: these words switch off; blank is off as well."""
    assert parse.boolean(text) is False


@pytest.mark.parametrize("text", ["maybe", "2", "y", "t", "enabled", "1.0", "01", "true false"])
def test_neither_true_nor_false(text: str) -> None:
    """TRACE-01: every other word is refused."""
    with pytest.raises(ValueError):
        parse.boolean(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (" 42 ", 42),
        ("+7", 7),
        ("007", 7),
        ("0" * 40 + "9", 9),
        ("18446744073709551615", 2**64 - 1),
        ("\t5\n", 5),
    ],
)
def test_integer_forms(text: str, value: int) -> None:
    """TRACE-02: blanks around, one leading plus and leading zeros are accepted, up to 2**64 - 1."""
    assert parse.integer()(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "0", "-0", "-1", "+", "++1", "+ 1", "1_000", "1.0", "1e3", "0x10", "١٢", "１２", "1 2",
        "1\x00", "18446744073709551616", "9" * 5000, "one", "²",
    ],
)  # fmt: skip
def test_texts_that_are_no_positive_integer(text: str) -> None:
    """TRACE-02: Python's own leniency (underscores, other digits) is not accepted, nor is 0 or blank."""
    with pytest.raises(ValueError):
        parse.integer()(text)


def test_integer_bounds_are_inclusive() -> None:
    """Both ends of an integer's range are accepted and the next values are not."""
    number = parse.integer(1024, 49151)

    assert (number("1024"), number("49151")) == (1024, 49151)
    for text in ("1023", "49152"):
        with pytest.raises(ValueError):
            number(text)


@pytest.mark.parametrize("text", ["", "  ", "\t"])
def test_blank_port_is_unset(text: str) -> None:
    """WIRE-35, D-12: a blank port means that none is set."""
    assert parse.port_or_none(1024, 49151)(text) is None


@pytest.mark.parametrize("text", ["80", "49152", "20380x", "-20380", "0"])
def test_other_ports(text: str) -> None:
    """WIRE-35: a base port outside 1024 to 49151, or no integer, is refused."""
    with pytest.raises(ValueError):
        parse.port_or_none(1024, 49151)(text)


@pytest.mark.parametrize(("text", "value"), [("0", 0.0), ("10", 10.0), (" 0.25 ", 0.25)])
def test_seconds(text: str, value: float) -> None:
    """A number of seconds is a plain decimal."""
    assert parse.seconds(text) == value


@pytest.mark.parametrize("text", ["", "-1", "inf", "nan", "1e3", ".5", "5.", "1_0", "9" * 400, "١"])
def test_other_seconds(text: str) -> None:
    """Anything that is not a plain finite decimal is refused."""
    with pytest.raises(ValueError):
        parse.seconds(text)


def test_choice_ignores_case_and_blanks() -> None:
    """TRACE-02: a word of the list is found in any case, and comes back in the list's form."""
    mode = parse.choice(("sampled", "full"))

    assert (mode(" Full\n"), mode("SAMPLED")) == ("full", "sampled")
    for text in ("", "fulll", "sampled,full"):
        with pytest.raises(ValueError):
            mode(text)


@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("/data/fpm", "/data/fpm"),
        (" /data/fpm ", "/data/fpm"),
        ("/data/fpm.jsonl.gz", "/data/fpm"),
        ("/data/fpm.jsonl", "/data/fpm"),
        ("/data/fpm.gz", "/data/fpm.gz"),
        ("fpm", "fpm"),
        ("/data/fpm.jsonl.jsonl.gz", "/data/fpm.jsonl"),
    ],
)
def test_trace_prefix(text: str, prefix: str) -> None:
    """TRACE-03: blanks around and one trailing ``.jsonl.gz`` or ``.jsonl`` are not part of the prefix."""
    assert parse.trace_prefix(text) == prefix


@pytest.mark.parametrize("text", ["", "  ", "/", "/data/", ".jsonl", "/data/.jsonl.gz"])
def test_prefix_without_a_name(text: str) -> None:
    """TRACE-03: a prefix that is blank or ends without a file name is refused."""
    with pytest.raises(ValueError):
        parse.trace_prefix(text)


def test_endpoint() -> None:
    """An endpoint is read without the blanks around it."""
    assert parse.endpoint(" a.b.c ") == Endpoint("a", "b", "c")


@pytest.mark.parametrize(
    "parser",
    [parse.boolean, parse.integer(), parse.seconds, parse.choice(("a",)), parse.endpoint, parse.trace_prefix],
)
def test_refusals_are_value_errors(parser: Callable[[str], Any]) -> None:
    """Every parser refuses by ``ValueError`` alone, so that one caller can name the variable."""
    with pytest.raises(ValueError):
        parser("\x00 no, \ud800")
