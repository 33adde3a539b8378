"""What commands print: tables for people, one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final
from uuid import UUID

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text
from sqlalchemy import inspect

from sa_jobqueue.redaction import ERRORS, PAYLOADS, redacted, redacted_error

_INTERNAL: Final = frozenset({"changed_xid", "root_id"})
_PIPED_WIDTH: Final = 200
"""Columns of a table that goes to a file or another program, where a terminal's width means nothing."""


def console() -> Console:
    """Return a console on standard output as it is now."""
    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH, highlight=False)


def print_json(document: Any) -> None:
    """Print one JSON document: instants in ISO 8601 and UTC, durations in seconds, ids as text."""
    click.echo(json.dumps(document, default=plain, indent=2, ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return what JSON has for a value of ours. Raises: TypeError."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
        case Enum():
            return value.value
    raise TypeError(f"{type(value).__name__} has no JSON form here")


def row_of(entity: Any, *, without: Iterable[str] = (), type_name: str | None = None) -> dict[str, Any]:
    """Return a mapped object's columns by name, but those that only the library needs; payloads as they may be shown.

    `type_name`: whose they are; the object's own unless given.
    """
    left_out = _INTERNAL | set(without)
    row = {attr.key: getattr(entity, attr.key) for attr in inspect(type(entity)).column_attrs if attr.key not in left_out}
    # The payloads of a chain are its last job's.
    kind = type_name or row.get("last_type_name") or row.get("type_name")
    row |= {name: redacted(kind, row[name]) for name in PAYLOADS & row.keys()}
    return row | {name: redacted_error(kind, row[name]) for name in ERRORS & row.keys()}


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table; its first column, which names the row, is never cut."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    console().print(table)


def print_fields(title: str, fields: dict[str, Any]) -> None:
    """Print named values under each other."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in fields.items():
        table.add_row(name, Text(shown(value)))
    console().print(table)


def shown(value: Any) -> str:
    """Return a value for people. Control characters are escaped: an error's text must not steer a terminal."""
    match value:
        case None:
            text = "-"
        case datetime():
            text = value.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")
        case timedelta():
            text = shown_duration(value)
        case Enum():
            text = str(value.value)
        case dict() | list():
            text = json.dumps(value, default=plain, ensure_ascii=False, indent=2)
        case _:
            text = str(value)
    return "".join(char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text)


def shown_duration(value: timedelta) -> str:
    """Return a duration for people; one below zero in seconds, as Python's own form of it reads as a day too much."""
    return f"{value.total_seconds():g} s" if value < timedelta(0) else str(value)


def counted(count: int, noun: str) -> str:
    """Return a number and what it counts, in the singular for one."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def first_line(error: Any, type_name: str | None = None) -> str:
    """Return a stored error on one line, as it may be shown for a job type."""
    error = redacted_error(type_name, error)
    if not isinstance(error, dict):
        return ""
    message = next(iter(str(error.get("message") or "").strip().splitlines()), "")
    return f"{error.get('type') or 'error'}: {message}"[:200]
