"""NOTIFY: hints that there may be work. Losing them costs latency only."""

from __future__ import annotations

from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from sa_jobqueue.layout import Topic
from sa_jobqueue.models import JobClass
from sa_jobqueue.statements._parts import function, once_a_model

NOTIFIES: Final[sa.ColumnElement[bool]] = sa.literal_column(
    "(current_setting('sa_jobqueue.notify', true) IS DISTINCT FROM 'off')", sa.Boolean
)
"""Whether the transaction may notify: not in two-phase sessions, for PostgreSQL refuses to prepare one that has notified."""


SILENCE: Final = sa.text("SET LOCAL sa_jobqueue.notify = 'off'")
"""Has a transaction send no notification."""


def notification(model: JobClass, topic: Topic, payload: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Return a SELECT that notifies, unless the transaction has `SET LOCAL sa_jobqueue.notify = 'off'`."""
    return sa.select(sa.func.pg_notify(model.__jobqueue__.channel(topic), payload)).where(NOTIFIES)


@once_a_model
def notify_due(model: JobClass) -> sa.Select[Any]:
    """Notify idle workers, when and if this transaction commits, that a queue has something new; nothing if none is idle.

    Parameters: `queue`, or a fairness key of one (`QueueKey.text`). Locks: an advisory lock for a moment; a commit with a
    notification takes one lock of the whole server.
    """
    # Built once: for single jobs, building it each time costs more than the server takes.
    return sa.select(function(model, "job_notify_due", sa.bindparam("queue", type_=sa.Text)))


def announce_idle(model: JobClass) -> str:
    """Return the SQL that announces this session's worker as idle for some queues, for psycopg.

    Parameters: the queues, and `ANY_QUEUE`. Shape: whether all were announced; otherwise some of them were.
    Locks: up to 17 shared advisory locks of the session, which `notify_due` finds; it ends with the session.
    """
    lock = model.__jobqueue__.qualified("job_idle_lock")
    locks = f"SELECT DISTINCT {lock}(queue) AS lock FROM unnest(%s::text[]) AS queue"
    return f"SELECT bool_and(pg_try_advisory_lock_shared(lock)) FROM ({locks}) AS locks"


@once_a_model
def notify_unblock(model: JobClass) -> sa.Select[Any]:
    """Have workers look, when and if this transaction commits, for what may go on now. Locks: as `notify_due`."""
    return notification(model, "unblock", sa.literal_column("''"))


def notify_each(model: JobClass, topic: Literal["lost", "ended"]) -> sa.Select[Any]:
    """Notify on commit that jobs were lost to their workers, or that chains have ended.

    Parameters: `ids`, as texts. Locks: as `notify_due`.
    """
    payload = sa.func.unnest(sa.bindparam("ids", type_=ARRAY(sa.Text))).column_valued("payload")
    return sa.select(sa.func.count()).select_from(notification(model, topic, payload).subquery())
