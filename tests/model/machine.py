"""What may happen next, drawn by Hypothesis, done to the system and to the model, and compared after every step.

Not generated: circles of chains by continuations (one that waits for a chain that waits for its own). They can be written,
as no check looks that far, and wait forever.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from sqlalchemy import Row
from sqlalchemy.orm import Session

from sa_jobqueue import Enqueued, Job, JobStatus, cancel_jobs, enqueue_many, operations
from sa_jobqueue.context import Continuation
from sa_jobqueue.errors import ConflictError, InvalidJobError, LostAttemptError
from sa_jobqueue.operations.completions import attach, complete_attempts
from sa_jobqueue.operations.deduplication import enqueue
from sa_jobqueue.statements import waiting
from tests.model.model import NOBODY, Model, NewJob, Once, Refused, Wait
from tests.model.system import QUEUES, TYPES, WORKERS, System, differences, stuck, violations

T = TypeVar("T")

MANY = 24
"""Jobs after which no more are enqueued, so that steps stay quick."""
POLICIES = ("wait", "fail", "continue")
KEYS = ("k", "l")
NEW = st.builds(
    NewJob,
    n=st.just(0),
    type_name=st.sampled_from(TYPES),
    queue=st.sampled_from(QUEUES),
    priority=st.sampled_from([0, 0, 5, -3]),
    delay=st.sampled_from([0, 0, 0, 0, 0, 0, 1, 3]),
    max_attempts=st.sampled_from([2, 1, 3]),
    timeout=st.sampled_from([None, None, 0, 1]),
)
SALTS = st.integers(0, 3)
WORKER = st.sampled_from(WORKERS)
COMMITS = st.sampled_from([True, True, True, True, False])
ENDS = {
    "failed": "pending",
    "snoozed": "pending",
    "released": "pending",
    "discarded": "dead",
    "cancelled": "cancelled",
}


def same(actual: object, expected: object) -> None:
    """Fail unless the two are equal, and show both."""
    assert actual == expected, f"is {actual!r}, should be {expected!r}"


@dataclass
class Transaction:
    """An application's transaction, on both sides."""

    session: Session
    model: Model
    start: Model

    def both(self, act: Callable[[Session], T], expect: Callable[[Model], T]) -> T | None:
        """Do the same to both; the results are equal, or both refuse. Return the result, None if refused."""
        after = copy.deepcopy(self.model)
        try:
            expected = expect(after)
        except Refused as refusal:
            with pytest.raises(refusal.kind):
                act(self.session)
            if refusal.is_fatal:
                self.session.rollback()
                self.model = copy.deepcopy(self.start)
            return None
        outcome = act(self.session)
        same(outcome, expected)
        self.model = after
        return outcome


