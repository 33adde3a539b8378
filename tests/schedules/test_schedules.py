"""Schedules: fired once per time, with any clocks, number of workers and manual changes."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobQueue, JobStatus, Schedule, operations
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, NotFoundError
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.policies.cron import Cron
from sa_jobqueue.registry.schedules import ScheduleRun
from tests.fixtures.database import both_servers
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, Spawn

pytestmark = both_servers

Sessions = sessionmaker[Session]
MINUTE = timedelta(minutes=1)


def scheduled(sessions: Sessions, name: str = "nightly", cron: str = "* * * * *", **more: Any) -> Schedule:
    """Write a schedule into the table and return it."""
    schedule = Schedule(name=name, cron=cron, type_name="test", **more)
    call(sessions, operations.upsert_schedule, schedule)
    return schedule


def change(sessions: Sessions, name: str = "nightly", **columns: Any) -> None:
    """Change a schedule's row by hand."""
    with sessions.begin() as session:
        session.execute(update(Job.Schedule).where(Job.Schedule.name == name).values(columns))


def fire(sessions: Sessions, at: datetime | None = None) -> list[ScheduleRun]:
    return call(sessions, operations.fire_schedules, at=at)


def status(sessions: Sessions, name: str = "nightly") -> Any:
    with sessions() as session:
        (schedule,) = operations.list_schedules(session, names=[name])
        return schedule


def jobs_of(sessions: Sessions) -> list[Job]:
    with sessions() as session:
        return list(session.scalars(select(Job).order_by(Job.id)))


def now_of(sessions: Sessions) -> datetime:
    with sessions() as session:
        server_time: datetime = session.scalar(select(func.now()))  # type: ignore[assignment]
        return server_time


@pytest.fixture
def eight(sessions: Sessions) -> Iterator[list[Session]]:
    """Give eight sessions, each on a connection of its own, none of which waits for another for long."""
    with ExitStack() as stack:
        opened = [stack.enter_context(sessions()) for _ in range(8)]
        for session in opened:
            session.connection().exec_driver_sql("SET lock_timeout = '1s'")
            session.commit()
        yield opened


def test_one_of_eight_sessions_fires_a_schedule_and_none_waits(sessions: Sessions, eight: list[Session]) -> None:
    scheduled(sessions)
    change(sessions, next_fire_at=func.now())
    winner, *other_sessions = eight
    assert len(operations.fire_schedules(winner)) == 1
    assert [operations.fire_schedules(session) for session in other_sessions] == [[]] * 7
    winner.commit()
    for session in other_sessions:
        assert operations.fire_schedules(session) == []  # its snapshot is younger now
        session.commit()
        assert operations.fire_schedules(session) == []
    assert len(jobs_of(sessions)) == 1


def test_a_rolled_back_fire_time_is_fired_by_the_next_session(sessions: Sessions, eight: list[Session]) -> None:
    scheduled(sessions)
    change(sessions, next_fire_at=func.now())
    first, second, *_ = eight
    (lost,) = operations.fire_schedules(first)
    assert operations.fire_schedules(second) == []
    first.rollback()
    assert operations.fire_schedules(second) == [lost]
    second.commit()
    assert [job.id for job in jobs_of(sessions)] == list(lost.job_ids)


