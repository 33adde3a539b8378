"""Waiting for a chain's end from outside the queue: reading its state, and requesting a notification."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, statement

_COLUMNS = (
    *("id", "type_name", "status", "output", "error", "created_at", "completed_at", "length"),
    *("last_job_id", "last_type_name"),
)


@statement
def chain_results(t: Tables) -> sa.Select[Any]:
    """Return the results of chains that have ended.

    Parameters: `chain_ids`. Shape: `(id, type_name, status, output, error, created_at, completed_at, length, last_job_id,
    last_type_name, has_waiters)` of those that there are, in the order of their ends. Locks: none.
    Index: the primary key, and `uq_job_chain` for each chain's last job.
    """
    root = t.job.alias("root")
    return (
        sa.select(*(t.chain.c[name] for name in _COLUMNS), root.c.has_waiters)
        .select_from(t.chain.join(root, root.c.id == t.chain.c.id))
        .where(t.chain.c.id == sa.any_(t.ids("chain_ids")))
        .order_by(t.chain.c.completed_at, t.chain.c.id)
    )


@statement
def mark_awaited(t: Tables) -> sa.Update:
    """Mark open chains as having waiters, so that the transaction that ends one sends a notification.

    Parameters: `awaited_ids`. Shape: `(id,)` of each that was marked now, not of those that were already, have ended, are
    gone, or whose root another transaction holds: try these again. Changes: the roots' `has_waiters`.
    Locks: the roots, until the transaction ends; held ones are skipped, so that this never waits.
    Obliges: run it alone and commit immediately, then read the chains: an end that preceded the mark sends no notification.
    Index: the primary key.
    """
    root = t.job.alias("root")
    free = (
        sa.select(root.c.id)
        .where(
            root.c.id == sa.any_(t.ids("awaited_ids")),
            root.c.chain_index == 0,
            root.c.chain_completed_at.is_(None),
            ~root.c.has_waiters,
        )
        .with_for_update(key_share=True, skip_locked=True)
        .cte("free")
    )
    return sa.update(t.job).where(t.job.c.id == free.c.id).values(has_waiters=sa.true()).returning(t.job.c.id)
