"""`wait_chain`, sync and async, returns when the chain ends, whatever is lost meanwhile."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, Executable, create_engine, delete, event, text, update
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import AttemptContext, Job, JobMixin, JobQueue, JobStatus, aio, cancel_jobs, errors, wait_chain
from sa_jobqueue.context import Continuation
from sa_jobqueue.db.blocking import blocking_items
from sa_jobqueue.events import JobStarted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.operations import redrive_dead_letters
from sa_jobqueue.types import ChainResult
from sa_jobqueue.waiting import listeners as ears
from sa_jobqueue.waiting.listeners import Blocking
from sa_jobqueue.waiting.steps import Wait
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.waits import BACKENDS, NEVER, SOON, end, listening
from tests.fixtures.workers import PATIENCE, Start, until

pytestmark = [both_servers, pytest.mark.every_python]


Waiting = Callable[..., Coroutine[Any, Any, ChainResult[Any]]]


@dataclass
class Receipt:
    number: int


@pytest.fixture(params=["sync", "async"])
def wait(request: pytest.FixtureRequest, engine: Engine, async_engine: AsyncEngine) -> Waiting:
    """Give a function that waits for a chain, sync or async."""

    async def call(chain: Any, **options: Any) -> ChainResult[Any]:
        # The last poll is after the test's timeout: the test must not depend on it.
        all_options: dict[str, Any] = {"timeout": timedelta(seconds=2 * PATIENCE), "poll_interval": NEVER} | options
        async with asyncio.timeout(PATIENCE):
            if request.param == "async":
                return await aio.wait_chain(async_engine, chain, **all_options)
            return await asyncio.to_thread(lambda: wait_chain(engine, chain, **all_options))

    return call


async def rests(jobs: Jobs, chain_id: Any) -> None:
    """Wait until a caller has marked the chain as waited for."""
    await until(lambda: bool(jobs.get(chain_id)["has_waiters"]), description="the mark")


async def test_wait_chain_returns_on_notification_before_its_next_poll(wait: Waiting, engine: Engine, jobs: Jobs) -> None:
    chain_id = jobs.add()
    other_id = jobs.add()
    result = asyncio.create_task(wait(chain_id))
    await rests(jobs, chain_id)
    assert len(listening(engine)) == 1
    end(engine, other_id)
    end(engine, chain_id, output={"n": 1})
    assert await result == ChainResult(
        id=chain_id,
        type_name="test",
        status=JobStatus.COMPLETED,
        output={"n": 1},
        error=None,
        created_at=jobs.get(chain_id)["created_at"],
        completed_at=jobs.get(chain_id)["chain_completed_at"],
        length=1,
        last_job_id=chain_id,
        last_type_name="test",
    )
    await until(lambda: not listening(engine), description="the end of the connection")


class Played(Blocking):
    """Counts the steps of a wait, and does something before each of them."""

    def __init__(self, engine: Engine, channel: str, before: Callable[[int], None]) -> None:
        super().__init__(engine, channel)
        self.before, self.done = before, 0

    def _step(self) -> None:
        self.before(self.done)
        self.done += 1

    async def ask(self, statement: Executable, parameters: dict[str, Any]) -> Any:
        self._step()
        return await super().ask(statement, parameters)

    async def listen(self, payloads: frozenset[str]) -> None:
        self._step()
        await super().listen(payloads)

    async def rest(self, seconds: float, least: float) -> None:
        self._step()
        started = time.monotonic()
        await super().rest(PATIENCE, 0)
        assert time.monotonic() - started < PATIENCE, "nobody told"


def play(wait: Wait, engine: Engine, before: Callable[[int], None]) -> tuple[int, ChainResult[Any]]:
    """Do the steps of a wait, and something before each of them; return how many there were, and the result."""
    with closing(Played(engine, wait.channel, before)) as access:
        result = next(blocking_items(wait.results(access)))
        return access.done, result


# The steps: poll, listen, mark, poll, sleep, poll, read the result; as many as are needed.
@pytest.mark.parametrize(("moment", "needed"), [(0, 3), (1, 5), (2, 5), (3, 5), (4, 7)])
def test_a_chain_ending_at_any_step_of_the_wait_is_noticed(engine: Engine, jobs: Jobs, moment: int, needed: int) -> None:
    chain_id = jobs.add()
    options: Any = {"timeout": timedelta(minutes=5), "poll_interval": NEVER, "listen": True, "output": None, "model": None}
    steps_played, result = play(
        Wait([chain_id], **options), engine, lambda step: end(engine, chain_id) if step == moment else None
    )
    assert (steps_played, result.id) == (needed, chain_id)


@pytest.mark.slow
async def test_wait_chain_returns_what_a_worker_made_of_the_chain(
    wait: Waiting, engine: Engine, jobs: Jobs, start: Start
) -> None:
    queue = JobQueue()
    release = asyncio.Event()

    @queue.handler("first")
    async def first(n: int, ctx: AttemptContext) -> Continuation[Receipt]:
        return ctx.continue_with(second, n + 1)

    @queue.handler("second")
    async def second(n: int, session: AsyncSession) -> Receipt:
        await release.wait()
        return Receipt(n)

    @queue.handler("fails", max_attempts=1)
    async def fails() -> None:
        await release.wait()
        raise ValueError("no paper")

    @queue.handler("forever")
    async def forever() -> None:
        await asyncio.Event().wait()

    with Session(engine) as session, session.begin():
        session.add_all(new_jobs := [first.job(1), fails.job(), forever.job()])
        ids = [job.id for job in new_jobs]
    async with start(queue) as log:
        results = [asyncio.create_task(wait(job, output=Receipt)) for job in new_jobs]
        for chain_id in ids:
            await rests(jobs, chain_id)
        await log.until(JobStarted, 4)
        release.set()
        ended = await results[0]
        assert (ended.output, ended.length, ended.last_type_name) == (Receipt(2), 2, "second")
        with pytest.raises(errors.ChainFailedError, match="is dead: ValueError: no paper"):
            await results[1]
        call(engine, cancel_jobs, [ids[2]])
        with pytest.raises(errors.ChainFailedError, match="was cancelled"):
            await results[2]
        call(engine, redrive_dead_letters, by="me")
        with pytest.raises(errors.ChainFailedError, match="is dead"):  # the same chain, once more
            await wait(new_jobs[1])


async def test_wait_chain_decodes_the_output_to_the_requested_type(wait: Waiting, jobs: Jobs) -> None:
    queue = JobQueue()

    @queue.handler("test")
    def pay() -> Receipt:
        return Receipt(7)

    chain_id = jobs.add(JobStatus.COMPLETED, output={"number": 7})
    assert (await wait(chain_id)).output == {"number": 7}
    assert (await wait(chain_id, output=Receipt)).output == Receipt(7)
    assert (await wait(chain_id, output=pay)).output == Receipt(7)
    with pytest.raises(errors.InvalidPayloadError, match=r"output: Input should be a valid integer"):
        await wait(chain_id, output=int)
    with pytest.raises(errors.InvalidOptionError, match="output: no output can be typed as"):
        await wait(chain_id, output=Engine)


async def test_wait_chain_refuses_an_uncommitted_chain(wait: Waiting, session: Session) -> None:
    job = Job("test")
    session.add(job)
    session.flush()
    with pytest.raises(errors.NotFoundError, match="has not committed yet") as missing:
        await wait(job)
    assert missing.value.ids == (job.id,)


async def test_wait_chain_raises_when_the_chain_is_deleted(wait: Waiting, engine: Engine, jobs: Jobs) -> None:
    chain_id = jobs.add()
    result = asyncio.create_task(wait(chain_id, poll_interval=SOON))
    await rests(jobs, chain_id)
    write(engine, delete(Job))
    with pytest.raises(errors.NotFoundError, match="deleted while waited for"):
        await result


async def test_a_timeout_of_wait_chain_does_not_affect_the_chain(wait: Waiting, jobs: Jobs, engine: Engine) -> None:
    chain_id = jobs.add()
    with pytest.raises(errors.ChainTimeoutError, match="it continues") as late:
        await wait(chain_id, timeout=SOON)
    assert isinstance(late.value, TimeoutError)
    assert (late.value.chain_id, late.value.timeout) == (chain_id, SOON)
    assert jobs.status(chain_id) is JobStatus.PENDING
    await until(lambda: not listening(engine), description="the end of the connection")


@pytest.mark.parametrize("listen", [True, False], ids=["lost", "not listened for"])
async def test_a_missed_notification_delays_wait_chain_until_its_next_poll(
    wait: Waiting, engine: Engine, jobs: Jobs, listen: bool
) -> None:
    chain_id = jobs.add()
    result = asyncio.create_task(wait(chain_id, poll_interval=SOON, listen=listen))
    await rests(jobs, chain_id)
    assert bool(listening(engine)) is listen
    end(engine, chain_id, notify=False)
    assert (await result).status is JobStatus.COMPLETED


async def test_a_lost_listening_connection_is_replaced(
    wait: Waiting, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ears, "_RETRY_SECONDS", 0.05)
    chain_id = jobs.add()
    result = asyncio.create_task(wait(chain_id))
    await rests(jobs, chain_id)
    (first,) = listening(engine)
    write(engine, "SELECT pg_terminate_backend(:pid)", {"pid": first})
    await until(lambda: bool(listening(engine)) and listening(engine) != [first], description="another connection")
    end(engine, chain_id)  # notified, or found by the poll after the reconnection
    assert (await result).status is JobStatus.COMPLETED
    assert "cannot listen for the ends of chains" in caplog.text


async def test_a_chain_that_ended_while_not_listening_is_noticed_on_reconnection(
    wait: Waiting, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ears, "_RETRY_SECONDS", 0.5)
    chain_id = jobs.add()
    polls: list[str] = []

    def count(*arguments: Any) -> None:
        polls.extend([arguments[2]] if "chain_completed_at" in arguments[2] and arguments[2].startswith("SELECT") else [])

    event.listen(Engine, "after_cursor_execute", count)
    try:
        result = asyncio.create_task(wait(chain_id))
        await until(lambda: len(polls) >= 2, description="the poll after the mark")
        write(engine, "SELECT pg_terminate_backend(:pid)", {"pid": listening(engine)[0]})
        await until(lambda: len(polls) >= 3, description="the poll after the loss")
        assert "cannot listen" in caplog.text
        end(engine, chain_id)
        assert (await result).status is JobStatus.COMPLETED
    finally:
        event.remove(Engine, "after_cursor_execute", count)


async def test_wait_chain_polls_if_it_cannot_listen(
    wait: Waiting, engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = engine.url.set(host="/nowhere", port=1, query={})
    arguments = ears._arguments
    monkeypatch.setattr(ears, "_arguments", lambda _: arguments(url))
    chain_id = jobs.add()
    result = asyncio.create_task(wait(chain_id, poll_interval=SOON))
    await rests(jobs, chain_id)
    end(engine, chain_id)
    assert (await result).status is JobStatus.COMPLETED


async def test_wait_chain_survives_an_outage_of_the_database(
    wait: Waiting, engine: Engine, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    chain_id = jobs.add()
    result = asyncio.create_task(wait(chain_id, poll_interval=SOON))
    await rests(jobs, chain_id)
    terminate_all = text(f"SELECT pg_terminate_backend(pid) {BACKENDS}")
    other_engine = create_engine(engine.url)
    with other_engine.connect() as connection:
        connection.execute(terminate_all)
    await until(lambda: "cannot look at a chain" in caplog.text, description="a failed poll")
    end(other_engine, chain_id)
    other_engine.dispose()
    assert (await result).status is JobStatus.COMPLETED


async def test_wait_chain_marks_a_locked_root_once_its_lock_is_released(
    wait: Waiting, engine: Engine, jobs: Jobs, session: Session
) -> None:
    chain_id = jobs.add()
    session.execute(text("SELECT 1 FROM job FOR NO KEY UPDATE"))
    with pytest.raises(errors.ChainTimeoutError):  # the one who holds it is not waited for
        await wait(chain_id, timeout=SOON)
    result = asyncio.create_task(wait(chain_id))
    await until(lambda: bool(listening(engine)))
    session.rollback()
    await rests(jobs, chain_id)
    end(engine, chain_id)
    assert (await result).status is JobStatus.COMPLETED


async def test_waits_on_one_event_loop_share_a_listening_connection(
    async_engine: AsyncEngine, engine: Engine, jobs: Jobs
) -> None:
    chains = jobs.add_many(20)
    give: Any = {"timeout": timedelta(seconds=PATIENCE), "poll_interval": NEVER}
    results = [asyncio.create_task(aio.wait_chain(async_engine, chain_id, **give)) for chain_id in [*chains, chains[0]]]
    for chain_id in chains:
        await rests(jobs, chain_id)
    assert len(listening(engine)) == 1
    for chain_id in chains:
        end(engine, chain_id)
    assert [result.id for result in await asyncio.gather(*results)] == [*chains, chains[0]]
    assert ears._listeners == {}
    await until(lambda: not listening(engine), description="the end of the connection")


async def test_a_cancelled_wait_leaves_no_task_listener_or_connection(
    async_engine: AsyncEngine, engine: Engine, jobs: Jobs
) -> None:
    chain_id = jobs.add()
    before = asyncio.all_tasks()
    give: Any = {"timeout": timedelta(seconds=PATIENCE), "poll_interval": NEVER}
    for reached in (lambda: True, lambda: bool(listening(engine)), lambda: bool(jobs.get(chain_id)["has_waiters"])):
        task = asyncio.create_task(aio.wait_chain(async_engine, chain_id, **give))
        await until(reached)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == before
        assert ears._listeners == {}
        await until(lambda: not listening(engine), description="the end of the connection")
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await aio.wait_chain(async_engine, chain_id, **give)
    gc.collect()  # a connection that was not closed would warn, which is an error
    assert async_engine.sync_engine.pool.checkedout() == 0  # type: ignore[attr-defined]


async def test_a_connection_cancelled_while_opening_is_closed(engine: Engine) -> None:
    async def listen_once() -> None:
        async with ears.listening_for(engine.url, "any", frozenset(["any"])) as notified:
            await notified.wait()

    gc.disable()
    try:
        for turns in range(0, 500, 10):  # of the loop: from before the connection is begun until after it is made
            task = asyncio.create_task(listen_once())
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        await until(lambda: not listening(engine), description="the end of the connections")
    finally:
        gc.enable()


async def test_wait_chain_accepts_any_job_of_the_chain_even_a_detached_one(
    wait: Waiting, engine: Engine, jobs: Jobs
) -> None:
    root = jobs.add(JobStatus.COMPLETED)
    continuation = jobs.add(JobStatus.COMPLETED, chain_id=root, chain_index=1)
    write(engine, update(Job).where(Job.__table__.c.id == continuation).values(chain_completed_at=None))
    with Session(engine) as session:
        loaded, expired = session.get_one(Job, continuation), session.get_one(Job, root)
        assert (await wait(loaded)).id == root
        session.commit()
    for job in (loaded, expired):  # detached, with nothing loaded
        assert (await wait(job)).id == root
    with Session(engine) as session:
        chain = session.get_one(Job.Chain, root)
        assert (await wait(chain)).id == root
    with pytest.raises(errors.NotFoundError, match=f"belongs to chain {root}"):
        await wait(continuation)


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_schema="elsewhere", queue_prefix="mail_"):
    """A queue with another schema, prefix and type of ids."""


@pytest.mark.slow
async def test_wait_chain_works_with_an_applications_own_job_model(wait: Waiting, engine: Engine) -> None:
    Base.metadata.create_all(engine)
    text_jobs = Jobs(engine, TextJob)
    try:
        enqueue(engine, job := TextJob("test", id="it's :one"))
        result = asyncio.create_task(wait(job))
        await rests(text_jobs, "it's :one")
        with engine.begin() as connection:
            ended = "UPDATE elsewhere.mail_job SET status = 'completed', completed_at = now(), chain_completed_at = now()"
            connection.execute(text(ended))
            connection.execute(text("SELECT pg_notify('elsewhere.mail_job:ended', id) FROM elsewhere.mail_job"))
        assert (await result).id == "it's :one"
        assert (await wait("it's :one", model=TextJob)).id == "it's :one"
        with pytest.raises(errors.InvalidOptionError, match="the chain given is of another queue"):
            await wait(job, model=Job)
    finally:
        Base.metadata.drop_all(engine)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"timeout": timedelta(0)}, "timeout: must be a timedelta above zero"),
        ({"timeout": 5}, "timeout: must be a timedelta"),
        ({"poll_interval": timedelta(0)}, "poll_interval: must be a timedelta above zero"),
        ({"chain": "text"}, "chain: must be a chain, a job or an id of type UUID"),
        ({"chain": Job}, "chain: must be a chain, a job or an id of type UUID"),
    ],
    ids=str,
)
async def test_options_are_checked_before_anything_is_done(wait: Waiting, options: dict[str, Any], option: str) -> None:
    with pytest.raises(errors.InvalidOptionError, match=option):
        await wait(**{"chain": UUID(int=0)} | options)


async def test_wait_chain_with_the_wrong_kind_of_engine_names_the_other_function(
    engine: Engine, async_engine: AsyncEngine
) -> None:
    wrong: Any = async_engine
    with pytest.raises(errors.InvalidOptionError, match=r"use sa_jobqueue\.aio\.wait_chain"):
        wait_chain(wrong, uuid7(), timeout=SOON)
    wrong = engine
    with pytest.raises(errors.InvalidOptionError, match=r"use sa_jobqueue\.wait_chain"):
        await aio.wait_chain(wrong, uuid7(), timeout=SOON)


async def test_wait_chain_checks_once_more_at_its_timeout(jobs: Jobs, engine: Engine) -> None:
    chain_id = jobs.add()
    options: Any = {"timeout": timedelta(microseconds=1), "poll_interval": NEVER, "listen": False, "output": None}
    wait = Wait([chain_id], **options, model=None)
    # Before the last poll, although the time is over long since.
    steps_played, result = play(wait, engine, lambda step: end(engine, chain_id) if step == 2 else None)
    assert (steps_played, result.id) == (4, chain_id)
