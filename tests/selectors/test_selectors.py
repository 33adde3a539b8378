"""A function of the application decides what starts next; whatever it says, each job starts once and none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import SelectorFailed
from sa_jobqueue.operations import pause_queues, resume_queues
from sa_jobqueue.registry import Candidate
from sa_jobqueue.testing import drain
from sa_jobqueue.worker.claim import arrivals, lanes
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call, write
from tests.fixtures.variants import variants
from tests.fixtures.workers import PATIENCE, Start, quick, until

Choose = Callable[[Sequence[Candidate], int], Any]


def recorder(**options: Any) -> tuple[JobQueue[Any], list[Any]]:
    """Return a queue whose handler notes its payload as it starts."""
    queue, payloads = JobQueue(), []

    @queue.handler("test", **options)
    async def note(payload: Any) -> None:
        payloads.append(payload)

    return queue, payloads


def largest_first(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: -candidate.input)


async def largest_first_later(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
    await asyncio.sleep(0)
    return largest_first(candidates, free)


@both_servers
@pytest.mark.parametrize("choose", [largest_first, largest_first_later], ids=["sync", "async"])
def test_jobs_start_in_the_order_the_selector_returns(engine: Engine, jobs: Jobs, choose: Choose) -> None:
    queue, payloads = recorder()
    queue.selector("default", inputs=True)(choose)
    for number in (3, 1, 4, 15, 9, 2, 6, 5, 35, 8):
        jobs.add(input=number, priority=number % 3)
    jobs.add(input=100, due_in=3600)
    drain(queue, engine, options=quick(concurrency=2))
    assert payloads == [35, 15, 9, 8, 6, 5, 4, 3, 2, 1]


def test_a_selector_sees_at_most_its_window_and_eventually_every_job(engine: Engine, jobs: Jobs) -> None:
    queue, payloads = recorder()
    offers: list[tuple[Any, ...]] = []

    @queue.selector("default", window=7)
    def last_first(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
        offers.append(tuple(candidates))
        assert free <= 3
        return list(reversed(candidates))

    ids = jobs.add_many(40)
    other = jobs.add(queue="other")
    drain(queue, engine, options=quick(concurrency=3, queues=["default", "other"]))
    assert len(payloads) == 41
    assert [candidate.id for candidate in offers[0]] == ids[:7]  # those that would start first
    assert max(map(len, offers)) == 7
    assert {candidate.id for offer in offers for candidate in offer} == set(ids)
    assert other not in ids
    assert all(candidate.input is None and candidate.queue == "default" for offer in offers for candidate in offer)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["raises", "nothing", "strange", "exits"])
async def test_a_failing_selector_is_reported_once_and_jobs_start_in_default_order(
    jobs: Jobs, start: Start, fault: str
) -> None:
    queue, payloads = recorder()
    calls = 0

    @queue.selector("default")
    def choose(candidates: Sequence[Candidate], free: int) -> Any:
        nonlocal calls
        calls += 1
        if fault == "raises":
            raise LookupError("no forecast")
        if fault == "exits":
            raise SystemExit
        return None if fault == "nothing" else [candidates[0]._replace(id=uuid4())]

    for number in range(30):
        jobs.add(input=number)
    async with start(queue, concurrency=1) as log:
        await until(lambda: len(payloads) == 30, description="all of them")
        failures = log.of(SelectorFailed)
    assert payloads == list(range(30))
    assert len(failures) == 1
    assert calls <= 3  # left alone for a second, then for two
    expected = {"raises": LookupError, "exits": RuntimeError}.get(fault, InvalidOptionError)
    assert isinstance(failures[0].error, expected)
    assert failures[0].selector.endswith("choose")
    assert failures[0].queue == "default"


@pytest.mark.parametrize("mode", variants(["sync", "async"], default=["sync"]))
async def test_a_hanging_selector_delays_claims_no_longer_than_its_timeout(jobs: Jobs, start: Start, mode: str) -> None:
    queue, payloads = recorder()
    calls, released = 0, threading.Event()

    def block(candidates: Sequence[Candidate], free: int) -> Any:
        nonlocal calls
        calls += 1
        released.wait(PATIENCE)
        return candidates

    async def wait(candidates: Sequence[Candidate], free: int) -> Any:
        nonlocal calls
        calls += 1
        with suppress(asyncio.CancelledError):  # not even so does it stop
            await asyncio.Event().wait()
        await asyncio.to_thread(released.wait, PATIENCE)
        return candidates

    queue.selector("default", timeout=timedelta(milliseconds=20))(block if mode == "sync" else wait)
    for number in range(20):
        jobs.add(input=number)
    try:
        async with start(queue, concurrency=1) as log:
            await until(lambda: len(payloads) == 20, description="all of them")
            assert [type(failure.error) for failure in log.of(SelectorFailed)] == [TimeoutError]
            assert calls == 1  # while a call is under way there is no other
    finally:
        released.set()
    assert payloads == list(range(20))


async def test_jobs_a_selector_leaves_out_are_offered_again_until_max_wait(
    jobs: Jobs, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrivals, "FULL_SCAN_EVERY", 0.3)
    monkeypatch.setattr(arrivals, "_SHARE_OF_FULL_SCANS", 1)
    queue, payloads = recorder()
    is_open = False
    asked = asyncio.Event()

    @queue.selector("default", inputs=True, window=5)
    async def open_only(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
        asked.set()
        return [candidate for candidate in candidates if is_open or candidate.input == "open"]

    for _ in range(5):
        jobs.add(input="shut")
    async with start(queue):
        await asyncio.wait_for(asked.wait(), PATIENCE)
        jobs.add(input="open", priority=9)
        await until(lambda: payloads == ["open"], description="the job that a full window hid goes first later")
        is_open = True
        # Without a notification: the worker polls again.
        await until(lambda: len(payloads) == 6, description="the others")

    queue, payloads = recorder()

    @queue.selector("default", max_wait=timedelta(milliseconds=50))
    def none(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
        return []

    jobs.add(input="overdue")
    async with start(queue):
        await until(lambda: payloads == ["overdue"], description="it starts although nobody chose it")


@pytest.mark.long
async def test_a_selector_that_leaves_out_a_full_window_is_not_called_in_a_tight_loop(jobs: Jobs, start: Start) -> None:
    queue, _ = recorder()
    loop = asyncio.get_running_loop()
    calls: list[float] = []

    @queue.selector("default", window=2)
    async def none(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
        calls.append(loop.time())
        return []

    for number in range(6):
        jobs.add(queue="default", fairness_key=str(number), input=number)
    async with start(queue, poll_interval=timedelta(seconds=60)):
        await until(
            lambda: len(calls) >= 10, description="it is asked again, also after those first looks that a woken worker takes"
        )
    # Parts that the window has no room for must not wake the worker: it would claim without a rest. Of the two rests one
    # is shorter where the machine stood still before it.
    assert calls[9] - calls[7] > 0.8 * lanes._SELECT_AGAIN


async def test_a_selector_is_offered_late_arrivals_and_retries(engine: Engine, start: Start) -> None:
    queue, payloads = JobQueue(), []
    queue.selector("default")(lambda candidates, free: candidates)

    @queue.handler("test", retry=lambda attempt, error: timedelta(milliseconds=20))
    async def note(payload: str) -> None:
        payloads.append(payload)
        if payload == "fails once" and payloads.count(payload) == 1:
            raise ValueError(payload)

    with Session(engine) as late, late.begin():
        late.add(Job("test", "late"))
        late.add(Job("test", "late", fairness_key="a"))
        late.flush()
        async with start(queue, poll_interval=timedelta(seconds=60)):
            enqueue(
                engine, Job("test", "fails once"), Job("test", "a", fairness_key="a"), Job("test", "b", fairness_key="b")
            )
            await until(lambda: len(payloads) >= 4, description="those that have committed")
            late.commit()
            await until(lambda: len(payloads) == 6, description="those behind the cursors")
    assert Counter(payloads) == {"fails once": 2, "late": 2, "a": 1, "b": 1}


async def test_limits_and_pauses_apply_whatever_the_selector_returns(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue = JobQueue()
    queue.selector("default")(
        lambda candidates, free: sorted(candidates, key=lambda candidate: candidate.fairness_key, reverse=True)
    )
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    payloads: list[str] = []

    @queue.handler("test")
    async def work(payload: str) -> None:
        payloads.append(payload)
        running.update([payload, "all"])
        for name in (payload, "all"):
            most[name] = max(most[name], running[name])
        await asyncio.sleep(0)
        running.subtract([payload, "all"])

    write(engine, "INSERT INTO queue (name, global_concurrency, concurrency_per_key) VALUES ('default', 5, 2)")
    call(engine, pause_queues, ["default"], fairness_key="c")
    for number in range(60):
        jobs.add(queue="default", fairness_key="abc"[number % 3], input="abc"[number % 3])
    async with start(queue, concurrency=8), start(queue, concurrency=8):
        await until(lambda: len(payloads) == 40, description="those of the keys that are not paused")
        assert set(payloads) == {"a", "b"}
        call(engine, resume_queues, ["default"], fairness_key="c")
        await until(lambda: len(payloads) == 60, description="all")
    assert most["all"] <= 5
    assert max(most[key] for key in "abc") <= 2


def test_a_selector_affects_no_other_queue_and_ordering_keys_stay_in_order(engine: Engine, jobs: Jobs) -> None:
    queue, payloads = recorder()
    queue.selector("default", inputs=True)(largest_first)
    for number in range(10):
        jobs.add(input=number, ordering_key="key")
        jobs.add(input=100 + number, queue="other")
    drain(queue, engine, options=quick(queues=["default", "other"], concurrency=3))
    assert [number for number in payloads if number < 100] == list(range(10))
    assert [number for number in payloads if number >= 100] == list(range(100, 110))


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("queue", {"queue": "-"}),
        ("window", {"window": 0}),
        ("window", {"window": 1001}),
        ("timeout", {"timeout": timedelta(0)}),
        ("timeout", {"timeout": 1}),
        ("max_wait", {"max_wait": timedelta(-1)}),
    ],
)
def test_a_selector_option_out_of_bounds_is_refused_by_name(field: str, options: dict[str, Any]) -> None:
    given = {"queue": "default"} | options
    with pytest.raises(InvalidOptionError) as caught:
        JobQueue().selector(**given)(largest_first)
    assert caught.value.option == field


def test_a_queue_has_one_selector_which_takes_two_arguments() -> None:
    queue, feature = JobQueue(), JobQueue()
    queue.selector("default")(largest_first)
    feature.selector("default")(largest_first)
    for declare in (lambda: queue.selector("default")(largest_first), lambda: queue.include(feature)):
        with pytest.raises(InvalidOptionError):
            declare()
    other = JobQueue()
    other.selector("other")(largest_first)
    queue.include(other)
    assert set(queue.selectors) == {"default", "other"}
    with pytest.raises(InvalidOptionError) as caught:
        queue.selector("third")(lambda candidates: candidates)  # type: ignore[type-var]
    assert caught.value.option == "choose"


_MOST = text("""
SELECT max(total) FROM (SELECT (SELECT sum(other.rate_cost) FROM job AS other WHERE other.rate_cost < 30
  AND other.started_at > one.started_at - make_interval(secs => :seconds) AND other.started_at <= one.started_at) AS total
  FROM job AS one) AS windows
""")


@pytest.mark.slow
async def test_a_selector_under_a_weighted_rate_limit_starts_jobs_in_order_within_it(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    """Which fit is found by rolling claims back, and counted in the ordinary order: fewer may start than would fit."""
    rule = "INSERT INTO queue (name, rate_limit, rate_period) VALUES ('default', 12, interval '300 ms')"
    write(engine, rule)
    queue, payloads = recorder()

    @queue.selector("default", window=20, inputs=True)
    def largest_of_all_first(candidates: Sequence[Candidate], free: int) -> list[Candidate]:
        return largest_first(candidates, free)

    # Light and heavy ones by turns, in both orders; the last of them is heavier than there ever is room for.
    weights = [1 + number * 5 % 7 for number in range(19)] + [30]
    for number, weight in enumerate(weights):
        jobs.add(input=number, rate_cost=weight)
    async with start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    assert payloads == list(reversed(range(20)))  # none passes one that is too heavy yet
    with engine.connect() as connection:
        # The burst, and what comes in meanwhile.
        assert connection.execute(_MOST, {"seconds": 0.3}).scalar_one() <= 24
        assert connection.execute(text("SELECT max(attempt) FROM job")).scalar_one() == 1
