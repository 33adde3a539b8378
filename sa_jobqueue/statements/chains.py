"""Chains with continuations: completing a job together with its continuation, and ending such a chain.

The root's row is the chain's mutex: every transaction that extends the chain, ends it, reopens it or adds a waiter to it
holds that row. All that wait for locks acquire them in one order: roots by id, then continuations by id. The worker's own
statements skip held rows and try again, so they cannot be part of a deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import (
    XID,
    array,
    element,
    id_array,
    id_value,
    is_running,
    once_a_model,
    position,
    status,
    table,
)
from sa_jobqueue.statements.completions import awaited, end_chains, free
from sa_jobqueue.statements.jobs import new_rows
from sa_jobqueue.types import JobStatus


@once_a_model
def complete(model: JobClass, columns: Sequence[str] = ()) -> sa.Select[Any]:
    """Complete many attempts of one worker in chains of several jobs, and insert the continuations of those that go on.

    Parameters: parallel arrays `ids`, `attempts`, `outputs` (JSON texts; null for one that goes on), at most
    `_parts.BATCH`; `locks`, the ids and those of their roots; `worker_id`; with `columns`, `parents`: the ids that go
    on, and parallel to it an array for each name in `columns` (those of JSON columns as texts), `delays` and `ats`, as
    in `jobs.enqueue_many`.
    Shape: `(id, status, chain_id, has_waiters)` for each attempt that still was the worker's; nothing is written for the
    others. `has_waiters` is whether the chain has waiters, `status` is null unless the chain ended.
    Changes: running -> completed; the chain ends with the last one; a row for each continuation.
    Clock: the database's, at the start of the transaction.
    Locks: the jobs and their roots, by id; rows that another transaction holds are skipped, as in `completions.complete`.
    Index: the primary key.
    """
    job = table(model)
    ids = id_array(model, "ids")
    place = position(ids, job.c.id)
    worker = sa.bindparam("worker_id", type_=sa.Text)
    locked = free(job, id_array(model, "locks"))
    continues = (
        sa.func.coalesce(job.c.id == sa.any_(id_array(model, "parents")), False) if columns else sa.literal_column("false")
    )
    ended = (
        sa.update(job)
        .where(
            job.c.id == sa.any_(locked),
            job.c.chain_id == sa.any_(locked),
            job.c.attempt == element(array("attempts", sa.Integer()), place),
            job.c.leased_by == worker,
            is_running(job),
        )
        .values(
            status=status(JobStatus.COMPLETED),
            output=sa.cast(element(array("outputs", sa.Text()), place), JSONB),
            completed_at=sa.func.now(),
            completed_by=worker,
            leased_by=sa.null(),
            leased_until=sa.null(),
            last_error=sa.null(),
            chain_completed_at=sa.case(((job.c.chain_index == 0) & ~continues, sa.func.now())),
            changed_xid=XID,
        )
        .returning(job.c.id, job.c.chain_id, job.c.status, job.c.has_waiters, continues.label("continues"))
        .cte("ended")
    )
    roots = end_chains(job, ended, ~ended.c.continues)
    outcome = sa.case((~ended.c.continues, ended.c.status)).label("status")
    chosen = sa.select(ended.c.id, outcome, ended.c.chain_id, awaited(ended, roots))
    if columns:
        chosen = chosen.add_cte(_inserted(model, columns, ended).cte("inserted"))
    return chosen


def _inserted(model: JobClass, columns: Sequence[str], ended: Any) -> Any:
    job = table(model)
    names, chosen, given = new_rows(model, columns, parents=True)
    written = sa.any_(sa.func.array(sa.select(ended.c.id).scalar_subquery()))
    return sa.insert(job).from_select(names, chosen.where(given.c.parent == written)).returning(job.c.id)


@once_a_model
def lock(model: JobClass) -> sa.Select[Any]:
    """Lock jobs in the order that everybody who waits takes them: roots by id, then continuations by id.

    Parameters: `ids`.
    Shape: `(id, chain_id, type_name, status, has_waiters, ended, outcome)` of those that exist, in that order; `ended` and
    `outcome` are the chain's, on a root. All as of the moment each was locked.
    Locks: the rows, awaited, until the caller's transaction ends. Index: the primary key.
    """
    job = table(model)
    return (
        sa.select(
            job.c.id,
            job.c.chain_id,
            job.c.type_name,
            job.c.status,
            job.c.has_waiters,
            job.c.chain_completed_at.is_not(None).label("ended"),
            sa.func.coalesce(job.c.chain_status, job.c.status, type_=job.c.status.type).label("outcome"),
        )
        .where(job.c.id == sa.any_(id_array(model, "ids")))
        .order_by(job.c.root_id.is_not(None), job.c.id)
        .with_for_update(key_share=True)
    )


@once_a_model
def end(model: JobClass) -> sa.Update:
    """End a chain whose last job, a continuation, has just completed.

    Parameters: `root`, its id. Shape: `(has_waiters,)`. Changes: the root's `chain_completed_at`, `chain_status`.
    Obliges: the root is locked by this transaction, by `lock`. Index: the primary key.
    """
    job = table(model)
    return (
        sa.update(job)
        .where(job.c.id == id_value(model, "root"))
        .values(chain_completed_at=sa.func.now(), chain_status=status(JobStatus.COMPLETED))
        .returning(job.c.has_waiters)
    )


@once_a_model
def last_job(model: JobClass) -> sa.Select[Any]:
    """Return a chain's last job as an ORM object, locked.

    Parameters: `chain_id`. Shape: `(Job,)`. Locks: the row, awaited, after the root's.
    Obliges: the root is locked by an earlier statement, so that no continuation can follow the job found.
    Index: `uq_job_chain`, and the primary key for a root alone.
    """
    job, chain = cast("Any", model), table(model.Chain)
    last = sa.select(chain.c.last_job_id).where(chain.c.id == id_value(model, "chain_id")).scalar_subquery()
    return (
        sa.select(model)
        .where(job.id == last)
        .with_for_update(key_share=True, of=model)
        .execution_options(populate_existing=True)
    )


@once_a_model
def complete_unclaimed(model: JobClass, *, continues: bool) -> sa.Update:
    """Complete a job that no worker completes: blocked, pending or running, from its application's own transaction.

    Parameters: `job_id`, `job_output` (JSON text; null when it goes on).
    Shape: `(has_waiters,)`. Changes: -> completed; the lease ends, `completed_by` is null; on a root the chain ends,
    unless it goes on. Obliges: the job and its root are locked by this transaction. Index: the primary key.
    """
    job = table(model)
    chain_end: dict[str, Any] = {} if continues else {"chain_completed_at": sa.case((job.c.chain_index == 0, sa.func.now()))}
    return (
        sa.update(job)
        .where(job.c.id == id_value(model, "job_id"))
        .values(
            status=status(JobStatus.COMPLETED),
            output=sa.cast(sa.bindparam("job_output", type_=sa.Text), JSONB),
            completed_at=sa.func.now(),
            completed_by=sa.null(),
            leased_by=sa.null(),
            leased_until=sa.null(),
            last_error=sa.null(),
            changed_xid=XID,
            **chain_end,
        )
        .returning(job.c.has_waiters)
    )


@once_a_model
def edges_of(model: JobClass) -> sa.CompoundSelect[Any]:
    """Return the edges between chains and others: what their jobs wait or waited for, and what waits or waited for them.

    Parameters: `ids`, of roots; `limit`, of edges of each of three kinds.
    Shape: `(blocked_by_chain_id, chain_id, is_resolved)`, where a job of the chain waits; an edge within may come twice.
    Locks: none.
    Index: `pk_job_blocker` for roots, `uq_job_chain` for continuations, `ix_job_blocker_chain` for those that wait.
    """
    job, edge = table(model), table(model.Blocker)
    given = sa.any_(id_array(model, "ids"))
    limit = sa.bindparam("limit", type_=sa.Integer)
    shown = (edge.c.blocked_by_chain_id, job.c.chain_id, edge.c.is_resolved)
    joined = edge.join(job, job.c.id == edge.c.job_id)
    return sa.union_all(
        sa.select(*shown).select_from(joined).where(edge.c.job_id == given).limit(limit),
        sa.select(*shown).select_from(joined).where(job.c.root_id == given).limit(limit),
        sa.select(*shown).select_from(joined).where(edge.c.blocked_by_chain_id == given).limit(limit),
    )
