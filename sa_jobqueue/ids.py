"""Ids made by the client, so that a job's id and its chain's are known before anything is written."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from datetime import datetime
from uuid import UUID

_lock = threading.Lock()
_last = 0


def uuid7() -> UUID:
    """Return a UUIDv7 larger than every one this process made before.

    Units: 48 bits of milliseconds since 1970 by this machine's clock, 12 bits of counter, 62 random bits. The clock
    only gives locality and a rough order; nothing is ever decided by it.
    Source: RFC 9562, 5.7 and 6.2 method 3 (the fraction of the millisecond fills `rand_a`, bumped when it stands still).
    """
    return UUID(int=_next())


def uuid7_hex() -> str:
    """Return the next one as 32 hexadecimal digits, which PostgreSQL reads as well, where nobody needs the object."""
    return f"{_next():032x}"


def _next() -> int:
    global _last  # noqa: PLW0603 - monotonic within the process is the point
    now = time.time_ns()
    stamp = (now // 1_000_000) << 12 | (now % 1_000_000) * 4096 // 1_000_000
    with _lock:
        stamp = _last = max(stamp, _last + 1)
    high = (stamp >> 12) << 16 | 0x7000 | stamp & 0xFFF
    low = 1 << 63 | int.from_bytes(os.urandom(8)) >> 2
    return high << 64 | low


def uuid8_of(instant: datetime, *names: str) -> UUID:
    """Return the id that belongs to an instant and some names: the same at every call, on every machine.

    Units: 48 bits of milliseconds since 1970, so that it lies among the UUIDv7 of its time, and 74 bits of a hash of the
    names and the whole instant.
    Source: RFC 9562, 5.8 and 6.5 (UUIDs of names, by another hash than SHA-1).
    """
    micros = round(instant.timestamp() * 1_000_000)
    digest = int.from_bytes(hashlib.sha256("\0".join([str(micros), *names]).encode()).digest()[:10])
    high = (micros // 1000) << 16 | 0x8000 | digest & 0xFFF
    return UUID(int=high << 64 | 1 << 63 | digest >> 12 & (1 << 62) - 1)
