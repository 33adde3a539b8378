"""The latest failed attempts, for live views."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, block, number, statement, status
from sa_jobqueue.statements.health import UNSUCCESSFUL, looked_back
from sa_jobqueue.types import JobStatus

_LIMIT = sa.bindparam("limit", type_=sa.Integer)


@statement
def failures(t: Tables) -> sa.Select[Any]:
    """Return the latest unsuccessful attempts, newest first, with the current status of their jobs.

    Parameters: `scan`, how many of the newest attempts to look at, snoozed and released ones among them; `limit`.
    Shape: `(job_id, type_name, status, attempt, outcome, error_type, error_message, ago, fairness_key)`; the
    message's first 300 characters. Clock: the database's. Locks: none.
    Index: `ix_job_attempt_changed`, backwards; the primary key.
    """
    newest = (
        sa.select(t.attempt)
        .order_by(t.attempt.c.changed_xid.desc())
        .limit(sa.bindparam("scan", type_=sa.Integer))
        .subquery("newest")
    )
    message = sa.func.left(newest.c.error.op("->>")(sa.literal_column("'message'")), sa.literal_column("300"))
    return (
        sa.select(
            newest.c.job_id,
            t.job.c.type_name,
            t.job.c.status,
            newest.c.attempt,
            newest.c.outcome,
            newest.c.error.op("->>")(sa.literal_column("'type'")).label("error_type"),
            message.label("error_message"),
            sa.cast(sa.func.clock_timestamp() - newest.c.ended_at, sa.Interval).label("ago"),
            t.job.c.fairness_key,
        )
        .select_from(newest.join(t.job, t.job.c.id == newest.c.job_id))
        .where(newest.c.outcome.in_([sa.literal_column(f"'{outcome}'") for outcome in UNSUCCESSFUL]))
        .order_by(newest.c.changed_xid.desc(), newest.c.ended_at.desc())
        .limit(_LIMIT)
    )


@statement
def starts(t: Tables) -> sa.Select[Any]:
    """Count the workers of each name that have ended attempts within the last while: each start of a worker has another id.

    Parameters: `window` (an interval); `transactions`, how many to look back; `limit`, the maximum number of jobs and of
    attempts that are read; `least`, the number of ids from which on a name is returned.
    Shape: `(name, starts, lost)`, `lost`: how many attempts were lost with them. Clock: the database's. Locks: none.
    Index: `ix_job_history`, the pages of the last transactions; `ix_job_attempt_changed`, backwards.
    """
    since = sa.func.clock_timestamp() - sa.bindparam("window", type_=sa.Interval)
    completed = (
        sa.select(t.job.c.completed_by.label("worker_id"), sa.literal_column("0").label("lost"))
        .where(
            block(number(t.job)) >= block(looked_back()),
            t.job.c.status == status(JobStatus.COMPLETED),
            t.job.c.completed_at > since,
            t.job.c.completed_by.is_not(None),
        )
        .limit(_LIMIT)
        .subquery("completed")
    )
    newest = (
        sa.select(t.attempt.c.worker_id, t.attempt.c.ended_at, t.attempt.c.outcome)
        .order_by(t.attempt.c.changed_xid.desc())
        .limit(_LIMIT)
        .subquery("newest")
    )
    lost = sa.cast(sa.cast(newest.c.outcome, sa.Text) == sa.literal_column("'lost'"), sa.Integer).label("lost")
    ended = sa.union_all(
        sa.select(completed.c.worker_id, completed.c.lost),
        sa.select(newest.c.worker_id, lost).where(newest.c.ended_at > since, newest.c.worker_id.is_not(None)),
    ).subquery("ended")
    name = sa.func.regexp_replace(ended.c.worker_id, sa.literal_column("':[0-9a-f]+$'"), sa.literal_column("''")).label(
        "name"
    )
    starts = sa.func.count(ended.c.worker_id.distinct()).label("starts")
    return (
        sa.select(name, starts, sa.cast(sa.func.sum(ended.c.lost), sa.BigInteger).label("lost"))
        .group_by(name)
        .having(starts >= sa.bindparam("least", type_=sa.Integer))
        .order_by(starts.desc(), name)
        .limit(sa.literal_column("5"))
    )


@statement
def long_chains(t: Tables) -> sa.Select[Any]:
    """Return the longest open chains of which a job has changed lately.

    Parameters: `least`, the number of their jobs; `transactions`, how many to look back; `limit` of the jobs that are read.
    Shape: up to 3 rows `(chain_id, type_name, jobs)`, the longest first. Locks: none.
    Index: `ix_job_history`, the pages of the last transactions; the primary key.
    """
    job, root = t.job, t.job.alias("root")
    recent = (
        sa.select(job.c.chain_id, job.c.chain_type_name, job.c.chain_index)
        .where(block(number(job)) >= block(looked_back()), job.c.chain_index >= sa.bindparam("least", type_=sa.Integer))
        .limit(_LIMIT)
        .subquery("recent")
    )
    longest = (
        sa.select(
            recent.c.chain_id,
            recent.c.chain_type_name.label("type_name"),
            (sa.func.max(recent.c.chain_index) + sa.literal_column("1")).label("jobs"),
        )
        .group_by(recent.c.chain_id, recent.c.chain_type_name)
        .order_by(sa.literal_column("jobs").desc(), recent.c.chain_id)
        .limit(sa.literal_column("50"))
        .subquery("longest")
    )
    return (
        sa.select(longest)
        .select_from(longest.join(root, root.c.id == longest.c.chain_id))
        .where(root.c.chain_completed_at.is_(None))
        .order_by(longest.c.jobs.desc())
        .limit(sa.literal_column("3"))
    )
