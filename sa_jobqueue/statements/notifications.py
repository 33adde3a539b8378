"""NOTIFY: hints that there may be work. Losing them costs latency only."""

from __future__ import annotations

from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from sa_jobqueue.layout import Topic
from sa_jobqueue.statements._parts import Tables, bound, statement

NOTIFIES: Final[sa.ColumnElement[bool]] = sa.literal_column(
    "(current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off')", sa.Boolean
)
"""Whether the transaction may notify: not in two-phase sessions, for PostgreSQL refuses to prepare one that has notified."""


SILENCE: Final = sa.text("SET LOCAL sa_jobqueue.notify = 'off'")
"""Has a transaction send no notification."""


def notification(t: Tables, topic: Topic, payload: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a SELECT that notifies, unless the transaction has `SET LOCAL sa_jobqueue.notify = 'off'`."""
    return sa.select(sa.func.pg_notify(t.layout.channel(topic), payload)).where(NOTIFIES)


@statement
def notify_due(t: Tables) -> sa.Select[Any]:
    """Notify idle workers, when and if this transaction commits, that a queue has something new; nothing if none is idle.

    Parameters: `queue`, or a fairness key of one (`QueueKey.text`). Locks: an advisory lock for a moment; a commit with a
    notification takes one lock of the whole server.
    """
    # Built once: for single jobs, building it each time costs more than the server takes.
    return sa.select(t.function("job_notify_due", sa.bindparam("queue", type_=sa.Text)))


@bound
def announce_idle(t: Tables) -> str:
    """Return the SQL that announces this session's worker as idle for some queues, for psycopg.

    Parameters: the queues, and `ANY_QUEUE`. Shape: whether all were announced; otherwise some of them were.
    Locks: up to 17 shared advisory locks of the session, which `notify_due` finds; it ends with the session.
    """
    lock = t.layout.qualified("job_idle_lock").replace("%", "%%")  # psycopg halves them
    locks = f"SELECT DISTINCT {lock}(queue) AS lock FROM unnest(%s::text[]) AS queue"
    return f"SELECT bool_and(pg_try_advisory_lock_shared(lock)) FROM ({locks}) AS locks"


@statement
def notify_unblock(t: Tables) -> sa.Select[Any]:
    """Have workers look, when and if this transaction commits, for what may go on now. Locks: as `notify_due`."""
    return notification(t, "unblock", sa.literal_column("''"))


@bound
def notify_each(t: Tables, topic: Literal["lost", "ended"]) -> sa.Select[Any]:
    """Notify on commit that jobs were lost to their workers, or that chains have ended.

    Parameters: `ids`, as texts. Locks: as `notify_due`.
    """
    payload = sa.func.unnest(sa.bindparam("ids", type_=ARRAY(sa.Text))).column_valued("payload")
    return sa.select(sa.func.count()).select_from(notification(t, topic, payload).subquery())
