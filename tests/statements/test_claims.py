"""What a claim takes, what it leaves, and what it finds behind its floors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.statements import claims
from sa_jobqueue.statements.claims import CLAIMED
from sa_jobqueue.types import LONGEST
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.turns import Turn, together
from tests.fixtures.database import both_servers_swept
from tests.fixtures.jobs import WORKER, Jobs
from tests.statements.cases import START, claim_parameters
from tests.statements.conftest import Run
from tests.statements.shapes import NOBODY

pytestmark = both_servers_swept

AHEAD = claims.claim(Job, changed=False)
ALL = claims.claim(Job, changed=True)


def taken(rows: list[Any]) -> list[Any]:
    """Return the ids of what a claim took."""
    return [row.id for row in rows if row.id is not None]


def baseline(rows: list[Any], **given: Any) -> dict[str, Any]:
    """Return the parameters of the claim after one that read every lane to its end."""
    return claim_parameters(rows[0].now, xmax=rows[0].xmax, xip=rows[0].xip, **given)


def test_a_claim_starts_an_attempt(jobs: Jobs, run: Run) -> None:
    job_id = jobs.add(input={"n": 1}, timeout=timedelta(minutes=2), max_attempts=5, trace_context="00-a")
    (row,) = run(AHEAD, claim_parameters())
    job = jobs.get(job_id)
    assert {name: getattr(row, name) for name in CLAIMED} == {name: job[name] for name in CLAIMED}
    assert (job["status"], job["attempt"], job["leased_by"]) == (JobStatus.RUNNING, 1, WORKER)
    assert job["started_at"] == row.now
    assert job["leased_until"] == row.now + timedelta(minutes=2, seconds=15)
    assert job["changed_xid"] >= int(row.xmax)


def test_the_furthest_times_that_a_job_can_have_do_not_stop_a_claim(jobs: Jobs, run: Run) -> None:
    """One that Python or the database could not hold would fail every claim that meets it."""
    before = run(ALL, claim_parameters())
    first = datetime(1900, 1, 1, tzinfo=UTC)
    made = {jobs.add(scheduled_at=first, timeout=timedelta.resolution), jobs.add(timeout=LONGEST)}
    jobs.add(scheduled_at=datetime(9000, 1, 1, tzinfo=UTC))
    assert set(taken(run(ALL, baseline(before)))) == made
    assert run(claims.next_due(Job), claim_parameters())[0][0] > 2e11


def test_a_job_without_a_timeout_has_no_end_of_its_lease(jobs: Jobs, run: Run) -> None:
    job_id = jobs.add()
    run(AHEAD, claim_parameters())
    assert jobs.get(job_id)["leased_until"] is None


def test_a_claim_that_finds_nothing_still_tells_time_and_snapshot(run: Run, jobs: Jobs) -> None:
    (row,) = run(ALL, claim_parameters())
    assert row.id is None
    assert abs(row.now - datetime.now(UTC)) < timedelta(hours=1)
    assert int(row.xmax) > 0
    assert row.xip == []


def test_jobs_are_taken_by_priority_then_by_due_time(jobs: Jobs, run: Run) -> None:
    late_low = jobs.add(priority=-9, due_in=-1)
    early_low = jobs.add(priority=-9, due_in=-2)
    high = jobs.add(priority=9, due_in=-1)
    middle = jobs.add(due_in=-50)
    order = [taken(run(AHEAD, claim_parameters(limit=1)))[0] for _ in range(4)]
    assert order == [high, middle, early_low, late_low]


def test_at_equal_due_times_jobs_are_taken_by_id(jobs: Jobs, run: Run) -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [jobs.add(scheduled_at=due) for _ in range(4)]
    assert [taken(run(AHEAD, claim_parameters(limit=1)))[0] for _ in ids] == sorted(ids)


def test_no_more_than_the_limit_is_taken_or_locked(jobs: Jobs, run: Run, engine: Engine) -> None:
    for queue in ("default", "other"):
        for priority in (0, 5):
            for _ in range(5):
                jobs.add(queue=queue, priority=priority)
    free = select(func.count()).select_from(select(Job.id).with_for_update(skip_locked=True).subquery())
    with engine.begin() as holder:
        assert len(taken(list(holder.execute(AHEAD, claim_parameters(limit=7))))) == 7
        assert run(free)[0][0] == 13
    assert len(taken(run(ALL, claim_parameters(limit=7)))) == 7


@pytest.mark.parametrize("status", [status for status in JobStatus if status is not JobStatus.PENDING])
def test_only_pending_jobs_are_taken(jobs: Jobs, run: Run, status: JobStatus) -> None:
    jobs.add(status)
    assert taken(run(ALL, claim_parameters())) == []


def test_what_is_not_due_not_known_or_not_served_is_left(jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=60)
    jobs.add(type_name="unknown")
    jobs.add(queue="elsewhere")
    due = jobs.add()
    assert taken(run(ALL, claim_parameters())) == [due]


def test_unknown_types_ahead_do_not_hide_what_lies_behind_them(jobs: Jobs, run: Run) -> None:
    jobs.add_many(50, type_name="unknown")
    due = jobs.add()
    assert taken(run(AHEAD, claim_parameters(limit=1))) == [due]


def test_rows_that_somebody_holds_are_skipped(jobs: Jobs, run: Run, session: Session) -> None:
    held, free = jobs.add(due_in=-9), jobs.add(due_in=-1)
    session.execute(select(Job.id).where(Job.id == held).with_for_update())
    assert taken(run(AHEAD, claim_parameters())) == [free]


def test_a_row_that_is_only_referred_to_is_taken(jobs: Jobs, run: Run, session: Session) -> None:
    """An uncommitted row of an application whose foreign key is a job holds that job's key, and nothing else."""
    job_id = jobs.add()
    session.execute(select(Job.id).where(Job.id == job_id).with_for_update(key_share=True, read=True))
    assert taken(run(AHEAD, claim_parameters())) == [job_id]


