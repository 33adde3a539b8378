"""Those who run the steps, each a thread with a connection of its own, and the observer who sees which of them wait."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import psycopg
from sqlalchemy import URL, Connection, Engine, NullPool, create_engine, event
from sqlalchemy.orm import Session

from tests.explorer.scenario import Operation, Outcome, Steps

DEADLOCK_TIMEOUT = "50ms"
"""How long PostgreSQL lets a waiter wait before it looks for a deadlock; a second where the role may not set it."""


def connect(url: URL, settings: Mapping[str, str]) -> Engine:
    """Return an engine without a pool, READ COMMITTED, each of its connections with these settings."""
    engine = create_engine(url, poolclass=NullPool, isolation_level="READ COMMITTED")

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: object) -> None:
        connection.rollback()
        connection.autocommit = True
        with suppress(psycopg.errors.InsufficientPrivilege):
            connection.execute(f"SET deadlock_timeout = '{DEADLOCK_TIMEOUT}'")
        for name, value in settings.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        connection.autocommit = False

    return engine


class Actor:
    """Runs the steps of one operation, on request and one at a time, and reports the end of each.

    Lives for many schedules: `begin` gives it the next operation. Between a report and the next order it does nothing,
    so the receiver of the report may read its fields.
    """

    def __init__(self, url: URL, settings: Mapping[str, str], reports: SimpleQueue[Actor]) -> None:
        self._engine = connect(url, settings)
        self._connection: Connection = self._engine.connect()
        event.listen(self._connection, "commit", self._note_commit)
        event.listen(self._connection, "rollback", self._note_rollback)
        event.listen(self._connection, "before_cursor_execute", self._note_statement)
        self.is_busy = False
        self._reports = reports
        self._orders: SimpleQueue[bool] = SimpleQueue()
        self._thread = threading.Thread(target=self._obey, name="actor", daemon=True)
        self._thread.start()

    def begin(self, operation: Operation[Any], context: Any) -> None:
        """Take up an operation; nothing of it runs before the first step."""
        self.name = operation.name
        driver: Any = self._connection.connection.driver_connection
        self.pid: int = driver.info.backend_pid
        self.is_busy = False
        self.has_ended = False
        self.label = ""
        self._operation = operation
        self._statements = 0
        self._is_at_end = False
        self._committed = False
        self._error: BaseException | None = None
        self._value: object = None
        self._session = Session(self._connection)
        self._steps = _steps(operation, self._session, context)

    def go(self) -> None:
        """Start the next step; its end is reported."""
        self.is_busy = True
        self._orders.put(True)

    @property
    def outcome(self) -> Outcome:
        """Return how its operation ended."""
        return Outcome(self._committed and self._error is None, self._value, self._error)

    def close(self, patience: float = 5.0) -> None:
        """End the thread and the connection; open transactions are rolled back."""
        self._orders.put(False)
        self._thread.join(patience)
        self._engine.dispose()

    def _obey(self) -> None:
        while self._orders.get():
            try:
                self._step()
            except BaseException as error:  # whatever it is, it is how this operation ended
                self._error = error
                self.label = f"raises {self.outcome.kind}"
                self._end()
            self._reports.put(self)
        self._end()
        self._connection.close()

    def _step(self) -> None:
        if self._is_at_end:
            self.label = "commit"
            self._session.commit()
            self._end()
            return
        before = self._statements
        try:
            self.label = str(next(self._steps) or "step")
        except StopIteration as stop:
            self._value = stop.value
            self._is_at_end = True
            self.label = "last step"
        if self._operation.autocommit:
            self._session.commit()
        elif self._is_at_end and before == self._statements and self._session.in_transaction():
            self._step()  # nothing was done since the last step: this one is the commit
            return
        if self._is_at_end and not self._session.in_transaction():
            self._end()

    def _end(self) -> None:
        self.has_ended = True
        with suppress(Exception):  # the connection may be what broke
            self._steps.close()
        with suppress(Exception):
            self._session.close()

    def _note_commit(self, _connection: Connection) -> None:
        self._committed = True

    def _note_rollback(self, _connection: Connection) -> None:
        self._committed = False

    def _note_statement(self, *_arguments: object) -> None:
        self._statements += 1


def _steps(operation: Operation[Any], session: Session, context: Any) -> Steps:
    result = operation.run(session, context)
    return (yield from result) if isinstance(result, Generator) else result


class Observer:
    """Asks PostgreSQL who waits for whom, on a connection that never waits itself."""

    def __init__(self, engine: Engine) -> None:
        self._connection = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        driver: Any = self._connection.connection.driver_connection
        self._cursor: psycopg.Cursor[Any] = driver.cursor()

    def waits(self, pids: Iterable[int]) -> dict[int, frozenset[int]]:
        """Return for each backend those it waits for: holders of locks it wants, and who queued for them before it."""
        statement = "SELECT pid, pg_blocking_pids(pid) FROM unnest(%s::integer[]) AS pid"
        return {pid: frozenset(blockers) for pid, blockers in self._cursor.execute(statement, (list(pids),), prepare=True)}

    def terminate(self, pids: Iterable[int]) -> None:
        """End backends whose steps never will."""
        self._cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::integer[]) AS pid", (list(pids),))

    def close(self) -> None:
        """End the connection."""
        self._cursor.close()
        self._connection.close()
