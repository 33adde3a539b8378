"""What a table or an index would take if it were written anew, from the planner's statistics. Pure."""

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
"""24 bytes, and 16 that a btree keeps at a page's end."""


def vacuum_threshold(*, live: float, threshold: float, scale_factor: float) -> float:
    """Return at how many dead rows autovacuum begins. Source: PostgreSQL's manual, 24.1.6."""
    return threshold + scale_factor * live


def wasted_in_heap(size: int, *, rows: float, row_bytes: float | None, fillfactor: int) -> int | None:
    """Return how many bytes of a table its rows do not need; None where the rows' width is not known.

    `row_bytes`: the mean of the columns' widths. Not counted are the spaces between columns, so a page or two of a small
    table counts as waste. What `fillfactor` leaves free on purpose is not waste.
    Source: the layout of a page, PostgreSQL's manual, 73.6; the idea is that of the check_postgres bloat query.
    """
    if row_bytes is None:
        return None
    row = _POINTER + _ROW_HEADER + _aligned(row_bytes)
    a_page = max((_PAGE - _PAGE_HEADER) * fillfactor / 100 / row, 1.0)
    return max(size - ceil(rows / a_page) * _PAGE, 0)


def wasted_in_index(size: int, *, rows: float, key_bytes: float | None, fillfactor: int) -> int | None:
    """Return how many bytes of a btree its entries do not need; None where their width is not known.

    Entries that PostgreSQL keeps once for several equal rows are counted each: then there is more waste than told.
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
