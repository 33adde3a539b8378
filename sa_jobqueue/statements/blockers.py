"""Blockers: edges from jobs to the chains they wait for, and the effect of a chain's end on jobs that wait.

Passing a chain's end on is called unblocking. A root that has ended and still `has_waiters` is the record that it is
still to be done; so whatever dies in between, the next to look finds it.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.sql.elements import Grouping

from sa_jobqueue.models.base import lowest_id
from sa_jobqueue.statements._parts import XID, Tables, array, element, excluded, relation, statement, status
from sa_jobqueue.statements.completions import awaited, buried, remembered
from sa_jobqueue.statements.notifications import NOTIFIES
from sa_jobqueue.types import DeadReason, JobStatus, OnFailure


@statement
def await_chains(t: Tables) -> sa.Update:
    """Mark roots as having waiters: another job waits for the end of their chains.

    Parameters: `ids`. Changes: `has_waiters`. Obliges: the roots are locked by this transaction, by `chains.lock`.
    Index: the primary key.
    """
    return sa.update(t.job).where(t.job.c.id == sa.any_(t.ids("ids")), ~t.job.c.has_waiters).values(has_waiters=True)


@statement
def add_edges(t: Tables) -> sa.Insert:
    """Insert edges from new jobs to the chains they wait for.

    Parameters: parallel arrays `job_ids`, `chain_ids`, `indexes`, `resolved`, `policies`, `traces`.
    Locks: none but the new rows'. Obliges: jobs and chains are there, the chains' roots locked.
    """
    edges = relation(
        "given",
        job_id=t.ids("job_ids"),
        chain_id=t.ids("chain_ids"),
        place=array("indexes", sa.Integer()),
        is_resolved=array("resolved", sa.Boolean()),
        policy=array("policies", t.blocker.c.on_failure.type),
        trace=array("traces", sa.Text()),
    )
    names = ["job_id", "blocked_by_chain_id", "index", "is_resolved", "on_failure", "trace_context"]
    return sa.insert(t.blocker).from_select(
        names,
        sa.select(edges.c.job_id, edges.c.chain_id, edges.c.place, edges.c.is_resolved, edges.c.policy, edges.c.trace),
    )


@statement
def outcomes(t: Tables) -> sa.Select[Any]:
    """Return how the chains ended that a job waited for.

    Parameters: `job_id`. Shape: `(chain_id, type_name, status, output, error)`, in the order of the edges.
    Locks: none: a claimed job's blockers have ended. Index: `pk_job_blocker`, then the primary key and `uq_job_chain`.
    """
    return (
        sa.select(t.chain.c.id, t.chain.c.type_name, t.chain.c.status, t.chain.c.output, t.chain.c.error)
        .select_from(t.blocker.join(t.chain, t.chain.c.id == t.blocker.c.blocked_by_chain_id))
        .where(t.blocker.c.job_id == t.id("job_id"))
        .order_by(t.blocker.c.index)
    )


@statement
def chains_to_unblock(t: Tables) -> sa.Select[Any]:
    """Name chains that have ended and whose end was not passed on.

    Parameters: `limit`; `after`, an id: only greater ones, all unless given. Shape: `(id,)`, in their order.
    Index: `ix_job_has_waiters`, usually empty.
    """
    after = sa.bindparam("after", lowest_id(t.layout), type_=t.id_type)
    return (
        sa.select(t.job.c.id)
        .where(*_has_ended(t), t.job.c.id > after)
        .order_by(t.job.c.id)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def has_ended_chains(t: Tables) -> sa.ColumnElement[bool]:
    """Return whether there are any `chains_to_unblock`."""
    return sa.exists(sa.select(t.job.c.id).where(*_has_ended(t)))


def _has_ended(t: Tables) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions of a root whose chain has ended and still has waiters: those of `ix_job_has_waiters`."""
    return t.job.c.has_waiters, t.job.c.chain_completed_at.is_not(None)


@statement
def still_to_unblock(t: Tables) -> sa.Select[Any]:
    """Return which of the given chains have ended and still have waiters.

    Parameters: `ids`. Shape: `(id,)`. Locks: none. Index: `ix_job_has_waiters`, which is by id, or the primary key.
    """
    return sa.select(t.job.c.id).where(t.job.c.id == sa.any_(t.ids("ids")), *_has_ended(t))


