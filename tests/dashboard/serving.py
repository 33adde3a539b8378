"""The dashboard on a port of loopback, for a real browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sa_jobqueue.cli.dashboard import listening


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve an application in a thread; yield its URL without a slash at the end."""
    with listening(app, address="127.0.0.1", port=0) as (server, listener):
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="dashboard")
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()
