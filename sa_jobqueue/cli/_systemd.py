"""Notify systemd: ready, alive, stopping. Does nothing unless systemd started the process and expects it.

Source: sd_notify(3) and systemd.service(5): one datagram to the socket in `NOTIFY_SOCKET`.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Final

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables that children must not inherit: one process notifies for a service."""


def notify(state: str) -> None:
    """Send the service manager a state such as `READY=1`. Errors are ignored, as they must not stop the worker."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        # An abstract socket's name begins with a null byte, which no variable can hold.
        sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)


def watchdog_limit(environment: Mapping[str, str] = os.environ) -> timedelta | None:
    """Return how long the service manager waits for `WATCHDOG=1`; None if it does not, or for another process."""
    asked, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not asked.isdecimal() or int(asked) <= 0 or (pid and pid != str(os.getpid())):
        return None
    return timedelta(microseconds=int(asked))


async def keep_notifying() -> None:
    """Report that this process is ready and, if systemd asks for it, again and again that its event loop works."""
    notify("READY=1")
    if limit := watchdog_limit():
        while True:
            notify("WATCHDOG=1")
            await asyncio.sleep(limit.total_seconds() / 4)
