"""`/livez` and `/readyz` for probes of orchestrators: whether a worker is alive, and whether it can start jobs.

Served from threads, so that a hanging event loop is reported.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.worker.background.vitals import Vitals

_SLOWEST: Final = 5
"""Seconds that a client may take to send its request."""


def answer(path: str, vitals: Vitals, limit: timedelta) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return the answer to a request. Pure.

    `limit`: the watchdog's limit; `/livez` fails after half of it. 0: as with the default limit.
    """
    after = limit / 2
    causes = [f"the {part.name} has been stuck for {part.silent.total_seconds():.1f} s" for part in vitals.stuck(after)]
    match path.partition("?")[0]:
        case "/livez":
            pass
        case "/readyz":
            causes += vitals.unready
        case _:
            return HTTPStatus.NOT_FOUND, {"status": "not found", "paths": ["/livez", "/readyz"]}
    document = {
        "status": "failing" if causes else "ok",
        "causes": causes,
        "phase": vitals.phase.value,
        "listening": vitals.is_listening,
        "silent_seconds": {part.name: round(part.silent.total_seconds(), 3) for part in vitals.parts},
    }
    return HTTPStatus.SERVICE_UNAVAILABLE if causes else HTTPStatus.OK, document


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
