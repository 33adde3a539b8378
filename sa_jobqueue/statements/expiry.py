"""Jobs that were not started in time."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

from sa_jobqueue.errors import DeadlinePassedError
from sa_jobqueue.statements._parts import XID, Tables, excluded, statement, status
from sa_jobqueue.statements.completions import awaited, end_chains, free
from sa_jobqueue.types import JobStatus

_DEADLINE_PASSED: Final = f"{DeadlinePassedError.__module__}.{DeadlinePassedError.__qualname__}"


@statement
def expire(t: Tables, *, only: bool = False) -> sa.Select[Any]:
    """Cancel pending jobs whose `expires_at` has passed. Claims skip them anyway: this only records the outcome.

    Parameters: `limit`; `excluded`, ids to leave out, none unless given; with `only` it takes none but those in `ids`.
    Shape: `(id, type_name, attempt, chain_id, has_waiters)` a job, the last as in `completions.finish`;
    fewer than `limit` rows: none are left but those held by another transaction. Unordered.
    Changes: pending -> cancelled; `last_error` states when it should have started or ended. The chain ends.
    Clock: the database's. Locks: the rows cancelled, and the roots of continuations, until the transaction ends; rows held
    by another transaction are skipped: it is claiming or changing them. Index: `ix_job_expiring`.
    """
    job = t.job
    late = _late(t, only=only).with_for_update(key_share=True, skip_locked=True).cte("late")
    roots_held = free(job, sa.func.array(sa.select(late.c.root_id).where(late.c.root_id.is_not(None)).scalar_subquery()))
    error = sa.case(
        # In the words of the worker that ends a running one.
        (job.c.deadline <= sa.func.now(), _error(_DEADLINE_PASSED, "did not end by its deadline, ", job.c.deadline)),
        else_=_error("Expired", "was to start by ", job.c.expires_at, " and no worker was free by then"),
    )
    expired = (
        sa.update(job)
        .where(
            job.c.id == sa.any_(sa.func.array(sa.select(late.c.id).scalar_subquery())),
            job.c.root_id.is_(None) | (job.c.root_id == sa.any_(roots_held)),
        )
        .values(
            status=status(JobStatus.CANCELLED),
            completed_at=sa.func.now(),
            chain_completed_at=sa.case((job.c.chain_index == 0, sa.func.now())),
            last_error=error,
            changed_xid=XID,
        )
        .returning(job.c.id, job.c.type_name, job.c.attempt, job.c.chain_id, job.c.status, job.c.has_waiters)
        .cte("expired")
    )
    roots = end_chains(job, expired, sa.true())
    return sa.select(expired.c.id, expired.c.type_name, expired.c.attempt, expired.c.chain_id, awaited(expired, roots))


@statement
def late(t: Tables) -> sa.Select[Any]:
    """Return the jobs that `expire` would cancel now.

    Parameters: `limit`, `excluded`, as there. Shape: `(id, root_id)`. Locks: none.
    Index: `ix_job_expiring`.
    """
    return _late(t, only=False)


def has_expired(t: Tables) -> sa.ColumnElement[bool]:
    """Return whether `expire` would cancel any job."""
    return sa.exists(sa.select(t.job.c.id).where(*_is_late(t.job)))


def _error(kind: str, *message: Any) -> sa.ColumnElement[Any]:
    return sa.func.jsonb_build_object("type", kind, "message", sa.func.concat(*message))


def _late(t: Tables, *, only: bool) -> sa.Select[Any]:
    late_jobs = sa.select(t.job.c.id, t.job.c.root_id).where(
        *_is_late(t.job),
        excluded(t.job.c.id, t.id_type),
        *([t.job.c.id == sa.any_(t.ids("ids"))] if only else []),
    )
    return late_jobs.order_by(t.job.c.expires_at).limit(sa.bindparam("limit", type_=sa.Integer))


def _is_late(job: sa.Table) -> list[sa.ColumnElement[bool]]:
    return [
        job.c.status == status(JobStatus.PENDING),
        job.c.expires_at.is_not(None),
        job.c.expires_at <= sa.func.now(),
    ]