def test_two_claims_at_once_share_no_job(jobs: Jobs, run: Run, engine: Engine) -> None:
    jobs.add_many(10)
    with engine.begin() as winner:
        first = taken(list(winner.execute(ALL, claim_parameters(limit=6))))
        second = taken(run(ALL, claim_parameters(limit=6)))
    assert len(first) == 6
    assert len(second) == 4
    assert not set(first) & set(second)


def test_a_claim_rolled_back_has_taken_nothing(jobs: Jobs, run: Run, engine: Engine) -> None:
    job_id = jobs.add()
    with engine.connect() as crashed:
        crashed.execute(AHEAD, claim_parameters())
    assert jobs.get(job_id)["attempt"] == 0
    assert taken(run(AHEAD, claim_parameters())) == [job_id]


def test_a_probe_starts_at_its_lanes_floor(jobs: Jobs, run: Run) -> None:
    behind, at, ahead = (jobs.add(due_in=due) for due in (-30, -20, -10))
    given = claim_parameters()
    floor = jobs.get(at)["scheduled_at"]
    given["floor_at"] = [floor] * len(given["queues"])
    given["floor_id"] = [at] * len(given["queues"])
    assert taken(run(AHEAD, given)) == [ahead]
    assert jobs.status(behind) is jobs.status(at) is JobStatus.PENDING


def test_each_lane_has_its_own_floor(jobs: Jobs, run: Run) -> None:
    low, high = jobs.add(due_in=-30), jobs.add(priority=5, due_in=-30)
    given = claim_parameters()
    given["floor_at"] = [
        jobs.get(low)["scheduled_at"] + timedelta(seconds=9) if priority == 0 else START for priority in given["priorities"]
    ]
    assert taken(run(AHEAD, given)) == [high]


def test_what_committed_since_is_found_behind_the_floors(jobs: Jobs, run: Run) -> None:
    before = run(ALL, claim_parameters())
    job_id = jobs.add(due_in=-3600)
    assert taken(run(AHEAD, claim_parameters(before[0].now))) == []
    assert taken(run(ALL, baseline(before))) == [job_id]


def test_what_was_in_flight_is_found_behind_the_floors(jobs: Jobs, run: Run, session: Session) -> None:
    late = Job("test")
    session.add(late)
    with session.begin_nested():
        inside = Job("test")
        session.add(inside)
    writer = str(session.execute(text("SELECT pg_current_xact_id()::text")).scalar_one())
    later = jobs.add()
    before = run(ALL, claim_parameters())
    assert taken(before) == [later]
    assert before[0].xip == [writer]
    assert int(writer) < int(before[0].xmax)
    session.commit()
    # A savepoint's rows carry the id of the whole transaction, and it is that which the snapshot names.
    assert set(taken(run(ALL, baseline(before)))) == {late.id, inside.id}


def test_what_the_snapshot_before_saw_is_not_looked_for_again(jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=-10)
    before = run(ALL, claim_parameters(limit=0))
    assert taken(run(ALL, baseline(before))) == []


def test_what_lies_behind_comes_before_what_lies_ahead(jobs: Jobs, run: Run) -> None:
    before = run(ALL, claim_parameters())
    ahead = jobs.add(priority=9)
    behind = jobs.add(priority=-9, due_in=-3600)
    assert taken(run(ALL, baseline(before, limit=1))) == [behind]
    assert taken(run(ALL, baseline(before, limit=1))) == [ahead]


@pytest.mark.parametrize(
    "changes", [{"priority": 3}, {"queue": "other"}, {"scheduled_at": datetime(2020, 1, 1, tzinfo=UTC)}], ids=" ".join
)
def test_a_change_by_hand_is_found_behind_the_floors(jobs: Jobs, run: Run, engine: Engine, changes: dict[str, Any]) -> None:
    job_id = jobs.add(
        queue="elsewhere" if "queue" in changes else "default", due_in=60 if "scheduled_at" in changes else -60
    )
    before = run(ALL, claim_parameters(types=[]))
    with engine.begin() as connection:
        connection.execute(update(Job.__table__).where(Job.id == job_id).values(changes))  # type: ignore[arg-type]
    assert taken(run(ALL, baseline(before))) == [job_id]