@statement
def lock_ended(t: Tables) -> sa.Select[Any]:
    """Lock those of the given chains that have ended and still have waiters, so that none of them is reopened meanwhile.

    Parameters: `ids`. Shape: `(id, outcome)`, by id; no rows in a transaction that is not READ COMMITTED: its one snapshot
    may be older than a blocker, and a waiter that it cannot see would be missed.
    Locks: the roots, until the transaction ends; rows that another transaction holds are skipped.
    Index: `ix_job_has_waiters`, which is by id, or the primary key.
    """
    sees_all = sa.func.current_setting(sa.literal_column("'transaction_isolation'")) == sa.literal_column("'read committed'")
    return (
        sa.select(t.job.c.id, sa.func.coalesce(t.job.c.chain_status, t.job.c.status, type_=t.job.c.status.type))
        .where(t.job.c.id == sa.any_(t.ids("ids")), *_has_ended(t), sees_all)
        .order_by(t.job.c.id)
        .with_for_update(key_share=True, skip_locked=True)
    )


@statement
def unblock(t: Tables, *, only: bool = False) -> sa.Select[Any]:
    """Pass the end of chains on to jobs that wait for them, up to `limit` edges.

    Parameters: parallel arrays `chains`, `outcomes`, `afters` (of each chain only edges of jobs with a greater id);
    `limit`; `dead_letter_ids`, `limit` fresh ids, or none if all `outcomes` are completed; `excluded`, waiting jobs to leave
    out, none unless given. With `only` it looks at none but edges of the jobs in `ids`.
    Shape: `(chain_id, job_id, held, status, queue, fairness_key, type_name, attempt, has_waiters)` in two kinds of rows,
    unordered. One for each blocker examined, whose `status` is null; `held`: another transaction held the job, so it is
    still to be done. One for each job that changed, with its own chain: `status` is pending, or dead, and then
    `has_waiters` is whether that chain has waiters.
    Changes: a completed chain closes its edges; a failed one those that say `continue`, and ends as dead what says
    `fail`; an edge with `wait` stays unresolved. A job whose last edge closed becomes pending, due now or later as it was.
    Clock: the database's, at the start of the transaction.
    Locks: the waiting jobs and their roots, until the transaction ends; rows that another transaction holds are skipped.
    Obliges: the chains were locked by `lock_ended`, in an earlier statement of the same READ COMMITTED transaction:
    this one's snapshot then shows every edge there can be.
    Index: `ix_job_blocker_chain`, then edges by their place and jobs by the primary key.
    """
    examined = _examined(t, only=only)
    locked = _lock_waiting(t, examined)
    held_ids = _array(locked.c.id, t.id_type)
    ready = _array(locked.c.id, t.id_type, locked.c.root_id.is_(None) | (locked.c.root_id == sa.any_(held_ids)))
    usable = sa.select(examined).where(examined.c.job_id == sa.any_(ready)).cte("usable")
    place: sa.ColumnElement[Any] = sa.literal_column(f"{t.blocker.name}.ctid")
    closed = (
        sa.update(t.blocker)
        .where(place == sa.any_(sa.func.array(sa.select(usable.c.place).where(~usable.c.fails).scalar_subquery())))
        .values(is_resolved=True)
        .returning(t.blocker.c.job_id)
        .cte("closed")
    )
    counted = (
        sa.select(
            usable.c.job_id,
            sa.cast(sa.func.count().filter(~usable.c.fails), sa.Integer).label("closing"),
            sa.func.bool_or(usable.c.fails).label("fails"),
        )
        .group_by(usable.c.job_id)
        .cte("counted")
    )
    changed = _changed(t, counted, locked)
    was_blocked = changed.c.id == sa.any_(_array(locked.c.id, t.id_type, locked.c.was_blocked))
    over = sa.cast(changed.c.status, sa.Text) != JobStatus.BLOCKED.value
    moved = sa.select(changed, sa.func.row_number().over().label("n")).where(was_blocked, over).cte("moved")
    died = sa.cast(moved.c.status, sa.Text) == JobStatus.DEAD.value
    dead_letters = buried(
        t,
        moved,
        reason=sa.literal_column(f"'{DeadReason.BLOCKER_FAILED}'"),
        error=moved.c.last_error,
        fingerprint=sa.literal(DeadReason.BLOCKER_FAILED.value),
        dead_letter_id=element(sa.bindparam("dead_letter_ids", type_=ARRAY(t.id_type)), moved.c.n),
        died=died,
    )
    examined_edges = sa.select(
        examined.c.chain_id,
        examined.c.job_id,
        (~(examined.c.job_id == sa.any_(ready))).label("held"),
        *(sa.cast(sa.null(), kind) for kind in (sa.Text, sa.Text, sa.Text, sa.Text, sa.Integer, sa.Boolean)),
    )
    updated = sa.select(
        moved.c.chain_id,
        moved.c.id.label("job_id"),
        sa.literal_column("false", sa.Boolean).label("held"),
        sa.cast(moved.c.status, sa.Text).label("status"),
        moved.c.queue,
        moved.c.fairness_key,
        moved.c.type_name,
        moved.c.attempt,
        awaited(moved, changed),
    )
    both = sa.union_all(updated, examined_edges).subquery("both")
    return sa.select(both).add_cte(closed, dead_letters)


