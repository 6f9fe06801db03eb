"""Knows how the answer to a query is printed, block by block: as a table, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import chain
from typing import Any, Protocol

import msgspec

from forwardpass.cli.output import write_bytes, write_lines
from forwardpass.cli.terminal import json_for_terminal, printable

__all__ = ["Rows", "print_csv", "print_json", "print_table"]

_CELL = 200
"""Characters of a cell of a table that are shown."""


_PLAN = ["explain_key", "explain_value"]
"""Columns of what EXPLAIN gives: the value is a drawing."""


class Rows(Protocol):
    """An answer: names of columns, and blocks of rows."""

    names: list[str]

    def __iter__(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield blocks."""


def print_table(answer: Rows) -> None:
    """Print a table. Its columns are as wide as the first block of rows needs."""
    blocks = iter(answer)
    first = next(blocks, [])
    if answer.names == _PLAN:
        write_lines(printable(line, _CELL) for _, plan in first for line in plan.splitlines())
        return
    cells = [[_cell(value) for value in row] for row in first]
    names = [printable(name, _CELL) for name in answer.names]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    right = [
        all(value is None or _is_number(value) for value in column)
        for column in zip(*first, strict=True)
    ] or [False] * len(names)  # fmt: skip
    write_lines([_line(names, widths, right)])
    write_lines(_line(row, widths, right) for row in cells)
    for block in blocks:
        write_lines(_line([_cell(value) for value in row], widths, right) for row in block)


def print_json(answer: Rows) -> None:
    """Print one JSON array with an object for each row. What JSON has no form for is text, NaN is null."""
    terminal = sys.stdout.isatty()
    encode = msgspec.json.Encoder(decimal_format="number", enc_hook=str).encode
    rows = (dict(zip(answer.names, map(_jsonable, row), strict=True)) for block in answer for row in block)
    lines = chain([b"["], _separated(encode(row) for row in rows), [b"]"])
    for line in lines:
        if terminal:
            write_lines([json_for_terminal(line.decode())])
        else:
            write_bytes([line])


def print_csv(answer: Rows) -> None:
    """Print a line of names and a line for each row; null is an empty field."""
    for block in chain([[tuple(answer.names)]], answer):
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([_text(value) for value in row] for row in block)
        write_bytes([text.getvalue().removesuffix("\n").encode()])


def _separated(documents: Iterable[bytes]) -> Iterator[bytes]:
    """Yield documents, a comma after each but the last."""
    last = None
    for document in documents:
        if last is not None:
            yield last + b","
        last = document
    if last is not None:
        yield last


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    padded = (
        cell.rjust(width) if to_right else cell.ljust(width)
        for cell, width, to_right in zip(cells, widths, right, strict=True)
    )
    return "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    return "NULL" if value is None else printable(str(_text(value)), _CELL)


def _text(value: Any) -> Any:
    return value.isoformat(" ", "milliseconds") if isinstance(value, datetime) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _jsonable(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        return Decimal(value)
    if isinstance(value, list):
        return [_jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(name): _jsonable(item) for name, item in value.items()}
    return value
