"""The audit: a record for each operation call with a named user that matched any rows.

Applications that cancel or trigger jobs as part of their work omit `by` and leave no record. The command line always sets
it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from sqlalchemy.orm import Session

from sa_jobqueue.display.printable import printable
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import AuditMixin, Job, JobClass
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.hooks import after_commit
from sa_jobqueue.operations.pages import SCAN_LIMIT, Filter, Page
from sa_jobqueue.statements import audit, listings

RECORDED: Final = 100
"""Maximum number of ids, names or values of one kind in a record."""
REASON: Final = "sa_jobqueue.reason"
"""Key in `Session.info` of the reason for the changes of its transaction, which their records have as an argument."""
MAX_REASON: Final = 200
"""Maximum number of characters of a reason."""
COMMAND: Final = "sa_jobqueue.command"
"""Key in `Session.info` of the id of a command, which the records of all its transactions have as an argument."""
_PAYLOADS: Final = frozenset({"input", "output"})
_log = logging.getLogger("sa_jobqueue.audit")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter(Filter):
    """Filter of audit records; an empty field matches all.

    `operations`: names of operations, such as `cancel_jobs`. `done_by`: users. `done_after` (inclusive), `done_before`
    (exclusive): aware.
    """

    operations: Sequence[str] = ()
    done_by: Sequence[str] = ()
    done_after: datetime | None = None
    done_before: datetime | None = None


def list_audit(
    session: Session,
    *,
    where: AuditFilter = AuditFilter(),
    after: UUID | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: JobClass = Job,
) -> Page[AuditMixin]:
    """Return one page of the audit, in chronological order.

    `scan_limit`: as in `list_jobs`.
    """
    pages.check_limit(limit, scan_limit)
    pages.check_position(after, UUID)
    conditions = audit.matching(model, where)
    statement = listings.audit(
        model, *conditions, after=after, limit=limit, scan_limit=scan_limit, newest_first=newest_first
    )
    return pages.scanned_page(session, statement, limit=limit, scan_limit=scan_limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedCommand:
    """Records that follow each other and are of one command, added up; `AuditMixin` has the meaning of the other fields."""

    id: UUID
    """Id of the last of them in the list."""
    done_at: datetime
    """Time of the first of them in the list."""
    done_by: str
    operation: str
    arguments: Any
    matched: int
    changed: int
    ids: Sequence[Any]
    records: int
    """How many there are: one for each transaction."""


def by_command(records: Iterable[AuditMixin]) -> list[AuditedCommand]:
    """Return the records of a list by command. One without a command, such as of the dashboard, has a row. Pure."""
    commands = []
    for _, group in groupby(records, lambda record: (record.operation, _command_of(record) or record.id)):
        same = list(group)
        first = same[0]
        commands.append(
            AuditedCommand(
                id=same[-1].id,
                done_at=first.done_at,
                done_by=first.done_by,
                operation=first.operation,
                arguments=first.arguments,
                matched=sum(record.matched for record in same),
                changed=sum(record.changed for record in same),
                ids=[row_id for record in same for row_id in record.ids][:RECORDED],
                records=len(same),
            )
        )
    return commands


def _command_of(record: AuditMixin) -> Any:
    return record.arguments.get("command") if isinstance(record.arguments, dict) else None


def check_by(by: str | None) -> None:
    """Check the name of a user."""
    if by is not None and (not isinstance(by, str) or not 1 <= len(by) <= 200 or not by.isprintable()):
        raise InvalidOptionError("by", f"must be 1 to 200 printable characters, or None, got {by!r}")


def record(
    session: Session,
    operation: str,
    *,
    by: str | None,
    ids: Collection[Any],
    matched: int | None = None,
    model: JobClass,
    **arguments: Any,
) -> None:
    """Write the audit record of an operation, and a log line after the commit.

    Does nothing without `by`, or if nothing matched. `ids`: the changed rows. `matched`: the number of matched rows, by
    default that of `ids`. `arguments`: arguments of the operation, without payloads. Changes: inserts a row of `job_audit`.
    """
    matched = len(ids) if matched is None else matched
    if not by or not matched:  # a page of a long walk may have found nothing
        return
    row = {
        "id": uuid7(),
        "done_by": by,
        "operation": operation,
        "arguments": _plain({"reason": session.info.get(REASON), "command": session.info.get(COMMAND)} | arguments),
        "matched": matched,
        "changed": len(ids),
        "ids": _plain(list(ids)),
    }
    session.execute(audit.put(model), row)
    line = "%s by=%s changed=%d matched=%d arguments=%s"
    line_arguments = (operation, printable(by), row["changed"], row["matched"], printable(str(row["arguments"])))
    after_commit(session, _log.info, line, *line_arguments)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it, without payloads and empty parts."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    match value:
        case Enum():
            return str(value.value)
        case None | bool() | int() | float() | str():
            return value
        case timedelta():
            return f"{value.total_seconds():g} s"
        case datetime():
            return value.isoformat()
        case Mapping():
            members = ((str(name), _plain(member)) for name, member in value.items() if name not in _PAYLOADS)
            return {name: member for name, member in members if member not in (None, [], {})}
        case Collection():
            return [_plain(element) for element in list(value)[:RECORDED]]
    return str(value)
