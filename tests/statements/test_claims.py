"""Jobs that a claim takes and leaves, and those that a catch-up finds behind its cursors."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.statements import arrivals, claims, leases
from sa_jobqueue.statements.claims import CLAIMED
from sa_jobqueue.types import LONGEST
from sa_jobqueue.worker.claim.cursors import Cursors, Lane, Plan, Segment
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import write
from tests.statements.cases import START, catch_up_parameters, claim_parameters, late_parameters
from tests.statements.conftest import Run
from tests.statements.shapes import NOBODY

pytestmark = both_servers

CLAIM = claims.claim(Job)
CATCH_UP = arrivals.catch_up(Job)
FULL_SCAN = {"served_queues": [], "after_queue": "", "after_fairness_key": "", "after_priority": -1000, "most": 0}


def claimed_ids(rows: list[Any]) -> list[Any]:
    """Return the ids of claimed jobs."""
    return [row.id for row in rows if row.id is not None]


def watermark(run: Run) -> Any:
    """Return `now, xmax, xip` of a snapshot."""
    (row,) = run(arrivals.full_scan(Job), FULL_SCAN)
    return row


def late(run: Run, before: Any, **more: Any) -> dict[Any, str]:
    """Return the jobs that became visible since a watermark, each with the transaction that changed it last."""
    rows = run(CATCH_UP, catch_up_parameters(before.xmax, before.xip, **more))
    return {row.id: row.changed_xid for row in rows if row.id is not None}


def test_a_claim_starts_an_attempt(jobs: Jobs, run: Run) -> None:
    job_id = jobs.add(input={"n": 1}, timeout=timedelta(minutes=2), max_attempts=5, trace_context="00-a")
    (row,) = run(CLAIM, claim_parameters())
    job = jobs.get(job_id)
    assert {name: getattr(row, name) for name in CLAIMED} == {name: job[name] for name in CLAIMED}
    assert (job["status"], job["attempt"], job["leased_by"]) == (JobStatus.RUNNING, 1, WORKER)
    assert job["started_at"] == row.now
    assert job["leased_until"] == row.now + timedelta(minutes=2, seconds=15)


def test_a_lease_ends_soon_after_the_deadline(jobs: Jobs, run: Run) -> None:
    """So that a job is rescued whose worker does not end it then."""
    hour, grace = timedelta(hours=1), timedelta(seconds=15)
    early, late = (jobs.add(timeout=2 * hour, deadline=func.now() + offset) for offset in (hour, 3 * hour))
    bare = jobs.add(deadline=func.now() + hour)
    (now, *_) = {row.now for row in run(CLAIM, claim_parameters())}
    for job_id in (early, bare):
        assert jobs.get(job_id)["leased_until"] == jobs.get(job_id)["deadline"] + grace
    assert jobs.get(late)["leased_until"] == now + 2 * hour + grace
    fence = {"job_id": late, "job_attempt": 1, "worker_id": WORKER}
    run(leases.extend(Job), fence | {"extension": 9 * hour, "grace": grace})
    assert jobs.get(late)["leased_until"] == jobs.get(late)["deadline"] + grace


def test_extreme_timestamps_do_not_break_a_claim(jobs: Jobs, run: Run) -> None:
    """One that Python or the database could not hold would fail every claim that meets it."""
    before = watermark(run)
    first = datetime(1900, 1, 1, tzinfo=UTC)
    job_ids = {jobs.add(scheduled_at=first, timeout=timedelta.resolution), jobs.add(timeout=LONGEST)}
    far = jobs.add(scheduled_at=datetime(9000, 1, 1, tzinfo=UTC))
    rows = run(CATCH_UP, catch_up_parameters(before.xmax, before.xip))
    assert {row.id: row.wait > 2e11 for row in rows} == dict.fromkeys(job_ids, False) | {far: True}
    assert set(claimed_ids(run(CLAIM, claim_parameters()))) == job_ids


def test_jobs_are_claimed_by_priority_then_by_due_time(jobs: Jobs, run: Run) -> None:
    late_low = jobs.add(priority=-9, due_in=-1)
    early_low = jobs.add(priority=-9, due_in=-2)
    high = jobs.add(priority=9, due_in=-1)
    middle = jobs.add(due_in=-50)
    order = [claimed_ids(run(CLAIM, claim_parameters(limit=1)))[0] for _ in range(4)]
    assert order == [high, middle, early_low, late_low]


def test_a_claim_takes_and_locks_at_most_its_limit(jobs: Jobs, run: Run, engine: Engine) -> None:
    for queue in ("default", "other"):
        for priority in (0, 5):
            for _ in range(5):
                jobs.add(queue=queue, priority=priority)
    free = select(func.count()).select_from(select(Job.id).with_for_update(skip_locked=True).subquery())
    with engine.begin() as holder:
        assert len(claimed_ids(list(holder.execute(CLAIM, claim_parameters(limit=7))))) == 7
        assert run(free)[0][0] == 13
    assert len(claimed_ids(run(CLAIM, claim_parameters(limit=7)))) == 7


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.PENDING])
def test_only_pending_jobs_are_claimed(jobs: Jobs, run: Run, status: JobStatus) -> None:
    jobs.add(status)
    assert claimed_ids(run(CLAIM, claim_parameters())) == []


def test_a_claim_leaves_jobs_not_due_not_handled_or_not_served(jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=60)
    jobs.add(type_name="unknown")
    jobs.add(queue="elsewhere")
    due = jobs.add()
    assert claimed_ids(run(CLAIM, claim_parameters())) == [due]


def test_a_claim_skips_locked_rows(jobs: Jobs, run: Run, session: Session) -> None:
    locked_id, free = jobs.add(due_in=-9), jobs.add(due_in=-1)
    session.execute(select(Job.id).where(Job.id == locked_id).with_for_update())
    assert claimed_ids(run(CLAIM, claim_parameters())) == [free]


def test_a_claim_takes_rows_locked_only_by_a_foreign_key(jobs: Jobs, run: Run, session: Session) -> None:
    """An uncommitted row of an application whose foreign key is a job holds that job's key, and nothing else."""
    job_id = jobs.add()
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True, read=True))
    assert claimed_ids(run(CLAIM, claim_parameters())) == [job_id]