def test_eight_sessions_fire_each_time_once_across_clock_changes(sessions: Sessions, eight: list[Session]) -> None:
    crons = {"nightly": "30 2 * * *", "hourly": "0 * * * *", "often": "*/20 1-3 * * *"}
    for name, cron in crons.items():
        scheduled(
            sessions, name, cron, time_zone="Europe/Prague", fire_time_field="at", input={"of": name}, misfire_policy="all"
        )
    chance = random.Random(8)
    expected: dict[str, list[datetime]] = {name: [] for name in crons}
    for spring_or_autumn in (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC)):
        begin, end = spring_or_autumn - timedelta(hours=3), spring_or_autumn + timedelta(hours=3)
        for name, cron in crons.items():
            change(sessions, name, next_fire_at=Cron(cron, "Europe/Prague").after(begin))
            expected[name] += Cron(cron, "Europe/Prague").latest(since=begin + MINUTE, until=end, limit=100)
        at = begin
        while at <= end:
            open_: list[Session] = []
            for session in chance.sample(eight, 8):
                operations.fire_schedules(session, at=at)
                open_.append(session)
                while open_ and chance.random() < 0.5:
                    open_.pop(chance.randrange(len(open_))).commit()
            for session in open_:
                session.commit()
            at += chance.choice([timedelta(minutes=25), timedelta(minutes=50)])
        fire(sessions, at=end)
    fired_times: dict[str, list[datetime]] = {name: [] for name in crons}
    for job in jobs_of(sessions):
        fired_times[job.input["of"]].append(datetime.fromisoformat(job.input["at"]))
    assert fired_times == expected
    assert [(at.month, at.day) for at in fired_times["nightly"]] == [(3, 29), (10, 25)]


@pytest.mark.slow
def test_a_process_killed_before_its_commit_leaves_the_fire_time_to_others(sessions: Sessions, spawn: Spawn) -> None:
    scheduled(sessions)
    change(sessions, next_fire_at=func.now())
    script = """
import os, signal
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from sa_jobqueue.operations import fire_schedules
with Session(create_engine(os.environ["SA_JOBQUEUE_URL"])) as session:
    (fired,) = fire_schedules(session)
    print(len(fired.job_ids), flush=True)
    signal.pause()
"""
    victim = spawn(script)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "1\n"
    assert fire(sessions) == []  # it holds the row
    victim.send_signal(signal.SIGKILL)
    victim.wait(PATIENCE)
    _wait_without_other_workers(sessions)
    assert jobs_of(sessions) == []
    (fired,) = fire(sessions)
    assert [job.id for job in jobs_of(sessions)] == list(fired.job_ids)


def _wait_without_other_workers(sessions: Sessions) -> None:
    with sessions() as session:
        session.execute(text("SET LOCAL lock_timeout = '60s'"))
        session.execute(select(Job.Schedule).with_for_update())


def test_a_time_is_fired_once_when_the_row_or_the_clock_is_set_back(sessions: Sessions) -> None:
    scheduled(sessions, misfire_policy="all")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    change(sessions, next_fire_at=noon - 3 * MINUTE)
    (fired,) = fire(sessions, at=noon)
    assert fired.fire_times == tuple(noon - minutes * MINUTE for minutes in (3, 2, 1, 0))
    change(sessions, next_fire_at=noon - 2 * MINUTE)  # set back by hand
    assert fire(sessions, at=noon) == []
    change(sessions, next_fire_at=noon - 2 * MINUTE)
    (again,) = fire(sessions, at=noon + MINUTE)  # and with one that is new
    assert again.fire_times == (noon + MINUTE,)
    assert fire(sessions, at=noon) == []  # the clock steps back
    assert len({job.id for job in jobs_of(sessions)}) == 5


