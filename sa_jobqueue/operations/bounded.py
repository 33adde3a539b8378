"""Reads that are limited in time, each in a savepoint, so that the transaction outlives a cancelled statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.models import JobClass
from sa_jobqueue.operations.lock_holders import LockHolder, list_lock_holders

CANCELLED: Final = frozenset({"57014", "55P03"})
"""SQLSTATEs of a statement that ran out of its time, or was cancelled; and of a lock that was not obtained in time."""
SHARE: Final = 10
"""After the first cancelled statement the others have a tenth of its time each: a dozen may wait for the same lock."""


LOCKS: Final = timedelta(seconds=2)
"""The least time for the question whose lock the cancelled statements wait for."""


class BoundedReads:
    """Parts of an answer, which are left out and named if their statement is cancelled.

    `timeout`: of each statement. None: a cancelled statement ends the transaction, and its error is raised.
    """

    def __init__(self, session: Session, timeout: timedelta | None) -> None:
        self._session, self._timeout = session, timeout
        self.missing: list[str] = []
        """The parts that were left out."""

    @contextmanager
    def limited(self) -> Iterator[None]:
        """Limit the statements of a block; the setting of the transaction is restored afterwards."""
        if self._timeout is None:
            yield
            return
        before = self._session.execute(select(func.current_setting("statement_timeout"))).scalar_one()
        self._limit(self._timeout)
        yield
        self._session.execute(select(func.set_config("statement_timeout", before, True)))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Leave the block out if its statement is cancelled."""
        if self._timeout is None:
            yield
            return
        try:
            with self._session.connection().begin_nested():
                yield
        except DBAPIError as error:
            if sqlstate(error) not in CANCELLED:
                raise
            if not self.missing:
                self._limit(self._timeout / SHARE)
            if name not in self.missing:
                self.missing.append(name)

    def _limit(self, timeout: timedelta) -> None:
        limit = f"{max(1, round(timeout.total_seconds() * 1000))}ms"
        self._session.execute(select(func.set_config("statement_timeout", limit, True)))

    def reason(self, model: JobClass) -> str:
        """Return which parts were left out, and whose lock they may wait for, as sentences; empty if none were."""
        if not self.missing or self._timeout is None:
            return ""
        holders: Sequence[LockHolder] = ()
        self._limit(max(self._timeout, LOCKS))  # it waits for no lock itself
        with self.part("locks of sessions"):
            holders = [lock for lock in list_lock_holders(self._session, model) if lock.table or lock.waiters]
        cancelled = f" Not measured within {self._timeout.total_seconds():g} s, when the server cancelled the statement: "
        cancelled += f"{', '.join(self.missing)}."
        if holders:
            return f"{cancelled} {holders[0].sentence} {holders[0].advice}"
        return f"{cancelled} Why is not known: look at wait_event in pg_stat_activity, and at the load of the server."