def test_a_scan_starts_at_the_cursor_of_its_lane(jobs: Jobs, run: Run) -> None:
    behind, at, ahead = (jobs.add(due_in=due) for due in (-30, -20, -10))
    parameters = claim_parameters()
    parameters["cursor_at"] = [jobs.get(at)["scheduled_at"]] * len(parameters["queues"])
    parameters["cursor_id"] = [at] * len(parameters["queues"])
    assert claimed_ids(run(CLAIM, parameters)) == [ahead]
    assert jobs.status(behind) is jobs.status(at) is JobStatus.PENDING


def test_each_lane_has_its_own_cursor(jobs: Jobs, run: Run) -> None:
    low, high = jobs.add(due_in=-30), jobs.add(priority=5, due_in=-30)
    parameters = claim_parameters()
    parameters["cursor_at"] = [
        jobs.get(low)["scheduled_at"] + timedelta(seconds=9) if priority == 0 else START
        for priority in parameters["priorities"]
    ]
    assert claimed_ids(run(CLAIM, parameters)) == [high]


def test_segments_never_exceed_their_quotas_and_start_their_own_types(jobs: Jobs, run: Run) -> None:
    cursors = Cursors(["mail"], NOBODY)

    def segment(queue: str, type_name: str, quota: int, of_type: str) -> Segment:
        lanes = [Lane(queue, "", priority, type_name) for priority in (5, 0)]
        for lane in lanes:
            cursors.lower(lane, START)
        return Segment(lanes, quota, [of_type])

    for queue in ("default", "other"):
        for type_name in ("test", "mail"):
            for priority in (0, 5):
                jobs.add_many(5, queue=queue, type_name=type_name, priority=priority)
    mail = [segment("default", "mail", 2, "mail"), segment("other", "mail", 1, "mail")]
    test = [segment("default", "", 6, "test"), segment("other", "", 9, "test")]
    parameters = cursors.parameters(Plan([*mail, *test], {}, 11)) | {"worker_id": WORKER, "grace": timedelta(seconds=15)}
    rows = run(CLAIM, parameters)
    assert Counter((row.type_name, row.queue, row.priority) for row in rows) == {
        ("mail", "default", 5): 2,
        ("mail", "other", 5): 1,
        ("test", "default", 5): 5,
        ("test", "default", 0): 1,
        ("test", "other", 5): 2,
    }


