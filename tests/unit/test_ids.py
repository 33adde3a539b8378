"""Ids made by the client."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sa_jobqueue import ids
from sa_jobqueue.ids import uuid7


def test_threads_create_no_duplicate_ids_and_keep_order() -> None:
    with ThreadPoolExecutor(8) as pool:
        lists = list(pool.map(lambda _: [uuid7() for _ in range(2000)], range(8)))
    assert all(ids == sorted(ids) for ids in lists)
    assert len({new_id for ids in lists for new_id in ids}) == 16_000


@pytest.mark.parametrize("now", [0, 999_999, 1_000_000, 1_700_000_000_123_999_999])
def test_the_fraction_of_a_millisecond_fills_the_counter(monkeypatch: pytest.MonkeyPatch, now: int) -> None:
    monkeypatch.setattr(ids, "_last", -1)
    monkeypatch.setattr(time, "time_ns", lambda: now)
    new_id = uuid7()
    assert new_id.int >> 80 == now // 1_000_000
    assert new_id.int >> 64 & 0xFFF == now % 1_000_000 * 4096 // 1_000_000


def test_ids_stay_ordered_when_the_clock_stalls_or_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.time_ns()
    moments = iter([start, start, start - 3_600_000_000_000, start + 1_000_000])
    monkeypatch.setattr(time, "time_ns", lambda: next(moments))
    new_ids = [uuid7() for _ in range(4)]
    assert new_ids == sorted(set(new_ids))


def test_the_remaining_bits_of_an_id_are_random() -> None:
    assert len({uuid7().int & (1 << 62) - 1 for _ in range(1000)}) == 1000
