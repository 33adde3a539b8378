"""Dead letters: list them, group them by error, redrive or dismiss them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Any, Final, NamedTuple, get_type_hints

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from sa_jobqueue.db.blocking import blocking
from sa_jobqueue.db.splitting import in_parts
from sa_jobqueue.display.redaction import REDACTED, is_redacted
from sa_jobqueue.errors import InvalidOptionError, InvalidPayloadError
from sa_jobqueue.models import DeadLetterMixin, Job, JobClass
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.jobs import _change
from sa_jobqueue.operations.pages import BulkResult, Filter, Page
from sa_jobqueue.operations.steps import check_step, restart
from sa_jobqueue.operations.transactions import translated
from sa_jobqueue.payloads import stored_untyped
from sa_jobqueue.registry.job_types import JobType, Registry
from sa_jobqueue.statements import dead_letters, jobs, listings
from sa_jobqueue.types import DeadReason, JobId, JobStatus, Json

CHUNK = 1000
_SAME: Final[Any] = object()
"""In place of a new input: the job keeps its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterFilter(Filter):
    """Filter of dead letters; an empty field matches all, and `resolved=None` matches both.

    `ids`: these dead letters. `job_ids`: dead letters of these jobs. `types`, `queues`, `fairness_keys`: of the job when it
    died. `reasons`: why it died. `fingerprints`: of its last error. `died_after` (inclusive), `died_before` (exclusive):
    aware. `resolved`: only unresolved ones by default; True for resolved ones.
    """

    ids: Sequence[JobId] = ()
    job_ids: Sequence[JobId] = ()
    types: Sequence[str] = ()
    queues: Sequence[str] = ()
    fairness_keys: Sequence[str] = ()
    reasons: Sequence[DeadReason] = ()
    fingerprints: Sequence[str] = ()
    died_after: datetime | None = None
    died_before: datetime | None = None
    resolved: bool | None = False


@dataclass(frozen=True, slots=True)
class DeadLetterGroup:
    """Dead letters with the same type, reason and error."""

    type_name: str
    """The job type."""
    reason: str
    """One of `DeadReason`."""
    fingerprint: str | None
    """Fingerprint of the error; None without an error."""
    error_type: str | None
    """Class of the error; None without an error."""
    message: str | None
    """Start of the message of one of the errors, which may be redacted."""
    fairness_key: str
    """Their fairness key; empty if not all have the same."""
    count: int
    """Number of dead letters."""
    last_hour: int
    """How many of them are of the last hour."""
    first_died_at: datetime
    """When the first of the jobs died."""
    last_died_at: datetime
    """When the last of the jobs died."""
    example_job_id: JobId
    """Id of one of the jobs."""


def list_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    model: JobClass = Job,
) -> Page[DeadLetterMixin[Any]]:
    """Return one page of dead letters, ordered by id; otherwise like `list_jobs`.

    `where`: only matching dead letters; by default unresolved ones.
    """
    pages.check_limit(limit)
    pages.check_after(model, after)
    conditions = _conditions(model, where)
    key = model.DeadLetter.id
    statement = listings.objects(key, *conditions, after=after, limit=limit + 1, newest_first=newest_first)
    return pages.page_of(session.scalars(statement).all(), limit=limit, position=lambda letter: letter.id)


def group_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    scan: int | None = None,
    limit: int | None = None,
    model: JobClass = Job,
) -> list[DeadLetterGroup]:
    """Count dead letters by type, reason and error; return the groups, most frequent first.

    `where`: as in `list_dead_letters`. `scan`: how many matching dead letters are read; all by default. `limit`: maximum
    number of groups; none by default.
    Raises: as `list_dead_letters`.
    """
    rows = session.execute(dead_letters.groups(model, *_conditions(model, where), scan=scan, limit=limit)).mappings()
    return [
        DeadLetterGroup(**{**row, "message": REDACTED if is_redacted(row["type_name"]) else row["message"]}) for row in rows
    ]


