"""A waiter never misses an event, whatever the order of sending and waiting; the first event of a name counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, func, select, text, update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Job, JobQueue, JobStatus, Worker, aio, cancel_jobs, operations
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.errors import EventTimeoutError, InvalidOptionError, LostAttemptError, PayloadTooLargeError
from sa_jobqueue.events import EventBus, JobCompleted, JobRescheduled
from sa_jobqueue.testing import drain as drain_test
from sa_jobqueue.types import AttemptOutcome, RefusedWrite
from sa_jobqueue.worker.background import pruner
from sa_jobqueue.worker.background.pruner import Pruner
from sa_jobqueue.worker.run.steps import AttemptSteps, Suspended
from tests.fixtures.commands import Run, document
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, scalar, scalars, write
from tests.fixtures.workers import PATIENCE, ManualWorker, drain, quick, shared, until, working

pytestmark = pytest.mark.every_python

MakeWorker = Callable[..., ManualWorker]
KINDS = ["sync", "async"]
EVENT = "approved:7"
HOUR = timedelta(hours=1)


@dataclass
class Verdict:
    by: str
    ok: bool


def waiting_queue(payloads: list[Any], *, timeout: timedelta = HOUR, **options: Any) -> JobQueue[Any]:
    """Return handlers that return who approved, or `timed out`."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", **options)
    def sync(payload: str, ctx: AttemptContext) -> str:
        payloads.append(ctx.attempt)
        try:
            verdict = ctx.wait_for("approval", event=payload, timeout=timeout, output=Verdict)
        except TimeoutError as error:
            return str(error)
        return str(verdict.by)

    @queue.handler("async", **options)
    async def asynchronous(payload: str, ctx: AttemptContext) -> str:
        payloads.append(ctx.attempt)
        try:
            verdict = await ctx.wait_for("approval", event=payload, timeout=timeout, output=Verdict)
        except TimeoutError as error:
            return str(error)
        return str(verdict.by)

    return queue


def send(engine: Engine, by: str = "ann", event: str = EVENT, **options: Any) -> bool:
    return call(engine, operations.send_event, event, Verdict(by, True), **options)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_sent_before_the_wait_is_returned_at_once(engine: Engine, jobs: Jobs, kind: str) -> None:
    payloads: list[int] = []
    queue = waiting_queue(payloads)
    assert send(engine)
    (job_id,) = enqueue(engine, queue.job(kind, EVENT))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "ann"
    assert payloads == [1]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_wakes_all_jobs_that_wait_for_it(engine: Engine, jobs: Jobs, kind: str) -> None:
    """With a poll interval of ten minutes: the sender's notification wakes the worker."""
    payloads: list[int] = []
    queue = waiting_queue(payloads)
    first, second, other_job = enqueue(engine, queue.job(kind, EVENT), queue.job(kind, EVENT), queue.job(kind, "other"))
    async with working(Worker(queue, engine, options=quick(poll_interval=timedelta(minutes=10)))) as log:
        ends = await log.until(JobRescheduled, 3)
        assert {end.outcome for end in ends} == {AttemptOutcome.SNOOZED}
        row = jobs.get(first)
        assert (row["status"], row["attempt"], row["max_attempts"]) == (JobStatus.PENDING, 1, 21)
        assert row["scheduled_at"] > row["created_at"] + HOUR / 2
        assert await asyncio.to_thread(send, engine)
        await log.until(JobCompleted, 2)
    assert [jobs.get(job_id)["output"] for job_id in (first, second)] == ["ann", "ann"]
    assert jobs.status(other_job) is JobStatus.PENDING
    assert sorted(payloads) == [1, 1, 1, 2, 2]


async def test_the_first_event_of_a_name_counts(engine: Engine, jobs: Jobs) -> None:
    queue = waiting_queue([])
    assert send(engine, "ann")
    assert not send(engine, "bob")
    (job_id,) = enqueue(engine, queue.job("sync", EVENT))
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "ann"


async def test_an_expired_event_does_not_count_and_can_be_sent_again(engine: Engine, jobs: Jobs) -> None:
    queue = waiting_queue([])
    send(engine, "ann")
    write(engine, update(Job.Event).values(expires_at=func.now()))
    (job_id,) = enqueue(engine, queue.job("sync", EVENT))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    assert send(engine, "bob")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "bob"


