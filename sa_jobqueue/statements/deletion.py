"""Deleting whole chains: which others they wait for, who holds on to them, and taking them out under their locks."""

from __future__ import annotations

from typing import Any
from typing import cast as typed

import sqlalchemy as sa

from sa_jobqueue.models.base import CURRENT_XID
from sa_jobqueue.statements._parts import Tables, statement
from sa_jobqueue.types import Resolution


@statement
def connected(t: Tables) -> sa.Select[Any]:
    """Name chains, and all that they wait for or waited for: roots and continuations, and theirs in turn.

    Parameters: `ids`, of roots. Shape: `(id,)`, each once, those given that exist included, unordered. Locks: none.
    Index: the primary key, then `pk_job_blocker`, and `uq_job_chain` for continuations.
    """
    # From the table, not from the array: text ids have a collation of their own, and both terms must agree on it.
    chain = sa.select(t.job.c.id).where(t.job.c.id == sa.any_(t.ids("ids"))).cte("chain", recursive=True)
    # Each of its jobs by an index of its own: as one condition with OR the whole table is read for every chain.
    of_root = sa.select(t.blocker.c.blocked_by_chain_id.label("id")).where(t.blocker.c.job_id == chain.c.id)
    of_others = (
        sa.select(t.blocker.c.blocked_by_chain_id.label("id"))
        .select_from(t.job.join(t.blocker, t.blocker.c.job_id == t.job.c.id))
        .where(t.job.c.root_id == chain.c.id)
    )
    blocker = sa.union_all(of_root.correlate(chain), of_others.correlate(chain)).lateral("blocker")
    chain = chain.union(sa.select(blocker.c.id).select_from(chain.join(blocker, sa.true())))
    return sa.select(chain.c.id)


@statement
def roots(t: Tables, *, lock: bool = False) -> sa.Select[Any]:
    """Name the chains that exist.

    Parameters: `ids`. Shape: `(id,)` of the roots that exist, by id. Index: the primary key.
    Locks: with `lock` the roots exclusively, awaited, in the order of their ids, also against foreign keys to them, until
    the transaction or its savepoint ends: who would extend a chain, end it, or start to wait for it has to wait.
    """
    root_ids = sa.select(t.job.c.id).where(t.job.c.id == sa.any_(t.ids("ids")), t.job.c.root_id.is_(None))
    return root_ids.order_by(t.job.c.id).with_for_update() if lock else root_ids.order_by(t.job.c.id)


@statement
def continuations(t: Tables, *, lock: bool = False, skip_locked: bool = False) -> sa.Select[Any]:
    """Name all other jobs of chains.

    Parameters: `ids`, of roots. Shape: `(id, chain_id)`, by id. Index: `uq_job_chain`.
    Locks: with `lock` the rows, in the order of their ids; with `skip_locked` those that another transaction holds are left
    out, otherwise awaited.
    Obliges: with `lock`, the roots were locked by an earlier statement of the same READ COMMITTED transaction; so none is
    missing, and a chain is whole if as many of its jobs are locked as it has.
    """
    later_jobs = sa.select(t.job.c.id, t.job.c.chain_id).where(t.job.c.root_id == sa.any_(t.ids("ids"))).order_by(t.job.c.id)
    return later_jobs.with_for_update(skip_locked=skip_locked) if lock else later_jobs


@statement
def references(t: Tables) -> sa.Select[Any]:
    """Return jobs outside a set of jobs that wait, or waited, for these chains.

    Parameters: `ids`, of roots; `job_ids`, the set; `limit`. Shape: `(chain_id, job_id)`, in that order. Locks: none.
    Index: `ix_job_blocker_chain`.
    """
    job_id = sa.func.unnest(t.ids("job_ids"), type_=t.id_type).column_valued("own")
    return (
        sa.select(t.blocker.c.blocked_by_chain_id.label("chain_id"), t.blocker.c.job_id)
        .where(
            t.blocker.c.blocked_by_chain_id == sa.any_(t.ids("ids")),
            ~sa.exists(sa.select(job_id).where(job_id == t.blocker.c.job_id).correlate(t.blocker)),
        )
        .order_by(t.blocker.c.blocked_by_chain_id, t.blocker.c.job_id)
        .limit(sa.bindparam("limit", type_=sa.Integer))
    )


def check_at_once() -> sa.TextClause:
    """Check deferred constraints now, and all later violations at the end of their statement, until the transaction ends.

    Shape: none. Locks: none. Raises: a violation so far.
    """
    return sa.text("SET CONSTRAINTS ALL IMMEDIATE")


