"""`sa-jobqueue audit`: what operators changed, and who did it."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from uuid import UUID

import click

from sa_jobqueue.cli._options import Database, duration, instant, json_option, with_database
from sa_jobqueue.cli._output import counted, echo, print_json, print_table, row_of
from sa_jobqueue.operations import AuditFilter, list_audit, prune_audit
from sa_jobqueue.operations.pages import collected


@click.group()
def audit() -> None:
    """List what operators changed, and who did it."""


@audit.command("list")
@click.option(
    "--operation",
    "operations",
    multiple=True,
    metavar="NAME",
    help="Only this operation, such as cancel_jobs; may be repeated.",
)
@click.option("--by", "done_by", multiple=True, metavar="NAME", help="Only changes by this name; may be repeated.")
@click.option("--since", type=instant, metavar="TIME", help="Only at or after this time (ISO 8601, UTC by default).")
@click.option("--before", type=instant, metavar="TIME", help="Only before this time.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), metavar="N", default=50, show_default=True, help="Maximum number of rows."
)
@click.option("--after", type=UUID, metavar="ID", help="Continue after this id, the last one of the previous page.")
@click.option("--oldest-first", is_flag=True, help="Sort by time ascending.  [default: descending]")
@json_option
@with_database
def list_(
    database: Database,
    /,
    *,
    operations: tuple[str, ...],
    done_by: tuple[str, ...],
    since: datetime | None,
    before: datetime | None,
    limit: int,
    after: UUID | None,
    oldest_first: bool,
    as_json: bool,
) -> None:
    """List audit records, newest first: one for each change that was made with a name (`--by`)."""
    where = AuditFilter(operations=operations, done_by=done_by, done_after=since, done_before=before)
    with database.session() as session:
        page = collected(
            lambda **more: list_audit(session, where=where, newest_first=not oldest_first, model=database.model, **more),
            after=after,
            limit=limit,
        )
    if as_json:
        print_json({"audit": [row_of(one) for one in page], "next_after": page.next})
        return
    headings = ["at", "by", "operation", "changed", "matched", "arguments", "id"]
    rows = [
        (one.done_at, one.done_by, one.operation, one.changed, one.matched, json.dumps(one.arguments), one.id)
        for one in page
    ]
    print_table(counted(len(page.items), "record"), headings, rows)
    if page.next is not None:
        echo(f"next page: --after {page.next}")


@audit.command()
@click.option(
    "--older-than", type=duration, metavar="DURATION", required=True, help="Only records older than this, such as 90d."
)
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
