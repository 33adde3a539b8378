"""One row that cannot be written, beside each set-based write: the others are written, and the row is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Schedule
from sa_jobqueue.events import ComponentFailed, WriteQuarantined
from sa_jobqueue.ids import uuid7
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.operations import explain_job, upsert_schedule
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.settings import Retention
from sa_jobqueue.types import RefusedWrite
from sa_jobqueue.worker import quarantine
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, scalar, write
from tests.fixtures.workers import PATIENCE, Start, until

GOOD = 4
_KEPT = Retention(completed=timedelta(days=1), dead_letters=timedelta(days=1))
_REFUSE = """
CREATE TABLE refused (subject text);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE subject text := CASE WHEN TG_OP = 'DELETE' THEN to_jsonb(OLD) ELSE to_jsonb(NEW) END ->> TG_ARGV[0];
BEGIN
  IF subject IN (SELECT refused.subject FROM refused) THEN
    IF TG_NARGS > 1 THEN PERFORM NEW.refused; END IF;
    RAISE EXCEPTION 'the application refuses %%', subject;
  END IF;
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  RETURN NEW;
END $$;
"""


@dataclass
class World:
    """A queue whose application refuses to write some rows."""

    engine: Engine
    jobs: Jobs
    queue: JobQueue[Any]
    gate: asyncio.Event
    """The event of the handler `waits`."""

    def handlers(self) -> None:
        """Declare handlers that end together, so that their ends are written together."""

        @self.queue.handler("waits")
        async def waits() -> None:
            await self.gate.wait()

        @self.queue.handler("fails", max_attempts=1)
        async def fails() -> None:
            await self.gate.wait()
            raise RuntimeError("no")

        @self.queue.handler("continues")
        async def continues() -> Any:
            return waits.continuation()

        @self.queue.handler("test")
        async def test() -> None: ...

        self.waits, self.fails, self.continues, self.test = waits, fails, continues, test


@dataclass
class Given:
    """Rows of one kind; the last is refused."""

    subjects: Sequence[Any]
    """The subject of a record in quarantine."""
    is_done: Callable[[Sequence[Any]], bool]
    """Whether rows have been written, by their subjects."""
    refused: Any = None
    """The value that the trigger compares, where that is not the subject."""
    find: Callable[[], Any] | None = None
    """Finds the refused subject where it is known later."""


def of_statuses(world: World, *statuses: JobStatus) -> Callable[[Sequence[Any]], bool]:
    return lambda job_ids: {world.jobs.status(job_id) for job_id in job_ids} <= set(statuses)


def completions(world: World) -> Given:
    jobs = enqueue(world.engine, *(world.waits.job() for _ in range(GOOD + 1)))
    return Given(jobs, of_statuses(world, JobStatus.COMPLETED))


def failures(world: World) -> Given:
    return Given(enqueue(world.engine, *(world.fails.job() for _ in range(GOOD + 1))), of_statuses(world, JobStatus.DEAD))


def ends_of_chains(world: World) -> Given:
    chains = enqueue(world.engine, *(world.continues.job() for _ in range(GOOD + 1)))

    def done(chain_ids: Sequence[Any]) -> bool:
        return all(world.jobs.get(chain_id)["chain_completed_at"] is not None for chain_id in chain_ids)

    def find() -> Any:
        return scalar(world.engine, select(Job.id).where(Job.chain_id == chains[-1], Job.chain_index == 1))

    return Given(chains, done, find=find)


def unblocking(world: World) -> Given:
    with Session(world.engine, expire_on_commit=False) as session, session.begin():
        first, second = world.waits.job(), world.waits.job()
        waiting = [Job("test", blockers=[first if number else second]) for number in range(GOOD + 1)]
        session.add_all([first, second, *waiting])
    return Given([job.id for job in waiting], of_statuses(world, JobStatus.COMPLETED))


def rescue(world: World) -> Given:
    world.jobs.add_worker("gone:1", silent_for=600)
    ids = [world.jobs.add(JobStatus.RUNNING, worker_id="gone:1") for _ in range(GOOD + 1)]
    return Given(ids, of_statuses(world, JobStatus.PENDING, JobStatus.COMPLETED))


def rescue_of_orphans(world: World) -> Given:
    ids = [world.jobs.add(JobStatus.RUNNING, worker_id="gone:2") for _ in range(GOOD + 1)]
    return Given(ids, of_statuses(world, JobStatus.PENDING, JobStatus.COMPLETED))


def expiry(world: World) -> Given:
    late = func.now() - timedelta(minutes=1)
    return Given([world.jobs.add(expires_at=late) for _ in range(GOOD + 1)], of_statuses(world, JobStatus.CANCELLED))


def firing(world: World) -> Given:
    names = [f"schedule {number}" for number in range(GOOD + 1)]
    with Session(world.engine) as session, session.begin():
        for number, name in enumerate(names):
            type_name = "test" if number < GOOD else "refused"
            upsert_schedule(session, Schedule(name=name, cron="@yearly", type_name=type_name))
        session.execute(update(Job.Schedule).values(next_fire_at=func.now() - timedelta(seconds=1)))

    def done(some: Sequence[Any]) -> bool:
        fired = select(func.count()).where(Job.Schedule.name.in_(some), Job.Schedule.last_fire_at.is_not(None))
        return bool(scalar(world.engine, fired) == len(some))

    return Given(names, done, refused="refused")


def declaring(world: World) -> Given:
    names = [f"declared {number}" for number in range(GOOD + 1)]
    for name in names:
        world.queue.cron("@yearly", name=name)(world.test)

    def done(some: Sequence[Any]) -> bool:
        declared = select(func.count()).where(Job.Schedule.name.in_(some))
        return bool(scalar(world.engine, declared) == len(some))

    return Given(names, done)


def declaring_queues(world: World) -> Given:
    names = [f"declared_{number}" for number in range(GOOD + 1)]
    for name in names:
        world.queue.queue(name, weight=2)

    def done(some: Sequence[Any]) -> bool:
        declared = select(func.count()).where(Job.Queue.name.in_(some), Job.Queue.weight == 2)
        return bool(scalar(world.engine, declared) == len(some))

    return Given(names, done)


def recording_types(world: World) -> Given:
    names = [f"recorded_{number}" for number in range(GOOD + 1)]
    for name in names:

        @world.queue.handler(name, priority=3)
        async def nothing() -> None: ...

    def done(some: Sequence[Any]) -> bool:
        recorded = select(func.count()).where(Job.JobType.type_name.in_(some), Job.JobType.priority == 3)
        return bool(scalar(world.engine, recorded) == len(some))

    return Given(names, done)


def pruning(world: World) -> Given:
    ids = [world.jobs.add(JobStatus.COMPLETED) for _ in range(GOOD + 1)]
    with world.engine.begin() as connection:
        connection.execute(update(Job).values(chain_completed_at=func.now() - timedelta(days=3)))
        connection.execute(update(Job).values(created_at=func.now() - timedelta(days=3)))
    return Given(ids, lambda some: not set(some) & set(world.jobs.statuses()))


def pruning_of_letters(world: World) -> Given:
    ids = [uuid7() for _ in range(GOOD + 1)]
    old = func.now() - timedelta(days=3)
    row = {"queue": "default", "type_name": "test", "input_version": 1, "reason": "exhausted", "attempts": 1}
    row |= {"resolution": "dismissed", "died_at": old, "resolved_at": old}
    with world.engine.begin() as connection:
        for letter_id in ids:
            connection.execute(insert(Job.DeadLetter).values(id=letter_id, job_id=uuid7(), chain_id=uuid7(), **row))
    return Given(ids, lambda some: not {dead_letter["id"] for dead_letter in world.jobs.dead_letters()} & set(some))


def limits(world: World) -> Given:
    names = ["good", "bad"]
    with world.engine.begin() as connection:
        for name in names:
            connection.execute(insert(Job.Queue).values(name=name, rate_limit=1000, rate_period=timedelta(seconds=1)))
    ids = {name: [world.jobs.add(queue=name) for _ in range(2)] for name in names}

    def done(some: Sequence[Any]) -> bool:
        expected_ids = [job_id for name in some for job_id in ids[name.removeprefix("queue ")]]
        return of_statuses(world, JobStatus.COMPLETED)(expected_ids)

    return Given([f"queue {name}" for name in names], done, refused="bad")


def starting(world: World) -> Given:
    jobs = enqueue(world.engine, *(world.test.job() for _ in range(GOOD + 1)))
    return Given(jobs, of_statuses(world, JobStatus.COMPLETED))


def starting_under_a_limit(world: World) -> Given:
    write(world.engine, insert(Job.Queue).values(name="good", global_concurrency=3))
    return Given([world.jobs.add(queue="good") for _ in range(GOOD + 1)], of_statuses(world, JobStatus.COMPLETED))


def starting_what_is_chosen(world: World) -> Given:
    world.queue.selector("good")(lambda candidates, free: candidates)
    return Given([world.jobs.add(queue="good") for _ in range(GOOD + 1)], of_statuses(world, JobStatus.COMPLETED))


def starting_by_a_broken_trigger(world: World) -> Given:
    return starting(world)


@dataclass
class Case:
    write: RefusedWrite
    prepare: Callable[[World], Given]
    trigger: str
    column: str = "id"
    sqlstate: str = "P0001"
    error: str = "the application refuses"

    @property
    def arguments(self) -> str:
        """The trigger's: its column, and a second one if it is to make a mistake."""
        return f"'{self.column}'" + ("" if self.sqlstate == "P0001" else ", 'breaks'")


