"""Foreign values as JSON values."""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forwardpass.jsonsafe import MAX_DEPTH, json_safe


class Mode(enum.IntEnum):
    FULL = 2


class Colour(enum.Enum):
    RED = "r"


@dataclasses.dataclass
class Config:
    size: int
    mode: Mode


class Scalar:
    def item(self) -> float:
        return 1.5


class Dtype:
    def __str__(self) -> str:
        return "torch.bfloat16"


class Plain:
    pass


class Rude:
    def __str__(self) -> str:
        raise RuntimeError

    def item(self) -> int:
        raise RuntimeError


class Text(str):
    pass


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (Mode.FULL, "FULL"),
        (Colour.RED, "RED"),
        (True, True),
        (None, None),
        (7, 7),
        (0.5, 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        ("text", "text"),
        (Text("text"), "text"),
        ("\ud800", "\\ud800"),
        ({1: Mode.FULL, Colour.RED: 2, None: 3}, {"1": "FULL", "RED": 2, "None": 3}),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset(["b", 1]), [1, "b"]),
        ((1, [2, (3,)]), [1, [2, [3]]]),
        (Config(3, Mode.FULL), {"size": 3, "mode": "FULL"}),
        (Config, str(Config)),
        (Scalar(), 1.5),
        (Dtype(), "bfloat16"),
        (Rude(), "<Rude>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_value_becomes(value: Any, wanted: Any) -> None:
    """ART-13: Enums become names before numbers; sets are sorted; scalars are taken out; all else is text."""
    assert json_safe(value) == wanted
    assert type(json_safe(value)) is type(wanted)


def test_two_objects_of_a_kind_become_the_same() -> None:
    """ART-13: No address gets into the text, so that ranks and runs can be compared."""
    assert json_safe(Plain()) == json_safe(Plain())
    assert "0x" not in json_safe(Plain())


def test_what_holds_itself_ends() -> None:
    """ART-13: Endless nesting becomes text at some depth."""
    endless: list[Any] = []
    endless.append(endless)
    depth = 0
    value = json_safe(endless)
    while isinstance(value, list):
        value, depth = value[0], depth + 1

    assert depth == MAX_DEPTH


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.tuples(inner, inner)
        ),
        max_leaves=20,
    )
)
def test_everything_becomes_json(value: Any) -> None:
    """ART-13: The result is JSON that reads back to itself, and coercing it again changes nothing."""
    safe = json_safe(value)

    assert json.loads(json.dumps(safe, allow_nan=False)) == safe
    assert json_safe(safe) == safe
