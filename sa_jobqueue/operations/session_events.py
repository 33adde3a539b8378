"""The listeners of every session of the process, by event, in the order in which they run.

A worker adds those of its handlers' sessions: `worker/run/sessions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import Session

from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations import hooks, notifications, writer

LISTENERS: Final[tuple[tuple[str, Callable[..., Any]], ...]] = (
    ("after_begin", notifications.silence_twophase),
    ("before_flush", writer.before_flush),
    # Then `writer.before_insert` for each job.
    ("after_flush", writer.after_flush),
    ("before_commit", notifications.look_again),
    ("after_commit", hooks.hand_on),
    ("after_soft_rollback", notifications.discard_rolled_back),
    ("after_transaction_end", hooks.run_or_forget),
)


def listen() -> None:
    """Register the listeners, once for the process."""
    for name, listener in LISTENERS:
        event.listen(Session, name, listener)
    event.listen(JobMixin, "before_insert", writer.before_insert, propagate=True)
