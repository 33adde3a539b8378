"""`sa-jobqueue jobs priority`: change the priority of waiting jobs."""

from __future__ import annotations

from typing import Any

import click
from sqlalchemy import type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.cli._options import (
    Database,
    chain_option,
    changing,
    json_document,
    number_option,
    queue_option,
    type_option,
)
from sa_jobqueue.cli._output import counted, print_result
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.operations import JobFilter, set_priority
from sa_jobqueue.operations.pages import every_page
from sa_jobqueue.types import INITIAL, MAX_PRIORITY, MIN_PRIORITY


@click.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@number_option("--to", "New priority, -9 to 9; larger runs first.", least=MIN_PRIORITY, most=MAX_PRIORITY, required=True)
@chain_option
@type_option
@queue_option
@click.option(
    "--payload", type=json_document, metavar="JSON", help="Only jobs whose payload contains this, such as '{\"tenant\": 7}'."
)
@changing
def priority(
    database: Database, /, *, ids: tuple[str, ...], to: int, chain_ids: tuple[str, ...], types: tuple[str, ...],
    queues: tuple[str, ...], payload: Any, dry_run: bool, by: str, as_json: bool,
) -> None:  # fmt: skip
    """Change the priority of waiting jobs, by id or by filters.

    Changes a thousand jobs per transaction. Workers use the new priority from their next claim on. Running jobs are not
    changed.

    \b
    Example:
      sa-jobqueue jobs priority --to 9 --queue imports --payload '{"tenant": 2}'
    """
    model = database.model
    if not (ids or chain_ids or types or queues) and payload is None:
        raise click.UsageError("pass ids, or at least one of --chain, --type, --queue and --payload")
    chosen: dict[str, Any] = {"ids": database.job_ids(ids), "chain_ids": database.job_ids(chain_ids)}
    where = JobFilter(**chosen, types=types, queues=queues, statuses=sorted(INITIAL))
    matching = None if payload is None else model.input.contains(type_coerce(payload, JSONB))
    changed = 0
    options: dict[str, Any] = {"where": where, "matching": matching, "by": by, "dry_run": dry_run, "model": model}
    with database.session() as session, ProgressLines("priority") as lines:
        for page in every_page(lambda after: set_priority(session, to, after=after, **options)):
            session.commit()
            changed += page.changed
            lines.update(changed, step="jobs changed")
    text = f"{counted(changed, 'job')} {'would be changed' if dry_run else 'changed'} to priority {to}"
    print_result({"priority": to, "dry_run": dry_run, "jobs": changed}, text, as_json=as_json)
