"""Serves the probes of `observe.probes` from threads, so that a hanging event loop is reported."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.probes import answer
from sa_jobqueue.worker.background.vitals import Vitals

_SLOWEST: Final = 5
"""Seconds that a client may take to send its request."""


@contextmanager
def serve_probes(read: Callable[[], Vitals], *, limit: timedelta, port: int, address: str) -> Iterator[int]:
    """Serve the probes from threads while the block runs; yield the port. Port 0: a free one.

    Raises: InvalidOptionError if the port cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST

        def do_GET(self) -> None:
            status, document = answer(self.path, read(), limit)
            body = json.dumps(document).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing: probes come every few seconds."""

    try:
        server = ThreadingHTTPServer((address, port), Handler)
    except (OSError, OverflowError) as error:
        raise InvalidOptionError("health port", f"cannot listen on {address}:{port}: {error}") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="sa_jobqueue probes", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
