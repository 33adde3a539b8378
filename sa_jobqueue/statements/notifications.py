"""NOTIFY: hints that there may be work. Losing them costs latency only."""

from __future__ import annotations

from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from sa_jobqueue.models import JobMixin
from sa_jobqueue.statements._parts import once_a_model


@once_a_model
def notify_due(model: type[JobMixin[Any]]) -> sa.Select[Any]:
    """Tell idle workers, when and if this transaction commits, that a queue has something new.

    Parameters: `queue`, or a queue key (`fairness.queue_key_of`). Locks: a commit that carries a notification takes
    one lock a database for a moment; send few.
    """
    # Built once: for single jobs, building it each time costs more than the server takes.
    return sa.select(sa.func.pg_notify(model.__jobqueue__.channel("due"), sa.bindparam("queue", type_=sa.Text)))


@once_a_model
def notify_unblock(model: type[JobMixin[Any]]) -> sa.Select[Any]:
    """Have workers look, when and if this transaction commits, for what may go on now. Locks: as `notify_due`."""
    return sa.select(sa.func.pg_notify(model.__jobqueue__.channel("unblock"), sa.literal_column("''")))


def notify_each(model: type[JobMixin[Any]], topic: Literal["lost", "ended"]) -> sa.Select[Any]:
    """Notify on commit that jobs were lost to their workers, or that chains have ended.

    Parameters: `ids`, as texts. Locks: as `notify_due`.
    """
    payload = sa.func.unnest(sa.bindparam("ids", type_=ARRAY(sa.Text))).column_valued("payload")
    return sa.select(sa.func.count(sa.func.pg_notify(model.__jobqueue__.channel(topic), payload)))