class QueueMachine(RuleBasedStateMachine):
    """One queue, its application, its three workers, and time."""

    def __init__(self, system: System) -> None:
        super().__init__()
        self.system = system
        self.system.reset()
        self.model = Model()
        self.count = 0
        self.state: dict[str, Any] = {}
        self.claimed: dict[str, list[Row[Any]]] = {worker: [] for worker in WORKERS}
        """Attempts as each worker took them, whether they still are its own or not."""
        self.is_whole = True
        for worker in WORKERS:
            self._beat(worker)

    # Both sides.

    def check(self) -> None:
        """Compare the system with the model, and check it alone."""
        state = self.system.state()
        wrong = differences(state, self.model.state()) + violations(state, self.state)
        assert not wrong, "\n".join(wrong)
        self.state = state

    @contextmanager
    def transaction(self, *, commit: bool) -> Iterator[Transaction]:
        self.model.transaction += 1
        with Session(self.system.engine) as session:
            transaction = Transaction(session, copy.deepcopy(self.model), self.model)
            yield transaction
            if commit:
                session.commit()
                self.model = transaction.model
            else:
                session.rollback()

    def _beat(self, worker: str) -> None:
        self.system.heartbeat(worker)
        self.model.heartbeats[worker] = self.model.now

    def teardown(self) -> None:
        """Whatever happened: from here everything can end, and once more after dead jobs were redriven."""
        if self.is_whole:
            self._drain()
            for n in self.model.with_status("dead"):
                with self.transaction(commit=True) as transaction:
                    transaction.both(
                        lambda session, n=n: self.system.change_by_sql(session, n, "pending"),  # type: ignore[misc]
                        lambda model, n=n: model.change_by_sql(n, "pending"),  # type: ignore[misc]
                    )
            self.check()
            self._drain()

    def _drain(self) -> None:
        self._pass(1, alive=[])
        for orphans in (True, False):
            self._rescue("w1", orphans=orphans)
        for _ in range(4 * len(self.model.jobs) + 4):
            self._pass(10, alive=["w1"])
            for chain in sorted(self.model.chains_to_unblock()):
                self._unblock("w1", {chain})
            self.system.manual_worker["w1"].reset()
            rows = self._claim("w1", 100)
            self._complete("w1", [row for row in rows if row.chain_index == 0], chained=False)
            self._complete("w1", [row for row in rows if row.chain_index], chained=True)
            if not rows and not self.model.chains_to_unblock():
                break
        self.check()
        assert not self.system.chains_to_unblock()
        wrong = stuck(self.state)
        assert not wrong, "\n".join(wrong)

    # Drawing.

    def _draw_new(self, data: st.DataObject, *, chains: Collection[int] = (), key: str | None = None) -> NewJob:
        self.count += 1
        self.system.name(self.count, data.draw(SALTS, "salt"))
        waits = st.lists(
            st.builds(Wait, st.sampled_from(sorted(chains)), st.sampled_from(POLICIES)),
            max_size=3,
            unique_by=lambda wait: wait.chain,
        )
        drawn = data.draw(st.one_of(st.just([]), waits), "waits") if chains else []
        return replace(data.draw(NEW, "new"), n=self.count, key=key, waits=tuple(drawn))

    def _draw_following(self, data: st.DataObject, model: Model, chain: int) -> NewJob:
        """Draw the next job of a chain, which waits for none that waits for this chain."""
        return self._draw_new(
            data, chains=[other_chain for other_chain in model.chains if chain not in model.waits_for(other_chain)]
        )

    def _draw_some(self, data: st.DataObject, numbers: Iterable[int], label: str, *, most: int = 3) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(numbers)), min_size=1, max_size=most, unique=True), label)

    def _often(self, data: st.DataObject) -> bool:
        return data.draw(st.booleans(), "of those that it is for")

    def _draw_held(self, data: st.DataObject, near: Iterable[int]) -> frozenset[int]:
        """Usually no row is locked; else some of the jobs concerned, or their roots."""
        jobs = [self.model.jobs[n] for n in near if n in self.model.jobs]
        if not jobs or data.draw(st.integers(0, 4), "somebody holds rows") < 4:
            return NOBODY
        return frozenset(self._draw_some(data, {n for job in jobs for n in (job.n, job.chain)}, "held"))

    def _draw_attempts(self, data: st.DataObject, *, most: int) -> tuple[str, list[Row[Any]]]:
        """Draw attempts of one worker: mostly such as are its own still, and now and then some that it lost."""
        every = [(worker, row) for worker in WORKERS for row in self.claimed[worker][-8:]]
        leased = [(worker, row) for worker, row in every if self.model.owns(worker, self._number(row), row.attempt)]
        pool = leased if leased and data.draw(st.integers(0, 3), "with stale ones") < 3 else every
        # Of those it lost, rather those that run again.
        running = self.model.with_status("running")
        pool = [(worker, row) for worker, row in pool if self._number(row) in running] or pool
        worker, _ = pool[data.draw(st.integers(0, len(pool) - 1), "worker of")]
        rows = [row for owner, row in pool if owner == worker]
        places = st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=most, unique_by=lambda place: rows[place].id)
        return worker, [rows[place] for place in data.draw(places, "attempts")]

    def _number(self, row: Row[Any]) -> int:
        return self.system.numbers[row.id]

    # What applications do, each in a transaction of the caller's.

    def _enqueue(self, data: st.DataObject, transaction: Transaction, *, least: int = 1, most: int = 3) -> None:
        """Write some jobs together, that wait for chains that are there and for each other, added in any order."""
        chains, new = transaction.model.chains, list[NewJob]()
        for _ in range(data.draw(st.integers(least, most), "jobs")):
            key = data.draw(st.sampled_from([None, None, None, *KEYS]), "key")
            new.append(self._draw_new(data, chains=[*chains, *(new_job.n for new_job in new)], key=key))
        order = data.draw(st.permutations(new), "added")
        by_object = data.draw(st.booleans(), "blockers as objects")
        at_once = data.draw(st.booleans(), "enqueue_many")

        def act(session: Session) -> list[int]:
            job_by_number: dict[int, Job] = {}
            for new_job in new:
                job_by_number[new_job.n] = self.system.job(new_job, job_by_number if by_object else None)
            if at_once:
                enqueue_many(session, [job_by_number[new_job.n] for new_job in order])
            else:
                session.add_all([job_by_number[new_job.n] for new_job in order])
                session.flush()
            return [new_job.n for new_job in new]

        if at_once:
            transaction.both(act, lambda model: model.add(new, conflict=ConflictError))
        else:
            transaction.both(act, lambda model: model.add(new))

    def _enqueue_once(self, data: st.DataObject, transaction: Transaction) -> None:
        pairs = []
        for _ in range(data.draw(st.integers(1, 2), "jobs")):
            scope = data.draw(st.sampled_from(["open", "any"]), "scope")
            window = data.draw(st.sampled_from([None, 0, 2]), "window") if scope == "any" else None
            exclude = (
                data.draw(st.lists(st.sampled_from(transaction.model.chains), max_size=2), "exclude")
                if transaction.model.chains
                else []
            )
            once = Once(data.draw(st.sampled_from(KEYS), "key"), scope, window, tuple(exclude))
            pairs.append((self._draw_new(data, chains=transaction.model.chains), once))

        after = copy.deepcopy(transaction.model)
        expected = after.add_once(pairs)
        pairs_of_system = [(self.system.job(new), self.system.once(once)) for new, once in pairs]
        actual = [enqueue(transaction.session, job, deduplicate=policy) for job, policy in pairs_of_system]
        for (job, created), (numbers, is_new) in zip(actual, expected, strict=True):
            assert (created is Enqueued.CREATED) == is_new
            assert self.system.numbers[job.id] in numbers
        transaction.model = after

    def _enqueue_by_sql(self, data: st.DataObject, transaction: Transaction) -> None:
        new = replace(self._draw_new(data), priority=0, max_attempts=20, timeout=None)
        transaction.both(lambda session: self.system.insert_by_sql(session, new), lambda model: model.add([new]) and None)

    def _wait_for_nothing(self, data: st.DataObject, transaction: Transaction) -> None:
        """Wait for an id that is no chain, or for each other: both are refused."""
        numbers = [n for n, job in transaction.model.jobs.items() if job.index] + [0]
        new = replace(self._draw_new(data), waits=(Wait(data.draw(st.sampled_from(numbers), "no chain")),))
        transaction.both(
            lambda session: _flush(session, self.system.job(new)),
            lambda model: model.add([new]) and None,
        )
        first, second = self._draw_new(data), self._draw_new(data)
        circle = [replace(first, waits=(Wait(second.n),)), replace(second, waits=(Wait(first.n),))]
        with pytest.raises(InvalidJobError):
            _flush(transaction.session, *(self.system.job(job) for job in circle))
        transaction.session.rollback()
        transaction.model = copy.deepcopy(transaction.start)

    def _cancel(self, data: st.DataObject, transaction: Transaction) -> None:
        numbers = self._draw_some(data, [0, *transaction.model.jobs], "cancelled", most=2)
        transaction.both(
            lambda session: self.system.numbered(cancel_jobs(session, self.system.id_list(numbers)).ids),
            lambda model: model.cancel(numbers),
        )

    def _cancel_chains(self, data: st.DataObject, transaction: Transaction) -> None:
        numbers = self._draw_some(data, transaction.model.jobs or [0], "cancelled", most=2)
        transaction.both(
            lambda session: self.system.numbered(operations.cancel_chains(session, self.system.id_list(numbers)).ids),
            lambda model: self.system.in_order(model.cancel_chains(numbers)),
        )

    def _reschedule(self, data: st.DataObject, transaction: Transaction) -> None:
        waiting = transaction.model.with_status("pending", "blocked")
        numbers = self._draw_some(data, waiting if waiting and self._often(data) else [0, *transaction.model.jobs], "moved")
        delay = data.draw(st.sampled_from([0, 1, 2]), "delay")
        later = timedelta(hours=delay) if delay else None

        def act(session: Session) -> None:
            operations.reschedule_jobs(session, self.system.id_list(numbers), delay=later)

        transaction.both(act, lambda model: model.reschedule(numbers, delay))

    def _redrive(self, data: st.DataObject, transaction: Transaction) -> None:
        dead = transaction.model.with_status("dead")
        numbers = data.draw(st.lists(st.sampled_from(dead), unique=True), "redriven") if dead else []
        where = operations.DeadLetterFilter(job_ids=self.system.id_list(numbers))
        transaction.both(
            lambda session: self.system.numbered(operations.redrive_dead_letters(session, where=where).ids),
            lambda model: model.redrive(numbers, self.system.in_order),
        )

    def _dismiss(self, data: st.DataObject, transaction: Transaction) -> None:
        numbers = self._draw_some(data, transaction.model.jobs or [0], "dismissed")
        where = operations.DeadLetterFilter(job_ids=self.system.id_list(numbers))
        transaction.both(
            lambda session: len(operations.dismiss_dead_letters(session, where=where, by="tester").ids),
            lambda model: model.dismiss(numbers),
        )

    def _complete_unclaimed(self, data: st.DataObject, transaction: Transaction) -> None:
        numbers = [n for n, job in transaction.model.jobs.items() if job.is_open]
        n = data.draw(st.sampled_from(numbers if numbers and self._often(data) else [*transaction.model.jobs, 0]), "job")
        job = transaction.model.jobs.get(n)
        following = None
        if job is not None and len(transaction.model.jobs) < MANY and data.draw(st.booleans(), "goes on"):
            following = self._draw_following(data, transaction.model, job.chain)
            if data.draw(st.integers(0, 9), "waits for its own chain") == 9:
                following = replace(following, waits=(Wait(job.chain),))

        def act(session: Session) -> None:
            result: Any = self.count if following is None else Continuation(self.system.job(following))
            assert operations.complete_job(session, self.system.id(n), result).id == self.system.id(n)

        transaction.both(act, lambda model: model.complete_unclaimed(n, None if following else self.count, following))

    def _delete(self, data: st.DataObject, transaction: Transaction) -> None:
        waiting = [chain for chain in transaction.model.chains if len(transaction.model.waits_for(chain)) > 1]
        numbers = self._draw_some(
            data, waiting if waiting and self._often(data) else [0, *transaction.model.jobs], "deleted", most=2
        )
        cascade = data.draw(st.booleans(), "cascade")
        transaction.both(
            lambda session: self.system.numbered(
                operations.delete_chains(session, self.system.id_list(numbers), cascade=cascade).ids
            ),
            lambda model: self.system.in_order(model.delete(numbers, cascade=cascade)),
        )

    def _change_by_sql(self, data: st.DataObject, transaction: Transaction) -> None:
        n = data.draw(st.sampled_from([*transaction.model.jobs, 0]), "job")
        status = data.draw(st.sampled_from(["cancelled", "pending"]), "status")
        transaction.both(
            lambda session: self.system.change_by_sql(session, n, status),
            lambda model: model.change_by_sql(n, status),
        )

    def _await_end(self, data: st.DataObject, transaction: Transaction) -> None:
        n = data.draw(st.sampled_from([*transaction.model.jobs, 0]), "awaited")
        statement = waiting.mark_awaited(Job)
        transaction.both(
            lambda session: bool(session.execute(statement, {"awaited_ids": [self.system.id(n)]}).all()),
            lambda model: model.await_end(n),
        )

    # What workers do, each a transaction of its own.

    def _claim(self, worker: str, limit: int, *, locked: frozenset[int] = NOBODY, commit: bool = True) -> list[Row[Any]]:
        manual_worker = self.system.manual_worker[worker]
        is_cold = manual_worker.cursors.watermark is None
        due = self.model.due(locked)
        with self.system.holding(locked):
            rows = manual_worker.claim(limit, types=TYPES, commit=commit)
        numbers = self.system.numbered(row.id for row in rows)
        assert set(numbers) <= set(due)
        assert len(numbers) == min(limit, len(due)), f"took {numbers} of {due}"
        if is_cold:
            priorities = sorted((self.model.jobs[n].new.priority for n in due), reverse=True)
            same(sorted((row.priority for row in rows), reverse=True), priorities[:limit])
        if locked or not commit:
            manual_worker.connection.rollback()
            manual_worker.reset()  # as a worker does that has lost an answer, or now and then to find what was held
        if not commit:
            return []
        self.model.claim(worker, numbers)
        for row, n in zip(rows, numbers, strict=True):
            job = self.model.jobs[n]
            same((row.attempt, row.max_attempts, row.input), (job.attempt, job.max_attempts, n))
            ends = [(chain, self.model.last(chain)) for chain in job.waits]
            expected = [
                (chain, last.status, last.output, None)
                if last.status == "completed"
                else (chain, last.status, None, last.error if last.status in {"dead", "cancelled"} else None)
                for chain, last in ends
            ]
            same(self.system.outcomes(n), expected)
        self.claimed[worker] += rows
        return rows

    def _complete(
        self,
        worker: str,
        rows: list[Row[Any]],
        *,
        chained: bool,
        following: dict[int, NewJob] | None = None,
        locked: frozenset[int] = NOBODY,
        commit: bool = True,
    ) -> None:
        manual_worker, output = self.system.manual_worker[worker], self.system.steps
        trial = copy.deepcopy(self.model)
        attempts = [(self._number(row), row.attempt) for row in rows]
        expected = trial.complete(worker, attempts, output=output, following=following, locked=locked)
        with self.system.holding(locked):
            if chained:
                jobs = {self.system.id(n): self.system.job(new) for n, new in (following or {}).items()}
                completed = manual_worker.complete_chained(*rows, following=jobs, output=str(output), commit=commit)
            else:
                completed = manual_worker.complete(*rows, output=str(output), commit=commit)
        same(set(self.system.numbered(completed)), expected)
        self._end(worker, trial, commit=commit)

    def _complete_some(self, data: st.DataObject, worker: str, rows: list[Row[Any]], *, commit: bool) -> None:
        """Complete those that are chains of one job."""
        alone = [row for row in rows if row.chain_index == 0]
        if alone:
            locked = self._draw_held(data, map(self._number, alone))
            self._complete(worker, alone, chained=False, locked=locked, commit=commit)

    def _complete_chained(self, data: st.DataObject, worker: str, rows: list[Row[Any]], *, commit: bool) -> None:
        """Complete a batch of which some continue their chains."""
        following: dict[int, NewJob] = {}
        for row in rows:
            if has_room(self) and data.draw(st.booleans(), "goes on"):
                following[self._number(row)] = self._draw_new(data)
        locked = self._draw_held(data, map(self._number, rows))
        self._complete(worker, rows, chained=True, following=following, locked=locked, commit=commit)

    def _complete_in_a_session(self, data: st.DataObject, worker: str, rows: list[Row[Any]], *, commit: bool) -> None:
        """Complete the first in the transaction of its handler's writes; a continuation may wait for other chains."""
        row, n, following = rows[0], self._number(rows[0]), None
        if n in self.model.jobs and has_room(self) and data.draw(st.booleans(), "goes on"):
            following = self._draw_following(data, self.model, self.model.jobs[n].chain)
        output = None if following else self.system.steps

        def act(session: Session) -> int | None:
            result: Any = str(output) if following is None else attach(Job, row, Continuation(self.system.job(following)))
            completion = complete_attempts(session, [(row, result)], worker_id=worker, model=Job)  # type: ignore[list-item]
            if completion.unwritten:
                raise LostAttemptError(row.id, row.attempt)
            return self.system.numbers[completion.ended_chains[0]] if completion.ended_chains else None

        with self.transaction(commit=commit) as transaction:
            transaction.both(
                act, lambda model: model.complete_in_session(worker, n, row.attempt, output=output, following=following)
            )

    def _finish(self, data: st.DataObject, worker: str, rows: list[Row[Any]], *, commit: bool) -> None:
        """End the first without success: failed, snoozed, released, discarded or cancelled by its handler."""
        row, outcome = rows[0], data.draw(st.sampled_from(sorted(ENDS)), "outcome")
        delay, locked = data.draw(st.sampled_from([0, 0, 1]), "delay"), self._draw_held(data, [self._number(row)])
        status = "dead" if outcome == "failed" and row.attempt >= row.max_attempts else ENDS[outcome]
        outcome = "failed" if outcome == "discarded" else outcome
        trial = copy.deepcopy(self.model)
        expected = trial.finish(
            worker, self._number(row), row.attempt, outcome=outcome, status=status, delay=delay, locked=locked
        )
        uncounted = int(outcome in {"snoozed", "released"})
        with self.system.holding(locked):
            finished = self.system.manual_worker[worker].finish(
                row, status=status, outcome=outcome, delay=delay * 3600, uncounted=uncounted, commit=commit
            )
        same(set(self.system.numbered(finished)), expected)
        self._end(worker, trial, commit=commit)

    def _unblock(self, worker: str, chains: set[int], *, locked: frozenset[int] = NOBODY, commit: bool = True) -> None:
        trial = copy.deepcopy(self.model)
        expected = trial.unblock(chains, locked=locked)
        with self.system.holding(locked):
            actual = self.system.manual_worker[worker].unblock(*self.system.id_list(sorted(chains)), commit=commit)
        moved = {self.system.numbers[moved_job.job_id]: moved_job.status.value for moved_job in actual.moved}
        same(moved, expected.moved)
        same(set(self.system.numbered(actual.finished)), expected.unblocked)
        same(set(self.system.numbered(actual.unfinished)), expected.unfinished)
        self._end(worker, trial, commit=commit)

    def _rescue(self, worker: str, *, orphans: bool, locked: frozenset[int] = NOBODY, commit: bool = True) -> None:
        trial = copy.deepcopy(self.model)
        expected = trial.rescue(orphans=orphans, locked=locked)
        with self.system.holding(locked):
            rows = self.system.rescue(worker, orphans=orphans)
        same({self.system.numbers[row.id]: str(row.status) for row in rows}, expected)
        for row in rows:
            if row.status == JobStatus.DEAD:  # the rescuer then unblocks the dependants of the chain
                same(row.has_waiters, trial.jobs[self.system.numbers[row.chain_id]].has_waiters)
        if commit:
            self.system.manual_worker[worker].connection.commit()
        self._end(worker, trial, commit=commit)

    def _end(self, worker: str, trial: Model, *, commit: bool) -> None:
        """Commit a worker's step, or have it die before its commit."""
        if commit:
            self.model = trial
        else:
            self.system.manual_worker[worker].connection.rollback()

    def _pass(self, hours: int, *, alive: Iterable[str]) -> None:
        self.system.advance(hours)
        self.model.now += hours
        for worker in alive:
            self._beat(worker)


def _flush(session: Session, *jobs: Job) -> None:
    session.add_all(jobs)
    session.flush()


def step(when: Callable[..., Any] = rule, **strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a method a rule that ends with the comparison, and is counted."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(self: QueueMachine, **drawn: Any) -> None:
            self.is_whole = False
            function(self, **drawn)
            self.check()
            self.is_whole = True
            self.system.steps += 1

        decorated: Callable[..., None] = when(**strategies)(run)
        return decorated

    return decorate


def has_jobs(self: QueueMachine) -> bool:
    return bool(self.model.jobs)


def has_room(self: QueueMachine) -> bool:
    return len(self.model.jobs) < MANY


def has_claimed(self: QueueMachine) -> bool:
    return any(self.claimed.values())


def has_owned(self: QueueMachine) -> bool:
    return bool(self.model.with_status("running"))


def has_due(self: QueueMachine) -> bool:
    return bool(self.model.due())


def has_dead(self: QueueMachine) -> bool:
    return bool(self.model.with_status("dead"))


def has_chains_to_unblock(self: QueueMachine) -> bool:
    return bool(self.model.chains_to_unblock())
