"""Strangers' text on a terminal."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.cli.terminal import json_for_terminal, printable, redraws


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("worker-7", "worker-7"),
        ("日本 ü", "日本 ü"),
        ("\x1b[31mred\x1b[0m", "?[31mred?[0m"),
        ("a\nb\rc\td\x00", "a?b?c?d?"),
        ("\x9b2J", "?2J"),
        ("evil\u202egnp", "evil?gnp"),
        ("\ud800", "?"),
        ("x" * 300, "x" * 200),
    ],
)
def test_printable(text: str, shown: str) -> None:
    """Control characters and invisible marks become question marks; the length is bounded."""
    assert printable(text) == shown


@given(st.text())
def test_printable_is_printable(text: str) -> None:
    """Whatever the text, what is shown has only characters with a visible form."""
    assert printable(text).isprintable()


@given(st.recursive(st.text() | st.integers(), lambda one: st.lists(one) | st.dictionaries(st.text(), one)))
def test_json_keeps_its_value(value: object) -> None:
    """Escaping for the terminal changes no value, and leaves nothing that a terminal may obey."""
    document = json.dumps(value, ensure_ascii=False)
    safe = json_for_terminal(document)

    assert json.loads(safe) == json.loads(document)
    assert not any(0x7F <= ord(letter) < 0xA0 or letter == "\u202e" for letter in safe)


@pytest.mark.parametrize(("term", "can"), [("xterm", True), ("dumb", False), (None, False)])
def test_a_dumb_terminal_is_not_drawn_over(
    term: str | None, can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that calls itself dumb, or does not say what it is, gets whole lines; so does a file."""
    if term is None:
        monkeypatch.delenv("TERM", raising=False)
    else:
        monkeypatch.setenv("TERM", term)

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert redraws(Terminal()) is can
    assert not redraws(io.StringIO())
