"""A limit for the clients of a small HTTP server: one that does not send its request keeps no thread."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import ClassVar


class BoundedRequestHandler(BaseHTTPRequestHandler):
    """Closes the connection of a client that takes longer than `timeout` to send its request."""

    timeout: ClassVar[float] = 5.0
    """In seconds. Also the socket's, which is for each part that arrives: a client could send one byte at a time."""
    _timer: threading.Timer

    def setup(self) -> None:
        """Begin to wait for the request."""
        super().setup()
        self._timer = threading.Timer(self.timeout, self._hang_up)
        self._timer.daemon = True
        self._timer.start()

    def parse_request(self) -> bool:
        """Read the rest of the request."""
        try:
            return super().parse_request()
        finally:
            self._timer.cancel()

    def finish(self) -> None:
        """End the connection."""
        self._timer.cancel()
        super().finish()

    def _hang_up(self) -> None:
        with suppress(OSError):  # the client was faster
            self.connection.shutdown(socket.SHUT_RDWR)
