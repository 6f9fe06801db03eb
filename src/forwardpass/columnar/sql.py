"""Knows how rows of traces are asked in SQL: an embedded DuckDB that holds them and can touch nothing else.

The database lives in memory up to a limit, and beyond it in a temporary folder of its own. Before the first
row comes in it is closed off: no files, no network, no extensions, no variables of this process, and a
configuration that SQL cannot change.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from forwardpass.columnar.extra import arrow_library, load
from forwardpass.columnar.needed import needed_columns
from forwardpass.columnar.schema import COLUMNS, Kind, arrow_schema
from forwardpass.errors import QueryError

__all__ = ["MEMORY_LIMIT_BYTES", "Answer", "TraceDatabase", "trace_database"]

MEMORY_LIMIT_BYTES = 80 << 20
"""What the database may hold by default: with the libraries and a batch of rows, less than 256 MiB."""

_BLOCK = 1000

_THREAD_BYTES = 80 << 20
"""Memory for each thread. Sorting 1.2 million whole rows in 80 MiB succeeded with one thread (230 MiB for the
whole process) and failed with two (2026-12-01)."""

_TYPES = {Kind.TEXT: "VARCHAR", Kind.INTEGER: "BIGINT", Kind.NUMBER: "DOUBLE", Kind.JSON: "VARCHAR"}

_READ_ONLY = ("SELECT", "EXPLAIN")

_PINNED = "failed to pin block"
"""How DuckDB before 2 says while rows come in that the memory does not suffice: as a failed commit."""


@contextmanager
def trace_database(memory_limit_bytes: int = MEMORY_LIMIT_BYTES) -> Iterator[TraceDatabase]:
    """Give an empty database; when the block ends, it and its temporary folder are gone.

    Raises :class:`~forwardpass.errors.MissingExtra`.
    """
    duckdb = load("duckdb")
    with tempfile.TemporaryDirectory("-sql", "fpm-") as folder:
        connection = duckdb.connect(
            ":memory:",
            config={
                "memory_limit": f"{memory_limit_bytes}B",
                "threads": max(1, min(os.cpu_count() or 1, memory_limit_bytes // _THREAD_BYTES)),
                "temp_directory": folder,
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
            },
        )
        try:
            yield TraceDatabase(connection)
        finally:
            connection.close()


class Answer:
    """What a query gives: the names of the columns, and the rows in blocks.

    Iterating raises :class:`~forwardpass.errors.QueryError` for what fails in the middle.
    """

    def __init__(self, connection: Any, query: str) -> None:
        self._connection = connection
        self._query = query
        self.names = _distinct([column[0] for column in connection.description])

    def __iter__(self) -> Iterator[list[tuple[Any, ...]]]:
        with _said(self._query):
            while block := self._connection.fetchmany(_BLOCK):
                yield block


class TraceDatabase:
    """Tables of rows, each with the columns of a trace and ``observed_at``, a timestamp in UTC."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._columns: dict[str, list[str]] = {}
        for setting in (
            "TimeZone = 'UTC'",
            "python_enable_replacements = false",
            "enable_progress_bar = false",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            connection.execute(f"SET {setting}")

    def create(self, table: str) -> None:
        """Make an empty table."""
        self._create(table, {column.name for column in COLUMNS})

    def narrow(self, query: str) -> None:
        """Leave out the columns that ``query``, which :meth:`check` accepts, does not need of any table.

        To be called before a table is filled; another query may then find columns missing.
        """
        with _said(query):
            needed = needed_columns(self._connection, query, self._columns.keys())
        if needed is not None:
            for table in self._columns:
                self._connection.execute(f'DROP TABLE "{table}"')
                self._create(table, needed)

    def columns(self, table: str) -> list[str]:
        """Return the columns that :meth:`fill` puts into a table, in order."""
        return self._columns[table]

    def fill(self, table: str, batches: Iterable[Any]) -> None:
        """Put rows into a table: record batches of its columns. Raises what reading them raises."""
        pa = arrow_library()
        schema = pa.schema([arrow_schema().field(name) for name in self._columns[table]])
        failed: list[BaseException] = []
        stream = pa.RecordBatchReader.from_batches(schema, _watched(batches, failed))
        names = ", ".join(f'"{name}"' for name in self._columns[table])
        self._connection.register("incoming", stream)
        try:
            with _said(table):
                self._connection.execute(f'INSERT INTO "{table}" ({names}) SELECT {names} FROM incoming')
        except QueryError:
            if failed:  # DuckDB tells only its words
                raise failed[0] from None
            raise
        finally:
            self._connection.unregister("incoming")

    def _create(self, table: str, names: Collection[str]) -> None:
        made = [column for column in COLUMNS if column.name in names]
        columns = [f'"{column.name}" {_TYPES[column.kind]}' for column in made]
        if "observed_at_unix_ms" in names:
            columns.append("observed_at TIMESTAMP AS (make_timestamp(observed_at_unix_ms * 1000))")
        self._connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
        self._columns[table] = [column.name for column in made]

    def check(self, query: str) -> None:
        """Raise :class:`~forwardpass.errors.QueryError` unless ``query`` is one that the tables answer."""
        with _said(query):
            statements = self._connection.extract_statements(query)
            kinds = [statement.type.name for statement in statements]
            if kinds == ["SELECT"] and _first_word(query) == "PRAGMA":
                kinds = ["PRAGMA"]  # before DuckDB 2 some of them count as a SELECT
            if len(kinds) != 1 or kinds[0] not in _READ_ONLY:
                found = ", ".join(kinds) or "nothing"
                raise QueryError(query, f"SQL: expected one SELECT, found {found}")
            if kinds[0] == "SELECT":
                self._connection.execute("EXPLAIN " + statements[0].query)

    def ask(self, query: str) -> Answer:
        """Return the answer to a query that :meth:`check` accepts; raises as there."""
        self.check(query)
        with _said(query):
            self._connection.execute(query)
        return Answer(self._connection, query)


def _watched(batches: Iterable[Any], failed: list[BaseException]) -> Iterator[Any]:
    """Yield batches, and keep what ends them before their time."""
    try:
        yield from batches
    except BaseException as error:
        failed.append(error)
        raise


@contextmanager
def _said(query: str) -> Iterator[None]:
    """Turn an error of DuckDB's into ours, in one line."""
    duckdb = load("duckdb")
    try:
        yield
    except duckdb.Error as error:
        if isinstance(error, duckdb.OutOfMemoryException) or _PINNED in str(error):
            # DuckDB's advice is to change settings that are locked.
            words = "the query needs more memory than the database may have (--memory)"
            raise QueryError(query, words) from error
        # Below an empty line stands the query once more, with a mark where it is wrong.
        words = " ".join(str(error).partition("\n\nLINE ")[0].split())
        raise QueryError(query, words) from error


def _first_word(query: str) -> str:
    return query.split(None, 1)[0].upper()


def _distinct(names: list[str]) -> list[str]:
    """Return the names, each once: a later one of the same name gets a number."""
    found: dict[str, None] = {}
    for name in names:
        number, new = 1, name
        while new in found:
            number += 1
            new = f"{name}_{number}"
        found[new] = None
    return list(found)
