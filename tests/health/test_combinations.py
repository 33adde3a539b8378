"""Random combinations of problems: the report has exactly the findings that the record of the staging script asks for.

The oracle is that record alone: it shares no query with the report. Each finding has a mutant, whose evidence is not
measured, and which the same check must catch.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, insert, select, text

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models.minute import BOUNDS
from sa_jobqueue.observe.health import Code, Finding, health, measuring
from sa_jobqueue.observe.health.figures import Health, Workers
from tests.fixtures.database import SWEEP, both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import write


@dataclass
class Scene:
    """A queue in which problems are staged, each with its own names."""

    engine: Engine
    jobs: Jobs
    stack: ExitStack

    def run(self, statement: str, **values: Any) -> None:
        """Run SQL in a transaction of its own."""
        write(self.engine, statement, values)


def paused(scene: Scene) -> None:
    scene.run("INSERT INTO queue (name, paused_at, paused_by) VALUES ('news', now() - interval '1 h', 'carol')")


def broken(scene: Scene) -> None:
    scene.run("INSERT INTO schedule (name, type_name, cron, error) VALUES ('report', 't', 'never', 'cron: is none')")


def missed(scene: Scene) -> None:
    columns = "name, type_name, cron, next_fire_at, missed_from, missed_until"
    times = "now() + '1 hour'::interval, now() - '3 hours'::interval, now() - '1 hour'::interval"
    scene.run(f"INSERT INTO schedule ({columns}) VALUES ('cleanup', 't', '@hourly', {times})")


def silent(scene: Scene) -> None:
    scene.jobs.add_worker("gone:1", name="gone", silent_for=60, queues=["other"])


def failing(scene: Scene) -> None:
    scene.jobs.add_worker("weak:1", name="weak", queues=["weak"], failure="claimer: InsufficientPrivilege: no")


def stuck(scene: Scene) -> None:
    scene.jobs.add_worker("stuck:1", name="stuck", queues=["stuck"], concurrency=3, stuck_threads=2)


def unserved(scene: Scene) -> None:
    scene.jobs.add(queue="lonely")


def late(scene: Scene) -> None:
    scene.jobs.add(type_name="send_fax", due_in=-120)


def row_locked(scene: Scene) -> None:
    """A session of the application that is idle in a transaction has locked the row of a due job."""
    job_id = scene.jobs.add(queue="locked", due_in=-120)
    scene.jobs.add_worker("locker:1", name="locker", queues=["locked"])
    engine = create_engine(scene.engine.url, connect_args={"application_name": "metabase"})
    scene.stack.callback(engine.dispose)
    connection = scene.stack.enter_context(engine.connect())
    connection.execute(select(Job.id).where(Job.id == job_id).with_for_update())


def dead(scene: Scene) -> None:
    scene.jobs.add(JobStatus.DEAD, type_name="refund", queue="refunds")


def long_running(scene: Scene) -> None:
    scene.jobs.add(JobStatus.RUNNING, type_name="crunch", queue="numbers")
    scene.run("UPDATE job SET started_at = now() - interval '3 h' WHERE type_name = 'crunch'")


def quarantined(scene: Scene) -> None:
    columns = "subject, statement, error, sqlstate, failures, first_failed_at, retry_at"
    values = "'9', 'finish', 'no', '23514', 1, now() - interval '1 min', now()"
    scene.run(f"INSERT INTO quarantine ({columns}) VALUES ({values})")


def growing(scene: Scene) -> None:
    counts = {"enqueued": 5000, "completed": 10, "due": 4990, "zeros": [0] * (len(BOUNDS) + 1)}
    for queue, type_name in (("", ""), ("search", "crawl")):
        scene.run(
            "INSERT INTO job_minute (minute, queue, type_name, enqueued, completed, failed, died, cancelled, due, running, "
            "wait, run) VALUES (date_trunc('minute', now()), :queue, :type_name, :enqueued, :completed, 0, 0, 0, :due, 0, "
            ":zeros, :zeros)",
            queue=queue,
            type_name=type_name,
            **counts,
        )


def long_chain(scene: Scene) -> None:
    root = scene.jobs.add(JobStatus.RUNNING, type_name="poll")
    columns = {"type_name": "poll", "chain_type_name": "poll", "queue": "default", "priority": 0, "max_attempts": 2}
    columns |= {"input_version": 1, "input": None, "chain_index": 5000, "chain_id": root, "id": uuid7()}
    later = {"scheduled_at": func.now() + timedelta(hours=1)}
    with scene.engine.begin() as connection:
        connection.execute(text("ALTER TABLE job DISABLE TRIGGER USER"))
        connection.execute(insert(Job.__table__).values(columns | later))  # type: ignore[arg-type]
        connection.execute(text("ALTER TABLE job ENABLE TRIGGER USER"))


def restarting(scene: Scene) -> None:
    for number in range(6):
        scene.jobs.add(JobStatus.COMPLETED, completed_by=f"leaky:{number:06x}")


def disagreeing(scene: Scene) -> None:
    for name in ("one", "two"):
        report = {"declared": {"schedule monthly": name}}
        scene.jobs.add_worker(f"{name}:1", name=name, queues=["declared"], report=report)


STAGES: dict[Callable[[Scene], None], tuple[Code, str, str]] = {
    paused: (Code.PAUSED, "Queue 'news' has been paused for 1 h by carol", "settings"),
    broken: (Code.SCHEDULE_BROKEN, "'report'", "schedules"),
    missed: (Code.SCHEDULE_MISSED, "'cleanup' left out", "schedules"),
    silent: (Code.WORKERS_SILENT, "Worker gone:1 on here has had no heartbeat", "workers"),
    failing: (Code.WORKER_FAILING, "Worker weak:1 keeps failing", "workers"),
    stuck: (Code.STUCK_THREADS, "Worker stuck:1 has 2 of 3 slots", "workers"),
    unserved: (Code.QUEUE_UNSERVED, "'lonely'", "unserved"),
    late: (Code.CLAIM_AGE, "has no handler for 'send_fax'", "waiting"),
    row_locked: (Code.CLAIM_AGE, "Queue 'locked'", "waiting"),
    dead: (Code.DEAD_LETTERS, "Jobs of refund died", "failures"),
    long_running: (Code.LONG_RUNNING, "crunch ", "running"),
    quarantined: (Code.QUARANTINED, "9 cannot be written", "quarantined"),
    growing: (Code.GROWING, "More jobs of crawl", "growth"),
    long_chain: (Code.LONG_CHAIN, "has 5,001 jobs", "long_chains"),
    restarting: (Code.WORKERS_RESTARTING, "Worker 'leaky' was started 6 times", "starts"),
    disagreeing: (Code.DECLARED_DIFFERENTLY, "schedule 'monthly'", "workers"),
}
"""Each problem with the code of its finding, words of it that no other has, and the figure that is its evidence."""


def is_well_formed(finding: Finding) -> bool:
    """Return whether the cause is a clause, and the details are sentences."""
    return not finding.headline.endswith(".") and finding.details[-1:] in {"", "."}


def fault(engine: Engine, jobs: Jobs, stages: list[Callable[[Scene], None]]) -> str:
    """Stage problems and return how the report differs from the record of the staged ones; empty if it does not."""
    write(engine, SWEEP)
    record: list[tuple[Code, str]] = []
    with ExitStack() as stack:
        jobs.add_worker()
        for stage in stages:
            stage(Scene(engine, jobs, stack))
            record.append(STAGES[stage][:2])
        findings = list(health(engine).findings)
    faults = [f"not a clause and sentences: {finding}" for finding in findings if not is_well_formed(finding)]
    for code, words in record:
        matching = [finding for finding in findings if finding.code is code and words in finding.summary]
        if len(matching) != 1:
            faults.append(f"{len(matching)} findings of {code} with {words!r}")
        findings = [finding for finding in findings if finding not in matching]
    faults += [f"not staged: {finding.code}: {finding.summary}" for finding in findings]
    return "; ".join(faults)


@both_servers
@pytest.mark.parametrize("seed", range(6))
def test_a_random_combination_has_the_findings_of_its_problems_and_no_others(seed: int, engine: Engine, jobs: Jobs) -> None:
    choices = random.Random(seed)
    for size in (3, 6, len(STAGES)):
        stages = choices.sample(list(STAGES), size)
        assert fault(engine, jobs, stages) == "", [stage.__name__ for stage in stages]


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.__name__)
def test_a_finding_whose_evidence_is_not_measured_is_missed_by_the_check(
    stage: Callable[[Scene], None], engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = STAGES[stage][2]
    (figure,) = [figure for figure in fields(Health) if figure.name == name]
    empty: Any = figure.default if figure.default is not MISSING else {}
    if name == "workers":
        empty = Workers(heartbeat_timeout=timedelta(seconds=15))
    monkeypatch.setitem(measuring._FIGURES, name, lambda reading: empty)
    assert f"0 findings of {STAGES[stage][0]}" in fault(engine, jobs, [stage])