def test_what_is_behind_but_not_due_known_or_served_is_left(jobs: Jobs, run: Run, engine: Engine) -> None:
    before = run(ALL, claim_parameters())
    jobs.add(due_in=-60, type_name="unknown")
    jobs.add(due_in=-60, queue="elsewhere")
    future = jobs.add(due_in=60)
    far = baseline(before)
    far["floor_at"] = [before[0].now + timedelta(hours=1)] * len(far["queues"])
    far["highest_floor"] = far["floor_at"][0]
    assert taken(run(ALL, far)) == []
    assert jobs.status(future) is JobStatus.PENDING


def test_next_due_tells_the_seconds_until_the_first_job_of_the_lanes(jobs: Jobs, run: Run) -> None:
    statement = claims.next_due(Job)
    assert run(statement, claim_parameters()) == [(None,)]
    jobs.add(due_in=-5)
    jobs.add(due_in=10, type_name="unknown")
    jobs.add(due_in=10, queue="elsewhere")
    assert run(statement, claim_parameters()) == [(None,)]
    jobs.add(due_in=7200)
    jobs.add(due_in=3600, priority=-9, queue="other")
    ((seconds,),) = run(statement, claim_parameters())
    assert 3500 < seconds <= 3600


def test_remaining_tells_of_what_a_claim_would_start_and_of_ends_to_pass_on(engine: Engine, jobs: Jobs, run: Run) -> None:
    statement = claims.remaining(Job)
    jobs.add(due_in=-5, type_name="unknown")
    jobs.add(due_in=-5, queue="elsewhere")
    jobs.add(due_in=5)
    jobs.add(due_in=-5, ordering_key="k", created_at=datetime(2020, 1, 2, tzinfo=UTC))
    first = jobs.add(due_in=5, ordering_key="k", created_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert run(statement, claim_parameters()) == [(False, False)]
    x = jobs.add(JobStatus.COMPLETED)
    with engine.begin() as connection:
        connection.execute(text("UPDATE job SET has_waiters = true WHERE id = :id"), {"id": x})
        connection.execute(text("DELETE FROM job WHERE id = :id"), {"id": first})
    assert run(statement, claim_parameters()) == [(True, True)]
    with engine.begin() as holder:
        holder.execute(text("SELECT FROM job WHERE ordering_key = 'k' FOR UPDATE"))
        assert run(statement, claim_parameters()) == [(False, True)]


@pytest.mark.parametrize("behind", [False, True])
def test_excluded_jobs_are_left_ahead_of_the_floors_and_behind_them(jobs: Jobs, run: Run, behind: bool) -> None:
    now, xmax, xip = run(ALL, claim_parameters())[0][:3]
    made = [jobs.add() for _ in range(4)]
    group = Group(["default"], ["test"], NOBODY, room=None, limits=None, fair=True)
    if behind:
        more: Any = {"limit": 9, "changed": True, "started": 0.0, "now": 0.0, "reading": None}
        group.floors.advance([], database_now=now + timedelta(hours=1), snapshot=(xmax, xip), **more)
    given = together([Turn(group, 9, group.floors.whole(9), behind=True)])
    given |= {"limit": 9, "worker_id": WORKER, "grace": timedelta(seconds=15), "excluded": [*made[:2], NOBODY]}
    statement = claims.claim_for_groups(Job, changed=True, excluding=True)
    assert set(taken(run(statement, given))) == set(made[2:])
    assert set(taken(run(statement, given | {"excluded": []}))) == set(made[:2])


def test_startable_reads_what_a_claim_would_start_and_locks_nothing(engine: Engine, jobs: Jobs, run: Run) -> None:
    jobs.add(due_in=5)
    jobs.add(due_in=-5, type_name="unknown")
    first, second, third = (jobs.add(due_in=-due) for due in (9, 8, 7))
    lanes = claim_parameters()
    given = lanes | {"quotas": [2] * len(lanes["queues"])}
    with engine.begin() as holder:
        holder.execute(text("SELECT FROM job FOR UPDATE"))
        assert [row.id for row in run(claims.startable(Job), given)] == [first, second]
    assert jobs.status(third) is JobStatus.PENDING


def test_a_claim_by_id_starts_what_is_pending_and_not_held(engine: Engine, jobs: Jobs, run: Run) -> None:
    pending, other, held = jobs.add(), jobs.add(), jobs.add()
    running = jobs.add(JobStatus.RUNNING)
    given = {"ids": [pending, held, running, NOBODY], "worker_id": WORKER, "grace": timedelta(seconds=15)}
    with engine.begin() as holder:
        holder.execute(text("SELECT FROM job WHERE id = :id FOR UPDATE"), {"id": held})
        assert taken(run(claims.claim_by_id(Job), given)) == [pending]
    assert (jobs.status(other), jobs.get(running)["attempt"]) == (JobStatus.PENDING, 1)
