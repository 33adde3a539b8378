"""The protocol of the dashboard's server: a client that stops sending or reading does not keep its connection."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

SLOWEST: Final = timedelta(seconds=10)
"""Time that a client may take to send a whole request, and for which it may read nothing of a response."""
_CHECKS: Final = 4
"""How often a connection is checked within that time."""


class BoundedH11Protocol(H11Protocol):
    """Closes connections of clients that take longer than `SLOWEST`; the application may take as long as it likes.

    Source: by default, Uvicorn closes only a connection on which nothing arrives after a response.
    """

    _unread = 0
    _waits_since: float
    _check_timer: asyncio.TimerHandle

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._check()

    def connection_lost(self, exc: Exception | None) -> None:
        """Check no more."""
        self._check_timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._waits_since = self.loop.time()
        super().on_response_complete()

    def _check(self) -> None:
        """Close the connection if its client is too slow, otherwise check again later."""
        now, unread = self.loop.time(), self.transport.get_write_buffer_size()
        is_answering = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        if unread != self._unread or (is_answering and not unread):
            self._waits_since = now
        self._unread = unread
        if now - self._waits_since >= SLOWEST.total_seconds():
            self.transport.abort()  # a close would wait until the client has read what is left
        else:
            self._check_timer = self.loop.call_later(SLOWEST.total_seconds() / _CHECKS, self._check)
