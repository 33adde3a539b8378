"""NOTIFY: a hint that there is something to look at. Losing every one of them costs latency only."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select

from sa_jobqueue.models import JobMixin


def notify_due(model: type[JobMixin[Any]], queue: str) -> Select[Any]:
    """Tell idle workers, when and if this transaction commits, that a queue has something new.

    Locks: a commit that carries a notification takes one lock a database for a moment; send few.
    """
    return select(func.pg_notify(model.__jobqueue__.channel("due"), queue))
