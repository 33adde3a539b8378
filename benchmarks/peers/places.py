"""A fresh database for a system in each round, cloned from one that it set up itself; Redis for what lives there."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.peers import running
from benchmarks.peers.catalogue import System
from benchmarks.place import Place, own_server
from sa_jobqueue.testing.databases import create_database, create_template, database_name, drop_database
from sa_jobqueue.testing.servers import PostgresServer

_PATIENCE: Final = 10.0
_templates: dict[tuple[str, str], str] = {}


@contextmanager
def open_for(system: System, server: PostgresServer) -> Iterator[Place]:
    """Give a system a database in which nothing has happened yet, and drop it afterwards."""
    pid, bin_dir = own_server(server)
    with ExitStack() as stack:
        template = _templates.get((server.url, system.name))
        if template is None:

            def prepare(url: str) -> None:
                if not system.is_elsewhere:
                    running.setup(system, url)

            template = _templates[server.url, system.name] = create_template(server.url, prepare)
        url = create_database(server.url, database_name(template))
        stack.callback(drop_database, url)
        place = Place(url, server_pid=pid, bin_dir=bin_dir)
        if system.is_elsewhere:
            place.broker, place.server_pid = stack.enter_context(_redis())
        place.checkpoint()
        yield place


@contextmanager
def templates(server: PostgresServer) -> Iterator[None]:
    """Keep the databases that clones are made from during the block, and drop them after it."""
    try:
        yield
    finally:
        for key in [key for key in _templates if key[0] == server.url]:
            drop_database(_templates.pop(key))


@contextmanager
def _redis() -> Iterator[tuple[str, int]]:
    program = shutil.which("redis-server")
    assert program is not None
    with tempfile.TemporaryDirectory() as directory:
        socket = Path(directory) / "redis.sock"
        # Its own defaults otherwise: snapshots from time to time, nothing written at once.
        command = [program, "--port", "0", "--unixsocket", str(socket), "--dir", directory]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                running.wait_until(socket.exists, _PATIENCE)
                yield f"redis+socket://{socket}", process.pid
            finally:
                process.terminate()
                process.wait()
