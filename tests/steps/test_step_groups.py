"""A handler waits for several jobs, events and timers: for all of them in one fan-out, or for the first, which stays it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, func, select, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, ChildJob, EventWait, Job, JobQueue, JobStatus, Timer, operations
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations.dead_letters import DeadLetterFilter
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.statements._parts import BATCH
from sa_jobqueue.testing import drain as drain_test
from sa_jobqueue.worker.run.step_groups import StepGroups
from sa_jobqueue.worker.run.steps import Suspended
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, scalar, scalars, write
from tests.fixtures.workers import ManualWorker, drain

pytestmark = pytest.mark.every_python

KINDS = ["sync", "async"]
HOUR = timedelta(hours=1)


class DeclinedError(Exception):
    """An error with which a child dies."""


def shop(called: list[Any], requests_of: Callable[[Any], list[Any]], call: str, **options: Any) -> JobQueue[Any]:
    """Return handlers `sync` and `async` that wait for requests, twice: the first attempt with an answer crashes."""
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("ship", max_attempts=1)
    async def ship(order: int) -> int:
        called.append(order)
        if order < 0:
            raise DeclinedError(f"no address {order}")
        return order * 10

    def answered(answer: Any) -> str:
        called.append("answered")
        if called.count("answered") == 1:
            raise RuntimeError("crash")
        return repr(answer)

    arguments = ("decision",) if call == "first" else ()

    @queue.handler("sync", retry=immediately)
    def sync(payload: None, ctx: AttemptContext) -> str:
        return answered(getattr(ctx, call)(*arguments, *requests_of(ship), **options))

    @queue.handler("async", retry=immediately)
    async def asynchronous(payload: None, ctx: AttemptContext) -> str:
        return answered(await getattr(ctx, call)(*arguments, *requests_of(ship), **options))

    return queue


def only(queue: JobQueue[Any], *names: str) -> JobQueue[Any]:
    """Return a queue whose workers run some types of jobs only."""
    some = JobQueue[Any]()
    for name in names:
        some.handler(name, retry=immediately, max_attempts=1 if name == "ship" else 20)(queue.registry.get(name).func)
    return some


def statuses(engine: Engine) -> list[JobStatus]:
    return scalars(engine, select(Job.status).where(Job.type_name == "ship").order_by(Job.id))


def steps(engine: Engine) -> dict[tuple[str, str], str]:
    with Session(engine) as session:
        return {(step.name, step.key): step.kind for step in session.scalars(select(Job.Step))}


def sent(engine: Engine, name: str, payload: Any) -> None:
    call(engine, operations.send_event, name, payload)


@pytest.mark.parametrize("kind", KINDS)
async def test_all_results_are_returned_in_the_order_of_the_requests(engine: Engine, jobs: Jobs, kind: str) -> None:
    called: list[Any] = []
    queue = shop(
        called,
        lambda ship: [
            ChildJob(ship, 1, key=1),
            EventWait("go", event="go", timeout=HOUR, output=str),
            Timer("rest", timedelta(0)),
            ChildJob(ship, 2, key=2),
        ],
        "all",
    )
    (job_id,) = enqueue(engine, queue.job(kind, None))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    assert statuses(engine) == [JobStatus.COMPLETED] * 2
    sent(engine, "go", "on")
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "[10, 'on', None, 20]"
    assert sorted(map(str, called)) == ["1", "2", "answered", "answered"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("return_exceptions", [False, True])
async def test_how_a_child_died_is_raised_by_its_declared_type_or_returned_and_stays(
    engine: Engine, jobs: Jobs, kind: str, return_exceptions: bool
) -> None:
    called: list[Any] = []
    queue = shop(
        called,
        lambda ship: [ChildJob(ship, order, key=order, catch=DeclinedError) for order in (1, -2, -3)],
        "all",
        return_exceptions=return_exceptions,
    )
    (job_id,) = enqueue(engine, queue.job(kind, None))
    if not return_exceptions:
        await drain(queue, engine)
        assert jobs.get(job_id)["last_error"]["type"].endswith("DeclinedError")
        assert jobs.get(job_id)["last_error"]["message"] == "no address -2"
        return
    await drain(queue, engine)
    expected = "[10, DeclinedError('no address -2'), DeclinedError('no address -3')]"
    assert jobs.get(job_id)["output"] == expected
    with Session(engine) as session, session.begin():
        operations.redrive_dead_letters(session, where=DeadLetterFilter())
        assert [step.completed_at is None for step in session.scalars(select(Job.Step).order_by(Job.Step.key.desc()))] == [
            True,  # a reference to a completed row, which does not change
            False,
            False,
        ]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_fan_out_is_one_transaction_and_wakes_its_parent_once(engine: Engine, jobs: Jobs, kind: str) -> None:
    called: list[Any] = []
    queue = shop(called, lambda ship: [ChildJob(ship, order, key=order) for order in range(500)], "all")
    (job_id,) = enqueue(engine, queue.job(kind, None))
    await drain(only(queue, "sync", "async"), engine)
    with engine.connect() as connection:
        assert connection.scalar(text("SELECT count(DISTINCT xmin::text) FROM job_step")) == 1
        assert connection.scalar(text("SELECT count(DISTINCT xmin::text) FROM job WHERE type_name = 'ship'")) in {1, 2}
        # Of the children, the last alone wakes the parent.
        assert connection.scalar(text("SELECT count(*) FROM job WHERE has_waiters")) == 1
    await drain(only(queue, "ship"), engine)
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == repr([order * 10 for order in range(500)])
    assert jobs.get(job_id)["attempt"] == 3  # before, the crash, and the last


async def test_a_fan_out_sends_statements_by_batches(engine: Engine) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, order, key=order) for order in range(1000)], "all")
    enqueue(engine, queue.job("async", None))
    statements: list[str] = []

    def note(*arguments: Any) -> None:
        statements.append(arguments[2])

    event.listen(Engine, "before_cursor_execute", note)
    try:
        await drain(only(queue, "async"), engine)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    inserts = [statement for statement in statements if "INSERT INTO job " in statement or "INTO job_step" in statement]
    assert len(inserts) == 2 * 1000 / BATCH


async def test_retention_spares_outputs_until_the_parent_has_ended(engine: Engine, jobs: Jobs) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, order, key=order) for order in (1, 2)], "all")
    (job_id,) = enqueue(engine, queue.job("async", None))
    await drain(only(queue, "async"), engine)
    await drain(only(queue, "ship"), engine)
    rules = RetentionRules(default=Retention(completed=timedelta(0)))
    call(engine, operations.prune, rules)
    assert len(statuses(engine)) == 2
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "[10, 20]"
    call(engine, operations.prune, rules)
    assert statuses(engine) == []


async def test_a_child_that_is_redriven_before_the_parent_looks_is_waited_for_by_all(engine: Engine, jobs: Jobs) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, order, key=order) for order in (1, -1)], "all")
    (job_id,) = enqueue(engine, queue.job("async", None))
    await drain(only(queue, "async"), engine)
    await drain(only(queue, "ship"), engine)
    with Session(engine) as session, session.begin():
        operations.redrive_dead_letters(session, where=DeadLetterFilter())
        session.execute(text("UPDATE job SET input = '5' WHERE input = '-1'"))
    await drain(only(queue, "async"), engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    await drain(queue, engine)
    assert jobs.get(job_id)["output"] == "[10, 50]"


async def test_explain_names_a_child_of_a_fan_out_that_has_not_ended(engine: Engine) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, 1, key="listed first"), ChildJob(ship, 2, key="a")], "all")
    (job_id,) = enqueue(engine, queue.job("async", None))
    await drain(only(queue, "async"), engine)
    with Session(engine) as session, session.begin():
        ids = list(session.scalars(select(Job.id).where(Job.type_name == "ship").order_by(Job.id)))
        operations.complete_job(session, ids[0], 10, model=Job)
    explanation = call(engine, operations.explain_job, job_id)
    assert explanation.cause is operations.Cause.WAITING_FOR_CHILD
    assert str(ids[1]) in explanation.sentence


def approval(ship: Any) -> list[Any]:
    return [
        EventWait("approval", event="approved", timeout=timedelta(days=7), output=str),
        ChildJob(ship, 7),
        Timer("patience", HOUR),
    ]


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_event_wins_and_the_job_among_the_losers_is_cancelled(engine: Engine, jobs: Jobs, kind: str) -> None:
    queue = shop([], approval, "first")
    (job_id,) = enqueue(engine, queue.job(kind, None))
    await drain(only(queue, kind), engine)
    assert jobs.status(job_id) is JobStatus.PENDING
    with engine.connect() as connection:  # until the timer
        remaining: Any = connection.scalar(select(Job.scheduled_at - func.now()).where(Job.id == job_id))
    assert remaining is not None
    assert remaining <= HOUR
    sent(engine, "approved", "ann")
    await drain(only(queue, kind), engine)
    assert jobs.get(job_id)["output"] == "Winner(name='approval', key='', value='ann')"
    assert statuses(engine) == [JobStatus.CANCELLED]
    assert steps(engine) == {("decision", ""): "step", ("approval", ""): "wait"}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_first_job_wins_and_the_winner_stays_after_a_crash(engine: Engine, jobs: Jobs, kind: str) -> None:
    called: list[Any] = []
    queue = shop(called, approval, "first")
    (job_id,) = enqueue(engine, queue.job(kind, None))
    await drain(only(queue, kind), engine)
    await drain(only(queue, "ship"), engine)
    queue_of_parent, answered = only(queue, kind), called.count("answered")
    await drain(queue_of_parent, engine)
    sent(engine, "approved", "too late")
    await drain(queue_of_parent, engine)
    assert jobs.get(job_id)["output"] == "Winner(name='ship', key='', value=70)"
    assert called.count("answered") == answered + 2


async def test_an_event_after_the_winner_does_not_change_it(engine: Engine, jobs: Jobs) -> None:
    """The first attempt with an answer crashes; then the other event is sent, which is the first of the requests."""
    called: list[Any] = []
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("parent", retry=lambda attempt, error: HOUR)
    async def parent(payload: None, ctx: AttemptContext) -> str:
        winner = await ctx.first(
            "decision",
            EventWait("ann", event="ann", timeout=HOUR, output=str),
            EventWait("bob", event="bob", timeout=HOUR, output=str),
        )
        called.append(winner.name)
        if len(called) == 1:
            raise RuntimeError("crash")
        return winner.value

    (job_id,) = enqueue(engine, queue.job("parent", None))
    await drain(queue, engine)
    sent(engine, "bob", "yes")
    await drain(queue, engine)
    assert called == ["bob"]
    sent(engine, "ann", "no")
    write(engine, "UPDATE job SET scheduled_at = now() WHERE status = 'pending'")
    await drain(queue, engine)
    assert called == ["bob", "bob"]
    assert jobs.get(job_id)["output"] == "yes"


async def test_the_timer_wins_and_with_leave_the_job_goes_on(engine: Engine, jobs: Jobs) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, 7), Timer("patience", timedelta(0))], "first", losers="leave")
    (job_id,) = enqueue(engine, queue.job("async", None))
    await drain(only(queue, "async"), engine)
    assert jobs.get(job_id)["output"] == "Winner(name='patience', key='', value=None)"
    assert statuses(engine) == [JobStatus.PENDING]
    await drain(queue, engine)
    assert statuses(engine) == [JobStatus.COMPLETED]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_death_and_a_timeout_that_are_first_are_raised(engine: Engine, jobs: Jobs, kind: str) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, -7, catch=DeclinedError), Timer("patience", HOUR)], "first")
    timing_out = shop([], lambda ship: [EventWait("approval", event="x", timeout=timedelta(0))], "first")
    (declined,) = enqueue(engine, queue.job(kind, None))
    await drain(only(queue, kind), engine)
    await drain(only(queue, "ship"), engine)
    await drain(queue, engine)
    assert jobs.get(declined)["last_error"]["message"] == "no address -7"
    write(engine, "DELETE FROM job")
    (timed_out,) = enqueue(engine, timing_out.job(kind, None))
    await drain(timing_out, engine)
    assert jobs.get(timed_out)["last_error"]["type"].endswith("EventTimeoutError")


async def test_cancelling_with_children_cancels_what_the_chain_waits_for(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("descend")
    async def descend(level: int, ctx: AttemptContext) -> None:
        if level < 3:
            await ctx.all(ChildJob(descend, level + 1, key="a"), ChildJob(descend, level + 1, key="b", delay=HOUR))

    (job_id,) = enqueue(engine, queue.job("descend", 1))
    await drain(queue, engine)
    with Session(engine) as session, session.begin():
        planned = operations.cancel_chains(session, [job_id], children=True, dry_run=True)
        assert len(planned.ids) == 4
        alone = operations.cancel_chains(session, [job_id], dry_run=True)
        assert list(alone.ids) == [job_id]
    result = call(engine, operations.cancel_chains, [job_id], children=True, by="ann")
    assert set(result.ids) == set(planned.ids)
    with Session(engine) as session:
        rows = session.execute(select(Job.status, Job.input).order_by(Job.id)).all()
        record = session.scalars(select(Job.Audit)).one()
    assert [row.status for row in rows].count(JobStatus.CANCELLED) == 4
    assert (record.operation, record.arguments["children"], record.changed) == ("cancel_chains", True, 4)


@pytest.mark.parametrize("depth", [1, 2])
async def test_children_of_an_ordering_key_of_an_ancestor_are_refused(engine: Engine, jobs: Jobs, depth: int) -> None:
    queue: JobQueue[Any] = JobQueue()

    @queue.handler("descend", max_attempts=1)
    async def descend(level: int, ctx: AttemptContext) -> Any:
        key = "order 7" if level == depth else None
        return await ctx.all(ChildJob(descend, level + 1, ordering_key=key)) if level <= depth else "bottom"

    (job_id,) = enqueue(engine, queue.job("descend", 1, ordering_key="order 7"))
    await drain(queue, engine)
    assert jobs.status(job_id) is JobStatus.DEAD
    assert "ordering_key" in jobs.get(job_id)["last_error"]["message"]
    assert scalar(engine, select(func.count()).select_from(Job)) == depth


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ctx: ctx.first("d"), "requests: must have at least one"),
        (lambda ctx: ctx.first("d", 7), "requests: must be a ChildJob, an EventWait or a Timer, got a int"),
        (lambda ctx: ctx.all(ChildJob(print)), "handler: must be a handler"),  # type: ignore[arg-type]
        (lambda ctx: ctx.first("d", Timer("t", HOUR), losers="kill"), "losers: must be 'cancel' or 'leave'"),
        (lambda ctx: ctx.all(Timer("t", -HOUR)), "duration"),
    ],
)
async def test_what_cannot_be_waited_for_is_refused(engine: Engine, call: Callable[[Any], Any], message: str) -> None:
    queue: JobQueue[Any] = JobQueue()
    refusals: list[str] = []

    @queue.handler("parent")
    def parent(payload: None, ctx: AttemptContext) -> None:
        try:
            call(ctx)
        except InvalidOptionError as error:
            refusals.append(str(error))

    enqueue(engine, queue.job("parent", None))
    await drain(queue, engine)
    assert message in refusals[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("call", ["all", "first"])
def test_drain_in_a_session_runs_groups(engine: Engine, kind: str, call: str) -> None:
    queue = shop([], lambda ship: [ChildJob(ship, 7), ChildJob(ship, 8, key=8)], call)
    with Session(engine) as session:
        job_id = queue._handlers[kind].enqueue(session, None)
        drain_test(queue, session, raise_errors=False)
        output = session.get_one(Job, job_id).output
        assert output in {"[70, 80]", "Winner(name='ship', key='', value=70)"}
        session.rollback()


class Opened:
    """A store of steps on one connection, whose transactions the test ends."""

    model = Job
    own_locks = None

    def __init__(self, queue: JobQueue[Any], connection: Connection) -> None:
        self.registry, self._connection, self.calls = queue.registry, connection, 0

    async def call(self, work: Callable[[Any], Any], *, is_async: bool, in_transaction: bool = False) -> Any:
        if self.calls == 1:  # what enqueued the jobs and began the waits is committed; the look is not
            self._connection.commit()
        self.calls += 1
        return work(self._connection)


@pytest.mark.parametrize("winner", ["event", "child"])
def test_what_is_over_while_the_parent_begins_to_wait_for_the_first_wakes_it(
    engine: Engine, jobs: Jobs, manual_worker: Callable[..., ManualWorker], winner: str
) -> None:
    """The parent has looked and has not committed that it waits: the sender, or the child's end, waits for it."""
    queue = shop([], approval, "first")
    jobs.add_worker("one:1")
    job_id = jobs.add(type_name="test")
    (row,) = manual_worker("one:1").claim()
    job = ClaimedJob(**{name: getattr(row, name) for name in ClaimedJob._fields if hasattr(row, name)})
    ended: list[bool] = []

    def end() -> None:
        with Session(engine) as session, session.begin():
            if winner == "event":
                operations.send_event(session, "approved", "ann")
            else:
                [child_id] = session.scalars(select(Job.id).where(Job.type_name == "ship"))
                operations.complete_job(session, child_id, 70, model=Job)
        ended.append(True)

    with engine.connect() as connection:
        store: Any = Opened(queue, connection)
        attempt = AttemptContext(
            job._replace(type_name="sync"), "one:1", lambda *_: None, steps=lambda context: StepGroups(store, context)
        )
        with pytest.raises(Suspended):
            attempt.first("decision", *approval(queue._handlers["ship"]))
        thread = threading.Thread(target=end)
        thread.start()
        until_locks_are_waited_for(engine)
        assert ended == []
        connection.commit()
    thread.join()
    with Session(engine) as session:
        is_due = session.scalar(select(Job.scheduled_at <= func.now()).where(Job.id == job_id))
    assert (jobs.status(job_id), is_due) == (JobStatus.PENDING, True)


