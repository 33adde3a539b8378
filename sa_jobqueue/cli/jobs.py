"""`sa-jobqueue jobs`: list, show, retry and cancel jobs, and change their priority."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

import click
from sqlalchemy import type_coerce
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import _rehearsal, noun_group
from sa_jobqueue.cli._output import (
    Columns,
    counted,
    first_line,
    print_changed,
    print_result,
    record_of,
    row_of,
    shown,
    table_of,
)
from sa_jobqueue.cli._rows import page_options, print_page
from sa_jobqueue.cli.chains import BLOCKERS, JOB_COLUMNS, blocker_row, blockers_of
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.display.redaction import redacted
from sa_jobqueue.errors import ConflictError, IllegalTransitionError, NotFoundError
from sa_jobqueue.operations.pages import MAX_PAGE, every_page
from sa_jobqueue.types import ENDED, INITIAL, MAX_PRIORITY, MIN_PRIORITY, JobStatus

_OPEN: Final = tuple(status for status in JobStatus if status not in ENDED)
_PAYLOADS: Final = ("input", "output", "last_error")
_COLUMNS: Final[Columns] = {**JOB_COLUMNS, "queue": "queue"}
_STEPS: Final[Columns] = {
    "step": lambda step: f"{step.name} {step.key}".rstrip(),
    "kind": lambda step: step.kind if step.event is None else f"{step.kind} for {step.event}",
    "attempt": "attempt",
    "started": "started_at",
    "completed": lambda step: step.completed_at or f"waits until {shown(step.deadline)}",
}
_ATTEMPTS: Final[Columns] = {
    "attempt": "attempt",
    "outcome": "outcome",
    "started": "started_at",
    "ended": "ended_at",
    "worker": "worker_id",
}
_DEATHS: Final[Columns] = {
    "id": "id",
    "reason": "reason",
    "died": "died_at",
    "resolution": "resolution",
    "by": "resolved_by",
}

jobs: Final = noun_group("jobs")


@jobs.command("list")
@opts.status_option
@opts.type_option
@opts.queue_option
@opts.fairness_key_option
@opts.chain_option
@page_options
@opts.reading
def list_(database: opts.Database, /, **options: Any) -> None:
    """List jobs, one page at a time. Payloads are omitted; see `show`."""
    print_page(
        database, operations.list_jobs, operations.JobFilter, noun="job", columns=_COLUMNS, without=_PAYLOADS, **options
    )


@jobs.command()
@click.argument("job_id", metavar="ID")
@opts.reading
def show(database: opts.Database, /, *, job_id: str) -> None:
    """Show one job with its payload, progress, chain, blockers, steps, unsuccessful attempts and dead letters."""
    full_id = database.job_id(job_id)
    with database.session() as session:
        try:
            job = operations.get_job(session, full_id, model=database.model)
        except NotFoundError as error:
            raise click.ClickException(
                f"job {job_id} not found (for the id of a dead letter use `dead-letters show`)"
            ) from error
        attempts = database.every(session, operations.list_attempts, full_id)
        where = operations.DeadLetterFilter(job_ids=[full_id], resolved=None)
        dead_letters = operations.list_dead_letters(session, where=where, limit=MAX_PAGE, model=database.model).items
        chain = operations.get_chain(session, job.chain_id, model=database.model)
        blockers = blockers_of(session, database, job)
        progress = operations.get_progress(session, full_id, model=database.model)
        steps = operations.list_steps(session, full_id, model=database.model)
    document = {
        "job": row_of(job),
        "progress": None if progress is None else asdict(progress),
        "chain": row_of(chain, without=[*_PAYLOADS, "error"]),
        "blockers": [blocker_row(blocker) for blocker in blockers],
        "steps": [row_of(step, type_name=job.type_name) for step in steps],
        "attempts": [row_of(attempt, type_name=job.type_name) for attempt in attempts],
        "dead_letters": [row_of(dead_letter, without=["input"]) for dead_letter in dead_letters],
    }
    parts = record_of(f"job {job.id}", row_of(job))
    parts += [] if progress is None else [f"progress: {progress}, as of {shown(progress.as_of)}"]
    parts.append(f"chain {chain.id} ({chain.type_name}, {chain.status}): job {job.chain_index + 1} of {chain.length}")
    result: Columns = {"result": lambda step: json.dumps(redacted(job.type_name, step.output), ensure_ascii=False)[:100]}
    reason: Columns = {"error": lambda attempt: first_line(attempt.error, job.type_name)}
    tables: dict[str, tuple[Columns, Sequence[Any]]] = {
        "blocked by": (BLOCKERS, blockers),
        "steps": ({**_STEPS, **result}, steps),
        "unsuccessful attempts": ({**_ATTEMPTS, **reason}, attempts),
        "dead letters": (_DEATHS, dead_letters),
    }
    print_result(document, *parts, *(table_of(title, columns, rows) for title, (columns, rows) in tables.items() if rows))


@jobs.command()
@click.argument("job_id", metavar="ID")
@_rehearsal.options
def rehearse(job_id: str, **options: Any) -> None:
    """Run the handler of a pending or dead job in a transaction that is rolled back, and report its outcome and effects.

    The handler is declared with rehearsable=True. Exit status: 0 it would not fail, 1 it would, 2 it is not known.
    """
    _rehearsal.rehearse_jobs(lambda database: [database.job_id(job_id)], **options)


@jobs.command()
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@opts.changing
def retry(database: opts.Database, /, *, ids: tuple[str, ...], dry_run: bool, by: str) -> None:
    """Run jobs now: make pending jobs due, and redrive dead ones. All of them, or none."""
    requested_ids, model = database.job_ids(ids), database.model
    with database.session() as session, session.begin():
        job_by_id = {job_id: operations.get_job(session, job_id, model=model) for job_id in requested_ids}
        for job_id, job in job_by_id.items():
            if job.status not in {JobStatus.PENDING, JobStatus.DEAD}:
                raise IllegalTransitionError(
                    f"job {job_id} is {job.status}: only pending and dead jobs can be retried. No job was changed."
                )
        pending = [job_id for job_id, job in job_by_id.items() if job.status is JobStatus.PENDING]
        dead = [job_id for job_id, job in job_by_id.items() if job.status is JobStatus.DEAD]
        if pending:
            operations.trigger_jobs(session, pending, by=by, dry_run=dry_run, model=model)
        where = operations.DeadLetterFilter(job_ids=dead, resolved=None)
        options: dict[str, Any] = {"where": where, "by": by, "dry_run": dry_run, "model": model}
        redriven = []
        for page in (
            every_page(lambda after: operations.redrive_dead_letters(session, after=after, **options)) if dead else ()
        ):
            redriven += page.ids
            for job_id, reason in page.conflicts.items():
                raise ConflictError(f"job {job_id}: {reason}. No job was changed")
        if changed := [job_id for job_id in dead if job_id not in redriven]:
            raise IllegalTransitionError(f"job {changed[0]} is no longer dead. No job was changed.")
    due, again, would = counted(len(pending), "pending job"), counted(len(redriven), "dead job"), "would be " * dry_run
    document = {f"{would}triggered".replace(" ", "_"): pending, f"{would}redriven".replace(" ", "_"): redriven}
    print_result(document, f"{due} {would}triggered, {again} {would}redriven")


@jobs.command()
@click.argument("job_id", metavar="ID")
@click.option("--from-step", metavar="NAME", help="Keep the steps that completed before this one.  [default: run all again]")
@opts.by_option
@opts.reading
def rerun(database: opts.Database, /, *, job_id: str, from_step: str | None, by: str) -> None:
    """Enqueue a new job like one that has ended, to run again from a step. The old job does not change.

    \b
    Example:
      sa-jobqueue jobs rerun 0197c1f2-54b6-7c83-9b7e-0d7c2f6a1e55 --from-step charge
    """
    new = database.run(operations.rerun_job, database.job_id(job_id), from_step=from_step, by=by)
    print_result({"job": new.id, "rerun_of": job_id}, f"job {new.id} enqueued")


@jobs.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@opts.only("--status", "statuses", None, "jobs with this status", type=opts.one_of(_OPEN))
@opts.type_option
@opts.queue_option
@opts.yes_option
@opts.changing
def cancel(database: opts.Database, /, *, ids: tuple[str, ...], dry_run: bool, yes: bool, by: str, **filters: Any) -> None:
    """Cancel jobs that have not ended, by id or by filters. Running jobs are stopped.

    \b
    Example:
      sa-jobqueue jobs cancel --status pending --queue mail --dry-run
    """
    filtered = any(filters.values())
    if bool(ids) == filtered:
        raise click.UsageError("pass ids, or at least one of --status, --type and --queue, and not both")
    requested_ids = database.job_ids(ids)
    with database.session() as session:
        if filtered:
            where = operations.JobFilter(**filters | {"statuses": filters["statuses"] or _OPEN})
            options: dict[str, Any] = {"where": where, "columns": ["id"], "newest_first": False, "limit": MAX_PAGE}
            requested_ids = [job.id for job in database.every(session, operations.list_jobs, **options)]
            session.rollback()
            if not (yes or dry_run):
                click.confirm(f"Cancel {counted(len(requested_ids), 'job')}?", abort=True, err=True)
        cancelled: list[Any] = []
        for start in range(0, len(requested_ids), MAX_PAGE):
            page = requested_ids[start : start + MAX_PAGE]
            cancelled += operations.cancel_jobs(session, page, by=by, dry_run=dry_run, model=database.model).ids
            session.commit()
    print_changed("job", cancelled, "cancelled", dry_run=dry_run)


@jobs.command()
@click.argument("ids", metavar="[ID...]", nargs=-1)
@opts.number_option(
    "--to", "New priority, -9 to 9; larger runs first.", least=MIN_PRIORITY, most=MAX_PRIORITY, required=True
)
@opts.chain_option
@opts.type_option
@opts.queue_option
@click.option(
    "--payload",
    type=opts.json_document,
    metavar="JSON",
    help="Only jobs whose payload contains this, such as '{\"tenant\": 7}'.",
)
@opts.changing
def priority(
    database: opts.Database, /, *, ids: tuple[str, ...], to: int, chain_ids: tuple[str, ...], types: tuple[str, ...],
    queues: tuple[str, ...], payload: Any, dry_run: bool, by: str,
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
    where = operations.JobFilter(**chosen, types=types, queues=queues, statuses=sorted(INITIAL))
    matching = None if payload is None else model.input.contains(type_coerce(payload, JSONB))
    changed = 0
    options: dict[str, Any] = {"where": where, "matching": matching, "by": by, "dry_run": dry_run, "model": model}
    with database.session() as session, ProgressLines("priority") as lines:
        for chosen_id in chosen["ids"]:
            operations.get_job(session, chosen_id, model=model)  # a wrong id is an error, as in the other commands
        for page in every_page(lambda after: operations.set_priority(session, to, after=after, **options)):
            session.commit()
            changed += page.changed
            lines.update(changed, step="jobs changed")
    text = f"{counted(changed, 'job')} {'would be changed' if dry_run else 'changed'} to priority {to}"
    print_result({"priority": to, "dry_run": dry_run, "jobs": changed}, text)
