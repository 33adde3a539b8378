"""`sa-jobqueue chains`: list, show, cancel and delete chains."""

from __future__ import annotations

from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._output import Columns, counted, first_line, print_changed, print_result, record_of, row_of, table_of
from sa_jobqueue.cli._rows import page_options, print_page
from sa_jobqueue.operations.pages import collected
from sa_jobqueue.types import JobStatus

SHOWN: Final = 1000
"""Maximum number of a chain's jobs, of blockers and of blocked jobs that `show` prints."""

_PAYLOADS: Final = ("input", "output", "error", "last_error")
_COLUMNS: Final[Columns] = {
    "id": "id",
    "type": "type_name",
    "queue": "queue",
    "status": "status",
    "jobs": "length",
    "last type": "last_type_name",
    "enqueued": "created_at",
    "ended": "completed_at",
    "error": lambda chain: first_line(chain.error, chain.last_type_name),
}
JOB_COLUMNS: Final[Columns] = {
    "id": "id",
    "type": "type_name",
    "status": "status",
    "attempt": lambda job: f"{job.attempt}/{job.max_attempts}",
    "due or ended": lambda job: job.completed_at or job.scheduled_at,
    "last error": lambda job: first_line(job.last_error, job.type_name),
}
BLOCKERS: Final[Columns] = {
    "chain": "blocked_by_chain_id",
    "job": "job_id",
    "index": "index",
    "type": lambda blocker: blocker.chain.type_name,
    "status": lambda blocker: blocker.chain.status,
    "resolved": lambda blocker: "yes" if blocker.is_resolved else "no",
    "on failure": "on_failure",
}
_BLOCKED: Final[Columns] = {
    "job": "id",
    "chain": "chain_id",
    "type": "type_name",
    "status": "status",
    "waits for": "open_blockers",
}

chains: Final = noun_group("chains")


@chains.command("list")
@opts.only("--status", "statuses", None, "chains with this status", type=opts.one_of(JobStatus))
@opts.only("--type", "types", "TYPE", "chains whose first job has this type")
@opts.only("--queue", "queues", "QUEUE", "chains whose first job is in this queue")
@opts.fairness_key_option
@opts.only("--job", "job_ids", "ID", "the chain of this job")
@click.option("--top-level", is_flag=True, help="Only chains that no job waits for.")
@opts.instant_option("--since", "created_after", "Only chains enqueued at or after this time")
@opts.instant_option("--before", "created_before", "Only chains enqueued before this time")
@page_options
@opts.reading
def list_(database: opts.Database, /, **options: Any) -> None:
    """List chains, one page at a time. Payloads are omitted; see `show`."""
    print_page(
        database,
        operations.list_chains,
        operations.ChainFilter,
        noun="chain",
        columns=_COLUMNS,
        without=_PAYLOADS,
        **options,
    )


@chains.command()
@click.argument("chain_id", metavar="ID")
@opts.reading
def show(database: opts.Database, /, *, chain_id: str) -> None:
    """Show one chain: its jobs in order, their blockers, and the jobs that wait for it. ID is the id of its first job."""
    root_id = database.job_id(chain_id)
    with database.session() as session:
        chain = operations.get_chain(session, root_id, model=database.model)
        jobs = operations.list_chain_jobs(session, root_id, limit=SHOWN, model=database.model)
        blockers = [blocker for job in jobs for blocker in blockers_of(session, database, job)]
        blocked = collected(
            lambda **more: operations.list_blocked_jobs(session, root_id, newest_first=False, model=database.model, **more),
            limit=SHOWN,
        )
    document = {
        "chain": row_of(chain),
        "jobs": [row_of(job, without=_PAYLOADS) for job in jobs],
        "blockers": [blocker_row(blocker) for blocker in blockers],
        "blocks": [row_of(job, without=_PAYLOADS) for job in blocked],
    }
    parts = record_of(f"chain {chain.id}", row_of(chain))
    parts.append(table_of(_some("job", jobs), {**JOB_COLUMNS, "index": "chain_index"}, jobs))
    parts += [table_of("blocked by", BLOCKERS, blockers)] if blockers else []
    parts += [table_of("blocks", _BLOCKED, blocked)] if blocked.items else []
    print_result(document, *parts)


@chains.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--children", is_flag=True, help="Also cancel the chains whose results they wait for, and so on.")
@opts.changing
def cancel(database: opts.Database, /, *, ids: tuple[str, ...], children: bool, dry_run: bool, by: str) -> None:
    """Cancel the current job of chains that have not ended, all or none. A running job is stopped."""
    chain_ids = database.job_ids(ids)
    cancelled = database.run(operations.cancel_chains, chain_ids, children=children, by=by, dry_run=dry_run)
    print_changed("chain", cancelled.ids, "cancelled", dry_run=dry_run)


@chains.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--cascade", is_flag=True, help="Also delete every chain that their jobs wait or waited for.")
@opts.yes_option
@opts.changing
def delete(database: opts.Database, /, *, ids: tuple[str, ...], cascade: bool, by: str, dry_run: bool, yes: bool) -> None:
    """Delete chains with all their jobs, in any state: all chains or none.

    Fails if a job of another chain waits or waited for one of them.
    """
    chain_ids = database.job_ids(ids)
    options: dict[str, Any] = {"cascade": cascade, "by": by}
    if not (dry_run or yes):
        chain_count = database.run(operations.delete_chains, chain_ids, dry_run=True, **options).changed
        also = f", {chain_count - len(chain_ids)} of them through --cascade" if chain_count > len(chain_ids) else ""
        click.confirm(f"Delete {counted(chain_count, 'chain')}{also}?", abort=True, err=True)
    deleted = database.run(operations.delete_chains, chain_ids, dry_run=dry_run, **options)
    print_changed("chain", deleted.ids, "deleted", dry_run=dry_run)


def blockers_of(session: Session, database: opts.Database, job: Any) -> list[Any]:
    """Return the blockers of a job, in order."""
    return list(operations.list_blockers(session, job.id, limit=SHOWN, model=database.model))


def blocker_row(blocker: Any) -> dict[str, Any]:
    """Return a blocker with its chain, without payloads."""
    return row_of(blocker) | {"chain": row_of(blocker.chain, without=_PAYLOADS)}


def _some(noun: str, page: Any) -> str:
    count = counted(len(page.items), noun)
    return count if page.next is None else f"the first {count}"
