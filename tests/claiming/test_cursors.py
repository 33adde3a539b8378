"""Where each lane's scan starts, step by step. `test_claim_protocol.py` has the whole against a model."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from sa_jobqueue.worker.claim.cursors import FLOOD, RECENT, START, Arrival, Cursors, Lane, Plan, Segment, Snapshot

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
END = NOW - RECENT
"""Where the cursor of a lane is that was read to its end now."""
HIGH, LOW, OTHER = Lane("q", "", 5), Lane("q", "", 0), Lane("r", "", 0)
SEEN = Snapshot("100", ["97"])


class Ran(NamedTuple):
    """A job as a claim returned it."""

    id: int
    queue: str
    fairness_key: str
    priority: int
    type_name: str
    scheduled_at: datetime


TYPES = ["test"]


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def job(lane: Lane, seconds_ago: float, job_id: int) -> Ran:
    return Ran(job_id, lane.queue, lane.fairness_key, lane.priority, lane.type_name or "test", ago(seconds_ago))


def arrival(lane: Lane, seconds_ago: float, job_id: int, xid: str = "7") -> Arrival:
    return Arrival(lane, ago(seconds_ago), job_id, xid)


def plan_of(*lanes: Lane, limit: int = 2, late: dict[Any, str] | None = None) -> Plan:
    return Plan([Segment(lanes, limit, TYPES)], late or {}, limit)


def known(*lanes: Lane) -> Cursors:
    cursors = Cursors(["own"], 0)
    for lane in lanes or (HIGH, LOW):
        cursors.lower(lane, START)
    return cursors


def read() -> Cursors:
    """Return cursors that were read to the present."""
    cursors = known()
    cursors.claimed(plan_of(HIGH, LOW), [], NOW)
    return cursors


def test_a_lane_is_scanned_from_its_earliest_known_job() -> None:
    cursors = Cursors([], 0)
    cursors.lower(LOW, ago(5))
    cursors.lower(LOW, ago(9))
    cursors.lower(LOW, ago(1))
    assert cursors.of_lane == {LOW: (ago(9), 0)}
    cursors.forget(LOW)
    cursors.forget(LOW)
    assert not cursors.of_lane


def test_a_claim_below_its_limit_has_read_every_lane_to_its_end() -> None:
    cursors = known()
    ended, started = cursors.claimed(plan_of(HIGH, LOW), [job(LOW, 5, 3)], NOW)
    assert (ended, started) == ([HIGH, LOW], {LOW: 1})
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (END, 0)}


def test_a_claim_that_reached_its_limit_has_read_up_to_its_last_job() -> None:
    cursors = known()
    assert cursors.claimed(plan_of(HIGH, LOW), [job(HIGH, 9, 1), job(HIGH, 8, 2)], NOW)[0] == []
    assert cursors.of_lane == {HIGH: (ago(8), 2), LOW: (START, 0)}
    assert cursors.claimed(plan_of(HIGH, LOW), [job(HIGH, 7, 3), job(LOW, 99, 4)], NOW)[0] == [HIGH]
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (ago(99), 4)}


def test_a_cursor_stays_before_recently_due_jobs_and_moves_past_claimed_ones() -> None:
    cursors = known()
    cursors.claimed(plan_of(HIGH, LOW), [job(LOW, 0.05, 3)], NOW)
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (ago(0.05), 3)}
    cursors.caught_up([arrival(HIGH, 0.05, 1), arrival(LOW, 0.04, 2), arrival(LOW, 0.06, 4)], SEEN, NOW, is_cut=False)
    assert cursors.late == {LOW: {4: "7"}}
    cursors.claimed(plan_of(HIGH, LOW), [], NOW)
    assert cursors.of_lane[LOW] == (ago(0.05), 3)


def test_cursors_do_not_depend_on_the_order_of_claimed_rows() -> None:
    cursors = known()
    cursors.claimed(plan_of(HIGH, LOW, limit=3), [job(LOW, 1, 9), job(HIGH, 9, 1), job(LOW, 2, 8)], NOW)
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (ago(1), 9)}


def test_each_segment_is_cut_off_at_its_own_quota() -> None:
    cursors = known(HIGH, LOW, OTHER)
    segments = [Segment([HIGH], 1, TYPES), Segment([LOW], 2, TYPES), Segment([OTHER], 5, TYPES)]
    jobs = [job(HIGH, 9, 1), job(LOW, 8, 2), job(LOW, 7, 3), job(OTHER, 6, 4)]
    assert cursors.claimed(Plan(segments, {}, 9), jobs, NOW)[0] == [OTHER]
    assert cursors.of_lane == {HIGH: (ago(9), 1), LOW: (ago(7), 3), OTHER: (END, 0)}


def test_lanes_after_the_limit_was_reached_keep_their_cursors() -> None:
    cursors = known(HIGH, LOW, OTHER)
    segments = [Segment([lane], 2, TYPES) for lane in (HIGH, LOW, OTHER)]
    assert cursors.claimed(Plan(segments, {}, 2), [job(HIGH, 9, 1), job(HIGH, 8, 2)], NOW)[0] == []
    assert cursors.of_lane == {HIGH: (ago(8), 2), LOW: (START, 0), OTHER: (START, 0)}


def test_late_arrivals_do_not_move_cursors_and_count_to_the_limit() -> None:
    cursors = read()
    cursors.caught_up([arrival(HIGH, 50, 1), arrival(LOW, 40, 2)], SEEN, NOW, is_cut=False)
    later = NOW + timedelta(seconds=9)
    plan = plan_of(HIGH, LOW, late={1: "7", 2: "7"})
    ended, started = cursors.claimed(plan, [job(HIGH, 50, 1), job(LOW, 40, 2)], later)
    assert (ended, started) == ([], {HIGH: 1, LOW: 1})  # the limit was reached before a lane was scanned
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (END, 0)}
    assert not cursors.late


def test_a_job_ahead_of_its_cursor_is_not_a_late_arrival() -> None:
    cursors = read()
    cursors.caught_up([arrival(HIGH, -1, 1), arrival(HIGH, 1, 2)], SEEN, NOW, is_cut=False)
    assert cursors.late == {HIGH: {2: "7"}}
    assert cursors.watermark == SEEN


def test_a_new_lane_starts_at_its_earliest_arrival() -> None:
    cursors = read()
    cursors.caught_up([arrival(OTHER, 3, 1), arrival(OTHER, 8, 2), arrival(OTHER, 5, 3)], SEEN, NOW, is_cut=False)
    assert cursors.of_lane[OTHER] == (ago(8), 0)
    cursors.caught_up([arrival(Lane("r", "", 1), -60, 4)], SEEN, NOW, is_cut=False)
    assert cursors.of_lane[Lane("r", "", 1)] == (NOW, 0)  # what comes before it may be due before it
    assert not cursors.late


def test_a_late_arrival_is_kept_until_a_claim_was_given_its_current_version() -> None:
    cursors = read()
    cursors.caught_up([arrival(HIGH, 5, 1, "7"), arrival(LOW, 5, 2, "7")], SEEN, NOW, is_cut=False)
    plan = plan_of(HIGH, late={1: "7"})
    cursors.caught_up([arrival(HIGH, 5, 1, "8")], SEEN, NOW, is_cut=False)
    cursors.claimed(plan, [], NOW)
    assert cursors.late == {HIGH: {1: "8"}, LOW: {2: "7"}}
    cursors.claimed(plan_of(HIGH, late={1: "8"}), [], NOW)
    assert cursors.late == {LOW: {2: "7"}}


def test_a_flood_of_late_arrivals_has_its_lane_scanned_from_the_start() -> None:
    cursors = read()
    cursors.caught_up([arrival(LOW, 5, number) for number in range(FLOOD)], SEEN, NOW, is_cut=False)
    assert len(cursors.late[LOW]) == FLOOD
    assert not cursors.caught_up([arrival(LOW, 5, FLOOD)], SEEN, NOW, is_cut=False)
    assert cursors.of_lane == {HIGH: (END, 0), LOW: (START, 0)}
    assert not cursors.late


def test_a_truncated_catch_up_has_every_lane_scanned_from_the_start() -> None:
    cursors = read()
    assert cursors.caught_up([arrival(LOW, 5, 1)], SEEN, NOW, is_cut=True)
    assert cursors.of_lane == {HIGH: (START, 0), LOW: (START, 0)}
    assert not cursors.late


def test_lanes_are_scanned_from_the_start_after_the_database_clock_steps_back() -> None:
    cursors = read()
    assert cursors.caught_up([], SEEN, ago(0.001), is_cut=False)
    assert cursors.of_lane == {HIGH: (START, 0), LOW: (START, 0)}
    cursors = read()
    assert cursors.claimed(plan_of(HIGH, LOW), [job(LOW, 1, 1)], ago(0.001)) == ([], {LOW: 1})
    assert cursors.of_lane == {HIGH: (START, 0), LOW: (START, 0)}
    cursors.claimed(plan_of(HIGH, LOW), [], ago(0.001))
    assert cursors.of_lane == {HIGH: (ago(0.001) - RECENT, 0), LOW: (ago(0.001) - RECENT, 0)}


def test_a_job_type_with_its_own_capacity_has_its_own_lane() -> None:
    cursors = known()
    assert cursors.lane_of(job(LOW, 1, 1)) == LOW
    assert cursors.lane_of(job(LOW._replace(type_name="own"), 1, 1)) == Lane("q", "", 0, "own")


def test_a_plan_as_parameters() -> None:
    cursors = read()
    cursors.lower(OTHER, ago(3))
    segments = [Segment([HIGH], 1, ["test", "more"]), Segment([LOW], 3, ["test", "more"]), Segment([OTHER], 2, TYPES)]
    assert cursors.parameters(Plan(segments, {1: "7", 2: "8"}, 9), excluded=[2, 5]) == {
        "queues": ["q", "q", "r"],
        "fairness_keys": ["", "", ""],
        "priorities": [5, 0, 0],
        "cursor_at": [END, END, ago(3)],
        "cursor_id": [0, 0, 0],
        "types": ["test", "more", "test"],
        "segment_first": [1, 2, 3],
        "segment_last": [1, 2, 3],
        "segment_quota": [1, 3, 2],
        "segment_first_type": [1, 1, 3],
        "segment_last_type": [2, 2, 3],
        "late_ids": [1],
        "late_xids": ["7"],
        "apart": [2, 5],
        "limit": 9,
    }


def test_an_arrival_where_the_cursor_is_counts_as_late() -> None:
    cursors = known(LOW)
    cursors.claimed(plan_of(LOW, limit=1), [job(LOW, 5, 3)], NOW)
    assert cursors.of_lane == {LOW: (ago(5), 3)}
    cursors.caught_up([arrival(LOW, 5, 3), arrival(LOW, 5, 4)], SEEN, NOW, is_cut=False)
    assert cursors.late == {LOW: {3: "7"}}
