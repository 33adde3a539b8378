"""The sessions that handlers are given: opened by the application's own factories, committed by the worker alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

from sa_jobqueue.errors import HandlerCommitError, InvalidOptionError
from sa_jobqueue.statements.sessions import name_session

HELD: Final = "sa_jobqueue.held"
"""In `Session.info` for as long as the session is the handler's."""
NAMED: Final = "sa_jobqueue.named"
"""In `Session.info` while what the session begins is the handler's own: the id of its job."""


@event.listens_for(Session, "before_commit")
def _refuse_commit(session: Session) -> None:
    # Savepoints are the handler's own business; the outermost commit is the worker's.
    if session.info.get(HELD) and session.get_nested_transaction() is None:
        raise HandlerCommitError


@event.listens_for(Session, "after_begin")
def _name(session: Session, transaction: SessionTransaction, connection: Connection) -> None:
    # A transaction that a handler leaves open holds back vacuum: let it be seen whose it is. One round trip for each
    # transaction of a handler; one that asks the database for nothing has none.
    job_id = session.info.get(NAMED)
    if job_id is not None and not transaction.nested and connection.dialect.name == "postgresql":
        connection.exec_driver_sql(name_session(job_id))


@dataclass(slots=True)
class Sessions:
    """The application's own session factories, as far as its handlers need them."""

    sync: sessionmaker[Any] | None = None
    asynchronous: async_sessionmaker[Any] | None = None

    def open_sync(self) -> Any:
        """Return a session for a thread."""
        if self.sync is None:
            raise InvalidOptionError("session_factory", "is needed by a handler that takes a Session")
        return self.sync()

    def open_async(self) -> Any:
        """Return a session for a task."""
        if self.asynchronous is None:
            raise InvalidOptionError("async_session_factory", "is needed by a handler that takes an AsyncSession")
        return self.asynchronous()