NOT_OF_JOBS = {
    RefusedWrite.DECLARE,
    RefusedWrite.DECLARE_QUEUE,
    RefusedWrite.RECORD_TYPE,
    RefusedWrite.FIRE,
    RefusedWrite.PRUNE,
    RefusedWrite.CLAIM,
}
UPDATE = "BEFORE UPDATE ON job FOR EACH ROW WHEN"
CASES = [
    Case(RefusedWrite.COMPLETE, completions, f"{UPDATE} (NEW.status = 'completed')"),
    Case(RefusedWrite.FINISH, failures, f"{UPDATE} (NEW.status = 'dead')"),
    Case(RefusedWrite.COMPLETE, ends_of_chains, f"{UPDATE} (NEW.status = 'completed' AND NEW.chain_index = 1)", "chain_id"),
    Case(RefusedWrite.UNBLOCK, unblocking, f"{UPDATE} (OLD.status = 'blocked' AND NEW.status = 'pending')"),
    Case(RefusedWrite.RESCUE, rescue, f"{UPDATE} (OLD.status = 'running' AND NEW.status = 'pending')"),
    Case(RefusedWrite.RESCUE, rescue_of_orphans, f"{UPDATE} (OLD.status = 'running' AND NEW.status = 'pending')"),
    Case(RefusedWrite.EXPIRE, expiry, f"{UPDATE} (NEW.status = 'cancelled')"),
    Case(RefusedWrite.FIRE, firing, "BEFORE INSERT ON job FOR EACH ROW", "type_name"),
    Case(RefusedWrite.DECLARE, declaring, "BEFORE INSERT ON schedule FOR EACH ROW", "name"),
    Case(RefusedWrite.DECLARE_QUEUE, declaring_queues, "BEFORE INSERT ON queue FOR EACH ROW", "name"),
    Case(RefusedWrite.RECORD_TYPE, recording_types, "BEFORE INSERT ON job_type FOR EACH ROW", "type_name"),
    Case(RefusedWrite.PRUNE, pruning, "BEFORE DELETE ON job FOR EACH ROW"),
    Case(RefusedWrite.PRUNE, pruning_of_letters, "BEFORE DELETE ON dead_letter FOR EACH ROW"),
    Case(RefusedWrite.START, starting, f"{UPDATE} (NEW.status = 'running')"),
    Case(RefusedWrite.START, starting_under_a_limit, f"{UPDATE} (NEW.status = 'running')"),
    Case(RefusedWrite.START, starting_what_is_chosen, f"{UPDATE} (NEW.status = 'running')"),
    Case(
        RefusedWrite.START,
        starting_by_a_broken_trigger,
        f"{UPDATE} (NEW.status = 'running')",
        sqlstate="42703",
        error='record "new" has no field "refused"',
    ),
    Case(RefusedWrite.CLAIM, limits, "BEFORE INSERT OR UPDATE ON rate_state FOR EACH ROW", "name"),
]
ALWAYS = {completions, unblocking, rescue, firing, starting, limits}
"""What goes the way of another of these."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.prepare.__name__, marks=[] if case.prepare in ALWAYS else [pytest.mark.long])
        for case in CASES
    ],
)
async def test_a_row_that_cannot_be_written_is_quarantined_and_delays_no_other(
    case: Case, engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = Backoff(base=timedelta(milliseconds=200), cap=timedelta(seconds=2), jitter=False)
    monkeypatch.setattr(quarantine, "PAUSES", pauses)
    world = World(engine, jobs, JobQueue(retention=_KEPT), asyncio.Event())
    world.handlers()
    prepared = case.prepare(world)
    *good, bad = prepared.subjects
    with engine.begin() as connection:
        connection.exec_driver_sql(_REFUSE)
        connection.exec_driver_sql(f"CREATE TRIGGER refuse {case.trigger} EXECUTE FUNCTION refuse({case.arguments})")
        connection.execute(text("INSERT INTO refused VALUES (:subject)"), {"subject": str(prepared.refused or bad)})
    often = {"heartbeat_interval": timedelta(milliseconds=100), "prune_interval": timedelta(milliseconds=100)}
    async with start(world.queue, queues=("default", "good", "bad"), concurrency=GOOD + 1, **often) as log:
        world.gate.set()
        await until(lambda: prepared.is_done(good), description="the others are written")
        refused = (await log.until(WriteQuarantined, 2))[-1]
        subject = str(prepared.find() if prepared.find else bad)
        assert (refused.write, refused.subject) == (case.write, subject)
        assert (refused.failures, refused.sqlstate) == (2, case.sqlstate)
        (finding,) = [finding for finding in health(engine).findings if finding.code is Code.QUARANTINED]
        assert (finding.evidence["subject"], finding.evidence["statement"]) == (subject, case.write)
        assert subject in finding.summary
        assert case.error in finding.summary
        if case.write not in NOT_OF_JOBS:
            explanation = call(engine, explain_job, prepared.find() if prepared.find else bad)
            assert (explanation.cause, explanation.evidence["statement"]) == (Cause.QUARANTINED, case.write), explanation
            assert case.error in explanation.sentence
        later = enqueue(engine, *(world.waits.job() for _ in range(2 * GOOD)))
        await until(lambda: of_statuses(world, JobStatus.COMPLETED)(later), description="slots are free")
        write(engine, "DELETE FROM refused")
        await until(lambda: prepared.is_done([bad]), description="it is written when nothing refuses it any more")
        await until(lambda: not records(engine), description="its record is deleted")
    assert not log.of(ComponentFailed)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.prepare.__name__)
        for case in CASES
        if case.prepare in {declaring_queues, recording_types, pruning}
    ],
)
async def test_a_quarantined_row_is_retried_if_its_pause_ends_before_it_is_recorded(
    case: Case, engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that stands still, or while a walk takes long: what rests is then not what failed."""
    shortest = timedelta(microseconds=1)
    monkeypatch.setattr(quarantine, "PAUSES", Backoff(base=shortest, cap=shortest, jitter=False))
    world = World(engine, jobs, JobQueue(retention=_KEPT), asyncio.Event())
    world.handlers()
    prepared = case.prepare(world)
    *good, bad = prepared.subjects
    with engine.begin() as connection:
        connection.exec_driver_sql(_REFUSE)
        connection.exec_driver_sql(f"CREATE TRIGGER refuse {case.trigger} EXECUTE FUNCTION refuse({case.arguments})")
        connection.execute(text("INSERT INTO refused VALUES (:subject)"), {"subject": str(bad)})
    async with start(world.queue, prune_interval=timedelta(milliseconds=100)) as log:
        await until(lambda: prepared.is_done(good), description="the others are written")
        assert [event.failures for event in await log.until(WriteQuarantined, 3)] == [1, 2, 3]
        write(engine, "DELETE FROM refused")
        await until(lambda: prepared.is_done([bad]), description="it is written when nothing refuses it any more")
        await until(lambda: not records(engine), description="its record is deleted")


