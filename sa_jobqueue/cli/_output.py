"""Output of the commands: lines and tables for people, or with `--json` one JSON document for programs.

All output goes through this module, and values from the database through `printable`; a test ensures that no other module
of this package writes to a stream.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

import click
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text
from sqlalchemy import inspect

from sa_jobqueue.display.durations import shown_duration
from sa_jobqueue.display.objects import objects_in
from sa_jobqueue.display.printable import printable, printable_json, span
from sa_jobqueue.display.redaction import ERRORS, PAYLOADS, error_line, redacted, redacted_error

Columns: TypeAlias = Mapping[str, str | Callable[[Any], Any]]
"""The values of a table's rows, by heading: the name of an attribute, or a function of the row."""

_JSON: Final = "sa_jobqueue.json"
"""In a context's `meta`: whether the command has `--json`."""
_INTERNAL: Final = frozenset({"changed_xid", "root_id"})
_PIPED_WIDTH: Final = 200
"""Width of a table that is not written to a terminal."""
_LEAST_WIDTH: Final = 10
"""Cells to which a column of a table is cut at most."""


def console() -> Console:
    """Return a console on the current standard output, without markup."""
    is_cut = sys.stdout is not None and sys.stdout.isatty()  # None: it is closed
    return Console(width=None if is_cut else _PIPED_WIDTH, highlight=False, markup=False)


def echo(text: Any, *, err: bool = False) -> None:
    """Print one line."""
    click.echo(printable(str(text)), err=err)


def rewrite_line(line: str) -> None:
    """Print a line of progress in place of the one before, cut to the width of the terminal."""
    print(f"\r\x1b[2K{printable(line)[: shutil.get_terminal_size().columns - 1]}", end="", flush=True)


def echo_script(statements: Iterable[str]) -> None:
    """Print SQL statements as one transaction."""
    for statement in ("BEGIN", *statements, "COMMIT"):
        click.echo(printable(f"{statement};", newline="\n") + "\n" * (statement != "COMMIT"))


def set_json(context: click.Context, option: click.Parameter, is_set: bool) -> None:
    """Store whether the command prints JSON; the callback of the option."""
    context.meta[_JSON] = is_set


def is_json() -> bool:
    """Return whether the command prints JSON."""
    return bool(click.get_current_context().meta.get(_JSON))


def print_result(document: Any, *parts: RenderableType, indent: int | None = 2) -> None:
    """Print the result of a command: with `--json` its document, otherwise its parts, one below the other."""
    if is_json():
        print_json(document, indent=indent)
        return
    for part in parts:
        if isinstance(part, str):
            echo(part)
        else:
            console().print(part, soft_wrap=isinstance(part, Text))


def print_changed(noun: str, names: Sequence[Any], change: str, *, dry_run: bool) -> None:
    """Print the changes, made or with `dry_run` planned."""
    change = f"would be {change}" if dry_run else change
    print_result({change.replace(" ", "_"): names}, f"{counted(len(names), noun)} {change}")


def print_json(document: Any, *, indent: int | None = 2) -> None:
    """Print one JSON document: instants in ISO 8601 and UTC, durations in seconds, ids as text."""
    click.echo(printable_json(document, default=plain, indent=indent))