@pytest.mark.parametrize(
    ("options", "fired", "left_out"),
    [
        ({"misfire_policy": "skip"}, [], True),
        ({"misfire_policy": "skip", "grace": timedelta(minutes=5)}, [0], True),
        ({"misfire_policy": "one"}, [0], True),
        ({"misfire_policy": "all"}, list(range(9, -1, -1)), False),
        ({"misfire_policy": "all", "catch_up": 3}, [2, 1, 0], True),
    ],
    ids=str,
)
def test_missed_times_are_handled_by_the_misfire_policy(
    sessions: Sessions, options: dict[str, Any], fired: list[int], left_out: bool
) -> None:
    scheduled(sessions, cron="*/10 * * * *", **options)
    last, restart = datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 12, 3, tzinfo=UTC)
    first = last - 9 * 10 * MINUTE
    change(sessions, next_fire_at=first)
    (fired_run,) = fire(sessions, at=restart)
    assert fired_run.fire_times == tuple(last - ago * 10 * MINUTE for ago in fired)
    assert fired_run.missed_since == (first if left_out else None)
    assert len(jobs_of(sessions)) == len(fired)
    assert status(sessions).next_fire_at == last + 10 * MINUTE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "missed"),
    [
        ({"misfire_policy": "skip"}, (9, 0)),
        ({"misfire_policy": "skip", "grace": timedelta(minutes=5)}, (9, 1)),
        ({"misfire_policy": "one"}, None),  # it fired for all of them
        ({"misfire_policy": "all"}, None),
        ({"misfire_policy": "all", "catch_up": 3}, (9, 3)),
    ],
    ids=str,
)
def test_missed_times_are_recorded_until_they_are_run_or_acknowledged(
    sessions: Sessions, options: dict[str, Any], missed: tuple[int, int] | None
) -> None:
    scheduled(sessions, cron="*/10 * * * *", **options)
    last = datetime(2026, 5, 1, 12, tzinfo=UTC)
    change(sessions, next_fire_at=last - 90 * MINUTE)

    def recorded() -> tuple[datetime | None, datetime | None]:
        row = status(sessions)
        return row.missed_from, row.missed_until

    fire(sessions, at=last + 3 * MINUTE)
    times = (None, None) if missed is None else tuple(last - ago * 10 * MINUTE for ago in missed)
    assert recorded() == times
    fire(sessions, at=last + 10 * MINUTE)  # the next time does not hide them
    assert recorded() == times
    with sessions() as session:
        (finding,) = (
            [finding for finding in health(session).findings if finding.code is Code.SCHEDULE_MISSED] if missed else [None]
        )
    if missed is None or finding is None:
        return
    count = missed[0] - missed[1] + 1
    assert finding.cause == f"Schedule 'nightly' left out {count} times: no worker fired it in time"
    assert finding.details.startswith("It did not fire from 2026-05-01 10:30 to ")
    with sessions.begin() as session:
        operations.run_schedule(session, "nightly", since=times[0], until=last - 80 * MINUTE)  # some of them
    assert recorded() == times
    assert len(call(sessions, operations.run_schedule, "nightly", since=times[0], until=last)) >= count - 2
    assert recorded() == (None, None)
    change(sessions, next_fire_at=last + 20 * MINUTE)
    fire(sessions, at=last + 120 * MINUTE)
    assert recorded() != (None, None)
    upcoming = status(sessions).next_fire_at
    assert call(sessions, operations.resume_schedules, ["nightly"]).ids == ["nightly"]
    assert recorded() == (None, None)
    assert status(sessions).next_fire_at == upcoming  # it was not paused


def test_the_enqueued_job_has_the_options_of_its_schedule(sessions: Sessions) -> None:
    schedule = scheduled(
        sessions,
        queue="reports",
        priority=3,
        max_attempts=2,
        timeout=timedelta(minutes=5),
        rate_cost=8,
        input={"of": "sales"},
        input_version=4,
        fire_time_field="at",
    )
    change(sessions, next_fire_at=func.now() - MINUTE)
    (fired,) = fire(sessions)
    (job,) = jobs_of(sessions)
    assert (job.type_name, job.queue, job.priority, job.max_attempts) == ("test", "reports", 3, 2)
    assert (job.timeout, job.rate_cost, job.input_version) == (schedule.timeout, 8, 4)
    assert job.input == {"of": "sales", "at": fired.fire_times[0].isoformat()}
    assert job.status is JobStatus.PENDING
    assert (job.id.version, job.id.int >> 80) == (8, int(fired.fire_times[0].timestamp() * 1000))
    row = status(sessions)
    assert (row.last_fire_at, row.last_job_id) == (fired.fire_times[0], job.id)


