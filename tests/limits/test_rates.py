"""Rates hold across workers by weight, at every instant of the server's clock: of a queue, of a key and of a type."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.operations import enqueue_many, explain_job
from sa_jobqueue.operations.explaining import Cause
from tests.fixtures.database import own_database
from tests.fixtures.jobs import Jobs, foreign
from tests.fixtures.transactions import write
from tests.fixtures.workers import Start, through_poolers, until

RULES = """
INSERT INTO queue (name, fairness_key, rate_limit, rate_period, rate_burst) VALUES
  ('default', '', 60, interval '1 second', 20),
  ('default', 'a', 8, interval '500 ms', NULL);
INSERT INTO job_type (type_name, rate_limit, rate_period, rate_burst) VALUES ('test', 40, interval '1 second', 30)
"""
# Most that any stretch of time has beyond what it may have at so much a second.
_BEYOND = """
SELECT max(total - :per_second * seconds) FROM (SELECT extract(epoch FROM later.started_at - first.started_at) AS seconds,
  (SELECT sum(coalesce(rate_cost, 1)) FROM job WHERE fairness_key LIKE :key
    AND started_at BETWEEN first.started_at AND later.started_at) AS total
  FROM job AS first JOIN job AS later ON later.started_at >= first.started_at
  WHERE first.fairness_key LIKE :key AND later.fairness_key LIKE :key) AS stretches
"""


def scalar(engine: Engine, statement: str, **given: Any) -> float:
    with engine.connect() as connection:
        return float(connection.execute(text(statement), given).scalar_one())


@own_database
@through_poolers
@pytest.mark.long
async def test_weighted_rate_limits_apply_in_every_stretch_of_time_across_three_workers(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(RULES)
    queue = JobQueue()

    @queue.handler("test")
    async def work() -> None:
        pass

    for number in range(36):
        jobs.add(queue="default", fairness_key="abc"[number % 3], rate_cost=(None, 2, 5, 1, 7)[number % 5])
    async with start(queue), start(queue), start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    assert scalar(engine, _BEYOND, key="a", per_second=16) <= 8 + 1e-3
    assert scalar(engine, _BEYOND, key="%", per_second=40) <= 30 + 1e-3
    assert scalar(engine, _BEYOND, key="%", per_second=60) <= 20 + 1e-3
    # Nothing was started for nothing: what was too heavy was rolled back.
    assert scalar(engine, "SELECT max(attempt) FROM job") == 1


@pytest.mark.slow
@own_database
@through_poolers
async def test_a_job_costing_more_than_the_rate_limit_starts_alone_and_delays_the_next(
    engine: Engine, jobs: Jobs, start: Start
) -> None:
    write(engine, "INSERT INTO queue (name, rate_limit, rate_period) VALUES ('default', 5, interval '300 ms')")
    first, heavy, last = jobs.add(rate_cost=5), jobs.add(rate_cost=10), jobs.add()
    queue = JobQueue()

    @queue.handler("test")
    async def work() -> None:
        pass

    async with start(queue):
        await until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, description="every job completes")
    at = [jobs.get(one)["started_at"] for one in (first, heavy, last)]
    assert all(later - earlier >= timedelta(milliseconds=300) for earlier, later in pairwise(at))


def test_rate_cost_comes_from_the_job_or_its_handler_and_is_validated(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("test", rate_cost=4)
    async def work(number: int) -> None:
        pass

    with Session(engine) as session, session.begin():
        session.add_all([work.job(1), work.job(2, rate_cost=2), Job("test", 3), foreign("test", 8)])
        enqueue_many(session, [work.job(4), work.job(5, rate_cost=3)])
        work.enqueue_many(session, [6])
        work.enqueue_many(session, [7], rate_cost=9)
    with Session(engine) as session:
        weights = {job.input: job.rate_cost for job in session.query(Job)}
    assert weights == {1: 4, 2: 2, 3: 4, 8: None, 4: 4, 5: 3, 6: 4, 7: 9}
    for wrong in (0, -1, 1.5, True, 1_000_001):
        with pytest.raises(InvalidJobError, match="rate_cost"):
            Job("test", 3, rate_cost=wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidJobError, match="rate_cost"):
        queue.handler("other", rate_cost=0)


def test_explain_names_the_rate_limit_the_cost_and_the_next_start(engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker("free:1", concurrency=5)
    used = """
    INSERT INTO queue (name, rate_limit, rate_period) VALUES ('default', 6, interval '1 hour');
    INSERT INTO rate_state (is_type, name, spent_at, tokens) VALUES (false, 'default', now(), 2)
    """
    with engine.begin() as connection:
        connection.exec_driver_sql(used)
    with Session(engine) as session:
        assert explain_job(session, jobs.add(rate_cost=2)).cause is Cause.READY
        found = explain_job(session, jobs.add(rate_cost=3, priority=1))
    assert found.cause is Cause.RATE_LIMITED
    assert "starts no jobs of rate_cost 3 by its rate limit" in found.sentence
    assert timedelta(minutes=9) < found.evidence["next_start"] <= timedelta(minutes=10)