def plain(value: Any) -> Any:
    """Convert a value to a JSON type. Raises: TypeError."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Enum():
            return value.value
    raise TypeError(f"{type(value).__name__} cannot be converted to JSON")


def row_of(entity: Any, *, without: Iterable[str] = (), type_name: str | None = None) -> dict[str, Any]:
    """Return the columns of a mapped object by name, without internal ones, and with payloads redacted.

    `type_name`: the job type whose redaction applies; by default that of the object.
    """
    left_out = _INTERNAL | set(without)
    row = {attr.key: getattr(entity, attr.key) for attr in inspect(type(entity)).column_attrs if attr.key not in left_out}
    # The payloads of a chain are its last job's.
    kind = type_name or row.get("last_type_name") or row.get("type_name")
    row |= {name: redacted(kind, row[name]) for name in PAYLOADS & row.keys()}
    return row | {name: redacted_error(kind, row[name]) for name in ERRORS & row.keys()}


def table_of(title: str, columns: Columns | Sequence[str], rows: Iterable[Any]) -> RenderableType:
    """Return a table, one line a row on a terminal: the most important columns come first, and are the last to be cut.

    `columns`: how to read the cells of a row, or the headings of rows that are sequences of cells.
    """
    output, headings = console(), [*columns]
    readers = [*columns.values()] if isinstance(columns, Mapping) else None
    values = [
        row if readers is None else [getattr(row, reader) if isinstance(reader, str) else reader(row) for reader in readers]
        for row in rows
    ]
    cells = [[Text(_cell(value) if output.is_terminal else shown(value)) for value in row] for row in values]
    widths = _widths(headings, cells)
    if output.is_terminal:
        if _excess(widths, output.width) > 0:
            cells = [[Text(_short_cell(value)) for value in row] for row in values]
        widths = _fitted(_widths(headings, cells), output.width)
    table = Table(header_style="bold")
    for place, (heading, width) in enumerate(zip(headings, widths, strict=False)):
        if output.is_terminal:
            table.add_column(heading, no_wrap=True, overflow="ellipsis", width=width)
        else:  # for another program, or a file: nothing is cut
            table.add_column(heading, no_wrap=place == 0, overflow="fold")
    for texts in cells:
        table.add_row(*texts[: len(widths)])
    hidden = headings[len(widths) :]
    note = [Text(f"Not shown: {', '.join(hidden)}. A wider terminal or --json has them.")] if hidden else []
    return Group(_title(title), table, *note)


def short_id(value: UUID) -> str:
    """Return the ends of an id, which commands accept: the start, for an index, and the end, which is random."""
    return f"{str(value)[:8]}..{str(value)[-6:]}"


def _widths(headings: Sequence[str], cells: Sequence[Sequence[Text]]) -> list[int]:
    return [max(map(_cell_len, column)) for column in zip(headings, *cells, strict=True)]


def _excess(widths: Sequence[int], available: int) -> int:
    return sum(widths) + 3 * len(widths) + 1 - available


def _cell(value: Any) -> str:
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if isinstance(value, datetime) else shown(value)


def _short_cell(value: Any) -> str:
    if isinstance(value, datetime):
        # By the clock of this machine: `--json` and wide terminals have the time of the database.
        ahead = value - datetime.now(UTC)
        return f"in {span(ahead)}" if ahead > timedelta(0) else f"{span(-ahead)} ago"
    return short_id(value) if isinstance(value, UUID) else _cell(value)


def _fitted(widths: Sequence[int], available: int) -> list[int]:
    """Return the widths of columns that fit: the widest are cut first, then the last is left out; the first stays whole."""
    fitted = list(widths)
    while len(fitted) > 1 and (excess := _excess(fitted, available)) > 0:
        widest = max(range(1, len(fitted)), key=fitted.__getitem__)
        if fitted[widest] > _LEAST_WIDTH:
            fitted[widest] -= min(excess, fitted[widest] - _LEAST_WIDTH)
        else:
            fitted = list(widths[: len(fitted) - 1])
    return fitted


def _cell_len(cell: str | Text) -> int:
    return cell_len(cell) if isinstance(cell, str) else cell.cell_len


def fields_of(title: str, fields: dict[str, Any]) -> RenderableType:
    """Return a table of names and values, one pair a line."""
    table = Table(show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(Text(printable(name)), Text(shown(value)))
    return Group(_title(title), table)


def _title(title: str) -> Text:
    """Return the title of a table on its own line: Rich would wrap it to the width of the table."""
    return Text(printable(title), style="italic", no_wrap=True, overflow="ignore")


def shown(value: Any) -> str:
    """Return a value as text, on one line unless it is JSON, with control characters escaped."""
    match value:
        case None:
            return "-"
        case datetime():
            return value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
        case timedelta():
            return shown_duration(value)
        case Enum():
            return printable(str(value.value))
        case dict() | list():
            return printable_json(value, default=plain, indent=2)
    return printable(str(value))


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the singular for 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def record_of(title: str, row: Mapping[str, Any]) -> list[RenderableType]:
    """Return a row as names and values that are not empty, and the traceback of its error below it, indented."""
    shortened, tracebacks = {name: value for name, value in row.items() if value not in (None, "", [])}, []
    if objects := objects_in(row.get("input")):
        shortened["objects"] = objects
    for name in ERRORS & row.keys():
        if isinstance(row[name], dict) and (traceback := row[name].get("traceback")):
            shortened[name] = {key: value for key, value in row[name].items() if key != "traceback"}
            tracebacks.append(Text("  " + printable(traceback.rstrip("\n"), newline="\n  ")))
    return [fields_of(title, shortened), *tracebacks]


def first_line(error: Any, type_name: str | None = None) -> str:
    """Return a stored error on one line, redacted for its job type."""
    return error_line(redacted_error(type_name, error))
