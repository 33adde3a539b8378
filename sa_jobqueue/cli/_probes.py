"""`/livez` and `/readyz`: whether a worker should be ended, and whether it can start jobs; for probes of orchestrators.

From threads of its own: it answers while the event loop hangs, and says so.
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
"""Seconds that a client may take to ask."""


def answer(path: str, vitals: Vitals, limit: timedelta) -> tuple[HTTPStatus, dict[str, Any]]:
    """Return what is answered on a path. Pure.

    `limit`: that of the watchdog; `/livez` is red from half of it on. 0: as by default.
    """
    after = limit / 2
    causes = [f"the {part.name} is stuck for {part.silent.total_seconds():.1f} s" for part in vitals.stuck(after)]
    match path.partition("?")[0]:
        case "/livez":
            pass
        case "/readyz":
            causes += vitals.unready
        case _:
            return HTTPStatus.NOT_FOUND, {"status": "not found", "paths": ["/livez", "/readyz"]}
    told = {
        "status": "failing" if causes else "ok",
        "causes": causes,
        "phase": vitals.phase.value,
        "listening": vitals.is_listening,
        "silent_seconds": {part.name: round(part.silent.total_seconds(), 3) for part in vitals.parts},
    }
    return HTTPStatus.SERVICE_UNAVAILABLE if causes else HTTPStatus.OK, told


@contextmanager
def serve_probes(read: Callable[[], Vitals], *, limit: timedelta, port: int, address: str) -> Iterator[int]:
    """Answer on a port, from threads, for the length of a block; give the port, which 0 leaves to the system.

    Raises: InvalidOptionError when it cannot listen there.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = _SLOWEST

        def do_GET(self) -> None:
            status, told = answer(self.path, read(), limit)
            body = json.dumps(told).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing: probes come every few seconds."""

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
