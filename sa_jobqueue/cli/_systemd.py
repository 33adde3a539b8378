"""What systemd is told: ready, alive, stopping. Nothing, where nobody asks.

Source: sd_notify(3) and systemd.service(5): one datagram to the socket that the environment names.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""What must not reach children: one process speaks for a service."""


def notify(state: str) -> None:
    """Tell the service manager a state such as `READY=1`. Telling must not stop the work: what fails is left out."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # An abstract socket's name begins with a null byte, which no variable can hold.
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def watchdog_limit(environment: Mapping[str, str] = os.environ) -> timedelta | None:
    """Return how long the service manager waits for `WATCHDOG=1`; None where it does not, or waits for another process."""
    asked, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not asked.isdecimal() or int(asked) <= 0 or (pid and pid != str(os.getpid())):
        return None
    return timedelta(microseconds=int(asked))


@contextmanager
def telling() -> Iterator[None]:
    """Tell that this process is ready, and for the length of a block, where it is asked, that its event loop turns."""
    notify("READY=1")
    limit = watchdog_limit()
    if limit is None:
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def tell() -> None:
        nonlocal timer
        notify("WATCHDOG=1")
        timer = loop.call_later(limit.total_seconds() / 4, tell)

    tell()
    try:
        yield
    finally:
        timer.cancel()
