"""`sa-jobqueue jobs`: list, show, retry and cancel jobs, and change their priority."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli._listing import fairness_key_option, listing_options
from sa_jobqueue.cli._options import Database, by_option, json_option, with_database
from sa_jobqueue.cli._output import (
    counted,
    echo,
    echo_traceback,
    first_line,
    print_fields,
    print_json,
    print_table,
    row_of,
    shown,
)
from sa_jobqueue.cli.chains import blocker_row, blockers_of, print_blockers
from sa_jobqueue.cli.priorities import priority
from sa_jobqueue.errors import IllegalTransitionError, JobNotFoundError
from sa_jobqueue.operations import (
    DeadLetterFilter,
    JobFilter,
    Page,
    cancel_jobs,
    get_chain,
    get_job,
    get_progress,
    list_attempts,
    list_dead_letters,
    list_jobs,
    list_steps,
    redrive_dead_letters,
    trigger_jobs,
)
from sa_jobqueue.operations.pages import collected, every_item
from sa_jobqueue.redaction import redacted
from sa_jobqueue.types import ENDED, JobStatus

CHUNK: Final = 1000
"""Jobs changed in one transaction."""

_STATUSES: Final = click.Choice([status.value for status in JobStatus])
_OPEN: Final = tuple(status for status in JobStatus if status not in ENDED)
_PAYLOADS: Final = ("input", "output", "last_error")


@click.group()
def jobs() -> None:
    """List, show, retry and cancel jobs, and change their priority."""


jobs.add_command(priority)


@jobs.command("list")
@click.option("--status", "statuses", type=_STATUSES, multiple=True, help="Only with this status; may be repeated.")
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only of this job type; may be repeated.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only in this queue; may be repeated.")
@fairness_key_option
@click.option("--chain", "chain_ids", multiple=True, metavar="ID", help="Only jobs of this chain; may be repeated.")
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
    chain_ids: tuple[str, ...],
    limit: int,
    after: str | None,
    oldest_first: bool,
    as_json: bool,
) -> None:
    """List jobs, one page at a time. Payloads are omitted; see `show`."""
    where = JobFilter(
        statuses=[JobStatus(status) for status in statuses],
        types=types,
        queues=queues,
        fairness_keys=fairness_keys,
        chain_ids=[database.job_id(one) for one in chain_ids],
    )
    with database.session() as session:
        page = collected(
            lambda **more: list_jobs(session, where=where, newest_first=not oldest_first, model=database.model, **more),
            after=None if after is None else database.job_id(after),
            limit=limit,
        )
    if as_json:
        print_json({"jobs": [row_of(job, without=_PAYLOADS) for job in page], "next_after": page.next})
        return
    headings = ["id", "type", "status", "attempt", "due or ended", "queue", "last error"]
    rows = [
        (
            job.id,
            job.type_name,
            job.status,
            f"{job.attempt}/{job.max_attempts}",
            job.completed_at or job.scheduled_at,
            job.queue,
            first_line(job.last_error, job.type_name),
        )
        for job in page
    ]
    print_table(counted(len(page.items), "job"), headings, rows)
    if page.next is not None:
        echo(f"next page: --after {page.next}")


@jobs.command()
@click.argument("job_id", metavar="ID")
@json_option
@with_database
def show(database: Database, /, *, job_id: str, as_json: bool) -> None:
    """Show one job with its payload, progress, chain, blockers, steps, unsuccessful attempts and dead letters."""
    found = database.job_id(job_id)
    with database.session() as session:
        try:
            job = get_job(session, found, model=database.model)
        except JobNotFoundError as error:
            raise click.ClickException(
                f"job {job_id} not found (for the id of a dead letter use `dead-letters show`)"
            ) from error
        attempts = list(every_item(lambda after: list_attempts(session, found, after=after, model=database.model)))
        where = DeadLetterFilter(job_ids=[found], resolved=None)
        dead_letters = list_dead_letters(session, where=where, limit=CHUNK, model=database.model).items
        chain = get_chain(session, job.chain_id, model=database.model)
        blockers = blockers_of(session, database, job)
        progress = get_progress(session, found, model=database.model)
        steps = list_steps(session, found, model=database.model)
    if as_json:
        document = {
            "job": row_of(job),
            "progress": None if progress is None else asdict(progress),
            "chain": row_of(chain, without=[*_PAYLOADS, "error"]),
            "blockers": [blocker_row(blocker) for blocker in blockers],
            "steps": [row_of(step, type_name=job.type_name) for step in steps],
            "attempts": [row_of(attempt, type_name=job.type_name) for attempt in attempts],
            "dead_letters": [row_of(dead_letter, without=["input"]) for dead_letter in dead_letters],
        }
        print_json(document)
        return
    fields = row_of(job)
    traceback = (fields["last_error"] or {}).pop("traceback", None)
    print_fields(f"job {job.id}", fields)
    if traceback:
        echo_traceback(traceback)
    if progress is not None:
        echo(f"progress: {progress}, as of {shown(progress.as_of)}")
    echo(f"chain {chain.id} ({chain.type_name}, {chain.status}): job {job.chain_index + 1} of {chain.length}")
    if blockers:
        print_blockers(blockers)
    if steps:
        results = [
            (
                f"{one.name} {one.key}".rstrip(),
                one.kind if one.event is None else f"{one.kind} for {one.event}",
                one.attempt,
                one.started_at,
                one.completed_at or f"waits until {shown(one.deadline)}",
                json.dumps(redacted(job.type_name, one.output), ensure_ascii=False)[:100],
            )
            for one in steps
        ]
        print_table("steps", ["step", "kind", "attempt", "started", "completed", "result"], results)
    if attempts:
        rows = [
            (one.attempt, one.outcome, one.started_at, one.ended_at, one.worker_id, first_line(one.error, job.type_name))
            for one in attempts
        ]
        print_table("unsuccessful attempts", ["attempt", "outcome", "started", "ended", "worker", "error"], rows)
    if dead_letters:
        deaths = [(one.id, one.reason, one.died_at, one.resolution, one.resolved_by) for one in dead_letters]
        print_table("dead letters", ["id", "reason", "died", "resolution", "by"], deaths)


@jobs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@by_option
@json_option
@with_database
def retry(database: Database, /, *, ids: tuple[str, ...], dry_run: bool, by: str, as_json: bool) -> None:
    """Run jobs now: make pending jobs due, and redrive dead ones. All of them, or none."""
    given = list(dict.fromkeys(database.job_id(one) for one in ids))
    model = database.model
    with database.session() as session, session.begin():
        found = {one: get_job(session, one, model=model) for one in given}
        for one, job in found.items():
            if job.status not in {JobStatus.PENDING, JobStatus.DEAD}:
                raise IllegalTransitionError(
                    f"job {one} is {job.status.value}: only pending and dead jobs can be retried. No job was changed."
                )
        pending = [one for one, job in found.items() if job.status is JobStatus.PENDING]
        dead = [one for one, job in found.items() if job.status is JobStatus.DEAD]
        if pending:
            trigger_jobs(session, pending, by=by, dry_run=dry_run, model=model)
        # One at a time: a job may have several dead letters, and dismissed ones count as well.
        redriven = [
            one
            for one in dead
            if redrive_dead_letters(
                session,
                where=DeadLetterFilter(job_ids=[one], resolved=None),
                by=by,
                dry_run=dry_run,
                model=model,
            ).ids
        ]
        if changed := [one for one in dead if one not in redriven]:
            raise IllegalTransitionError(f"job {changed[0]} is no longer dead. No job was changed.")
    if as_json:
        would = "would_be_" if dry_run else ""
        print_json({f"{would}triggered": pending, f"{would}redriven": redriven})
    else:
        due, again = counted(len(pending), "pending job"), counted(len(redriven), "dead job")
        would = "would be " if dry_run else ""
        echo(f"{due} {would}triggered, {again} {would}redriven")


@jobs.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@click.option(
    "--status",
    "statuses",
    type=click.Choice([status.value for status in _OPEN]),
    multiple=True,
    help="Only jobs with this status; may be repeated.",
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only of this job type; may be repeated.")
@click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only in this queue; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@by_option
@json_option
@with_database
def cancel(
    database: Database,
    /,
    *,
    ids: tuple[str, ...],
    statuses: tuple[str, ...],
    types: tuple[str, ...],
    queues: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    by: str,
    as_json: bool,
) -> None:
    """Cancel jobs that have not ended, by id or by filters. Running jobs are stopped.

    \b
    Example:
      sa-jobqueue jobs cancel --status pending --queue mail --dry-run
    """
    filtered = bool(statuses or types or queues)
    if bool(ids) == filtered:
        raise click.UsageError("pass ids, or at least one of --status, --type and --queue, and not both")
    where = JobFilter(statuses=[JobStatus(status) for status in statuses] or _OPEN, types=types, queues=queues)
    with database.session() as session:
        if ids:
            pages: Iterator[list[Any]] = iter([_named(session, database, ids)])
        else:
            pages = _pages(session, database, where)
        if dry_run:
            _print_cancelled([one for page in pages for one in page], "would be cancelled", as_json)
            return
        if filtered and not yes:
            count = len(_listed(session, database, where, limit=CHUNK).items)
            session.rollback()
            more = " or more" if count == CHUNK else ""
            click.confirm(f"Cancel {counted(count, 'job')}{more}?", abort=True, err=True)
        cancelled: list[Any] = []
        for page in pages:
            cancelled += cancel_jobs(session, page, by=by, model=database.model)
            session.commit()
    _print_cancelled(cancelled, "cancelled", as_json)


def _named(session: Session, database: Database, ids: Sequence[str]) -> list[Any]:
    """Return the given jobs that have not ended. Raises: JobNotFoundError with every unknown id."""
    missing, found = [], []
    for given in dict.fromkeys(ids):
        try:
            job = get_job(session, database.job_id(given), model=database.model)
        except JobNotFoundError:
            missing.append(given)
        else:
            found += [job.id] if job.status not in ENDED else []
    if missing:
        raise JobNotFoundError(missing)
    session.rollback()
    return found


def _pages(session: Session, database: Database, where: JobFilter) -> Iterator[list[Any]]:
    """Yield the ids of matching jobs, one page per transaction; jobs added meanwhile are ignored."""
    newest = _listed(session, database, where, limit=1).items
    last = newest[0].id if newest else None
    after = None
    while last is not None:
        found = list_jobs(session, where=where, after=after, limit=CHUNK, newest_first=False, model=database.model)
        page = [job.id for job in found if job.id <= last]
        session.rollback()
        session.expunge_all()  # do not keep every row of a long run in memory
        if page:
            yield page
        after = found.next
        if after is None or after >= last:
            return


def _listed(session: Session, database: Database, where: JobFilter, *, limit: int) -> Page[Any]:
    return collected(lambda **more: list_jobs(session, where=where, model=database.model, **more), limit=limit)


def _print_cancelled(ids: list[Any], done: str, as_json: bool) -> None:
    if as_json:
        print_json({done.replace(" ", "_"): ids})
    else:
        echo(f"{counted(len(ids), 'job')} {done}")