def test_every_write_of_a_worker_has_a_case() -> None:
    assert {case.write for case in CASES} == set(RefusedWrite) - {RefusedWrite.ARCHIVE}


AT_ITS_TIME = {rescue, rescue_of_orphans, expiry, firing, declaring, declaring_queues, recording_types, starting, unblocking}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.prepare.__name__) for case in CASES if case.prepare in AT_ITS_TIME]
)
async def test_a_quarantined_row_is_tried_again_when_its_pause_ends_without_a_heartbeat(
    case: Case, engine: Engine, jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause = timedelta(milliseconds=200)
    monkeypatch.setattr(quarantine, "PAUSES", Backoff(base=pause, cap=pause, jitter=False))
    world = World(engine, jobs, JobQueue(), asyncio.Event())
    world.handlers()
    prepared = case.prepare(world)
    bad = prepared.subjects[-1]
    with engine.begin() as connection:
        connection.exec_driver_sql(_REFUSE)
        connection.exec_driver_sql(f"CREATE TRIGGER refuse {case.trigger} EXECUTE FUNCTION refuse({case.arguments})")
        connection.execute(text("INSERT INTO refused VALUES (:subject)"), {"subject": str(prepared.refused or bad)})
    rare = {"heartbeat_interval": 2 * PATIENCE, "heartbeat_timeout": 5 * PATIENCE, "poll_interval": 2 * PATIENCE}
    async with start(world.queue, **{name: timedelta(seconds=seconds) for name, seconds in rare.items()}) as log:
        world.gate.set()
        await log.until(WriteQuarantined, 3)
        write(engine, "DELETE FROM refused")
        await until(lambda: prepared.is_done([bad]), description="it is written at the end of its pause")


async def test_a_completion_that_cannot_be_written_does_not_delay_shutdown(engine: Engine, jobs: Jobs, start: Start) -> None:
    """It tries once more, leaves the job running, and the job is rescued like any of a worker that is gone."""
    world = World(engine, jobs, JobQueue(), asyncio.Event())
    world.handlers()
    good, bad = enqueue(engine, world.waits.job(), world.waits.job())
    with engine.begin() as connection:
        connection.exec_driver_sql(_REFUSE)
        when = "(OLD.status = 'running' AND NEW.status = 'completed')"
        connection.exec_driver_sql(f"CREATE TRIGGER refuse {UPDATE} {when} EXECUTE FUNCTION refuse('id')")
        connection.execute(text("INSERT INTO refused VALUES (:subject)"), {"subject": str(bad)})
    async with start(world.queue) as log:
        world.gate.set()
        await log.until(WriteQuarantined)
        await until(lambda: jobs.status(good) is JobStatus.COMPLETED, description="the other is written")
    assert len(log.of(WriteQuarantined)) >= 2
    row = jobs.get(bad)
    assert (row["status"], row["attempt"]) == (JobStatus.RUNNING, 1)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM refused"))
        connection.execute(update(Job.Worker).values(heartbeat_at=func.now() - timedelta(minutes=1)))
    async with start(world.queue):
        await until(lambda: jobs.status(bad) is JobStatus.COMPLETED, description="another worker runs it again")
    assert jobs.get(bad)["attempt"] == 2


async def test_a_continuation_refused_by_a_trigger_fails_only_its_own_attempt(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue, gate = JobQueue(), asyncio.Event()

    @queue.handler("second")
    async def second(number: int) -> None: ...

    @queue.handler("first", max_attempts=1)
    async def first(number: int) -> Any:
        await gate.wait()
        return second.continuation(number)

    chains = enqueue(engine, *(first.job(number) for number in range(GOOD + 1)))
    with engine.begin() as connection:
        connection.exec_driver_sql(_REFUSE)
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON job FOR EACH ROW EXECUTE FUNCTION refuse('input')"
        )
        connection.execute(text(f"INSERT INTO refused VALUES ('{GOOD}')"))
    async with start(queue, concurrency=GOOD + 1) as log:
        gate.set()
        await until(lambda: jobs.status(chains[-1]) is JobStatus.DEAD, description="the refused one has failed")
        await until(
            lambda: all(jobs.get(chain_id)["chain_completed_at"] for chain_id in chains), description="the others end"
        )
    assert not log.of(ComponentFailed)
    assert not log.of(WriteQuarantined)
    assert "the application refuses" in jobs.dead_letters(chains[-1])[0]["error"]["message"]


def records(engine: Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(select(Job.Quarantine.__table__)).mappings())
