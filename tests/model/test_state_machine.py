"""The queue does what its model says, whatever happens in whatever order; and whatever has happened, nothing is stuck."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, run_state_machine_as_test

from sa_jobqueue.operations import Cause, explain_job
from tests.fixtures.database import own_database
from tests.fixtures.transactions import call
from tests.model.machine import (
    COMMITS,
    WORKER,
    QueueMachine,
    Transaction,
    has_chains_to_unblock,
    has_claimed,
    has_dead,
    has_due,
    has_jobs,
    has_owned,
    has_room,
    same,
    step,
)
from tests.model.system import HALF, WORKERS, System

pytestmark = pytest.mark.slow

MINUTES = float(os.environ.get("SA_JOBQUEUE_MODEL_MINUTES", "0"))


class TheQueue(QueueMachine):
    """The steps."""

    def _alone(self, action: Callable[[st.DataObject, Transaction], None], data: st.DataObject, *, commit: bool) -> None:
        with self.transaction(commit=commit) as transaction:
            action(data, transaction)

    @step(initialize, data=st.data())
    def begin(self, data: st.DataObject) -> None:
        with self.transaction(commit=True) as transaction:
            self._enqueue(data, transaction, least=3, most=6)

    @precondition(has_room)
    @step(data=st.data(), commit=COMMITS)
    def enqueue(self, data: st.DataObject, commit: bool) -> None:
        self._alone(self._enqueue, data, commit=commit)

    @precondition(has_room)
    @step(data=st.data(), commit=COMMITS)
    def enqueue_once(self, data: st.DataObject, commit: bool) -> None:
        self._alone(self._enqueue_once, data, commit=commit)

    @precondition(has_room)
    @step(data=st.data(), commit=COMMITS)
    def enqueue_around_a_savepoint(self, data: st.DataObject, commit: bool) -> None:
        """Write some jobs in a savepoint that is rolled back, then others."""
        with self.transaction(commit=commit) as transaction:
            savepoint = transaction.session.begin_nested()
            self._enqueue(data, Transaction(transaction.session, transaction.model, transaction.start))
            if savepoint.is_active:  # a refusal has ended it otherwise
                savepoint.rollback()
            self._enqueue(data, transaction)

    @precondition(has_jobs)
    @step(data=st.data(), commit=COMMITS)
    def cancel(self, data: st.DataObject, commit: bool) -> None:
        self._alone(data.draw(st.sampled_from([self._cancel, self._cancel_chains])), data, commit=commit)

    @precondition(has_dead)
    @step(data=st.data(), commit=COMMITS)
    def redrive(self, data: st.DataObject, commit: bool) -> None:
        self._alone(self._redrive, data, commit=commit)

    @precondition(has_jobs)
    @step(data=st.data(), commit=COMMITS)
    def complete_without_a_worker(self, data: st.DataObject, commit: bool) -> None:
        self._alone(self._complete_unclaimed, data, commit=commit)

    @precondition(has_jobs)
    @step(data=st.data(), commit=COMMITS)
    def delete(self, data: st.DataObject, commit: bool) -> None:
        self._alone(self._delete, data, commit=commit)

    @precondition(has_jobs)
    @step(data=st.data(), commit=COMMITS)
    def do_by_sql(self, data: st.DataObject, commit: bool) -> None:
        actions = [self._change_by_sql, self._enqueue_by_sql]
        self._alone(data.draw(st.sampled_from(actions)), data, commit=commit)

    @precondition(has_jobs)
    @step(data=st.data(), commit=COMMITS)
    def do_a_small_thing(self, data: st.DataObject, commit: bool) -> None:
        actions = [self._reschedule, self._await_end, self._dismiss, self._wait_for_nothing]
        self._alone(data.draw(st.sampled_from(actions), "action"), data, commit=commit)

    @precondition(has_room)
    @step(data=st.data(), commit=COMMITS)
    def do_several_in_one_transaction(self, data: st.DataObject, commit: bool) -> None:
        actions = [
            *(self._enqueue, self._enqueue_once, self._complete_unclaimed, self._cancel, self._cancel_chains),
            *(self._redrive, self._delete, self._change_by_sql, self._await_end, self._reschedule, self._enqueue_by_sql),
        ]
        with self.transaction(commit=commit) as transaction:
            for _ in range(data.draw(st.integers(2, 3), "actions")):
                data.draw(st.sampled_from(actions), "action")(data, transaction)

    # Workers.

    @precondition(has_due)
    @step(data=st.data(), worker=WORKER, limit=st.integers(1, 5), commit=COMMITS, is_cold=st.booleans())
    def claim(self, data: st.DataObject, worker: str, limit: int, commit: bool, is_cold: bool) -> None:
        if is_cold:
            self.system.manual_worker[worker].reset()
        self._claim(worker, limit, locked=self._draw_held(data, self.model.due()), commit=commit)

    @precondition(has_due)
    @step(data=st.data(), worker=WORKER, limit=st.integers(1, 3))
    def work(self, data: st.DataObject, worker: str, limit: int) -> None:
        self._work(data, worker, limit)

    @precondition(has_due)
    @step(data=st.data(), worker=WORKER, limit=st.integers(2, 5))
    def work_on_several(self, data: st.DataObject, worker: str, limit: int) -> None:
        self._work(data, worker, limit)

    def _work(self, data: st.DataObject, worker: str, limit: int) -> None:
        """Claim, and end each attempt somehow."""
        for row in self._claim(worker, limit):
            data.draw(st.sampled_from(self._ends), "end")(data, worker, [row], commit=True)
            self.check()

    @property
    def _ends(self) -> list[Callable[..., None]]:
        return [self._complete_some, self._finish, self._complete_in_a_session, self._complete_chained, self._finish]

    @precondition(has_claimed)
    @step(data=st.data(), commit=COMMITS)
    def end(self, data: st.DataObject, commit: bool) -> None:
        """End a batch of attempts of one worker, some of which it may have lost."""
        worker, rows = self._draw_attempts(data, most=4)
        data.draw(st.sampled_from(self._ends), "end")(data, worker, rows, commit=commit)

    @precondition(has_owned)
    @step(data=st.data())
    def come_back_late(self, data: st.DataObject) -> None:
        """Fall silent, lose its jobs, claim again, perhaps the same; and only then end the old ones."""
        busy = {self.model.jobs[n].worker or "" for n in self.model.with_status("running")}
        worker = data.draw(st.sampled_from(sorted(busy)), "worker")
        rows = [row for row in self.claimed[worker] if self.model.owns(worker, self.system.numbers[row.id], row.attempt)]
        self._pass(1, alive=[other for other in WORKERS if other != worker])
        self._rescue(data.draw(WORKER, "rescuer"), orphans=False)
        self._beat(worker)
        self._claim(worker, 5)
        self.check()
        data.draw(st.sampled_from(self._ends), "end")(data, worker, rows, commit=True)

    @precondition(has_claimed)
    @step(data=st.data(), hours=st.integers(0, 2))
    def extend(self, data: st.DataObject, hours: int) -> None:
        worker, (row, *_) = self._draw_attempts(data, most=1)
        expected = self.model.extend(worker, self.system.numbers[row.id], row.attempt, hours)
        extended = self.system.manual_worker[worker].extend(row, timedelta(hours=hours) + HALF)
        same(set(self.system.numbered(extended)), expected)

    @precondition(has_claimed)
    @step(worker=WORKER, is_there=st.booleans())
    def heartbeat(self, worker: str, is_there: bool) -> None:
        """Come back from silence, or lose the worker's row; whose jobs are those of the model."""
        if is_there:
            self._beat(worker)
        else:
            self.system.forget(worker)
            self.model.heartbeats.pop(worker, None)
        leased = {n for n in self.model.with_status("running") if self.model.jobs[n].worker == worker}
        same(self.system.held_by(worker), leased)

    @precondition(has_claimed)
    @step(data=st.data(), worker=WORKER, orphans=st.sampled_from([False, False, True]), commit=COMMITS)
    def rescue(self, data: st.DataObject, worker: str, orphans: bool, commit: bool) -> None:
        locked = self._draw_held(data, self.model.with_status("running"))
        self._rescue(worker, orphans=orphans, locked=locked, commit=commit)

    @precondition(has_chains_to_unblock)
    @step(data=st.data(), worker=WORKER, commit=COMMITS)
    def unblock(self, data: st.DataObject, worker: str, commit: bool) -> None:
        """Pass on the end of some chains, whether they have ended or not."""
        chains = self._draw_some(data, self.model.jobs, "unblocked", most=4)
        self._unblock(worker, set(chains), locked=self._draw_concerned(data, chains), commit=commit)

    @precondition(has_chains_to_unblock)
    @step(data=st.data(), worker=WORKER, commit=COMMITS)
    def unblock_remaining_chains(self, data: st.DataObject, worker: str, commit: bool) -> None:
        """Unblock dependants of chains ended in SQL, or by a worker that died before unblocking."""
        chain_ids = self.system.chains_to_unblock()
        same(chain_ids, self.model.chains_to_unblock())
        self._unblock(worker, chain_ids, locked=self._draw_concerned(data, chain_ids), commit=commit)

    @precondition(has_jobs)
    @step(data=st.data())
    def explain(self, data: st.DataObject) -> None:
        """Ask of some jobs why they do not run: the cause is right, and never unknown."""
        for n in self._draw_some(data, self.model.jobs, "explained"):
            explanation = call(self.system.engine, explain_job, self.system.id(n), heartbeat_timeout=HALF)
            same(explanation.cause in self._causes(n), True)
            assert explanation.sentence.endswith(".")
            assert not {"None", "unknown"} & set(re.findall(r"\w+", explanation.sentence)), explanation.sentence

    def _causes(self, n: int) -> set[Cause]:
        row, model = self.state[f"job {n}"], self.model
        living = {worker for worker, heartbeat in model.heartbeats.items() if heartbeat == model.now}
        match row["status"]:
            case "running":
                return {Cause.RUNNING if row["worker"] in living else Cause.WORKER_SILENT}
            case "blocked":
                waits = [model.last(chain).status for chain in model.jobs[n].open_blockers]
                return {Cause.BLOCKED} if {"completed"} != set(waits) else {Cause.UNBLOCKING}
            case "pending" if row["due"]:
                return {Cause.SCHEDULED, Cause.RETRYING}
            case "pending":
                return {Cause.QUEUED, Cause.BUSY, Cause.READY} if living else {Cause.NO_WORKER}
            case ended:
                return {Cause(ended)}

    def _draw_concerned(self, data: st.DataObject, chains: Iterable[int]) -> frozenset[int]:
        waiting = [job.n for chain in chains for job, _ in self.model.waiting_for(chain)]
        return self._draw_held(data, [*chains, *waiting])

    @precondition(has_jobs)
    @step(hours=st.integers(1, 3), silent=st.sets(WORKER))
    def pass_time(self, hours: int, silent: set[str]) -> None:
        """Let time pass, in which some workers send no heartbeats."""
        self._pass(hours, alive=[worker for worker in WORKERS if worker not in silent and worker in self.model.heartbeats])


@pytest.fixture
def system(database_url: str) -> Iterator[System]:
    system = System(database_url)
    yield system
    system.close()


def explore(system: System, *, examples: int, number: int | None = None) -> None:
    """Run so many examples: by a seed, or the same ones each time."""
    start: Any = seed(number or 0)(lambda: TheQueue(system))
    run_state_machine_as_test(
        start,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            derandomize=number is None,
            deadline=None,
            database=None,
            print_blob=True,
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.timeout(300 + 180 * MINUTES)
@own_database
@pytest.mark.parametrize("database_url", ["newest"], indirect=True)
@pytest.mark.parametrize("examples", [3, pytest.param(40, marks=pytest.mark.long)])
def test_the_queue_matches_its_model(system: System, count_steps: Callable[[int], None], examples: int) -> None:
    """The same examples each time; with `SA_JOBQUEUE_MODEL_MINUTES` others, for so long."""
    ends_at = time.monotonic() + MINUTES * 60
    if not MINUTES:
        explore(system, examples=examples)
    while time.monotonic() < ends_at:
        number = random.randrange(2**32)
        print(f"seed {number}")  # shown when it fails
        explore(system, examples=100, number=number)
    count_steps(system.steps)
