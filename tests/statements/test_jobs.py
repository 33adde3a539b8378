"""Due jobs without a handler. The other statements about jobs are tested by their operations."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.statements import jobs as statements
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.plans import Prepared, connect
from tests.statements.conftest import Run

pytestmark = both_servers


def unknown(run: Run, *types: str) -> set[Any]:
    parameters = {"queues": ["default", "other"], "types": list(types), "ttl": timedelta(seconds=15)}
    rows = run(statements.unknown_types(Job), parameters)
    assert len({row[0] for row in rows}) == len(rows)
    return {row[0] for row in rows}


def test_types_of_jobs_not_due_or_not_served_are_not_reported(jobs: Jobs, run: Run) -> None:
    jobs.add(type_name="later", due_in=60)
    jobs.add(type_name="elsewhere", queue="elsewhere")
    jobs.add(JobStatus.RUNNING, type_name="running")
    assert unknown(run) == set()


def test_a_type_that_a_live_worker_handles_is_not_reported(jobs: Jobs, run: Run) -> None:
    jobs.add(type_name="theirs")
    jobs.add(type_name="gone")
    jobs.add_worker("alive", job_types=["theirs"], silent_for=1)
    jobs.add_worker("dead", job_types=["gone"], silent_for=20)
    assert unknown(run) == {"gone"}


def test_unhandled_types_are_searched_in_the_first_thousand_jobs(jobs: Jobs, run: Run) -> None:
    jobs.add_many(1000, type_name="mine")
    jobs.add(type_name="deep")  # the youngest
    assert unknown(run, "mine") == set()


def test_an_unhandled_type_within_a_fairness_key_is_reported(jobs: Jobs, run: Run) -> None:
    jobs.add(type_name="mine", queue="default", fairness_key="1")
    jobs.add(type_name="nobody's", queue="default", fairness_key="2")
    jobs.add(type_name="low", queue="default", fairness_key="2", priority=-1)
    jobs.add(type_name="later", queue="default", fairness_key="3", due_in=60)
    jobs.add(type_name="elsewhere", queue="elsewhere", fairness_key="2")
    assert unknown(run, "mine") == {"nobody's", "low"}


@pytest.mark.slow
def test_an_unserved_queue_is_found_by_reading_one_row(jobs: Jobs, run: Run, database_url: str) -> None:
    jobs.add_worker("alive", queues=["served"])
    for number in range(40):
        jobs.add_many(50, queue="served", fairness_key=str(number))
        jobs.add_many(50, queue="alone", fairness_key=str(number))
    jobs.add(queue="later", fairness_key="1", due_in=60)
    jobs.add_worker("dead", queues=["alone"], silent_for=20)
    statement, parameters = statements.unserved_queues(Job), {"ttl": timedelta(seconds=15)}
    assert run(statement, parameters) == [("alone",)]
    with connect(database_url) as server:
        plan = Prepared(server, "unserved", statement).explain(parameters)
    # A name of each queue, and a due job of each unserved one.
    read = [node["Actual Rows"] * node["Actual Loops"] for node in plan.nodes if node.get("Relation Name") == "job"]
    assert sum(read) <= 3 + 50 + 5, plan.shape
