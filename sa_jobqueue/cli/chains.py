"""`sa-jobqueue chains`: list, show, cancel and delete chains."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli._listing import fairness_key_option, listing_options
from sa_jobqueue.cli._options import Database, by_option, instant, json_option, with_database
from sa_jobqueue.cli._output import (
    counted,
    echo,
    echo_traceback,
    first_line,
    print_changed,
    print_fields,
    print_json,
    print_table,
    row_of,
)
from sa_jobqueue.operations import (
    ChainFilter,
    cancel_chains,
    count_blockers,
    delete_chains,
    get_chain,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
)
from sa_jobqueue.operations.pages import collected
from sa_jobqueue.types import JobStatus

SHOWN: Final = 1000
"""Maximum number of a chain's jobs, of blockers and of blocked jobs that `show` prints."""

_STATUSES: Final = click.Choice([status.value for status in JobStatus])
_PAYLOADS: Final = ("input", "output", "error", "last_error")


@click.group()
def chains() -> None:
    """List, show, cancel and delete chains."""


@chains.command("list")
@click.option("--status", "statuses", type=_STATUSES, multiple=True, help="Only chains with this status; may be repeated.")
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only chains whose first job has this type; may be repeated."
)
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Only chains whose first job is in this queue; may be repeated.",
)
@fairness_key_option
@click.option("--job", "job_ids", multiple=True, metavar="ID", help="Only the chain of this job; may be repeated.")
@click.option("--top-level", is_flag=True, help="Only chains that no job waits for.")
@click.option(
    "--since", type=instant, metavar="TIME", help="Only chains enqueued at or after this time (ISO 8601, UTC by default)."
)
@click.option("--before", type=instant, metavar="TIME", help="Only chains enqueued before this time.")
@listing_options
@json_option
@with_database
def list_(
    database: Database,
    /,
    *,
    statuses: tuple[str, ...],
    types: tuple[str, ...],
    queues: tuple[str, ...],
    fairness_keys: tuple[str, ...],
    job_ids: tuple[str, ...],
    top_level: bool,
    since: datetime | None,
    before: datetime | None,
    limit: int,
    after: str | None,
    oldest_first: bool,
    as_json: bool,
) -> None:
    """List chains, one page at a time. Payloads are omitted; see `show`."""
    where = ChainFilter(
        statuses=[JobStatus(status) for status in statuses],
        types=types,
        queues=queues,
        fairness_keys=fairness_keys,
        job_ids=[database.job_id(one) for one in job_ids],
        top_level=top_level,
        created_after=since,
        created_before=before,
    )
    with database.session() as session:
        page = collected(
            lambda **more: list_chains(session, where=where, newest_first=not oldest_first, model=database.model, **more),
            after=None if after is None else database.job_id(after),
            limit=limit,
        )
    if as_json:
        print_json({"chains": [row_of(chain, without=_PAYLOADS) for chain in page], "next_after": page.next})
        return
    headings = ["id", "type", "queue", "status", "jobs", "last type", "enqueued", "ended", "error"]
    rows = [
        (
            chain.id,
            chain.type_name,
            chain.queue,
            chain.status,
            chain.length,
            chain.last_type_name,
            chain.created_at,
            chain.completed_at,
            first_line(chain.error, chain.last_type_name),
        )
        for chain in page
    ]
    print_table(counted(len(page.items), "chain"), headings, rows)
    if page.next is not None:
        echo(f"next page: --after {page.next}")


