"""Connections on which the server owes an answer for too long, and how to be rid of them.

A connection can fall silent without ending: a firewall or a load balancer forgets it, a proxy hangs, the server's process
is stopped. TCP's own timeouts see that only where nobody acknowledges what we send, and psycopg waits for ever. Whoever
waits here waits for a bounded time, then gets the error of a lost connection and opens another one.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import capabilities

_SELDOM = 60.0
"""Seconds between two looks whether something else has happened to a wait: on asyncio a signal comes by itself. psycopg
looks ten times a second, on each connection that waits."""
_CANCEL_SECONDS = 2.0
"""What a request to cancel may take, and then what the server may take to obey."""


def hang_up(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """End a connection beneath whoever waits on it: they get an `OperationalError`. May be called from any thread."""
    # Not close(): that is for the thread that uses it, and would free the number of a socket that another one polls.
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as ours:
        ours.shutdown(socket.SHUT_RDWR)


@contextmanager
def answered_within(connection: psycopg.AsyncConnection[Any], seconds: float) -> Iterator[None]:
    """End the connection when the block takes longer than `seconds`, and a little: the server is asked to cancel first.

    One that is there but slow, or waits for a lock, shall not go on with a statement that nobody waits for any more,
    beside the one that takes its place.
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
    # With a libpq older than 17 it would block a thread, for as long as the network likes.
    if capabilities.has_cancel_safe():
        with suppress(psycopg.Error, OSError):
            await connection.cancel_safe(timeout=_CANCEL_SECONDS)
        await asyncio.sleep(_CANCEL_SECONDS)
    hang_up(connection)


class QuietConnection(psycopg.AsyncConnection[Any]):
    """A connection that waits for the server without waking up in between."""

    async def wait(self, gen: Any, interval: float = _SELDOM, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as psycopg does with everything it sends. `timeout` is known from psycopg 3.3.6 on."""
        return await super().wait(gen, interval, *args, **kwargs)


class AnsweredConnection(QuietConnection):
    """A connection that ends when the server owes it an answer for longer than `patience` seconds."""

    patience: float = 60.0

    async def wait(self, gen: Any, interval: float = _SELDOM, *args: Any, **kwargs: Any) -> Any:
        """Wait for the server, as psycopg does with everything it sends."""
        with answered_within(self, self.patience):
            return await super().wait(gen, interval, *args, **kwargs)