def test_a_schedule_without_overlap_skips_times_while_its_last_job_is_open(sessions: Sessions) -> None:
    scheduled(sessions, overlap=False)
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    change(sessions, next_fire_at=noon)
    assert fire(sessions, at=noon)[0].fire_times == (noon,)
    (left_out,) = fire(sessions, at=noon + MINUTE)
    assert (left_out.fire_times, left_out.missed_since) == ((), noon + MINUTE)
    with sessions.begin() as session:
        session.execute(text("UPDATE job SET status = 'completed', completed_at = now(), chain_completed_at = now()"))
    assert fire(sessions, at=noon + 2 * MINUTE)[0].fire_times == (noon + 2 * MINUTE,)


def test_a_paused_schedule_does_not_fire_missed_times_when_resumed(sessions: Sessions) -> None:
    scheduled(sessions, misfire_policy="all")
    with sessions.begin() as session:
        assert operations.pause_schedules(session, ["nightly"], by="ops") == operations.BulkResult(["nightly"], 1)
        assert operations.pause_schedules(session, ["nightly"], by="somebody else") == operations.BulkResult([], 1)
    change(sessions, next_fire_at=func.now() - 10 * MINUTE)
    assert fire(sessions) == []
    row = status(sessions)
    assert (row.paused_by, row.overdue) == ("ops", None)
    assert row.updated_at == row.paused_at
    with sessions.begin() as session:
        assert operations.resume_schedules(session, ["nightly"]) == operations.BulkResult(["nightly"], 1)
        assert operations.resume_schedules(session, ["nightly"]) == operations.BulkResult([], 1)
    row = status(sessions)
    assert row.paused_at is None
    assert row.next_fire_at > now_of(sessions)
    assert fire(sessions) == []


def test_a_schedule_locked_for_update_is_not_fired_until_the_transaction_ends(sessions: Sessions) -> None:
    with sessions() as session, pytest.raises(NotFoundError, match=r"no such schedule: 'nightly'; a worker, or `sa-job"):
        operations.get_schedule(session, "nightly")
    scheduled(sessions)
    at = datetime.now(UTC) + 2 * MINUTE
    with sessions.begin() as session:
        assert operations.get_schedule(session, "nightly").cron == "* * * * *"
        assert [run.schedule for run in fire(sessions, at)] == ["nightly"]
    with sessions.begin() as session:
        schedule = operations.get_schedule(session, "nightly", for_update=True)
        assert (schedule.name, schedule.last_job_id) == ("nightly", operations.get_schedule(session, "nightly").last_job_id)
        assert fire(sessions, at + MINUTE) == []
    assert [run.schedule for run in fire(sessions, at + MINUTE)] == ["nightly"]
    with sessions() as session, pytest.raises(NotFoundError):
        operations.get_schedule(session, "other", for_update=True)


def test_a_time_whose_job_was_deleted_is_not_fired_again(sessions: Sessions) -> None:
    scheduled(sessions, misfire_policy="all")
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    change(sessions, next_fire_at=noon - 3 * MINUTE)
    (fired,) = fire(sessions, at=noon)
    assert len(call(sessions, operations.run_schedule, "nightly", since=noon - 9 * MINUTE, until=noon)) == 6
    forget_jobs(sessions)

    change(sessions, next_fire_at=noon - 3 * MINUTE)
    assert fire(sessions, at=noon) == []
    with sessions.begin() as session:
        period: Any = {"since": noon - 10 * MINUTE, "until": noon}
        assert len(operations.run_schedule(session, "nightly", dry_run=True, **period)) == 1
        assert len(operations.run_schedule(session, "nightly", **period)) == 1  # the minute that was not in the first period
        assert operations.run_schedule(session, "nightly", **period) == []
    assert fired.fire_times == tuple(noon - minutes * MINUTE for minutes in (3, 2, 1, 0))


