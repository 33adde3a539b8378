"""Bulk generation of UUIDv7 values, as Arrow arrays."""

from __future__ import annotations

import os
import time

import numpy as np
import pyarrow as pa

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype="S2")
_HYPHEN = ord("-")
_PLACES = np.array([place for place in range(36) if place not in {8, 13, 18, 23}])


class Ids:
    """Generates ids for one task, in increasing order.

    Units, layout and source: as `sa_jobqueue.ids.uuid7`. Within a batch, the timestamp increases by 1/4096 ms per id, so
    ten thousand ids run 2.4 ms ahead of the clock.
    """

    def __init__(self) -> None:
        self._last = 0

    def make(self, count: int) -> pa.StringArray:
        """Return `count` ids as text of 36 characters."""
        now = time.time_ns()
        first = max((now // 1_000_000) << 12 | (now % 1_000_000) * 4096 // 1_000_000, self._last + 1)
        self._last = first + count - 1
        stamps = np.arange(first, first + count, dtype=np.uint64)
        words = np.empty((count, 2), dtype=">u8")
        words[:, 0] = (stamps >> np.uint64(12)) << np.uint64(16) | np.uint64(0x7000) | stamps & np.uint64(0xFFF)
        random = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
        words[:, 1] = np.uint64(1 << 63) | random >> np.uint64(2)
        digits = _HEX[words.view(np.uint8).reshape(count, 16)].view(np.uint8).reshape(count, 32)
        text = np.full((count, 36), _HYPHEN, dtype=np.uint8)
        text[:, _PLACES] = digits
        offsets = np.arange(0, 36 * (count + 1), 36, dtype=np.int32)
        return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text))