@statement
def waiting(t: Tables) -> sa.Select[Any]:
    """Return the jobs that wait for some chains. Parameters: `chains`; `after`, an id: only greater ones; `limit`.

    Shape: `(chain_id, job_id)` an unresolved edge, by chain and job. Locks: none. Index: `ix_job_blocker_chain`.
    """
    return (
        sa.select(t.blocker.c.blocked_by_chain_id.label("chain_id"), t.blocker.c.job_id)
        .where(
            t.blocker.c.blocked_by_chain_id == sa.any_(t.ids("chains")),
            t.blocker.c.job_id > t.id("after"),
            ~t.blocker.c.is_resolved,
        )
        .order_by(t.blocker.c.blocked_by_chain_id, t.blocker.c.job_id)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


@statement
def waiting_among(t: Tables) -> sa.Select[Any]:
    """Return which of some chains any of some jobs waits for. Parameters: `chains`, `jobs`.

    Shape: `(chain_id,)`, each once. Locks: none. Index: `pk_job_blocker`.
    """
    return (
        sa.select(t.blocker.c.blocked_by_chain_id)
        .where(
            t.blocker.c.job_id == sa.any_(t.ids("jobs")),
            # No equality, so that the index of the chains cannot serve: a chain may have very many waiting jobs.
            sa.func.array_position(t.ids("chains"), t.blocker.c.blocked_by_chain_id).is_not(None),
            ~t.blocker.c.is_resolved,
        )
        .distinct()
    )


def _array(column: sa.ColumnElement[Any], kind: Any, *conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[Any]:
    """Return an array of a CTE's column. PostgreSQL computes it once, whatever becomes of the rows it is used on."""
    return sa.func.array(sa.select(column).where(*conditions).scalar_subquery(), type_=ARRAY(kind))


def _examined(t: Tables, *, only: bool) -> sa.CTE:
    """Select the unresolved edges that the end of their chain decides, each with its place in the table."""
    edge = t.blocker.alias("edge")
    limit = sa.bindparam("limit", type_=sa.Integer)
    chain = relation("chain", id=t.ids("chains"), outcome=array("outcomes", sa.Text()), after=t.ids("afters"))
    succeeded = chain.c.outcome == JobStatus.COMPLETED.value
    reached = (
        # Only the holder of the chain's root changes a blocker, so its ctid is as safe as its key, and faster.
        sa.select(sa.literal_column("edge.ctid").label("place"), edge.c.job_id, edge.c.on_failure)
        .where(
            edge.c.blocked_by_chain_id == chain.c.id,
            edge.c.job_id > chain.c.after,
            ~edge.c.is_resolved,
            excluded(edge.c.job_id, t.id_type),
            *([edge.c.job_id == sa.any_(t.ids("ids"))] if only else []),
            succeeded | (edge.c.on_failure != OnFailure.WAIT.value),
        )
        .order_by(edge.c.blocked_by_chain_id, edge.c.job_id)
        .limit(limit)
        .lateral("reached")
    )
    fails = (~succeeded & (reached.c.on_failure == OnFailure.FAIL.value)).label("fails")
    return (
        sa.select(chain.c.id.label("chain_id"), reached.c.place, reached.c.job_id, fails)
        .select_from(chain.join(reached, sa.true()))
        .limit(limit)
        .cte("examined")
    )


def _lock_waiting(t: Tables, examined: sa.CTE) -> sa.CTE:
    """Lock the waiting jobs, and the roots of those that are continuations; skip held rows."""
    job = t.job
    key = t.id_type
    waiting = sa.select(job.c.id, job.c.root_id).where(job.c.id == sa.any_(_array(examined.c.job_id, key))).cte("waiting")
    row = job.alias("row")
    lock_ids = sa.func.array_cat(
        _array(waiting.c.id, key), _array(waiting.c.root_id, key, waiting.c.root_id.is_not(None)), type_=ARRAY(key)
    )
    return (
        sa.select(row.c.id, row.c.root_id, (row.c.status == status(JobStatus.BLOCKED)).label("was_blocked"))
        .where(row.c.id == sa.any_(lock_ids))
        .order_by(row.c.id)
        .with_for_update(key_share=True, skip_locked=True)
        .cte("locked")
    )


def _changed(t: Tables, counted: sa.CTE, locked: sa.CTE) -> sa.CTE:
    """Count closed edges off the jobs that waited for them, start or end those that this decides, and end their chains.

    One update covers them and the roots of continuations that die: a root may itself have been waiting, until it was
    completed without a worker, and PostgreSQL applies only one of two changes to a row in one statement.
    """
    job = t.job
    ids = _array(counted.c.job_id, t.id_type)
    failing = _array(counted.c.job_id, t.id_type, counted.c.fails)
    dying = locked.c.was_blocked & locked.c.root_id.is_not(None) & (locked.c.id == sa.any_(failing))
    roots = _array(locked.c.root_id, t.id_type, dying)
    place = sa.func.array_position(ids, job.c.id, type_=sa.Integer)
    closes = sa.func.coalesce(
        Grouping(_array(counted.c.closing, sa.Integer()))[place], sa.literal_column("0"), type_=sa.Integer
    )
    is_blocked = job.c.status == status(JobStatus.BLOCKED)
    dies = is_blocked & (job.c.id == sa.any_(failing))
    # A counter that was written by hand may be too low: the last edges closed decide then, and it stops at zero.
    starts = is_blocked & ~dies & (job.c.open_blockers <= closes)
    ends_on_another = job.c.id == sa.any_(roots)
    error = sa.func.jsonb_build_object(
        "type", "BlockerFailed", "message", "a chain it waited for failed, and it must not run without", type_=JSONB
    )
    ended = (dies & (job.c.chain_index == 0)) | ends_on_another
    return (
        sa.update(job)
        .where(job.c.id == sa.any_(sa.func.array_cat(ids, roots, type_=ARRAY(t.id_type))))
        .values(
            open_blockers=sa.func.greatest(job.c.open_blockers - closes, sa.literal_column("0"), type_=sa.Integer),
            status=sa.case((dies, status(JobStatus.DEAD)), (starts, status(JobStatus.PENDING)), else_=job.c.status),
            scheduled_at=sa.case((starts, sa.func.greatest(job.c.scheduled_at, sa.func.now())), else_=job.c.scheduled_at),
            completed_at=sa.case((dies, sa.func.now()), else_=job.c.completed_at),
            chain_completed_at=sa.case((ended, sa.func.now()), else_=job.c.chain_completed_at),
            chain_status=sa.case((ends_on_another, status(JobStatus.DEAD)), else_=job.c.chain_status),
            last_error=sa.case((dies, error), else_=job.c.last_error),
            changed_xid=sa.case((dies | starts, XID), else_=job.c.changed_xid),
        )
        .returning(*remembered(job), job.c.last_error, job.c.has_waiters)
        .cte("changed")
    )


@statement
def clear_waiters(t: Tables) -> sa.Update:
    """Clear the mark of chains whose waiting jobs were all unblocked, and notify waiting callers if this commits.

    Parameters: `ids`. Changes: `has_waiters`; not `changed_xid`, for the jobs are unchanged. Obliges: the roots are
    locked by this transaction; only jobs that wait for a failed chain to be redriven are left. Index:
    the primary key.
    """
    return (
        sa.update(t.job)
        .where(t.job.c.id == sa.any_(t.ids("ids")))
        .values(has_waiters=False)
        .returning(sa.case((NOTIFIES, sa.func.pg_notify(t.layout.channel("ended"), sa.cast(t.job.c.id, sa.Text)))))
    )