async def test_expired_events_are_deleted(engine: Engine, async_engine: AsyncEngine) -> None:
    send(engine)
    send(engine, event="other")
    write(engine, update(Job.Event).where(Job.Event.name == EVENT).values(expires_at=func.now()))
    await Pruner(shared(async_engine)).walk_events()
    assert scalars(engine, select(Job.Event.name)) == ["other"]


async def test_an_expired_event_that_cannot_be_deleted_is_named_and_the_others_go(
    engine: Engine, async_engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruner, "_EVENTS", 2)  # more events than one page, the one that stays in the first
    for event in ("a", "b", "c", "d", "e"):
        send(engine, event=event)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE poster (event text REFERENCES job_event)"))
        connection.execute(text("INSERT INTO poster VALUES ('a')"))
        connection.execute(update(Job.Event).values(expires_at=func.now()))
    bus, log = EventBus(), list[Any]()
    bus.subscribe(log.append)
    await Pruner(shared(async_engine, events=bus)).walk_events()
    assert scalars(engine, select(Job.Event.name)) == ["a"]
    assert [(event.write, event.subject) for event in log] == [(RefusedWrite.PRUNE, "a")]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_handler_answers_a_timeout_and_later_attempts_get_the_same(engine: Engine, jobs: Jobs, kind: str) -> None:
    queue: JobQueue[Any] = JobQueue()
    raised: list[str] = []

    def fail(ctx: AttemptContext, error: EventTimeoutError) -> None:
        raised.append(str(error))
        if len(raised) == 1:
            send(engine)  # too late: the timeout is recorded
            raise RuntimeError

    @queue.handler("sync", retry=lambda attempt, error: timedelta(0))
    def sync(payload: str, ctx: AttemptContext) -> None:
        try:
            ctx.wait_for("approval", event=EVENT, timeout=timedelta(0))
        except EventTimeoutError as error:
            fail(ctx, error)

    @queue.handler("async", retry=lambda attempt, error: timedelta(0))
    async def asynchronous(payload: str, ctx: AttemptContext) -> None:
        try:
            await ctx.wait_for("approval", event=EVENT, timeout=timedelta(0))
        except EventTimeoutError as error:
            await asyncio.to_thread(fail, ctx, error)

    (job_id,) = enqueue(engine, queue.job(kind, "x"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.COMPLETED, jobs.get(job_id)["last_error"]
    assert raised == ["event 'approved:7' was not sent before the timeout of step 'approval'"] * 2


async def test_a_rolled_back_event_was_never_sent(engine: Engine, jobs: Jobs) -> None:
    queue = waiting_queue([])
    (job_id,) = enqueue(engine, queue.job("async", EVENT))
    await drain(queue, engine)
    with Session(engine) as session:
        assert operations.send_event(session, EVENT, Verdict("eve", True))
        session.rollback()
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    assert send(engine, "ann")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "ann"


@pytest.mark.parametrize("ends", ["commit", "rollback"])
async def test_an_attempt_that_begins_to_wait_while_the_event_is_being_sent_learns_how_that_ends(
    engine: Engine, jobs: Jobs, ends: str
) -> None:
    """The sender has found no waiter and has not committed: the attempt neither sees the event nor may it go to sleep."""
    payloads: list[int] = []
    queue = waiting_queue(payloads)
    with Session(engine) as session:
        assert operations.send_event(session, EVENT, Verdict("ann", True))
        (job_id,) = enqueue(engine, queue.job("async", EVENT))
        async with working(Worker(queue, engine, options=quick())) as log:
            await until(lambda: bool(payloads))
            assert jobs.status(job_id) is JobStatus.RUNNING
            getattr(session, ends)()
            await log.until(JobCompleted if ends == "commit" else JobRescheduled)
    assert jobs.status(job_id) is (JobStatus.COMPLETED if ends == "commit" else JobStatus.PENDING)
    assert payloads == [1]
    if ends == "rollback":
        assert send(engine, "bob")
        await drain(queue, engine)
        assert jobs.get(job_id)["output"] == "bob"


class Opened:
    """A store of steps on one connection whose transaction the test ends."""

    model = Job

    def __init__(self, queue: JobQueue[Any], connection: Any) -> None:
        self.registry, self._connection = queue.registry, connection

    async def call(self, work: Callable[[Any], Any], *, is_async: bool, in_transaction: bool = False) -> Any:
        return work(self._connection)


def attempt_of(
    queue: JobQueue[Any], row: Any, connection: Any, worker_id: str, *, store_class: type[Opened] = Opened
) -> AttemptContext:
    job = ClaimedJob(**{name: getattr(row, name) for name in ClaimedJob._fields if hasattr(row, name)})
    job = job._replace(type_name="sync")
    store: Any = store_class(queue, connection)
    return AttemptContext(job, worker_id, lambda *_: None, steps=lambda context: AttemptSteps(store, context))


def test_a_sender_waits_for_an_attempt_that_is_about_to_wait_and_wakes_it(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    """The attempt has looked for the event and has not committed that it waits: the sender must not overlook it."""
    queue = waiting_queue([])
    jobs.add_worker("one:1")
    job_id = jobs.add()
    worker = manual_worker("one:1")
    (row,) = worker.claim()
    sent: list[bool] = []
    with engine.connect() as connection:
        context = attempt_of(queue, row, connection, "one:1")
        with pytest.raises(Suspended):
            context.wait_for("approval", event=EVENT, timeout=HOUR)
        thread = threading.Thread(target=lambda: sent.append(send(engine)))
        thread.start()
        until_locks_are_waited_for(engine)
        assert sent == []
        connection.commit()
    thread.join()
    assert sent == [True]
    due = jobs.get(job_id)
    assert due["status"] is JobStatus.PENDING
    with Session(engine) as session:
        assert session.scalar(select(Job.scheduled_at <= func.now()).where(Job.id == job_id))
    (again,) = worker.claim()
    assert again.id == job_id


def test_a_sender_that_has_changed_the_job_and_an_attempt_that_begins_to_wait_do_not_wait_for_each_other(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    """The sender holds the job, and the attempt must not hold the name of the event while it waits for the job."""
    queue = waiting_queue([])
    jobs.add_worker("one:1")
    job_id = jobs.add()
    (row,) = manual_worker("one:1").claim()
    about_to_look, job_locked, answers = threading.Event(), threading.Event(), list[Any]()

    class Paused(Opened):
        own_locks = None

        async def call(self, work: Callable[[Any], Any], *, is_async: bool, in_transaction: bool = False) -> Any:
            about_to_look.set()
            assert job_locked.wait(PATIENCE)
            try:
                return await super().call(work, is_async=is_async, in_transaction=in_transaction)
            finally:
                self._connection.commit()

    def wait() -> None:
        with engine.connect() as connection:
            context = attempt_of(queue, row, connection, "one:1", store_class=Paused)
            try:
                answers.append(context.wait_for("approval", event=EVENT, timeout=HOUR, output=Verdict))
            except DBAPIError as error:
                answers.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert about_to_look.wait(PATIENCE)
    with Session(engine) as session, session.begin():
        session.execute(update(Job).where(Job.id == job_id).values(priority=5))
        job_locked.set()
        until_locks_are_waited_for(engine)
        assert operations.send_event(session, EVENT, Verdict("ann", True))
    thread.join(PATIENCE)
    assert answers == [Verdict("ann", True)]  # none of them was ended by the server as a deadlock


def test_a_worker_that_dies_before_its_wait_is_committed_leaves_a_job_that_runs_again(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    queue = waiting_queue([])
    jobs.add_worker("old:1", silent_for=60)
    jobs.add_worker("new:1")
    job_id = jobs.add()
    old, new = manual_worker("old:1"), manual_worker("new:1")
    (row,) = old.claim()
    with engine.connect() as connection:
        context = attempt_of(queue, row, connection, "old:1")
        with pytest.raises(Suspended):
            context.wait_for("approval", event=EVENT, timeout=HOUR)
        connection.rollback()  # as the server does when the client is gone
    assert send(engine)
    assert jobs.status(job_id) is JobStatus.RUNNING
    assert [rescued.id for rescued in new.rescue()] == [job_id]


async def test_an_event_in_a_session_drain(engine: Engine) -> None:
    payloads: list[int] = []
    queue = waiting_queue(payloads)
    async_engine = create_async_engine(engine.url)
    async with AsyncSession(async_engine) as session:
        waits, late = queue.job("async", EVENT), queue.job("async", "never")
        session.add_all([waits, late])
        assert (await drain_test(queue, session)).snoozed == 2
        await aio.send_event(session, EVENT, {"by": "ann", "ok": True})
        assert (await drain_test(queue, session, scheduled=True)).completed == 2
        await session.refresh(waits)
        await session.refresh(late)
        assert waits.output == "ann"
        assert late.output == "event 'never' was not sent before the timeout of step 'approval'"
        await session.rollback()
    await async_engine.dispose()


async def test_a_payload_of_another_type_fails_the_attempt_and_is_not_recorded(engine: Engine, run: Run, jobs: Jobs) -> None:
    queue = waiting_queue([], max_attempts=1)
    call(engine, operations.send_event, EVENT, "no verdict")
    (job_id,) = enqueue(engine, queue.job("sync", EVENT))
    await drain(queue, engine)
    error = jobs.get(job_id)["last_error"]
    assert error["message"].startswith(
        "step 'approval' waits for event 'approved:7', whose payload is no Verdict: payload: "
    )
    assert error["message"].endswith("sa-jobqueue events send approved:7 PAYLOAD --replace")
    assert "upcast_step" not in error["message"]
    with Session(engine) as session:
        assert session.scalars(select(Job.Step)).all() == []
    remedy = error["message"].partition("sa-jobqueue ")[2].replace("PAYLOAD", '{"by":"ann","ok":true}').split()
    run(*remedy)
    with Session(engine) as session:
        assert session.scalars(select(Job.Event.payload)).all() == [{"by": "ann", "ok": True}]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_sender_that_could_overlook_a_waiter_is_refused(engine: Engine, level: Any) -> None:
    with Session(engine.execution_options(isolation_level=level)) as session:
        with pytest.raises(InvalidOptionError) as caught:
            operations.send_event(session, EVENT)
        assert caught.value.option == "session"
        assert level in str(caught.value)


def test_wrong_events_are_refused_before_anything_is_sent(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        for event, keep in (("", HOUR), ("a" * 201, HOUR), ("a\nb", HOUR), (7, HOUR), (EVENT, timedelta(0)), (EVENT, 5)):
            with pytest.raises(InvalidOptionError):
                operations.send_event(session, event, keep=keep)  # type: ignore[arg-type]
        with pytest.raises(PayloadTooLargeError):
            operations.send_event(session, EVENT, "a" * 1_100_000)
        assert operations.send_event(session, EVENT)


def test_sql_and_the_command_line_send_events(engine: Engine, run: Run) -> None:
    with engine.begin() as connection:
        assert connection.scalar(text("""SELECT job_send_event('one', '{"by": "ann"}')"""))
        assert not connection.scalar(text("SELECT job_send_event('one')"))
    assert (
        run("events", "send", "two", '{"by": "bob"}', "--keep", "1h").output == "event two sent; no job waits for it yet\n"
    )
    assert '"is_first": false' in run("events", "send", "two", "--json").stdout
    with Session(engine) as session:
        rows = session.execute(select(Job.Event.name, Job.Event.payload).order_by(Job.Event.name)).all()
    assert [tuple(row) for row in rows] == [("one", {"by": "ann"}), ("two", {"by": "bob"})]


async def test_explain_names_the_event_and_how_to_send_it(engine: Engine) -> None:
    queue = waiting_queue([])
    (job_id,) = enqueue(engine, queue.job("sync", "it's ok"))
    await drain(queue, engine)
    explanation = call(engine, operations.explain_job, job_id)
    assert explanation.cause is operations.Cause.WAITING_FOR_EVENT
    assert explanation.evidence["event"] == "it's ok"
    assert "in step 'approval'; it times out in " in explanation.sentence
    assert explanation.sentence.endswith("""sa-jobqueue events send 'it'"'"'s ok'.""")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_continuation_waits_and_continues_its_chain(engine: Engine, kind: str) -> None:
    """Its end is written under a lock of the chain's root."""
    queue = waiting_queue([])

    @queue.handler("first")
    def first(payload: str) -> Any:
        return queue[kind].continuation(payload)

    (chain_id,) = enqueue(engine, queue.job("first", EVENT))
    await drain(queue, engine)
    with Session(engine) as session:
        chain = operations.get_chain(session, chain_id)
        assert (chain.status, chain.length) == (JobStatus.PENDING, 2)
    assert send(engine)
    await drain(queue, engine)
    with Session(engine) as session:
        chain = operations.get_chain(session, chain_id)
        assert (chain.status, chain.output) == (JobStatus.COMPLETED, "ann")


async def test_a_continuation_whose_root_is_locked_begins_to_wait_when_it_is_free(engine: Engine) -> None:
    payloads: list[int] = []
    queue = waiting_queue(payloads)

    @queue.handler("first")
    def first(payload: str) -> Any:
        return queue["sync"].continuation(payload, delay=HOUR)

    (chain_id,) = enqueue(engine, queue.job("first", EVENT))
    await drain(queue, engine)
    with engine.begin() as connection:
        connection.execute(update(Job.__table__).where(Job.status == JobStatus.PENDING).values(scheduled_at=func.now()))  # type: ignore[arg-type]
    with Session(engine) as session:
        session.execute(select(Job.id).where(Job.id == chain_id).with_for_update(key_share=True)).one()
        async with working(Worker(queue, engine, options=quick())) as log:
            await until(lambda: bool(payloads))
            assert log.of(JobRescheduled) == []
            session.rollback()
            await log.until(JobRescheduled)
    assert call(engine, operations.get_chain, chain_id).status is JobStatus.PENDING


def test_a_job_that_is_cancelled_while_it_begins_to_wait_does_not_wait(
    engine: Engine, jobs: Jobs, manual_worker: MakeWorker
) -> None:
    queue = waiting_queue([])
    jobs.add_worker("one:1")
    job_id = jobs.add()
    (row,) = manual_worker("one:1").claim()
    call(engine, cancel_jobs, [job_id])
    with engine.connect() as connection:
        with pytest.raises(LostAttemptError):
            attempt_of(queue, row, connection, "one:1").wait_for("approval", event=EVENT, timeout=HOUR)
        connection.rollback()
    assert jobs.status(job_id) is JobStatus.CANCELLED
    with Session(engine) as session:
        assert session.scalars(select(Job.Step)).all() == []


def test_who_sends_an_event_is_recorded(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        assert operations.send_event(session, EVENT, {"secret": 1}, by="ann")
        assert not operations.send_event(session, EVENT, by="bob")
        assert session.scalars(select(Job.Event.sent_by)).all() == ["ann"]
        audit = [
            (row.operation, row.done_by, row.ids, row.changed) for row in operations.list_audit(session, newest_first=False)
        ]
        assert audit == [("send_event", "ann", [EVENT], 1), ("send_event", "bob", [], 0)]
        with pytest.raises(InvalidOptionError, match="by: must be 1 to 200 printable characters"):
            operations.send_event(session, "other", by="x" * 201)


async def test_awaited_events_are_listed_by_pages_and_a_call_reads_a_bounded_number(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = waiting_queue([])
    enqueue(engine, *(queue.job("sync", event) for event in ("a", "b", "b", "b", "c")))
    await drain(queue, engine)
    with Session(engine) as session:
        first = operations.list_awaited_events(session, limit=1)
        assert [event.event for event in first] == ["a"]
        assert [event.event for event in operations.list_awaited_events(session, limit=2, after=first.next)] == ["b", "c"]
        monkeypatch.setattr("sa_jobqueue.operations.events.SCAN_LIMIT", 2)
        cut = operations.list_awaited_events(session)
        assert [(event.event, event.jobs, event.is_capped) for event in cut] == [("a", 1, False), ("b", 1, True)]
        next_page = operations.list_awaited_events(session, after=cut.next)
        assert [(event.event, event.jobs, event.is_capped) for event in next_page] == [("c", 1, False)]
        assert next_page.next is None


@pytest.mark.slow
async def test_awaited_events_are_listed_until_their_jobs_end(engine: Engine, run: Run) -> None:
    queue = waiting_queue([])
    first, _, _ = enqueue(engine, queue.job("sync", "b"), queue.job("async", "b"), queue.job("sync", "a"))
    await drain(queue, engine)
    with Session(engine) as session, session.begin():
        events = operations.list_awaited_events(session).items
        assert [(event.event, event.jobs) for event in events] == [("a", 1), ("b", 2)]
        assert all(event.times_out_at == event.since + HOUR for event in events)
        cancel_jobs(session, [first])
        operations.send_event(session, "a", {"by": "ann", "ok": True})
    await drain(queue, engine)
    listed = document(run("events", "list", "--json"))["events"]
    assert [(event["event"], event["jobs"]) for event in listed] == [("b", 1)]
    assert "waiting jobs" in run("events", "list").stdout


async def test_a_waiting_job_can_be_cancelled_and_its_event_changes_nothing_then(engine: Engine, jobs: Jobs) -> None:
    queue = waiting_queue([])
    (job_id,) = enqueue(engine, queue.job("sync", EVENT))
    await drain(queue, engine)
    assert call(engine, cancel_jobs, [job_id]).ids == [job_id]
    assert send(engine)
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.CANCELLED


@pytest.mark.slow
async def test_a_redriven_job_gets_an_event_that_was_sent_while_it_was_dead(engine: Engine, jobs: Jobs) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("sync", max_attempts=1)
    def sync(payload: str, ctx: AttemptContext) -> str:
        if ctx.attempt == 2:
            raise RuntimeError
        return str(ctx.wait_for("approval", event=EVENT, timeout=HOUR, output=Verdict).by)

    (job_id,) = enqueue(engine, queue.job("sync", "x"))
    await drain(queue, engine)
    with engine.begin() as connection:
        connection.execute(update(Job.__table__).values(scheduled_at=func.now()))  # type: ignore[arg-type]
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    assert send(engine)
    call(engine, operations.redrive_dead_letters)
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "ann"


@pytest.mark.parametrize("way", ["delete", "replace"])
async def test_a_wrong_event_is_deleted_or_replaced_and_the_waiting_job_gets_the_right_one(
    engine: Engine, jobs: Jobs, way: str
) -> None:
    queue = waiting_queue([], max_attempts=2, retry=lambda attempt, error: timedelta(0))
    (job_id,) = enqueue(engine, queue.job("async", EVENT))
    await drain(queue, engine)  # it waits
    assert call(engine, operations.send_event, EVENT, "no verdict")
    if way == "delete":
        with Session(engine) as session, session.begin():
            assert operations.delete_event(session, EVENT, by="ann")
            assert not operations.delete_event(session, EVENT, by="ann")
        await drain(queue, engine)
        assert jobs.status(job_id) is JobStatus.PENDING
        assert send(engine, "bob")
    else:
        assert call(engine, operations.send_event, EVENT, Verdict("bob", True), replace=True, by="ann")
        assert not send(engine, "eve")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "bob"
    records = [(row.operation, row.ids) for row in call(engine, operations.list_audit, newest_first=False).items]
    deleted = [("delete_event", [EVENT]), ("delete_event", [])]
    assert records == (deleted if way == "delete" else [("send_event", [EVENT])])


def test_a_deletion_waits_for_a_sender_and_sees_its_event(engine: Engine) -> None:
    deleted: list[bool] = []

    def delete() -> None:
        deleted.append(call(engine, operations.delete_event, EVENT))

    with Session(engine) as session:
        operations.send_event(session, EVENT)
        thread = threading.Thread(target=delete)
        thread.start()
        until_locks_are_waited_for(engine)
        session.commit()
    thread.join()
    assert deleted == [True]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_deletion_that_could_overlook_an_event_is_refused(engine: Engine, level: Any) -> None:
    at_level = engine.execution_options(isolation_level=level)
    with Session(at_level) as session, pytest.raises(InvalidOptionError, match="READ COMMITTED"):
        operations.delete_event(session, EVENT)


def test_the_command_line_deletes_and_replaces_events(engine: Engine, run: Run) -> None:
    assert "was not sent" in run("events", "delete", EVENT).stdout
    run("events", "send", EVENT, 1)
    assert "was sent before" in run("events", "send", EVENT, 2).stdout
    assert "sent;" in run("events", "send", EVENT, 3, "--replace").stdout
    assert scalar(engine, select(Job.Event.payload)) == 3
    assert "deleted" in run("events", "delete", EVENT).stdout
    assert scalar(engine, select(func.count()).select_from(Job.Event)) == 0
