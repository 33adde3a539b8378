"""Limits hold across processes, at every instant of the server's clock, also when one of them is killed."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.policies.fairness import queue_key_of
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import PATIENCE, Spawn, wait_until

pytestmark = pytest.mark.long

_RUNS = """
CREATE TABLE run (id bigint GENERATED ALWAYS AS IDENTITY, pid int, queue text, job_id uuid, attempt int,
  began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz);
INSERT INTO queue (name, global_concurrency, concurrency_per_key) VALUES ('default', 4, NULL), ('keyed', NULL, 1)
"""
_BEGIN = "INSERT INTO run (pid, queue, job_id, attempt) VALUES (:pid, :queue, :job_id, :attempt) RETURNING id"
_END = "UPDATE run SET ended = clock_timestamp() WHERE id = :id"
# A killed process never records its end; its slot is in use until its job is rescued.
_AT_ONCE = """
WITH span AS (SELECT run.id, run.queue, run.began, coalesce(run.ended, job_attempt.ended_at) AS ended
  FROM run LEFT JOIN job_attempt USING (job_id, attempt))
SELECT queue, max(n) FROM (SELECT one.queue, count(*) AS n FROM span AS one JOIN span AS other
  ON one.queue = other.queue AND one.began >= other.began AND one.began < other.ended GROUP BY one.id, one.queue) AS counted
GROUP BY queue
"""
WORKER = f"""
import asyncio, os
from datetime import timedelta
from sqlalchemy import create_engine, text
from sa_jobqueue import JobQueue, Worker, WorkerOptions
from sa_jobqueue.context import AttemptContext

engine = create_engine(os.environ["SA_JOBQUEUE_URL"], pool_size=10)
queue = JobQueue()

@queue.handler("recorded")
def recorded(payload: dict, ctx: AttemptContext) -> None:
    given = {{"pid": os.getpid(), "queue": ctx.job.queue_key, "job_id": ctx.job.id, "attempt": ctx.attempt}}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        number = connection.execute(text({_BEGIN!r}), given).scalar_one()
        connection.execute(text("SELECT pg_sleep(0.02)"))
        connection.execute(text({_END!r}), {{"id": number}})

options = WorkerOptions(
    queues=["default", "keyed"], concurrency=8, poll_interval=timedelta(milliseconds=100),
    rescue_interval=timedelta(milliseconds=200), heartbeat_interval=timedelta(milliseconds=200),
    heartbeat_timeout=timedelta(seconds=10),
)
asyncio.run(Worker(queue, engine, options=options).run())
"""


def test_queue_and_key_limits_apply_across_processes_when_one_is_killed(engine: Engine, jobs: Jobs, spawn: Spawn) -> None:
    def ask(statement: str, **given: Any) -> Any:
        with engine.begin() as connection:
            return connection.execute(text(statement), given).all()

    with engine.begin() as connection:
        connection.exec_driver_sql(_RUNS)

    def place(number: int) -> dict[str, Any]:
        return {"queue": "default"} if number % 2 else {"queue": "keyed", "fairness_key": f"{number % 5}"}

    workers = [spawn(WORKER) for _ in range(3)]
    pids = {worker.pid for worker in workers}
    # Before there are jobs, which the first worker to start could finish alone.
    wait_until(lambda: {row.pid for row in ask("SELECT pid FROM worker")} == pids, what="all of them have started")
    for number in range(200):
        jobs.add(type_name="recorded", input={}, **place(number))
    wait_until(lambda: {row.pid for row in ask("SELECT DISTINCT pid FROM run")} == pids, what="all of them work")
    victim = workers[0]

    def is_caught() -> bool:
        victim.send_signal(signal.SIGSTOP)
        if ask("SELECT 1 FROM run WHERE pid = :pid AND ended IS NULL", pid=victim.pid):
            return True
        victim.send_signal(signal.SIGCONT)
        return False

    wait_until(is_caught, what="it is stopped in the midst of a job")
    victim.send_signal(signal.SIGKILL)
    victim.wait(PATIENCE)
    jobs.silence(victim.pid)
    wait_until(lambda: set(jobs.statuses().values()) == {JobStatus.COMPLETED}, what="every job completes")
    assert ask("SELECT 1 FROM run WHERE ended IS NULL")
    most = {row.queue: row.max for row in ask(_AT_ONCE)}
    # Without the lock of the queue's row two claims count the same room.
    assert most.pop("default") == 4
    assert most == {queue_key_of("keyed", str(key)): 1 for key in range(5) if queue_key_of("keyed", str(key)) in most}
    assert len(most) == 5