def redrive_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str | None = None,
    after: JobId | None = None,
    limit: int = CHUNK,
    dry_run: bool = False,
    from_step: str | None = None,
    new_input: Json = _SAME,
    registry: Registry | None = None,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Make dead jobs pending again, with as many new attempts as they had; return the ids of the jobs.

    A job keeps its id, so that its chain and the jobs that wait for it continue. One whose deduplication key another open
    chain has stays dead, and is among the result's `conflicts`.

    `where`: by default all unresolved dead letters.
    `by`: recorded in the dead letters too; the database user by default.
    `limit`: 1 to 1,000, in the order of the jobs' ids.
    `from_step`: name of a step that runs again, with those that completed after it; by default all steps are kept, but a
    wait whose timeout was the last step begins again.
    `new_input`: JSON that replaces the input of the only job that matches, of the handler's version, encoded by its codec.
    The dead letter keeps the old input, and the audit has the names of the changed fields.
    `registry`: `jobs.registry` of the `JobQueue` that has the handler, to check `new_input`.
    Changes: dead -> pending; the dead letter's `resolution`, `resolved_at`, `resolved_by`; deletes these steps; with
    `new_input` also `input` and `input_version`.
    Locks: the jobs, the roots of their chains, and the chains that they still wait for, roots first, each in the order of
    their ids.
    Raises: InvalidOptionError, including if no job has the step; with `new_input` UnknownJobTypeError, and
    InvalidPayloadError if it does not fit the type.
    """
    pages.check_limit(limit)
    pages.check_after(model, after)
    conditions = _conditions(model, where)
    job_ids = session.scalars(dead_letters.jobs_of(model, *conditions, after=after, limit=limit + 1)).all()
    page = pages.page_of(job_ids, limit=limit, position=lambda job_id: job_id)
    ids = page.items
    replacement = None if new_input is _SAME or not ids else _replacement(session, page, new_input, registry, model)
    if dry_run or not ids:
        return BulkResult(ids, len(ids), page.next)
    standing = {row.id: row.status for row in session.execute(jobs.lock(model, ids, blockers=True))}
    # One that another transaction has just redriven is skipped.
    dead = [job_id for job_id in ids if standing.get(job_id) is JobStatus.DEAD]
    if from_step is not None and dead:
        check_step(session, model, dead, from_step)
    if by:
        with translated():
            session.execute(select(func.set_config("sa_jobqueue.actor", by, True)))

    async def change(some: Sequence[JobId]) -> Sequence[JobId]:
        with session.begin_nested():
            if replacement is not None:
                session.execute(jobs.replace_input(model), replacement.parameters)
            restart(session, model, some, from_step)
            _change(session, some, model, status=JobStatus.PENDING)
        return some

    parts, failed = blocking(in_parts(dead, change))
    redriven = [*chain.from_iterable(parts)]
    if by:
        session.execute(select(func.set_config("sa_jobqueue.actor", "", True)))
        about = {} if replacement is None else {"changed_fields": replacement.changed_fields}
        record(session, "redrive_dead_letters", by=by, ids=redriven, matched=len(ids), model=model, where=where, **about)
    return BulkResult(redriven, len(ids), page.next, conflicts={job_id: str(error) for job_id, error in failed})


class _Replacement(NamedTuple):
    parameters: dict[str, Any]
    changed_fields: list[str]


def _replacement(
    session: Session, page: Page[Any], new_input: Json, registry: Registry | None, model: JobClass
) -> _Replacement | None:
    """Check the new input of the only job of a page; None if the job is not there any more."""
    if registry is None:
        raise InvalidOptionError("registry", "is needed to check new_input: jobs.registry of the JobQueue with the handler")
    if len(page.items) > 1 or page.next is not None:
        raise InvalidOptionError("new_input", "is for one job, but more match")
    job = session.get(model, page.items[0], populate_existing=True)
    if job is None:
        return None
    job_type = registry.get(job.type_name)
    job_type.input.decode("input", new_input)
    stored = stored_untyped("input", new_input, job_type.codec).value
    parameters = {"job_id": job.id, "new_input": stored, "new_version": job_type.version}
    return _Replacement(parameters, _changed_fields(job_type, job.input, new_input))


def _changed_fields(job_type: JobType, stored: Json, new: Json) -> list[str]:
    """Return the names of fields that differ, of those that the type declares: other keys are part of the payload."""
    declared: set[str] = set()
    with suppress(Exception):  # not a class, or an annotation of the application raises
        declared = get_type_hints(job_type.input.declared).keys() - {"return"}
    try:
        old = job_type.open("input", stored)
    except InvalidPayloadError:
        old = None
    if is_redacted(job_type.name) or not (isinstance(old, dict) and isinstance(new, dict)):
        return ["input"]
    old_texts, new_texts = (
        {name: json.dumps(value, sort_keys=True) for name, value in document.items()} for document in (old, new)
    )
    names = {name for name in old_texts.keys() | new_texts.keys() if old_texts.get(name) != new_texts.get(name)}
    return sorted({name if name in declared else "input" for name in names})


def dismiss_dead_letters(
    session: Session,
    *,
    where: DeadLetterFilter = DeadLetterFilter(),
    by: str,
    after: JobId | None = None,
    limit: int = CHUNK,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Resolve dead letters as dismissed; return their ids. Their jobs stay dead, and resolved dead letters do not change.

    `by`, `limit`, `after`, `where`: as in `redrive_dead_letters`, in the order of the dead letters' ids.
    Changes: `resolution`, `resolved_at`, `resolved_by`.
    Locks: the dead letters, in the order of their ids.
    """
    pages.check_limit(limit)
    pages.check_after(model, after)
    conditions = (*_conditions(model, where), model.DeadLetter.resolution.is_(None))
    unresolved = listings.objects(model.DeadLetter.id, *conditions, after=after, limit=limit + 1)
    ids = unresolved.with_only_columns(model.DeadLetter.id)
    letter_ids = session.scalars(ids if dry_run else ids.with_for_update()).all()
    page = pages.page_of(letter_ids, limit=limit, position=lambda letter_id: letter_id)
    if not dry_run and page.items:
        session.execute(dead_letters.dismiss(model, page.items, by=by))
        record(session, "dismiss_dead_letters", by=by, ids=page.items, model=model, where=where)
    return BulkResult(page.items, len(page.items), page.next)


def _conditions(model: JobClass, where: DeadLetterFilter) -> list[ColumnElement[bool]]:
    pages.check_ids(model, ids=where.ids, job_ids=where.job_ids)
    return dead_letters.matching(model, where)
