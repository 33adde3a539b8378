"""Processes that a handler forks: they must not use the worker's connections, nor go on as a copy of the worker.

A forked process shares the sockets of its parent: whatever it sends arrives in the middle of the parent's transactions, even
the ROLLBACK of a connection that is collected.
"""

from __future__ import annotations

import os
from contextlib import suppress
from types import TracebackType
from typing import Any, Final
from weakref import WeakSet

_connections: Final[WeakSet[Any]] = WeakSet()


def cut_off_when_forked(connection: Any) -> None:
    """Cut off a driver's connection in the processes that this one forks, without sending anything to the server."""
    _connections.add(connection)


def _cut_off() -> None:
    if not len(_connections):
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in _connections:
        with suppress(Exception):  # it is closed, or its driver has no descriptor
            os.dup2(nothing, connection.fileno())
    os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_cut_off)


class LeaveIfForked:
    """Ends a process that was forked in the block when it returns from it, or raises: what follows is the parent's work.

    `with self: ...` around the call of a handler, in the process that made this.
    """

    __slots__ = ("_pid",)

    def __init__(self) -> None:
        self._pid = os.getpid()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if os.getpid() == self._pid:
            return
        status = int(error is not None)
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        os._exit(status)
