"""Priorities that change: of a job, a chain, or whatever fits; exact beside claims, and obeyed by the next one."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session, sessionmaker

from sa_jobqueue import Job, JobStatus, list_jobs
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import JobFilter, set_priority
from tests.fixtures.chains import Chains
from tests.fixtures.commands import Run, document, run
from tests.fixtures.database import both_servers
from tests.fixtures.holders import until_locks_are_waited_for
from tests.fixtures.jobs import Jobs
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE

__all__ = ["run"]  # a fixture

pytestmark = both_servers
Sessions = sessionmaker[Session]


def priorities(jobs: Jobs) -> dict[Any, int]:
    return {job_id: jobs.get(job_id)["priority"] for job_id in jobs.statuses()}


def test_a_job_moved_behind_a_cursor_by_set_priority_is_claimed(sessions: Sessions, jobs: Jobs, manual_worker: Any) -> None:
    worker = manual_worker()
    late, old, older = jobs.add(priority=-9), jobs.add(priority=-5, due_in=-50), jobs.add(due_in=-80)
    first = jobs.add(priority=9, due_in=-1)
    assert [job.id for job in worker.claim(1)] == [first]
    with sessions.begin() as session:
        loaded = session.get(Job, old)
        page = set_priority(session, 9, where=JobFilter(ids=[old, late, first]))
        assert sorted(page.ids) == sorted([old, late])  # the one that runs keeps its own
        assert loaded is not None
        assert loaded.priority == 9
        assert set_priority(session, 9, where=JobFilter(ids=[old, late])).ids == []
    # Behind its lane's floor, by the stamp alone: without it the older one, of priority 0, would be next.
    assert {job.id for job in worker.claim(2)} == {old, late}
    assert [job.id for job in worker.claim(2)] == [older]


def test_set_priority_changes_only_matching_jobs_page_by_page(sessions: Sessions, jobs: Jobs, chains: Chains) -> None:
    tenants = [jobs.add(input={"tenant": n % 2}) for n in range(6)]
    elsewhere = jobs.add(queue="other", input={"tenant": 1})
    blocked = jobs.add(JobStatus.BLOCKED, input={"tenant": 1})
    completed_id = jobs.add(JobStatus.COMPLETED, input={"tenant": 1})
    root, following = chains.add(JobStatus.COMPLETED, JobStatus.PENDING)
    seven = Job.input["tenant"].as_integer() == 1
    changed, after = [], None
    with sessions() as session:
        while True:
            where = JobFilter(queues=["default"])
            page = set_priority(session, 3, where=where, matching=seven, after=after, limit=2, scan_limit=4)
            session.commit()
            changed += page.ids
            after = page.next
            if after is None:
                break
        assert changed == [*tenants[1::2], blocked]
        assert set_priority(session, -4, where=JobFilter(chain_ids=[root])).ids == [following]
        assert [job.id for job in list_jobs(session, matching=seven & (Job.priority == 0))] == [completed_id, elsewhere]
        session.commit()
    assert {job_id for job_id, priority in priorities(jobs).items() if priority} == {*changed, following}


def test_set_priority_skips_a_job_claimed_concurrently(
    engine: Engine, sessions: Sessions, jobs: Jobs, manual_worker: Any
) -> None:
    first, second = jobs.add(), jobs.add()
    changed_ids: list[Any] = []

    def change() -> None:
        changed_ids.extend(call(sessions, set_priority, 5, where=JobFilter(types=["test"])).ids)

    worker = manual_worker()
    assert [job.id for job in worker.claim(1, commit=False)] == [first]
    changing = threading.Thread(target=change)
    changing.start()
    until_locks_are_waited_for(engine)
    worker.connection.commit()
    changing.join(PATIENCE)
    # Without the condition on its status under the lock, a running job would be changed.
    assert (changed_ids, priorities(jobs)) == ([second], {first: 0, second: 5})


def test_set_priority_refuses_invalid_arguments(sessions: Sessions) -> None:
    foreign_condition: Any = Job.Attempt.job_id == Job.id
    refusals: list[tuple[str, int, dict[str, Any]]] = [
        ("priority", 10, {}),
        ("priority", True, {}),
        ("where", 1, {"where": JobFilter(statuses=[JobStatus.RUNNING])}),
        ("matching", 1, {"matching": foreign_condition}),
        ("matching", 1, {"matching": "tenant = 7"}),
        ("limit", 1, {"limit": 0}),
    ]
    with sessions() as session:
        for option, priority, options in refusals:
            with pytest.raises(InvalidOptionError) as refused:
                set_priority(session, priority, **options)
            assert refused.value.option == option


def test_the_priority_command_reports_its_count_and_requires_a_filter(run: Run, jobs: Jobs) -> None:
    mine = [jobs.add(input={"tenant": 7, "n": n}) for n in range(3)]
    jobs.add(input={"tenant": 8})
    command = ["jobs", "priority", "--to", "5", "--queue", "default", "--payload", '{"tenant": 7}']
    assert document(run(*command, "--dry-run", "--json")) == {"priority": 5, "dry_run": True, "jobs": 3}
    assert "3 jobs changed to priority 5" in run(*command).stdout
    assert "0 jobs changed to priority 5" in run(*command).stdout
    assert "1 job changed to priority -1" in run("jobs", "priority", str(mine[0]), "--to", "-1").stdout
    assert sorted(priorities(jobs).values()) == [-1, 0, 5, 5]
    assert "pass ids" in run("jobs", "priority", "--to", "5", status=2).stderr
    assert "must be JSON" in run("jobs", "priority", "--to", "5", "--payload", "{", status=2).stderr
