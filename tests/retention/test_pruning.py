"""Ended chains deleted when their time is up, whole, and nothing else."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import ChainsPruned, EventBus
from sa_jobqueue.operations import PruneCursor, Pruned, prune, pruning
from sa_jobqueue.settings import FOREVER, QueueSettings, Retention, RetentionRules
from sa_jobqueue.worker.background.pruner import Pruner
from tests.fixtures.chains import continuation, edges, wait_for
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.retention import CANCELLED, COMPLETED, DAY, DEAD, age, dead_letters_of, ended, resolved
from tests.fixtures.transactions import call, write
from tests.fixtures.workers import PATIENCE, Start, shared

pytestmark = both_servers

MONTH = RetentionRules(default=Retention(completed=30 * DAY, cancelled=30 * DAY))


def walk(engine: Engine, rules: RetentionRules = MONTH, **options: Any) -> list[Pruned]:
    """Prune as a worker does, each call a transaction of its own; return what each did."""
    pages: list[Pruned] = []
    cursor: PruneCursor | None = PruneCursor()
    while cursor is not None:
        pages.append(call(engine, prune, rules, cursor=cursor, **options))
        cursor = pages[-1].next
    return pages


def test_pruning_applies_the_most_specific_retention_rule_to_ended_chains(engine: Engine, jobs: Jobs) -> None:
    expired = [ended(jobs, engine), ended(jobs, engine, CANCELLED), ended(jobs, engine, type_name="mail", days=2)]
    expired += [ended(jobs, engine, queue="fast", days=8), ended(jobs, engine, queue="said", days=4)]
    retained = [ended(jobs, engine, days=29), ended(jobs, engine, DEAD), ended(jobs, engine, queue="slow")]
    retained += [ended(jobs, engine, type_name="kept", queue="fast", days=400), jobs.add(), jobs.add(JobStatus.RUNNING)]
    with engine.begin() as connection:  # an operator's setting of a queue
        connection.execute(insert(Job.Queue).values(name="said", retain_completed=3 * DAY))
        connection.execute(insert(Job.Queue).values(name="slow", retain_completed=FOREVER))
    rules = RetentionRules(
        default=MONTH.default,
        queues={"fast": Retention(completed=7 * DAY), "slow": Retention(completed=DAY)},
        types={"mail": Retention(completed=DAY), "kept": Retention(completed=FOREVER)},
    )
    (pruned,) = walk(engine, rules)
    assert set(jobs.statuses()) == set(retained)
    assert pruned.chains == {("test", COMPLETED): 3, ("test", CANCELLED): 1, ("mail", COMPLETED): 1}
    assert (pruned.jobs, pruned.kept, pruned.scanned) == (5, 0, len(expired) + len(retained))
    dead = RetentionRules(types={"test": Retention(dead=30 * DAY)})
    assert walk(engine, dead)[0].chains == {("test", DEAD): 1}
    (dead_letter,) = jobs.dead_letters()
    assert (dead_letter["resolution"], dead_letter["resolved_by"]) == ("dismissed", "retention")


def test_pruning_deletes_whole_chains_but_none_that_is_open_or_awaited(engine: Engine, jobs: Jobs) -> None:
    chain_id, open_chain, awaited = ended(jobs, engine), jobs.add(COMPLETED), ended(jobs, engine)
    for index in (1, 2):
        age(engine, continuation(jobs, chain_id, index, COMPLETED), 1)
    age(engine, chain_id, 31)
    continuation(jobs, open_chain)
    with engine.begin() as connection:
        connection.execute(insert(Job.Attempt).values(job_id=chain_id, attempt=1, outcome="failed"))
        connection.execute(update(Job).where(Job.id == awaited).values(has_waiters=True))
        old = func.now() - 90 * DAY
        connection.execute(update(Job).where(Job.id == open_chain).values(completed_at=old, chain_completed_at=None))
    (pruned,) = walk(engine)
    assert (pruned.chains, pruned.jobs) == ({("test", COMPLETED): 1}, 3)
    assert set(jobs.statuses()) >= {open_chain, awaited}
    assert jobs.count() == 3
    assert jobs.attempts(chain_id) == []


def test_pruning_deletes_blockers_after_their_dependants_in_the_same_run(engine: Engine, jobs: Jobs) -> None:
    line = [ended(jobs, engine) for _ in range(5)]
    for blocker, job_id in pairwise(line):
        wait_for(engine, job_id, blocker, is_open=False)
    needed, by = ended(jobs, engine), jobs.add()
    wait_for(engine, by, needed, is_open=False)
    write(engine, update(Job).values(has_waiters=False))
    pages = walk(engine, scan=2)
    assert set(jobs.statuses()) == {needed, by}
    assert edges(engine) == {(by, needed)}
    assert sum(page.jobs for page in pages) == 5
    assert max(page.jobs for page in pages) <= 2  # a page a transaction


def test_a_prune_call_is_bounded_and_the_next_one_continues(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "MOST_JOBS", 3)
    long = ended(jobs, engine)
    for index in range(1, 6):
        continuation(jobs, long, index, COMPLETED)
    other_chains = [ended(jobs, engine) for _ in range(4)]
    age(engine, long, 31)
    assert [page.jobs for page in walk(engine)] == [6, 3, 1]  # a chain is never cut
    assert jobs.count() == 0
    assert other_chains


def test_pruning_skips_locked_chains_and_deletes_them_in_the_next_run(engine: Engine, jobs: Jobs, session: Session) -> None:
    locked_chain, of_chain, free = ended(jobs, engine), ended(jobs, engine), ended(jobs, engine)
    later = continuation(jobs, of_chain, 1, COMPLETED)
    age(engine, of_chain, 31)
    session.execute(select(Job.id).where(Job.id.in_([locked_chain, later])).with_for_update())
    write(engine, "SET LOCAL statement_timeout = '60s'")
    (pruned,) = walk(engine)
    assert (pruned.jobs, pruned.kept) == (1, 2)
    assert free not in jobs.statuses()
    session.rollback()
    assert walk(engine)[0].jobs == 3


def test_a_dry_run_of_prune_counts_and_changes_nothing(engine: Engine, jobs: Jobs) -> None:
    ended(jobs, engine, CANCELLED)
    blocker, job_id = ended(jobs, engine), jobs.add()
    wait_for(engine, job_id, blocker, is_open=False)
    before = jobs.statuses()
    (pruned,) = walk(engine, dry_run=True)
    assert (pruned.chains, pruned.jobs, pruned.kept) == ({("test", CANCELLED): 1}, 1, 0)
    write(engine, update(Job).values(has_waiters=False))
    assert walk(engine, dry_run=True)[0].kept == 1
    assert jobs.statuses() == before


def test_without_retention_nothing_is_pruned_and_invalid_ages_are_refused(
    session: Session, engine: Engine, jobs: Jobs
) -> None:
    ended(jobs, engine, days=4000)
    assert prune(session, RetentionRules()).next is None
    assert jobs.count() == 1
    with pytest.raises(InvalidOptionError, match=r"retention\.dead: must be from 0 to 36,500 days, got -1 day"):
        Retention(dead=-DAY)
    with pytest.raises(InvalidOptionError, match=r"retention\.completed: must be a timedelta, got 30"):
        Retention(completed=30)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="retention: must be a Retention"):
        JobQueue(retention=30 * DAY)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="scan: must be from 1 to 10,000, got 0"):
        prune(session, MONTH, scan=0)


async def test_a_worker_prunes_by_the_retention_of_its_registry(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue: JobQueue[Any] = JobQueue(retention=Retention(completed=30 * DAY))

    @queue.handler("mail", retention=Retention(completed=DAY))
    def mail() -> None: ...

    @queue.handler("test", retention=None)
    def test() -> None: ...

    expired = [ended(jobs, engine, type_name="mail", days=2), ended(jobs, engine)]
    retained = ended(jobs, engine, days=2)
    async with start(queue, prune_interval=timedelta(milliseconds=100)) as log:
        (event,) = await log.until(ChainsPruned)
    assert (event.chains, event.jobs) == (len(expired), len(expired))
    assert set(jobs.statuses()) == {retained}


async def test_only_a_full_prune_scan_looks_beyond_recent_chains(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    young = jobs.add_many(pruning.SCAN)
    late = ended(jobs, engine)  # the youngest by its id: of a client whose clock was wrong, say
    pruner = Pruner(shared(async_engine, JobQueue(retention=MONTH.default)))
    await pruner.walk(to_the_end=False)
    assert late in jobs.statuses()
    await pruner.walk(to_the_end=True)
    assert set(jobs.statuses()) == set(young)


def test_pruning_applies_the_most_specific_rule_to_resolved_dead_letters(engine: Engine, jobs: Jobs) -> None:
    expired = {
        resolved(jobs, engine),
        resolved(jobs, engine, type_name="mail", days=8),
        resolved(jobs, engine, queue="q", days=9),
    }
    retained = {
        resolved(jobs, engine, days=80),
        resolved(jobs, engine, type_name="kept", queue="q", days=900),
        jobs.add(DEAD),
    }
    retained |= {resolved(jobs, engine, dead=True)}  # it alone tells why
    rules = RetentionRules(
        default=Retention(completed=DAY, dead_letters=90 * DAY),
        queues={"q": Retention(dead_letters=DAY)},
        types={"mail": Retention(dead_letters=7 * DAY), "kept": Retention(dead_letters=FOREVER)},
    )
    assert sum(page.dead_letters for page in walk(engine, rules, dry_run=True)) == len(expired)
    assert dead_letters_of(jobs) == expired | retained
    pages = walk(engine, replace(rules, default=replace(rules.default, completed=None)), scan=3)
    assert (sum(page.dead_letters for page in pages), sum(page.scanned for page in pages)) == (3, 7)
    assert dead_letters_of(jobs) == retained
    with pytest.raises(InvalidOptionError, match=r"retention\.dead_letters"):
        QueueSettings(name="q", retention=Retention(dead_letters=DAY))


async def test_the_worker_prunes_dead_letters_after_chains_and_skips_locked_ones(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    free, locked_letter = resolved(jobs, engine), resolved(jobs, engine)
    bus, events = EventBus(), list[Any]()
    bus.subscribe(events.append)
    pruner = Pruner(shared(async_engine, JobQueue(retention=Retention(dead_letters=90 * DAY)), events=bus))
    with engine.connect() as holder:
        holder.execute(text("SELECT 1 FROM dead_letter WHERE job_id = :id FOR UPDATE"), {"id": locked_letter})
        await asyncio.wait_for(pruner.walk(to_the_end=False), PATIENCE)
    assert free not in dead_letters_of(jobs)
    assert dead_letters_of(jobs) == {locked_letter}
    assert events == [ChainsPruned(0, 0, 1)]
    await pruner.walk(to_the_end=False)
    assert dead_letters_of(jobs) == set()