@chains.command()
@click.argument("chain_id", metavar="ID")
@json_option
@with_database
def show(database: Database, /, *, chain_id: str, as_json: bool) -> None:
    """Show one chain: its jobs in order, their blockers, and the jobs that wait for it. ID is the id of its first job."""
    found = database.job_id(chain_id)
    with database.session() as session:
        chain = get_chain(session, found, model=database.model)
        jobs = list_chain_jobs(session, found, limit=SHOWN, model=database.model)
        blockers = [blocker for job in jobs for blocker in blockers_of(session, database, job)]
        blocked = collected(
            lambda **more: list_blocked_jobs(session, found, newest_first=False, model=database.model, **more), limit=SHOWN
        )
    if as_json:
        document = {
            "chain": row_of(chain),
            "jobs": [row_of(job, without=_PAYLOADS) for job in jobs],
            "blockers": [blocker_row(blocker) for blocker in blockers],
            "blocks": [row_of(job, without=_PAYLOADS) for job in blocked],
        }
        print_json(document)
        return
    fields = row_of(chain)
    traceback = fields["error"].pop("traceback", None) if isinstance(fields["error"], dict) else None
    print_fields(f"chain {chain.id}", fields)
    if traceback:
        echo_traceback(traceback)
    rows = [
        (
            job.id,
            job.chain_index,
            job.type_name,
            job.status,
            f"{job.attempt}/{job.max_attempts}",
            job.completed_at or job.scheduled_at,
            first_line(job.last_error, job.type_name),
        )
        for job in jobs
    ]
    print_table(_some("job", jobs), ["id", "index", "type", "status", "attempt", "due or ended", "last error"], rows)
    if blockers:
        print_blockers(blockers)
    if blocked.items:
        waiting = [(job.id, job.chain_id, job.type_name, job.status, job.open_blockers) for job in blocked]
        print_table("blocks", ["job", "chain", "type", "status", "waits for"], waiting)


@chains.command()
@click.argument("job_id", metavar="JOB_ID")
@json_option
@with_database
def progress(database: Database, /, *, job_id: str, as_json: bool) -> None:
    """Count the chains that a job waits or waited for, by status: the progress of a fan-in."""
    with database.session() as session:
        found = count_blockers(session, database.job_id(job_id), model=database.model)
    document = asdict(found) | {"total": found.total}
    if as_json:
        print_json(document)
        return
    echo(f"{found.ended} of {counted(found.total, 'chain')} ended")
    print_fields(f"blockers of job {job_id}", document)


@chains.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@by_option
@json_option
@with_database
def cancel(database: Database, /, *, ids: tuple[str, ...], dry_run: bool, by: str, as_json: bool) -> None:
    """Cancel the current job of chains that have not ended, all or none. A running job is stopped."""
    given = [database.job_id(one) for one in ids]
    with database.session() as session:
        cancelled = cancel_chains(session, given, by=by, dry_run=dry_run, model=database.model).ids
        session.commit()
    print_changed("chain", cancelled, "cancelled", dry_run=dry_run, as_json=as_json)


@chains.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--cascade", is_flag=True, help="Also delete every chain that their jobs wait or waited for.")
@by_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
@with_database
def delete(
    database: Database, /, *, ids: tuple[str, ...], cascade: bool, by: str, dry_run: bool, yes: bool, as_json: bool
) -> None:
    """Delete chains with all their jobs, in any state: all chains or none.

    Fails if a job of another chain waits or waited for one of them.
    """
    given = [database.job_id(one) for one in dict.fromkeys(ids)]
    with database.session() as session:

        def delete_them(*, dry_run: bool = False) -> list[Any]:
            return delete_chains(session, given, cascade=cascade, by=by, dry_run=dry_run, model=database.model).ids

        if dry_run or not yes:
            found = delete_them(dry_run=True)
            session.rollback()
            if dry_run:
                print_changed("chain", found, "deleted", dry_run=True, as_json=as_json)
                return
            also = f", {len(found) - len(given)} of them through --cascade" if len(found) > len(given) else ""
            click.confirm(f"Delete {counted(len(found), 'chain')}{also}?", abort=True, err=True)
        deleted = delete_them()
        session.commit()
    print_changed("chain", deleted, "deleted", dry_run=False, as_json=as_json)


def blockers_of(session: Session, database: Database, job: Any) -> list[Any]:
    """Return the blockers of a job, in order."""
    return list(list_blockers(session, job.id, limit=SHOWN, model=database.model))


def blocker_row(blocker: Any) -> dict[str, Any]:
    """Return a blocker with its chain, without payloads."""
    return row_of(blocker) | {"chain": row_of(blocker.chain, without=_PAYLOADS)}


def print_blockers(blockers: list[Any]) -> None:
    """Print the chains that jobs wait or waited for."""
    headings = ["chain", "job", "index", "type", "status", "resolved", "on failure"]
    rows = [
        (
            blocker.blocked_by_chain_id,
            blocker.job_id,
            blocker.index,
            blocker.chain.type_name,
            blocker.chain.status,
            "yes" if blocker.is_resolved else "no",
            blocker.on_failure,
        )
        for blocker in blockers
    ]
    print_table("blocked by", headings, rows)


def _some(noun: str, page: Any) -> str:
    count = counted(len(page.items), noun)
    return count if page.next is None else f"the first {count}"
