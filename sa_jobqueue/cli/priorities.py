"""`sa-jobqueue jobs priority`: change the priority of waiting jobs."""

from __future__ import annotations

import json
from typing import Any

import click
from sqlalchemy import type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.cli._options import (
    Database,
    by_option,
    chain_option,
    dry_run_option,
    json_option,
    queue_option,
    type_option,
    with_database,
)
from sa_jobqueue.cli._output import counted, echo, print_json
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.operations import JobFilter, set_priority
from sa_jobqueue.operations.pages import every_page
from sa_jobqueue.types import INITIAL, MAX_PRIORITY, MIN_PRIORITY

_WHOLE = click.IntRange(MIN_PRIORITY, MAX_PRIORITY)


@click.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option("--to", type=_WHOLE, required=True, metavar="N", help="New priority, -9 to 9; larger runs first.")
@chain_option
@type_option
@queue_option
@click.option("--payload", metavar="JSON", help="Only jobs whose payload contains this, such as '{\"tenant\": 7}'.")
@dry_run_option
@by_option
@json_option
@with_database
def priority(
    database: Database,
    /,
    *,
    ids: tuple[str, ...],
    to: int,
    chain_ids: tuple[str, ...],
    types: tuple[str, ...],
    queues: tuple[str, ...],
    payload: str | None,
    dry_run: bool,
    by: str,
    as_json: bool,
) -> None:
    """Change the priority of waiting jobs, by id or by filters.

    Changes a thousand jobs per transaction. Workers use the new priority from their next claim on. Running jobs are not
    changed.

    \b
    Example:
      sa-jobqueue jobs priority --to 9 --queue imports --payload '{"tenant": 2}'
    """
    model = database.model
    job_ids = [database.job_id(one) for one in ids]
    where = JobFilter(
        ids=job_ids,
        chain_ids=[database.job_id(one) for one in chain_ids],
        types=types,
        queues=queues,
        statuses=sorted(INITIAL),
    )
    if not (ids or chain_ids or types or queues or payload):
        raise click.UsageError("pass ids, or at least one of --chain, --type, --queue and --payload")
    matching = None if payload is None else model.input.contains(type_coerce(_document(payload), JSONB))
    changed = 0
    options: dict[str, Any] = {"where": where, "matching": matching, "by": by, "dry_run": dry_run, "model": model}
    with database.session() as session, ProgressLines("priority") as lines:
        for page in every_page(lambda after: set_priority(session, to, after=after, **options)):
            session.commit()
            changed += page.changed
            lines.update(changed, step="jobs changed")
    if as_json:
        print_json({"priority": to, "dry_run": dry_run, "jobs": changed})
    else:
        echo(f"{counted(changed, 'job')} {'would be changed' if dry_run else 'changed'} to priority {to}")


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"not valid JSON: {error}", param_hint="--payload") from error
