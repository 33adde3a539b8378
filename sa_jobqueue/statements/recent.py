"""The latest failed attempts, for live views."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from sa_jobqueue.statements._parts import Tables, statement
from sa_jobqueue.statements.health import UNSUCCESSFUL

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
