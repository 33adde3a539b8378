"""A TCP proxy between the workers and the server that does what networks do: it cuts, stalls, half-opens and delays."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

_CHUNK: Final = 65_536
_PATIENCE: Final = 60.0

T = TypeVar("T")


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to the server's socket, from a thread with a loop of its own.

    A connection that finds no server is closed at once, as by a machine that is up while its server is down.
    Obliges: `close` it. Every method may be called from any thread and returns once its effect holds.
    """

    def __init__(self, server_socket: Path) -> None:
        self._server_socket = server_socket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos proxy", daemon=True)
        self._clients: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._abandoned: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._delay = 0.0
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Break every connection on both sides, those left half open as well."""
        self._do(self._cut())

    def move(self, server_socket: Path) -> None:
        """Forward new connections to another server, and break those that there are."""
        self._server_socket = server_socket
        self.cut()

    def stall(self) -> None:
        """Forward nothing any more, in either direction. Bytes sent meanwhile are acknowledged, and kept."""
        self._do(self._set(flowing=False))

    def resume(self) -> None:
        """Forward again, the kept bytes first, without a delay."""
        self._do(self._set(flowing=True))

    def delay(self, seconds: float) -> None:
        """Hold everything back for so long, in each direction, until `resume`."""
        self._do(self._set(flowing=True, delay=seconds))

    def half_open(self) -> None:
        """Close every connection towards the server without closing the clients': to them it stays silent."""
        self._do(self._half_open())

    def close(self) -> None:
        """Stop listening, break open connections, end the thread."""
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_PATIENCE)

    async def _set(self, *, flowing: bool, delay: float = 0.0) -> None:
        self._delay = delay
        if flowing:
            self._flowing.set()
        else:
            self._flowing.clear()

    async def _cut(self) -> None:
        for writer in [*self._clients, *self._clients.values(), *self._abandoned]:
            writer.transport.abort()

    async def _half_open(self) -> None:
        for client, server in list(self._clients.items()):
            self._abandoned.add(client)
            server.transport.abort()

    async def _close(self) -> None:
        self._server.close()
        await self._cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, client_reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        with suppress(OSError, asyncio.CancelledError):
            try:
                await self._flowing.wait()
                server_reader, server = await asyncio.open_unix_connection(self._server_socket)
                self._clients[client] = server
                # The end of either side is the end of both, unless the client was abandoned.
                async with asyncio.TaskGroup() as ways:
                    ways.create_task(self._forward(client_reader, server, client))
                    ways.create_task(self._forward(server_reader, client, client))
            finally:
                if (client_task := self._clients.pop(client, None)) is not None:
                    client_task.transport.abort()
                self._abandoned.discard(client)
                client.transport.abort()

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                if self._delay:
                    await asyncio.sleep(self._delay)
                await self._flowing.wait()
                if client in self._abandoned:
                    continue  # read, and so acknowledged, but not delivered
                target.write(data)
                await target.drain()
        if client in self._abandoned and source.at_eof() and target is client:
            return  # the server's side is closed, and the client shall not know
        target.transport.abort()
