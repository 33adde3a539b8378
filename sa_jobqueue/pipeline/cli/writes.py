"""`sa-jobqueue writes`: the ledger of bulk writes, their rejected rows, and its retention."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Final

import click
from sqlalchemy import Row

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import counted, echo, fields_of, is_json, print_changed, print_result, table_of
from sa_jobqueue.display.redaction import is_redacting
from sa_jobqueue.pipeline.operations.writes import count_write_chains, list_rejected_rows, list_writes, prune_writes

writes: Final = noun_group("writes")


@writes.command("list")
@click.option("--write-id", metavar="ID", help="Only this write, or the batches of this stream.")
@opts.limit_option
@click.option(
    "--after",
    type=(opts.instant, str, int),
    metavar="WRITTEN_AT ID SEQUENCE",
    help="Continue after this write, the last one of the previous page.",
)
@opts.json_option
@opts.with_database
def list_(database: opts.Database, /, *, write_id: str | None, limit: int, after: tuple[datetime, str, int] | None) -> None:
    """List bulk writes that have committed, newest first."""
    with database.session() as session:
        page = list_writes(session, write_id=write_id, after=after, limit=limit, model=database.model)
    headings = ["write id", "batch", "staged", "enqueued", "duplicates", "rejected", "written by", "written at"]
    table = table_of(counted(len(page.items), "write"), headings, [tuple(write) for write in page])
    print_result({"writes": [write._asdict() for write in page], "next": page.next}, table)
    if page.next is not None and not is_json():
        written_at, last_id, sequence = page.next
        echo(f"more: --after {written_at.isoformat()} {last_id} {sequence}", err=True)


@writes.command()
@click.argument("write_id", metavar="ID")
@click.option(
    "--sequence",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    default=0,
    show_default=True,
    help="Number of the batch, for a stream.",
)
@opts.limit_option
@opts.json_option
@opts.with_database
def show(database: opts.Database, /, *, write_id: str, sequence: int, limit: int) -> None:
    """Show one bulk write, its chains counted by status, and its rejected rows."""
    with database.session() as session:
        write = _find(session, database, write_id, sequence)
        chains = count_write_chains(session, write_id, sequence=sequence, model=database.model)
        position = (sequence, -(2**63), 0)
        page = list_rejected_rows(session, write_id, after=position, limit=limit, model=database.model)
    rejected = [rejected_row for rejected_row in page.items if rejected_row.sequence == sequence]
    rows: list[dict[str, Any]] = [
        rejected_row._asdict() | ({"record": "[redacted]"} if is_redacting() else {}) for rejected_row in rejected
    ]
    parts = [fields_of(f"write {write_id}", write._asdict())]
    parts += [] if chains is None else [fields_of("chains", asdict(chains))]
    if rows:
        headings = ["task", "row", "field", "reason", "record"]
        cells = [(row["task_id"], row["row"], row["field"], row["reason"], row["record"]) for row in rows]
        parts.append(table_of(counted(len(rows), "rejected row"), headings, cells))
    print_result(write._asdict() | {"chains": chains and asdict(chains), "rejected_rows": rows}, *parts)


def _find(session: Any, database: opts.Database, write_id: str, sequence: int) -> Row[Any]:
    for write in list_writes(session, write_id=write_id, sequence=sequence, limit=1, model=database.model).items:
        return write
    raise click.ClickException(f"no write {write_id!r} with batch {sequence} has committed")


@writes.command()
@opts.duration_option("--older-than", "Only writes older than this, such as 90d.", required=True)
@opts.dry_run_option
@opts.json_option
@opts.with_database
def prune(database: opts.Database, /, *, older_than: timedelta, dry_run: bool) -> None:
    """Delete the records of writes older than a given age, with their rejected rows. Their jobs stay.

    A write that is forgotten can be made again under its name. The last batch of each stream is kept.
    """
    with database.session() as session:
        pruned = prune_writes(session, older_than=older_than, dry_run=dry_run, model=database.model)
        session.commit()
    names = [{"write_id": write_id, "sequence": sequence} for write_id, sequence in pruned]
    print_changed("write", names, "pruned", dry_run=dry_run)
