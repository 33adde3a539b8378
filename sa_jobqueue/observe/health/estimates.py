"""Estimates of the size of a table or index after a rewrite, from the planner's statistics. Pure."""

from __future__ import annotations

from math import ceil
from typing import Final

_PAGE: Final = 8192
_PAGE_HEADER: Final = 24
_POINTER: Final = 4
_ROW_HEADER: Final = 32
"""23 bytes and a bitmap of nulls, aligned to eight."""
_ENTRY_HEADER: Final = 8
_INDEX_PAGE_HEADER: Final = 40
"""24 bytes, and 16 at the end of a btree's page."""


def vacuum_threshold(*, live: float, threshold: float, scale_factor: float) -> float:
    """Return the number of dead rows at which autovacuum starts. Source: PostgreSQL's manual, 24.1.6."""
    return threshold + scale_factor * live


def wasted_in_heap(size: int, *, rows: float, row_bytes: float | None, fillfactor: int) -> int | None:
    """Return the bloat of a table in bytes; None if the width of its rows is unknown.

    `row_bytes`: the mean width of all columns. Padding between columns is not counted, so a page or two of a small table
    count as bloat. Space that `fillfactor` leaves free does not.
    Source: the layout of a page, PostgreSQL's manual, 73.6; the idea is that of the check_postgres bloat query.
    """
    if row_bytes is None:
        return None
    row = _POINTER + _ROW_HEADER + _aligned(row_bytes)
    a_page = max((_PAGE - _PAGE_HEADER) * fillfactor / 100 / row, 1.0)
    return max(size - ceil(rows / a_page) * _PAGE, 0)


def wasted_in_index(size: int, *, rows: float, key_bytes: float | None, fillfactor: int) -> int | None:
    """Return the bloat of a btree in bytes; None if the width of its entries is unknown.

    Deduplicated entries are counted once per row, so the bloat may be underestimated.
    Source: as `wasted_in_heap`; a meta page, and an inner page for about every 200 leaves.
    """
    if key_bytes is None:
        return None
    entry = _POINTER + _ENTRY_HEADER + _aligned(key_bytes)
    a_page = max((_PAGE - _INDEX_PAGE_HEADER) * fillfactor / 100 / entry, 1.0)
    leaves = ceil(rows / a_page)
    return max(size - (1 + leaves + ceil(leaves / 200)) * _PAGE, 0)


def _aligned(width: float) -> float:
    return ceil(width / 8) * 8
