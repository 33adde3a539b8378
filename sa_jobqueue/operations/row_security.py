"""Row-level security of the job tables: rows that a role may not see, so that their absence proves nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy.orm import Session

from sa_jobqueue.layout import PIPELINE_TABLES
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.statements import row_security

_TABLES: Final = tuple(dict.fromkeys((*Job.metadata.tables, *PIPELINE_TABLES)))


@dataclass(frozen=True, slots=True)
class HiddenRows:
    """A table of which row-level security may hide rows from a role."""

    table: str
    """Its name."""
    noun: str
    """Its name without the queue's prefix and schema."""
    role: str
    commands: tuple[str, ...]
    """The commands for which rows may be hidden or refused: of SELECT, INSERT, UPDATE and DELETE."""
    is_total: bool
    """Whether no policy lets the role use any of these commands: all rows are hidden."""

    def __str__(self) -> str:
        return f"row-level security on {self.table} may hide rows from role {self.role} ({', '.join(self.commands)})"


def hidden_rows(session: Session, *, commands: Sequence[str] = (), model: JobClass = Job) -> list[HiddenRows]:
    """Return the tables of which row-level security may hide rows from the session's role, by name.

    `commands`: only those for which one of these commands is restricted; empty for any.
    """
    layout = model.__jobqueue__
    nouns = [noun for noun in _TABLES if layout.has_table(noun)]
    return [
        HiddenRows(layout.qualified(row.noun), row.noun, row.role, tuple(row.commands), row.is_total)
        for row in session.execute(row_security.hiding(layout, nouns), bind_arguments={"mapper": model})
        if not commands or not set(commands).isdisjoint(row.commands)
    ]


def in_words(hidden: Sequence[HiddenRows]) -> str:
    """Return the tables and the role in a sentence; empty for none."""
    if not hidden:
        return ""
    tables = ", ".join(rows.table for rows in hidden)
    return f"Row-level security on {tables} may hide rows from role {hidden[0].role}"