def test_consecutive_times_are_recorded_as_one_range(sessions: Sessions) -> None:
    scheduled(sessions)
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    change(sessions, next_fire_at=noon)
    for minutes in (0, 1, 2, 9):  # the times between 2 and 9 are left out
        fire(sessions, at=noon + minutes * MINUTE)
    with sessions() as session:
        spans = session.execute(text("SELECT lower(one), upper(one) FROM schedule, unnest(fired) AS one")).all()
    assert [tuple(span) for span in spans] == [(noon, noon + 2 * MINUTE), (noon + 9 * MINUTE, noon + 9 * MINUTE)]


def forget_jobs(sessions: Sessions) -> None:
    """Delete all jobs, as retention does with those that ended."""
    with sessions.begin() as session:
        ids = [job.id for job in session.scalars(select(Job))]
        operations.cancel_jobs(session, ids)
        operations.delete_chains(session, ids)
        assert session.scalar(select(func.count()).select_from(Job)) == 0


def test_running_a_schedule_for_a_period_creates_each_time_once(sessions: Sessions) -> None:
    scheduled(sessions)
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    for since, created in [(noon - 2 * MINUTE, 3), (noon - 4 * MINUTE, 2)]:
        assert len(call(sessions, operations.run_schedule, "nightly", since=since, until=noon)) == created
    with sessions() as session:
        refusals: list[tuple[dict[str, Any], str]] = [
            ({"since": noon}, "since"),
            ({"since": noon - timedelta(days=8), "until": noon}, "since"),
            ({"since": noon.replace(tzinfo=None), "until": noon}, "since"),
        ]
        for period, option in refusals:
            with pytest.raises(InvalidOptionError) as refused:
                operations.run_schedule(session, "nightly", **period)
            assert refused.value.option == option


def test_an_invalid_schedule_row_does_not_fire_and_stops_no_other(sessions: Sessions) -> None:
    scheduled(sessions)
    change(sessions, next_fire_at=func.now())
    with sessions.begin() as session:
        for name, cron, zone, queue in (
            ("by hand", "@daily", "UTC", "default"),
            ("no cron", "every day", "UTC", "default"),
            ("no zone", "@daily", "Atlantis", "default"),
            ("no queue", "@daily", "UTC", "no queue!"),
        ):
            row = {"name": name, "cron": cron, "time_zone": zone, "queue": queue, "type_name": "test"}
            session.execute(insert(Job.Schedule).values(row))
    errors = {fired.schedule: fired.error for fired in fire(sessions)}
    assert set(errors) == {"nightly", "no cron", "no zone", "no queue"}
    assert errors["nightly"] is None
    assert "cron: " in str(errors["no cron"])
    assert "Atlantis" in str(errors["no zone"])
    assert "queue: " in str(errors["no queue"])
    assert fire(sessions) == []  # neither do they come again
    assert status(sessions, "no cron").error == errors["no cron"]
    midnight = status(sessions, "by hand").next_fire_at.astimezone(UTC)
    assert (midnight.hour, midnight.minute) == (0, 0)
    change(sessions, "no cron", cron="@daily", error=None)
    assert fire(sessions) == []
    assert status(sessions, "no cron").next_fire_at == midnight


def declared() -> JobQueue:
    jobs = JobQueue()

    @jobs.cron("30 2 * * *", time_zone="Europe/Prague")
    @jobs.cron("@hourly", name="hourly", payload={"deep": False}, queue="fast", rate_cost=2)
    @jobs.handler("test", max_attempts=3, rate_cost=6)
    def nightly(options: dict[str, Any] | None = None) -> None: ...

    return jobs


