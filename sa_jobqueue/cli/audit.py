"""`sa-jobqueue audit`: what operators changed, and who did it."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Final

import click

from sa_jobqueue.cli._listing import Columns, page_options, print_page
from sa_jobqueue.cli._options import Database, duration_option, instant, json_option, only, with_database
from sa_jobqueue.cli._output import counted, echo, print_json
from sa_jobqueue.operations import AuditFilter, list_audit, prune_audit

_COLUMNS: Final[Columns] = {
    "at": "done_at",
    "by": "done_by",
    "operation": "operation",
    "changed": "changed",
    "matched": "matched",
    "arguments": lambda one: json.dumps(one.arguments),
    "id": "id",
}


@click.group()
def audit() -> None:
    """List what operators changed, and who did it."""


@audit.command("list")
@only("--operation", "operations", "NAME", "this operation, such as cancel_jobs")
@only("--by", "done_by", "NAME", "changes by this name")
@click.option(
    "--since",
    "done_after",
    type=instant,
    metavar="TIME",
    help="Only at or after this time (ISO 8601, UTC by default).",
)
@click.option("--before", "done_before", type=instant, metavar="TIME", help="Only before this time.")
@page_options
@json_option
@with_database
def list_(database: Database, /, **given: Any) -> None:
    """List audit records, newest first: one for each change that was made with a name (`--by`)."""
    names: dict[str, Any] = {"noun": "record", "key": "audit", "columns": _COLUMNS, "read_id": click.UUID}
    print_page(database, list_audit, AuditFilter, **names, **given)


@audit.command()
@duration_option("--older-than", "Only records older than this, such as 90d.", required=True)
@json_option
@with_database
def prune(database: Database, /, *, older_than: timedelta, as_json: bool) -> None:
    """Delete audit records older than a given age. Workers also do this, if their JobQueue sets a retention."""
    total, deleted = 0, 1
    with database.session() as session:
        while deleted:
            deleted = prune_audit(session, older_than, model=database.model)
            session.commit()
            total += deleted
    print_json({"deleted": total}) if as_json else echo(f"{counted(total, 'record')} deleted")