@statement
def delete_edges(t: Tables) -> sa.Delete:
    """Delete what jobs wait for. Parameters: `job_ids`. Obliges: the jobs are locked. Index: `pk_job_blocker`."""
    edge: Any = t.model.Blocker
    return sa.delete(edge).where(edge.job_id == sa.any_(t.ids("job_ids")))


@statement
def delete_attempts(t: Tables) -> sa.Delete:
    """Delete the history of jobs. Parameters: `job_ids`. Obliges: the jobs are locked. Index: `pk_job_attempt`.

    `tr_job_deleted` would delete it as well; this one takes the objects out of the session. Steps have none.
    """
    attempt: Any = t.model.Attempt
    return sa.delete(attempt).where(attempt.job_id == sa.any_(t.ids("job_ids")))


@statement
def dismiss_dead_letters(t: Tables) -> sa.Update:
    """Resolve the open dead letters of jobs that are deleted: their jobs can no longer be redriven.

    Parameters: `job_ids`; `by`, null for whom a redrive through the view would name: the setting `sa_jobqueue.actor`, or
    the database's user. Changes: `resolution`, `resolved_at`, `resolved_by`.
    Clock: the database's. Locks: the dead letters. Obliges: the jobs are locked. Index: `uq_dead_letter_open`
    or `ix_dead_letter_job`.
    """
    dead_letter: Any = t.model.DeadLetter
    setting = sa.func.current_setting(sa.literal_column("'sa_jobqueue.actor'"), sa.true())
    actor = sa.func.coalesce(
        sa.bindparam("by", type_=sa.Text),
        sa.func.nullif(setting, sa.literal_column("''", sa.Text)),
        sa.cast(sa.func.session_user(), sa.Text),
    )
    return (
        sa.update(dead_letter)
        .where(
            dead_letter.job_id == sa.any_(t.ids("job_ids")),
            dead_letter.resolution.is_(None),
        )
        .values(resolution=Resolution.DISMISSED, resolved_at=sa.func.now(), resolved_by=actor, changed_xid=CURRENT_XID)
    )


@statement
def delete_jobs(t: Tables) -> sa.Delete:
    """Delete all jobs of chains in one statement: a continuation and its root hold each other up.

    Parameters: `job_ids`. Shape: `(id, status, chain_id, has_waiters)` as they were, unordered.
    Changes: `tr_job_deleted` deletes their steps and attempts, and dismisses their dead letters.
    Obliges: the jobs are locked, their edges deleted, and no other job refers to them. Index: the primary key; and to
    check that nothing refers to them `uq_job_chain`, `pk_job_blocker`, `ix_job_blocker_chain`.
    """
    job: Any = t.model
    deletion = sa.delete(t.model).where(job.id == sa.any_(t.ids("job_ids")))
    returned: Any = deletion.returning(job.id, job.status, job.chain_id, job.has_waiters)
    return typed("sa.Delete", returned)


@statement
def current_jobs(t: Tables) -> sa.Select[Any]:
    """Name the last job of each chain that has not ended.

    Parameters: `ids`, of roots. Shape: `(id, chain_id)`, by chain. Locks: none.
    Obliges: the roots were locked by an earlier statement, so that no continuation can follow the job found.
    Index: the primary key, and `uq_job_chain` once a chain.
    """
    return (
        sa.select(t.chain.c.last_job_id.label("id"), t.chain.c.id.label("chain_id"))
        .where(t.chain.c.id == sa.any_(t.ids("ids")), t.chain.c.completed_at.is_(None))
        .order_by(t.chain.c.id)
    )


@statement
def referred_to(t: Tables) -> sa.Select[Any]:
    """Name those of some chains that a job of any other chain waits for, or waited.

    Parameters: `ids`. Shape: `(chain_id,)`, each once. Locks: none. Obliges: the roots were locked by an earlier statement,
    so that no reference can be added. Index: `ix_job_blocker_chain`, and the primary key.
    """
    ids = t.ids("ids")
    return (
        sa.select(t.blocker.c.blocked_by_chain_id)
        .select_from(t.blocker.join(t.job, t.job.c.id == t.blocker.c.job_id))
        # Looked up by hash where the plan knows the array; a join would compare each with each.
        .where(t.blocker.c.blocked_by_chain_id == sa.any_(ids), t.job.c.chain_id != sa.all_(ids))
        .distinct()
    )
