"""Connections on which the server does not answer, and how to close them.

A connection can fall silent without ending: a firewall or a load balancer drops it, a proxy hangs, the server's process is
stopped. TCP's own timeouts notice that only if the peer does not acknowledge packets, and psycopg waits forever. Here a wait
is bounded; after that the caller gets the error of a lost connection and opens another one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import capabilities

_LONG_INTERVAL = 60.0
"""Seconds between two wake-ups of a waiting connection: asyncio delivers signals without them. psycopg wakes up ten times a
second on each waiting connection."""
_CANCEL_SECONDS = 2.0
"""Maximum time for a cancel request, and then for the server to act on it."""


def hang_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Close a connection while another thread waits on it: the waiting call gets an `OperationalError`. Thread-safe."""
    # Not close(): that is for the thread that uses it, and would free the number of a socket that another one polls.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


@contextmanager
def answered_within(connection: psycopg.AsyncConnection[Any], seconds: float) -> Iterator[None]:
    """Close the connection if the block takes slightly longer than `seconds`; first ask the server to cancel.

    Without the cancel request, a server that is slow, or waits for a lock, would continue an abandoned statement beside the
    one that replaces it.
    """
    loop = asyncio.get_running_loop()
    given_up: list[asyncio.Task[None]] = []
    overdue = loop.call_later(seconds, lambda: given_up.append(loop.create_task(_give_up(connection))))
    try:
        yield
    finally:
        overdue.cancel()
        for task in given_up:
            task.cancel()


async def _give_up(connection: psycopg.AsyncConnection[Any]) -> None:
    # With a libpq older than 17 it would block a thread for as long as the network takes.
    if capabilities.has_cancel_safe():
        with suppress(psycopg.Error, OSError):
            await connection.cancel_safe(timeout=_CANCEL_SECONDS)
        await asyncio.sleep(_CANCEL_SECONDS)
    hang_up(connection)


def _resumed(gen: Any, readiness: Any) -> Generator[Any, Any, Any]:
    """Go on with a generator that has yielded once."""
    while True:
        answer = yield readiness
        try:
            readiness = gen.send(answer)
        except StopIteration as end:
            return end.value


class QuietConnection(psycopg.AsyncConnection[Any]):
    """A connection that waits for the server without waking up in between."""

    async def wait(self, gen: Any, interval: float = _LONG_INTERVAL, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as psycopg does; if nothing has to be waited for, do not let another task run either.

        SQLAlchemy sets an engine's isolation level on a connection that has no owner yet, so that a cancellation meanwhile
        would lose it to its pool. That asks nothing of the server, but psycopg 3.3.6 and later sometimes yield there.
        """
        try:
            readiness = next(gen)
        except StopIteration as end:
            return end.value
        return await super().wait(
            _resumed(gen, readiness), interval, *args, **kwargs
        )  # `timeout` exists since psycopg 3.3.6


class AnsweredConnection(QuietConnection):
    """A connection that closes when the server has not answered for longer than `patience` seconds."""

    patience: float = 60.0

    async def wait(self, gen: Any, interval: float = _LONG_INTERVAL, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as psycopg does."""
        with answered_within(self, self.patience):
            return await super().wait(gen, interval, *args, **kwargs)


async def waited(event: asyncio.Event, seconds: float | None) -> None:
    """Wait until an event is set, for at most `seconds`; None: for as long as it takes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


async def cancelled(*tasks: asyncio.Task[Any], again: float = 2.0) -> None:
    """Cancel tasks and wait until they have ended; cancel those that have not again, every `again` seconds.

    Once is not enough: before Python 3.12, `asyncio.wait_for` drops a cancellation that arrives in the same turn of the loop
    as the result that it waits for, and psycopg before 3.3.6 waits for every answer of the server with it.
    """
    pending = set(tasks)
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=again)
    await asyncio.gather(*tasks, return_exceptions=True)
