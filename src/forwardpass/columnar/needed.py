"""Knows which columns a query needs, so that the others are not made.

What is not certain counts as all: any ``*``, whole rows, joins by common names, and every form of query that
is not known here. DuckDB itself says what a query consists of.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from forwardpass.columnar.schema import COLUMNS

__all__ = ["needed_columns"]

_KNOWN = {
    "SELECT_NODE", "SET_OPERATION_NODE", "ORDER_MODIFIER", "LIMIT_MODIFIER", "DISTINCT_MODIFIER",
    "ORDER_DEFAULT", "ASCENDING", "DESCENDING", "BASE_TABLE", "SUBQUERY", "JOIN",
}  # fmt: skip
"""Parts of a query that need the columns they name and no other."""

_JOINS = {"REGULAR", "CROSS"}
"""Kinds of joins that say by themselves what they join on."""

_DERIVED = {"observed_at": "observed_at_unix_ms"}


def needed_columns(connection: Any, query: str, tables: Collection[str]) -> set[str] | None:
    """Return the columns of ``tables`` that ``query`` may need, at least one; ``None`` stands for all."""
    ((text,),) = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [query]).fetchall()
    document = json.loads(text)
    if document.get("error"):
        return None
    parts = list(_parts(document["statements"]))
    if any(_is_unknown(part) for part in parts):
        return None
    relations = {
        str(part[key]).lower()
        for part in parts
        if "class" not in part and "query_location" in part
        for key in ("alias", "table_name")
        if part.get(key)
    }
    named = {text.lower() for part in parts for value in part.values() for text in _texts(value)}
    asked = {str(part["table_name"]).lower() for part in parts if "table_name" in part}
    if not asked or not asked <= set(tables):  # a common table expression, or a table of DuckDB's own
        return None
    whole_rows = [part["column_names"] for part in parts if len(part.get("column_names") or ()) == 1]
    if any(names[0].lower() in relations for names in whole_rows):
        return None
    named |= {source for name, source in _DERIVED.items() if name in named}
    return {column.name for column in COLUMNS if column.name in named} or {"counter_id"}


def _is_unknown(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    if "class" in part:
        return bool(part["class"] == "STAR")
    return (
        (isinstance(kind, str) and kind not in _KNOWN)
        or part.get("ref_type", "REGULAR") not in _JOINS
        or bool(part.get("column_name_alias"))
    )


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a JSON document."""
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _parts(item)
    elif isinstance(value, list):
        for item in value:
            yield from _parts(item)


def _texts(value: Any) -> Iterator[str]:
    """Yield a text, or the texts in a list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        yield from (item for item in value if isinstance(item, str))
