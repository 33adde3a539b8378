"""Where each lane's scan starts, step by step. `test_floors_model.py` proves the whole."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sa_jobqueue.worker.claim.floors import SAFETY, Floors, Lane

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
HIGH, LOW = Lane("q", 5), Lane("q", 0)
FIRST = datetime(1, 1, 1, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def floors_of(floors: Floors) -> list[tuple[datetime, int]]:
    given = floors.parameters(changed=False)
    return list(zip(given["floor_at"], given["floor_id"], strict=True))


def advance(floors: Floors, *claimed: tuple[Lane, datetime, int], limit: int = 2, **given: Any) -> None:
    rest: dict[str, Any] = {"changed": True, "database_now": NOW, "snapshot": ("100", ["97"]), "started": 0.0, "now": 0.0}
    floors.advance([(lane.queue, lane.priority, at, key) for lane, at, key in claimed], limit=limit, **rest | given)


def warm() -> Floors:
    floors = Floors([HIGH, LOW], 0)
    advance(floors)
    return floors


def test_the_first_claim_scans_every_lane_from_its_start_and_takes_a_baseline() -> None:
    floors = Floors([HIGH, LOW], 0)
    assert floors.prepare(0.0, idle=False)
    given = floors.parameters(changed=True)
    assert (given["queues"], given["priorities"]) == (["q", "q"], [5, 0])
    assert floors_of(floors) == [(FIRST, 0), (FIRST, 0)]
    assert (given["highest_floor"], given["xip"]) == (FIRST, [])
    assert given["xmax"] == "18446744073709551615"  # nothing began after it: the whole backlog is ahead


def test_a_claim_that_had_room_left_has_read_every_lane_to_its_end() -> None:
    floors = Floors([HIGH, LOW], 0)
    advance(floors, (LOW, ago(5), 3), limit=2)
    assert floors_of(floors) == [(NOW, 0), (NOW, 0)]
    given = floors.parameters(changed=True)
    assert (given["xmax"], given["xip"], given["highest_floor"]) == ("100", ["97"], NOW)


def test_a_claim_that_was_cut_off_has_read_up_to_its_last_job() -> None:
    floors = Floors([HIGH, LOW], 0)
    advance(floors, (HIGH, ago(9), 1), (HIGH, ago(8), 2), limit=2)
    assert floors_of(floors) == [(ago(8), 2), (FIRST, 0)]
    advance(floors, (HIGH, ago(7), 3), (LOW, ago(99), 4), limit=2)
    assert floors_of(floors) == [(NOW, 0), (ago(99), 4)]


def test_the_order_in_which_jobs_come_back_does_not_matter() -> None:
    floors = Floors([HIGH, LOW], 0)
    advance(floors, (LOW, ago(1), 9), (HIGH, ago(9), 1), (LOW, ago(2), 8), limit=3)
    assert floors_of(floors) == [(NOW, 0), (ago(1), 9)]


def test_what_was_found_behind_a_floor_does_not_move_it() -> None:
    floors = warm()
    advance(floors, (HIGH, ago(50), 1), limit=5)
    assert floors_of(floors) == [(NOW, 0), (NOW, 0)]
    later = NOW + timedelta(seconds=9)
    advance(floors, (HIGH, ago(50), 2), (LOW, later, 3), limit=2, database_now=later)
    assert floors_of(floors) == [(later, 0), (later, 3)]


def test_floors_are_dropped_when_the_databases_clock_was_set_back() -> None:
    floors = warm()
    advance(floors, database_now=ago(0.001), snapshot=("200", []))
    assert floors_of(floors) == [(FIRST, 0), (FIRST, 0)]
    assert floors.prepare(0.0, idle=False)
    advance(floors, database_now=ago(0.001))
    assert floors_of(floors) == [(ago(0.001), 0), (ago(0.001), 0)]


def test_a_look_cut_off_behind_the_floors_keeps_its_baseline_and_looks_again() -> None:
    floors = warm()
    before = floors.parameters(changed=True)
    advance(floors, (HIGH, ago(5), 1), (LOW, ago(5), 2), limit=2, snapshot=("200", []), now=1.0)
    assert floors.parameters(changed=True) == before
    assert floors.prepare(1.0, idle=False)
    advance(floors, (HIGH, ago(4), 3), limit=2, snapshot=("300", []), now=1.0)
    assert floors.parameters(changed=True)["xmax"] == "300"


def test_a_flood_behind_the_floors_drops_them() -> None:
    floors = warm()
    for batch in range(6):
        assert floors_of(floors)[0] == (NOW, 0)
        advance(floors, *((LOW, ago(5), 100 * batch + key) for key in range(100)), limit=100)
    assert floors_of(floors) == [(FIRST, 0), (FIRST, 0)]


def test_a_claim_that_looked_ahead_only_keeps_the_baseline() -> None:
    floors = warm()
    advance(floors, (LOW, NOW + timedelta(seconds=1), 7), limit=1, changed=False, snapshot=("200", []))
    assert floors.parameters(changed=True)["xmax"] == "100"


def test_while_there_is_plenty_ahead_it_looks_behind_every_50_ms() -> None:
    floors = Floors([LOW], 0)
    advance(floors, now=10.0)
    assert not floors.prepare(10.04, idle=False)
    assert floors.prepare(10.05, idle=False)
    assert floors.prepare(10.0, idle=True)


def test_floors_are_dropped_every_few_seconds() -> None:
    floors = Floors([LOW], 0)
    advance(floors, started=10.0, now=10.0)
    floors.prepare(10.0 + SAFETY - 0.001, idle=True)
    assert floors_of(floors) == [(NOW, 0)]
    assert floors.prepare(10.0 + SAFETY, idle=False)
    assert floors_of(floors) == [(FIRST, 0)]


def test_a_scan_from_the_start_may_cost_one_part_in_200_of_the_time() -> None:
    floors = Floors([LOW], 0)
    advance(floors, started=10.0, now=10.1)
    floors.prepare(10.1 + 19.9, idle=True)
    assert floors_of(floors) == [(NOW, 0)]
    floors.prepare(10.1 + 20.0, idle=True)
    assert floors_of(floors) == [(FIRST, 0)]


def test_any_failure_is_answered_by_starting_over() -> None:
    floors = warm()
    floors.reset(3.0)
    assert floors.prepare(3.0, idle=False)
    assert floors.parameters(changed=True)["xip"] == []
    assert floors_of(floors) == [(FIRST, 0), (FIRST, 0)]