def test_a_declared_schedule_is_written_once_and_stays_paused(sessions: Sessions) -> None:
    jobs = declared()
    assert call(sessions, operations.sync_schedules, jobs.schedules).created == ("hourly", "test")
    call(sessions, operations.pause_schedules, ["test"])
    updated_times = select(Job.Schedule.updated_at).order_by(Job.Schedule.name)
    with sessions() as session:
        before = session.scalars(updated_times).all()
    assert call(sessions, operations.sync_schedules, jobs.schedules).unchanged == ("hourly", "test")
    with sessions.begin() as session:
        assert session.scalars(updated_times).all() == before
    hourly, test = status(sessions, "hourly"), status(sessions, "test")
    assert (hourly.queue, hourly.input, hourly.source, hourly.max_attempts) == ("fast", {"deep": False}, "code", 3)
    assert (test.paused_at is not None, test.rate_cost, hourly.rate_cost) == (True, 6, 2)
    changed = [Schedule(name="test", cron="@daily", type_name="test"), *jobs.schedules[:1]]
    synced = call(sessions, operations.sync_schedules, changed)
    assert (synced.changed, synced.unchanged, synced.undeclared) == (("test",), ("hourly",), {})
    assert status(sessions, "test").next_fire_at.astimezone(UTC).hour == 0
    assert status(sessions, "test").paused_at is not None
    assert status(sessions, "hourly").next_fire_at == hourly.next_fire_at
    with sessions.begin() as session:
        assert operations.sync_schedules(session, []).undeclared == {"hourly": "test", "test": "test"}
        assert operations.delete_schedules(session, ["test", "hourly"]) == operations.BulkResult(["hourly", "test"], 2)
    with sessions() as session:
        assert operations.list_schedules(session).items == []


def test_declared_schedules_take_over_rows_and_refuse_manual_changes(sessions: Sessions) -> None:
    scheduled(sessions, "test", cron="@daily")
    with sessions.begin() as session:
        assert operations.upsert_schedule(session, Schedule(name="test", cron="@daily", type_name="test")) is False
        assert operations.sync_schedules(session, declared().schedules).changed == ("test",)
    with sessions() as session, pytest.raises(InvalidOptionError, match="declared in code"):
        operations.upsert_schedule(session, Schedule(name="test", cron="@daily", type_name="test"))


REFUSED: list[tuple[Callable[[Session], Any], type[Exception], str]] = [
    (lambda session: operations.pause_schedules(session, ["x"]), NotFoundError, "'x'"),
    (lambda session: operations.resume_schedules(session, ["nightly", "y", "x"]), NotFoundError, "'x', 'y'"),
    (lambda session: operations.run_schedule(session, "x"), NotFoundError, "'x'"),
    (lambda session: operations.delete_schedules(session, ["x"]), NotFoundError, "'x'"),
    (lambda session: operations.pause_schedules(session, "nightly"), InvalidOptionError, "names"),
    (lambda session: operations.list_schedules(session, limit=0), InvalidOptionError, "limit"),
    (lambda session: operations.sync_schedules(session, 2 * [*declared().schedules]), InvalidOptionError, "'hourly' twice"),
    (
        lambda session: operations.upsert_schedule(session, Schedule(name="x", cron="@daily", type_name="t", priority=99)),
        InvalidJobError,
        "priority",
    ),
]


@pytest.mark.parametrize(("refused", "error", "message"), REFUSED)
def test_an_invalid_schedule_is_refused_and_nothing_is_written(
    sessions: Sessions, refused: Callable[[Session], Any], error: type[Exception], message: str
) -> None:
    scheduled(sessions)
    with sessions.begin() as session, pytest.raises(error, match=message):
        refused(session)
    with sessions() as session:
        assert [schedule.name for schedule in operations.list_schedules(session) if schedule.paused_at is None] == [
            "nightly"
        ]


def test_running_a_schedule_now_does_not_change_its_next_time(sessions: Sessions) -> None:
    scheduled(sessions, fire_time_field="at")
    before = status(sessions)
    for _ in range(2):
        with sessions.begin() as session:
            operations.pause_schedules(session, ["nightly"])
            operations.run_schedule(session, "nightly")
    after = status(sessions)
    assert after.next_fire_at == before.next_fire_at
    assert after.last_job_id == jobs_of(sessions)[-1].id
    assert len({job.input["at"] for job in jobs_of(sessions)}) == 2
