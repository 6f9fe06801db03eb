"""Knows the command that asks traces in SQL: ``trace sql``.

Exit codes: 0 done; 2 wrong use, SQL that is not accepted, or the extra is missing; 3 nothing there or not
readable; 4 some bytes or lines could not be used.
"""

from __future__ import annotations

import re
from pathlib import Path

import click

from forwardpass.cli.amounts import bytes_option
from forwardpass.cli.numbers import refused
from forwardpass.cli.output import ending_quietly
from forwardpass.cli.sql_view import print_csv, print_json, print_table
from forwardpass.cli.trace_paths import find, paths_argument, unverified_option
from forwardpass.cli.trace_problems import say_problems
from forwardpass.columnar.read import ColumnReader
from forwardpass.columnar.sql import MEMORY_LIMIT_BYTES, trace_database
from forwardpass.errors import ConfigError

__all__ = ["sql"]

DEFAULT_TABLE = "trace"

_TABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]{0,62})=(.+)", re.DOTALL)


def _tables_option(
    ctx: click.Context, param: click.Parameter, value: tuple[str, ...]
) -> dict[str, list[str]]:
    """Return table -> paths from the texts of an option that may be repeated."""
    tables: dict[str, list[str]] = {}
    for text in value:
        match = _TABLE.fullmatch(text)
        if match is None:
            raise refused(param, text, "NAME=PATH, the name of letters, digits and underscores")
        tables.setdefault(match[1].lower(), []).append(match[2])
    return tables


@click.command()
@click.argument("query", metavar="QUERY")
@paths_argument
@click.option(
    "--table", "-t", "tables", multiple=True, callback=_tables_option, metavar="NAME=PATH",
    help="One more table of that name; may be repeated.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="One JSON array of objects.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV with a line of names.")
@click.option(
    "--memory", callback=bytes_option, help="What the database may hold in memory (80MiB), such as 2GB."
)  # fmt: skip
@unverified_option
def sql(
    query: str,
    paths: tuple[str, ...],
    tables: dict[str, list[str]],
    as_json: bool,
    as_csv: bool,
    memory: int | None,
    unverified: bool,
) -> int:
    """Ask traces in SQL: the table `trace` has one flat row for each row of the traces at the paths.

    Its columns are those of `trace export`, and observed_at, a timestamp in UTC; DESCRIBE trace lists them.
    The database is DuckDB: in memory, beyond --memory in the system's folder for temporary files, read-only,
    and without access to any file or network. With --table and no path there is no table `trace`.
    Needs pip install 'forwardpass[analyze]'.

    Exit code 4 if some bytes or lines could not be used.

    \b
    Examples:
      forwardpass trace sql "SELECT dp_rank, max(wall_time) FROM trace GROUP BY dp_rank" /var/log/fpm
      forwardpass trace sql "SELECT max(a.wall_time), max(b.wall_time) FROM a, b" -t a=old -t b=new
    """
    if as_json and as_csv:
        raise ConfigError("--csv", "--json", "one of them")
    sources = _tables(paths, tables)
    readers = []
    with trace_database(memory or MEMORY_LIMIT_BYTES) as database:
        for table in sources:
            database.create(table)
        database.check(query)  # before anything is read
        database.narrow(query)
        for table, files in sources.items():
            reader = ColumnReader(files, unverified=unverified, columns=database.columns(table))
            readers.append(reader)
            database.fill(table, reader.batches())
        answer = database.ask(query)
        with ending_quietly():
            (print_json if as_json else print_csv if as_csv else print_table)(answer)
    reports = [reader.report for reader in readers]
    problems = (problem for report in reports for problem in report.problems())
    return say_problems(problems, sum(report.problem_count() for report in reports))


def _tables(paths: tuple[str, ...], named: dict[str, list[str]]) -> dict[str, list[Path]]:
    """Return table -> files. Raises as :func:`~forwardpass.cli.trace_paths.find` for each."""
    tables = {} if named and not paths else {DEFAULT_TABLE: find(paths)}
    for table, more in named.items():
        if table in tables:
            raise ConfigError("--table", table, f"another name than {DEFAULT_TABLE}, which the paths have")
        tables[table] = find(tuple(more))
    return tables