def test_a_sender_that_holds_a_child_and_a_parent_that_looks_for_the_first_do_not_wait_for_each_other(
    engine: Engine, jobs: Jobs, manual_worker: Callable[..., ManualWorker]
) -> None:
    queue = shop([], approval, "first")
    jobs.add_worker("one:1")
    jobs.add(type_name="test")
    (row,) = manual_worker("one:1").claim()
    job = ClaimedJob(**{name: getattr(row, name) for name in ClaimedJob._fields if hasattr(row, name)})
    begun, row_locked, winners = threading.Event(), threading.Event(), list[Any]()

    class Paused(Opened):
        async def call(self, work: Callable[[Any], Any], *, is_async: bool, in_transaction: bool = False) -> Any:
            if self.calls == 1:
                self._connection.commit()
                begun.set()
                assert row_locked.wait(10)
            self.calls += 1
            return work(self._connection)

    def look() -> None:
        with engine.connect() as connection:
            store: Any = Paused(queue, connection)
            attempt = AttemptContext(
                job._replace(type_name="sync"), "one:1", lambda *_: None, steps=lambda context: StepGroups(store, context)
            )
            winners.append(attempt.first("decision", *approval(queue._handlers["ship"])).name)
            connection.commit()

    thread = threading.Thread(target=look)
    thread.start()
    assert begun.wait(10)
    with Session(engine) as session, session.begin():
        session.execute(text("SET LOCAL lock_timeout = '5s'"))
        session.execute(select(Job.id).where(Job.type_name == "ship").with_for_update(key_share=True)).one()
        row_locked.set()
        until_locks_are_waited_for(engine)
        operations.send_event(session, "approved", "ann")
    thread.join()
    assert winners == ["approval"]


async def test_children_that_end_in_the_opposite_order_wake_their_parent_a_few_times(engine: Engine, jobs: Jobs) -> None:
    """The expected number of times is 5; each of the 40 would wake it if it always waited for the last."""
    queue = shop([], lambda ship: [ChildJob(ship, order, key=order) for order in range(40)], "all")
    (job_id,) = enqueue(engine, queue.job("async", None))
    await drain(only(queue, "async"), engine)
    with Session(engine) as session:
        ids = list(session.scalars(select(Job.id).where(Job.type_name == "ship").order_by(Job.id.desc())))
    wakes = 0
    for child_id in ids:
        with Session(engine) as session, session.begin():
            operations.complete_job(session, child_id, 1, model=Job)
            session.flush()
            is_due = session.scalar(select(Job.scheduled_at <= func.now()).where(Job.id == job_id))
        if is_due:
            wakes += 1
            await drain(only(queue, "async"), engine)
    assert jobs.get(job_id)["output"] == repr([1] * 40)
    assert 2 <= wakes <= 20
