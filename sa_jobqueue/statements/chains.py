"""Chains with continuations: completing a job together with its continuation, and ending such a chain.

The root's row is the chain's mutex: every transaction that extends the chain, ends it, reopens it or adds a waiter to it
holds that row. All that wait for locks acquire them in one order: roots by id, then continuations by id. The worker's own
statements skip held rows and try again, so they cannot be part of a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from sa_jobqueue.statements._parts import Tables, array, element, fence, is_claimed_table, position, statement, status
from sa_jobqueue.statements.completions import awaited, completion, end_chains, free
from sa_jobqueue.statements.jobs import new_rows
from sa_jobqueue.statements.visibility import is_companion
from sa_jobqueue.types import JobStatus


@statement
def complete(t: Tables, columns: Sequence[str] = ()) -> sa.Select[Any]:
    """Complete many attempts of one worker in chains of several jobs, and insert the continuations of those that go on.

    Parameters: parallel arrays `ids`, `attempts`, `outputs` (JSON texts; null for one that goes on), at most
    `_parts.BATCH`; `locks`, the ids and those of their roots; `worker_id`; with `columns`, `parents`: the ids that go
    on, and parallel to it the arrays of `jobs.enqueue_many`, whose names begin with `next_`.
    Shape: `(id, status, chain_id, has_waiters)` for each attempt that still was the worker's; nothing is written for the
    others. `has_waiters` is whether the chain has waiters, `status` is null unless the chain ended.
    Changes: running -> completed; the chain ends with the last one; a row for each continuation.
    Clock: the database's, at the start of the transaction.
    Locks: the jobs and their roots, by id; rows that another transaction holds are skipped, as in `completions.complete`.
    Index: the primary key.
    """
    output = element(array("outputs", sa.Text()), position(t.ids("ids"), t.job.c.id))
    locked = free(t.job, t.ids("locks"))
    continues = sa.func.coalesce(t.job.c.id == sa.any_(t.ids("parents")), False) if columns else sa.literal_column("false")
    ended = (
        sa.update(t.job)
        .where(fence(t, locked), t.job.c.chain_id == sa.any_(locked))
        .values(completion(output, ends_chain=(t.job.c.chain_index == 0) & ~continues))
        .returning(t.job.c.id, t.job.c.chain_id, t.job.c.status, t.job.c.has_waiters, continues.label("continues"))
        .cte("ended")
    )
    roots = end_chains(t.job, ended, ~ended.c.continues)
    outcome = sa.case((~ended.c.continues, ended.c.status)).label("status")
    chosen = sa.select(ended.c.id, outcome, ended.c.chain_id, awaited(ended, roots))
    if columns:
        chosen = chosen.add_cte(_inserted(t, columns, ended).cte("inserted"))
    return chosen


def _inserted(t: Tables, columns: Sequence[str], ended: Any) -> Any:
    names, chosen, continuations = new_rows(t, columns, targets="parents")
    ended_ids = sa.any_(sa.func.array(sa.select(ended.c.id).scalar_subquery()))
    return sa.insert(t.job).from_select(names, chosen.where(continuations.c.target == ended_ids)).returning(t.job.c.id)


@statement
def lock(t: Tables, *, in_session: bool = False) -> sa.Select[Any]:
    """Lock jobs in the order that everybody who waits takes them: roots by id, then continuations by id.

    Parameters: `ids`; with `in_session`, for a handler's transaction, also `table_oid`: rows of other tables are left alone.
    Shape: `(id, chain_id, type_name, status, has_waiters, ended, outcome)` of those that exist, in that order; `ended` and
    `outcome` are the chain's, on a root. All as of the moment each was locked.
    Locks: the rows, awaited, until the caller's transaction ends. Index: the primary key.
    """
    locked = (
        sa.select(
            t.job.c.id,
            t.job.c.chain_id,
            t.job.c.type_name,
            t.job.c.status,
            t.job.c.has_waiters,
            t.job.c.chain_completed_at.is_not(None).label("ended"),
            sa.func.coalesce(t.job.c.chain_status, t.job.c.status, type_=t.job.c.status.type).label("outcome"),
        )
        .where(t.job.c.id == sa.any_(t.ids("ids")))
        .order_by(t.job.c.root_id.is_not(None), t.job.c.id)
        .with_for_update(key_share=True)
    )
    if in_session:  # the insert of a continuation writes its blockers as well
        locked = locked.where(is_claimed_table(t), is_companion(t, "job_blocker"))
    return locked


@statement
def end(t: Tables, *, in_session: bool = False) -> sa.Update:
    """End a chain whose last job, a continuation, has just completed.

    Parameters: `root`, its id; with `in_session` also `table_oid`, as in `lock`. Shape: `(has_waiters,)`. Changes: the
    root's `chain_completed_at`, `chain_status`.
    Obliges: the root is locked by this transaction, by `lock`. Index: the primary key.
    """
    ended = (
        sa.update(t.job)
        .where(t.job.c.id == t.id("root"))
        .values(chain_completed_at=sa.func.now(), chain_status=status(JobStatus.COMPLETED))
        .returning(t.job.c.has_waiters)
    )
    return ended.where(is_claimed_table(t)) if in_session else ended


@statement
def last_job(t: Tables) -> sa.Select[Any]:
    """Return a chain's last job as an ORM object, locked.

    Parameters: `chain_id`. Shape: `(Job,)`. Locks: the row, awaited, after the root's.
    Obliges: the root is locked by an earlier statement, so that no continuation can follow the job found.
    Index: `uq_job_chain`, and the primary key for a root alone.
    """
    job, chain = cast("Any", t.model), t.chain
    last = sa.select(chain.c.last_job_id).where(chain.c.id == t.id("chain_id")).scalar_subquery()
    return (
        sa.select(t.model)
        .where(job.id == last)
        .with_for_update(key_share=True, of=t.model)
        .execution_options(populate_existing=True)
    )


@statement
def complete_unclaimed(t: Tables, *, continues: bool) -> sa.Update:
    """Complete a job that no worker completes: blocked, pending or running, from its application's own transaction.

    Parameters: `job_id`, `job_output` (JSON text; null when it goes on).
    Shape: `(has_waiters,)`. Changes: -> completed; the lease ends, `completed_by` is null; on a root the chain ends,
    unless it goes on. Obliges: the job and its root are locked by this transaction. Index: the primary key.
    """
    output, ends_chain = sa.bindparam("job_output", type_=sa.Text), None if continues else t.job.c.chain_index == 0
    return (
        sa.update(t.job)
        .where(t.job.c.id == t.id("job_id"))
        .values(completion(output, ends_chain=ends_chain, is_claimed=False))
        .returning(t.job.c.has_waiters)
    )


@statement
def edges_of(t: Tables) -> sa.CompoundSelect[Any]:
    """Return the edges between chains and those that their jobs wait or waited for.

    Parameters: `ids`, of roots; `limit`, of edges of each of two kinds.
    Shape: `(blocked_by_chain_id, chain_id, is_resolved)`, where a job of the chain waits; an edge within may come twice.
    Locks: none. Index: `pk_job_blocker` for roots, `uq_job_chain` for continuations.
    """
    root_ids = sa.any_(t.ids("ids"))
    limit = sa.bindparam("limit", type_=sa.Integer)
    columns = (t.blocker.c.blocked_by_chain_id, t.job.c.chain_id, t.blocker.c.is_resolved)
    joined = t.blocker.join(t.job, t.job.c.id == t.blocker.c.job_id)
    return sa.union_all(
        sa.select(*columns).select_from(joined).where(t.blocker.c.job_id == root_ids).limit(limit),
        sa.select(*columns).select_from(joined).where(t.job.c.root_id == root_ids).limit(limit),
    )


@statement
def waiting_types(t: Tables) -> sa.Select[Any]:
    """Count the jobs that wait or waited for a chain, by type and status.

    Parameters: `chain_id`; `limit`: it counts no further. Shape: `(type_name, status, jobs, job_id)`, the most first, with
    the first job of each. Locks: none. Index: `ix_job_blocker_chain`, then the primary key of the jobs.
    """
    waiting = (
        sa.select(t.blocker.c.job_id)
        .where(t.blocker.c.blocked_by_chain_id == t.id("chain_id"))
        .limit(sa.bindparam("limit", type_=sa.Integer))
        .subquery("waiting")
    )
    ids = sa.func.array_agg(aggregate_order_by(t.job.c.id, t.job.c.id), type_=ARRAY(t.job.c.id.type))
    count = sa.func.count().label("jobs")
    return (
        sa.select(t.job.c.type_name, t.job.c.status, count, ids[1].label("job_id"))
        .select_from(waiting.join(t.job, t.job.c.id == waiting.c.job_id))
        .group_by(t.job.c.type_name, t.job.c.status)
        .order_by(count.desc(), t.job.c.type_name)
    )