def test_a_job_committed_since_the_watermark_is_a_late_arrival(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    job_id = jobs.add(due_in=-3600)
    assert claimed_ids(run(CLAIM, claim_parameters(before.now))) == []
    assert claimed_ids(run(CLAIM, late_parameters(late(run, before)))) == [job_id]


def test_a_job_of_a_transaction_in_progress_is_a_late_arrival(jobs: Jobs, run: Run, session: Session) -> None:
    first = Job("test")
    session.add(first)
    with session.begin_nested():
        inside = Job("test")
        session.add(inside)
    writer = str(session.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    later = jobs.add()
    before = watermark(run)
    assert claimed_ids(run(CLAIM, claim_parameters())) == [later]
    assert before.xip == [writer]
    assert int(writer) < int(before.xmax)
    session.commit()
    # A savepoint's rows carry the id of the whole transaction, and it is that which the snapshot names.
    assert set(claimed_ids(run(CLAIM, late_parameters(late(run, before))))) == {first.id, inside.id}


def test_catch_up_returns_nothing_visible_at_the_watermark(jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=-10)
    assert late(run, watermark(run)) == {}


def test_late_arrivals_are_claimed_before_jobs_ahead_of_the_cursor(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    ahead = jobs.add(priority=9)
    behind = jobs.add(priority=-9, due_in=-3600)
    (xid,) = [xid for job_id, xid in late(run, before).items() if job_id == behind]
    parameters = claim_parameters(limit=1, late_ids=[behind], late_xids=[xid])
    assert claimed_ids(run(CLAIM, parameters)) == [behind]
    assert claimed_ids(run(CLAIM, claim_parameters(limit=1))) == [ahead]


def test_a_late_arrival_changed_since_is_left_to_the_next_catch_up(jobs: Jobs, run: Run, engine: Engine) -> None:
    before = watermark(run)
    job_id = jobs.add(due_in=-60)
    xid_by_id = late(run, before)
    write(engine, "UPDATE job SET queue = 'elsewhere' WHERE id = :id", {"id": job_id})
    assert claimed_ids(run(CLAIM, late_parameters(xid_by_id))) == []


def test_a_late_arrival_not_due_or_not_handled_is_not_claimed(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    jobs.add(due_in=-60, type_name="unknown")
    jobs.add(due_in=-60, queue="elsewhere")
    future = jobs.add(due_in=60)
    xid_by_id = late(run, before)
    assert set(xid_by_id) == {future}
    assert claimed_ids(run(CLAIM, late_parameters(xid_by_id))) == []
    assert claimed_ids(run(CLAIM, late_parameters(xid_by_id, types=["mail"]))) == []


def test_catch_up_omits_jobs_that_a_lane_scan_will_find(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    behind, ahead = jobs.add(due_in=-60), jobs.add(due_in=-10)
    elsewhere, mail = jobs.add(queue="other", due_in=-10), jobs.add(type_name="mail", due_in=-10)
    known_lanes = {"known_queues": ["default"], "known_fairness_keys": [""], "known_priorities": [0], "known_types": [""]}
    known_lanes |= {"known_at": [jobs.get(behind)["scheduled_at"]], "known_id": [behind]}
    assert set(late(run, before, **known_lanes)) == {behind, elsewhere}
    assert set(late(run, before, **known_lanes, shared_types=["test"])) == {behind, elsewhere, mail}
    assert ahead not in late(run, before, **known_lanes)


def test_catch_up_returns_the_next_job_of_lanes_read_to_their_end(jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=-5)
    jobs.add(due_in=10, type_name="unknown")
    jobs.add(due_in=3600)
    jobs.add(due_in=7200, type_name="mail")
    before = watermark(run)
    ended = {"ended_queues": ["default"] * 3, "ended_fairness_keys": [""] * 3, "ended_priorities": [0, 0, 9]}
    ended |= {"ended_types": ["", "mail", ""], "read_to": before.now, "shared_types": ["test"]}
    rows = run(CATCH_UP, catch_up_parameters(before.xmax, before.xip, **ended))
    wait_by_type = {row.type_name: row.wait for row in rows if row.queue is not None and row.id is None}
    assert wait_by_type == {"": pytest.approx(3600, abs=100), "mail": pytest.approx(7200, abs=100)}


def test_catch_up_reports_when_it_was_truncated(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    jobs.add_many(3)
    assert not run(CATCH_UP, catch_up_parameters(before.xmax, before.xip, most=4))[0].is_cut
    rows = run(CATCH_UP, catch_up_parameters(before.xmax, before.xip, most=3))
    assert (len(rows), rows[0].is_cut) == (3, True)
    rows = run(CATCH_UP, catch_up_parameters(before.xmax, before.xip, most_read=3))
    assert (len(rows), rows[0].is_cut) == (3, True)


def test_a_flood_that_is_not_served_does_not_truncate_a_catch_up(jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    for flood in ({"queue": "elsewhere"}, {"type_name": "unknown"}, {"fairness_key": "paused"}, {"fairness_key": "known"}):
        jobs.add_many(3, **flood)
    served = jobs.add(fairness_key="new")
    known_lanes = {
        "known_queues": ["default"],
        "known_fairness_keys": ["known"],
        "known_priorities": [0],
        "known_types": [""],
    }
    known_lanes |= {"known_at": [datetime(2020, 1, 1, tzinfo=UTC)], "known_id": [NOBODY], "shared_types": ["test"]}
    parameters = catch_up_parameters(before.xmax, before.xip, most=2, paused_keys=["default\x1fpaused"], **known_lanes)
    (row,) = run(CATCH_UP, parameters)
    assert (row.id, row.is_cut) == (served, False)


def test_a_full_scan_reads_one_lane_of_each_queue_that_is_not_served(jobs: Jobs, run: Run) -> None:
    for queue in ("a", "b", "c", "d", "e"):
        for key in ("1", "2", "3"):
            jobs.add(queue=queue, fairness_key=key)
    page = FULL_SCAN | {"served_queues": ["b", "d", "none"], "most": 100}
    every = [(row.queue, row.fairness_key) for row in run(arrivals.full_scan(Job), page)]
    assert every == [("a", "1"), *(("b", key) for key in "123"), ("c", "1"), *(("d", key) for key in "123"), ("e", "1")]
    for place, (queue, key) in enumerate(every):
        next_page = run(
            arrivals.full_scan(Job), page | {"after_queue": queue, "after_fairness_key": key, "after_priority": 0}
        )
        lanes = {(row.queue, row.fairness_key) for row in next_page}
        assert {lane for lane in every[place + 1 :] if lane[0] in {"b", "d"}} <= lanes


def test_a_claim_leaves_excluded_jobs(jobs: Jobs, run: Run) -> None:
    job_ids = [jobs.add() for _ in range(4)]
    assert set(claimed_ids(run(CLAIM, claim_parameters(apart=[*job_ids[:2], NOBODY])))) == set(job_ids[2:])
    assert set(claimed_ids(run(CLAIM, claim_parameters()))) == set(job_ids[:2])


def test_candidates_are_the_claimable_jobs_and_are_not_locked(engine: Engine, jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=5)
    jobs.add(due_in=-5, type_name="unknown")
    first, second, third = (jobs.add(due_in=-due) for due in (9, 8, 7))
    with engine.begin() as holder:
        holder.execute(text("SELECT FROM job FOR UPDATE"))
        rows = run(claims.candidates(Job, inputs=False), claim_parameters(limit=2))
        assert {row.id for row in rows} == {first, second}
        assert {row.changed_xid for row in rows} == {str(jobs.get(job_id)["changed_xid"]) for job_id in (first, second)}
    assert jobs.status(third) is JobStatus.PENDING


def test_a_claim_by_id_starts_due_jobs_that_are_not_locked(engine: Engine, jobs: Jobs, run: Run) -> None:
    before = watermark(run)
    pending, ended_id, locked_id = jobs.add(), jobs.add(), jobs.add()
    xid_by_id = late(run, before)
    running = jobs.add(JobStatus.RUNNING)
    late_xids = {
        pending: xid_by_id[pending],
        locked_id: xid_by_id[locked_id],
        running: str(jobs.get(running)["changed_xid"]),
        NOBODY: "3",
    }
    with engine.begin() as holder:
        holder.execute(text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": locked_id})
        assert claimed_ids(run(CLAIM, late_parameters(late_xids))) == [pending]
    assert (jobs.status(ended_id), jobs.get(running)["attempt"]) == (JobStatus.PENDING, 1)
