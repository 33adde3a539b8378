"""Chains and jobs that wait for them, for scenarios: how to set them, who meddles with them, and what must hold after."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self
from uuid import UUID

from sqlalchemy import Connection, Row, select, text, update
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus, cancel_jobs
from sa_jobqueue.context import ClaimedJob, Continuation
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.errors import ChainReferencedError, JobEndedError, LostAttemptError, NotFoundError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.models import WaitFor
from sa_jobqueue.operations import cancel_chains, complete_job, delete_chains
from sa_jobqueue.operations.blockers import unblock
from sa_jobqueue.operations.completions import attach, complete_attempts
from sa_jobqueue.operations.dead_letters import DeadLetterFilter, redrive_dead_letters
from sa_jobqueue.statements import blockers
from sa_jobqueue.statements._parts import table_oid
from sa_jobqueue.statements.claims import CLAIMED
from sa_jobqueue.types import ENDED, OnFailure
from tests.explorer.explorer import Explorer
from tests.explorer.scenario import Operation, Outcomes, Report, Scenario, Steps
from tests.explorer.statements import by_locks
from tests.explorer.workers import SessionWorker

_job: Any = Job.__table__

LOCKING = re.compile(r"\bFOR (NO KEY )?UPDATE\b|^\s*(UPDATE|DELETE|WITH)\b")
"""Statements that want rows others may hold; those between two of them are not visible to others before the commit."""
WORKER = "worker:1"
"""Who runs the jobs of a scene."""


class Scene:
    """The chains of one schedule, in a queue of their own, each job by a name; the operation that makes it writes it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.queue = f"q{uuid7().hex}"
        self.ids: dict[str, UUID] = {}
        self.claimed: dict[str, Any] = {}
        """Of jobs that are running, the rows as they were claimed."""

    def new(self, name: str, *waits_for: str, on_failure: Any = "wait", attempts: int = 2) -> Job:
        """Describe a job, and remember it by a name."""
        waits = [WaitFor(self.ids[blocker_name], on_failure) for blocker_name in waits_for]
        job = Job(type_name="test", input=None, queue=self.queue, max_attempts=attempts, blockers=waits)
        self.ids[name] = job.id
        return job

    def adds(self, name: str, *waits_for: str, **options: Any) -> Self:
        """Write a job, pending or blocked."""
        self._session.add(self.new(name, *waits_for, **options))
        self._session.flush()
        return self

    def runs(self, *names: str, attempts: int = 2) -> Self:
        """Have jobs claimed by the worker; new ones are written before."""
        for name in names:
            if name not in self.ids:
                self.adds(name, attempts=attempts)
            (self.claimed[name],) = _claim(self._session, WORKER, _job.c.id == self.ids[name])
        return self

    def continues(self, name: str, to: str, *waits_for: str, **options: Any) -> Self:
        """Complete a running job and continue its chain with another, pending or blocked."""
        following = attach(Job, self.claimed[name], Continuation(self.new(to, *waits_for, **options)))
        complete_attempts(self._session, [(_claimed(self, name), following)], worker_id=WORKER, model=Job)
        self._session.flush()
        return self

    def ends(self, name: str, status: str = "completed") -> Self:
        """End a running job and with it its chain; its dependants are not unblocked yet."""
        manual_worker = SessionWorker(self._session, WORKER)
        if status == "completed":
            assert manual_worker.complete_chained(self.claimed[name])
        else:
            assert manual_worker.finish(self.claimed[name], status=status, outcome="failed")
        return self

    def unblocks(self) -> Self:
        """Unblock the dependants of all ended chains."""
        unblock_ended_chains(self._session.connection())
        return self


def _claim(session: Session, worker_id: str, *conditions: Any) -> Sequence[Row[Any]]:
    claimed = update(_job).where(*conditions).returning(*(_job.c[column] for column in CLAIMED), table_oid(_job))
    return session.execute(claimed.values(status=JobStatus.RUNNING, attempt=_job.c.attempt + 1, leased_by=worker_id)).all()


def _claimed(scene: Scene, name: str) -> ClaimedJob:
    return ClaimedJob(**scene.claimed[name]._mapping)


def in_transaction(
    name: str, act: Callable[[Session, Scene], Any], *, whole: bool = False, may_raise: Any = (), **options: Any
) -> Operation[Scene]:
    """Return an operation of one transaction: in steps by its locks, or with `whole` in one; then the commit."""
    return Operation(name, act if whole else by_locks(act, LOCKING), may_raise=may_raise, **options)


def enqueues(job: str, *waits_for: str, on_failure: str = "wait", **options: Any) -> Operation[Scene]:
    """An application adds a job that waits for chains."""

    def act(session: Session, scene: Scene) -> None:
        session.add(scene.new(job, *waits_for, on_failure=on_failure))
        session.flush()

    return in_transaction(f"enqueue-{job}", act, may_raise=(NotFoundError,), **options)


def completes(job: str, to: str = "", *, tries: int = 2, unblocks: bool = False) -> Operation[Scene]:
    """The worker completes a job among others, or continues its chain; it skips locked rows, and tries again."""

    def run(session: Session, scene: Scene) -> Steps:
        manual_worker = SessionWorker(session, WORKER)
        row = scene.claimed[job]
        for tries_left in reversed(range(tries)):
            if manual_worker.complete_chained(row, following={row.id: scene.new(to)} if to else {}):
                if unblocks:
                    yield "complete"
                    manual_worker.unblock(row.chain_id, commit=False)
                return "done"
            if tries_left:
                yield "held"
        return "held"

    return Operation(f"complete-{job}", run, autocommit=True, settings=GUARDS)


def completes_in_session(job: str, to: str = "", *waits_for: str, **options: Any) -> Operation[Scene]:
    """A handler with a session completes, or continues its chain, perhaps with a job that waits for others."""

    def act(session: Session, scene: Scene) -> Any:
        row = _claimed(scene, job)
        result = attach(Job, row, Continuation(scene.new(to, *waits_for))) if to else "1"
        completion = complete_attempts(session, [(row, result)], worker_id=WORKER, model=Job)
        if completion.unwritten:
            raise LostAttemptError(row.id, row.attempt)
        return completion.ended_chains

    may_raise = (LostAttemptError, NotFoundError)
    return in_transaction(f"session-{job}", act, may_raise=may_raise, **options)


def finishes(job: str, status: str = "dead", *, tries: int = 2) -> Operation[Scene]:
    """The worker ends an attempt without success."""

    def run(session: Session, scene: Scene) -> Steps:
        for tries_left in reversed(range(tries)):
            if SessionWorker(session, WORKER).finish(scene.claimed[job], status=status):
                return "done"
            if tries_left:
                yield "held"
        return "held"

    return Operation(f"finish-{job}", run, autocommit=True, settings=GUARDS)


def rescues(*, tries: int = 2) -> Operation[Scene]:
    """A rescuer takes jobs from a worker that has no row."""

    def run(session: Session, scene: Scene) -> Steps:
        for tries_left in reversed(range(tries)):
            # Jobs of earlier schedules may be among what it takes.
            rescued = {row.id for row in SessionWorker(session, "rescuer").rescue(orphans=True)}
            if rescued & set(scene.ids.values()):
                return "done"
            if tries_left:
                yield "held"
        return "held"

    return Operation("rescue", run, autocommit=True, settings=GUARDS)


def unblocks_fully(chain: str) -> Operation[Scene]:
    """A worker unblocks the dependants of a chain, in as many transactions as it takes, each a step."""

    def run(session: Session, scene: Scene) -> Steps:
        todo: dict[Any, Any] = {scene.ids[chain]: None}
        rounds = 0
        while todo and rounds < 8:
            todo = unblock(session.connection(), Job, todo).unfinished
            rounds += 1
            if todo and rounds < 8:
                yield "unblock"

    return Operation("unblock", run, autocommit=True, settings=GUARDS)


def unblocks(*chains: str, name: str = "unblock", **options: Any) -> Operation[Scene]:
    """A worker unblocks the dependants of chains, once."""

    def act(session: Session, scene: Scene) -> list[str]:
        resolved = unblock(session.connection(), Job, dict.fromkeys(scene.ids[chain_name] for chain_name in chains))
        return [moved.status.value for moved in resolved.moved]

    return in_transaction(name, act, settings=GUARDS, **options)


def claims(scene_jobs: int = 2) -> Operation[Scene]:
    """Another worker claims due jobs, some times, and checks them."""

    def run(session: Session, scene: Scene) -> Steps:
        manual_worker = SessionWorker(session, "claimer:1", queues=(scene.queue,))
        claimed_count = 0
        for jobs_left in reversed(range(scene_jobs)):
            rows = manual_worker.claim()
            claimed_count += len(rows)
            assert not open_blockers(session, [row.id for row in rows]), "claimed before what it waits for has ended"
            if jobs_left:
                yield f"claim {len(rows)}"
        return claimed_count

    return Operation("claim", run, autocommit=True, settings=GUARDS)


def cancels(*jobs: str, **options: Any) -> Operation[Scene]:
    """An application cancels jobs."""

    def act(session: Session, scene: Scene) -> int:
        return len(cancel_jobs(session, [scene.ids[job_name] for job_name in jobs]).ids)

    return in_transaction(f"cancel-{'-'.join(jobs)}", act, may_raise=(NotFoundError,), **options)


def cancels_chain(*chains: str, **options: Any) -> Operation[Scene]:
    """An application cancels chains."""

    def act(session: Session, scene: Scene) -> int:
        return len(cancel_chains(session, [scene.ids[chain_name] for chain_name in chains]).ids)

    return in_transaction(f"cancel-chain-{'-'.join(chains)}", act, may_raise=(NotFoundError,), **options)


def redrives(*jobs: str, **options: Any) -> Operation[Scene]:
    """An application redrives dead jobs."""

    def act(session: Session, scene: Scene) -> int:
        where = DeadLetterFilter(job_ids=[scene.ids[job_name] for job_name in jobs])
        return len(redrive_dead_letters(session, where=where).ids)

    return in_transaction(f"redrive-{'-'.join(jobs)}", act, **options)


def completes_without_worker(job: str, to: str = "", *waits_for: str, **options: Any) -> Operation[Scene]:
    """An application completes a job, or continues its chain."""

    def act(session: Session, scene: Scene) -> None:
        result: Any = Continuation(scene.new(to, *waits_for)) if to else 1
        complete_job(session, scene.ids[job], result)

    may_raise = (JobEndedError, NotFoundError)
    return in_transaction(f"application-{job}", act, may_raise=may_raise, **options)


def deletes(*chains: str, **options: Any) -> Operation[Scene]:
    """An application deletes chains."""

    def act(session: Session, scene: Scene) -> int:
        return len(delete_chains(session, [scene.ids[chain_name] for chain_name in chains]).ids)

    may_raise = (NotFoundError, ChainReferencedError)
    return in_transaction(f"delete-{'-'.join(chains)}", act, may_raise=may_raise, **options)


def prove(
    explorer: Explorer,
    setup: Callable[[Scene], Scene],
    *operations: Operation[Scene],
    sample: tuple[int, int] | None = None,
    ends: Iterable[str] = (),
) -> Report:
    """Run operations in every order and check what `sound` checks; `ends`: endings that must be met.

    An ending names where each job of the scene stood when all ends of chains had been passed on. The statements of a worker
    on its guarded connections must never have to wait.
    """
    known_states: set[str] = set()
    scenario = Scenario(
        name=" x ".join(operation.name for operation in operations),
        setup=lambda session: setup(Scene(session)),
        operations=operations,
        check=lambda connection, scene, outcomes: sound(connection, scene, outcomes, run_out_of=known_states),
    )
    report = explorer.explore(scenario, sample=sample)
    print(report)  # shown by pytest -s, and when the test fails
    assert report.is_complete or sample, str(report)
    assert set(ends) <= set(report.endings), str(report)
    guard_names = {operation.name for operation in operations if operation.settings == GUARDS}
    assert not guard_names & set(report.waits), f"a worker's own statements never wait, but {report.waits} did"
    return report


def sound(connection: Connection, scene: Scene, outcomes: Outcomes, *, run_out_of: set[str]) -> str:
    """Assert the invariants at once, after unblocking, and after all that can run has run; name the ending.

    An ending need not be run again: it depends on the ending alone.
    """
    session = Session(connection)
    check_scene(session, scene, unblocked=False)
    unblock_ended_chains(session.connection())
    jobs = check_scene(session, scene, unblocked=True)
    named_statuses = sorted((name, jobs[job_id].status) for name, job_id in scene.ids.items() if job_id in jobs)
    ending = " ".join(f"{name}={status}" for name, status in named_statuses)
    if ending not in run_out_of:
        run_out_of.add(ending)
        run_out(session, scene)
        jobs = check_scene(session, scene, unblocked=True)
        assert {job.status for job in jobs.values()} <= {*ENDED, JobStatus.BLOCKED}
    session.commit()
    return ending


def unblock_ended_chains(connection: Connection) -> None:
    """Unblock the dependants of all ended chains, as the rescuer does."""
    for _ in range(10):
        remaining_chains = list(connection.scalars(blockers.chains_to_unblock(Job), {"limit": 100}))
        if not remaining_chains:
            return
        unblock(connection, Job, dict.fromkeys(remaining_chains))
    raise AssertionError("an ended chain never unblocks its dependants")


def run_out(session: Session, scene: Scene) -> None:
    """Run and complete whatever can be, until nothing can."""
    manual_worker = SessionWorker(session, "last:1")
    startable = _job.c.status.in_([JobStatus.PENDING, JobStatus.RUNNING])
    for _ in range(10):
        # Jobs that a worker still holds were rescued and claimed again, for all that matters here.
        rows = _claim(session, "last:1", _job.c.queue == scene.queue, startable)
        if not rows:
            return
        assert not open_blockers(session, [row.id for row in rows]), "started before what it waits for has ended"
        assert manual_worker.complete_chained(*rows) == {row.id for row in rows}
        unblock_ended_chains(session.connection())
    raise AssertionError("jobs do not come to an end")


def open_blockers(session: Session, job_ids: Sequence[Any]) -> list[Any]:
    """Return the open blockers of jobs."""
    blocker = Job.Blocker
    return list(session.execute(select(blocker.job_id).where(blocker.job_id.in_(job_ids), ~blocker.is_resolved)))


_SCENE = text("""
    SELECT job.id, job.chain_id, job.chain_index, job.status::text, job.open_blockers, job.chain_status::text,
      job.has_waiters, job.chain_completed_at,
      (SELECT count(*) FROM dead_letter WHERE job_id = job.id AND resolution IS NULL) AS dead_letters,
      ARRAY(SELECT edge.blocked_by_chain_id FROM job_blocker AS edge WHERE edge.job_id = job.id ORDER BY index) AS chains,
      ARRAY(SELECT NOT edge.is_resolved FROM job_blocker AS edge WHERE edge.job_id = job.id ORDER BY index) AS opens,
      ARRAY(SELECT edge.on_failure::text FROM job_blocker AS edge WHERE edge.job_id = job.id ORDER BY index) AS policies
    FROM job WHERE job.queue = :queue ORDER BY job.chain_index
""")


def check_scene(session: Session, scene: Scene, *, unblocked: bool) -> Mapping[Any, Row[Any]]:
    """Assert what must be true of jobs, chains and blockers; `unblocked`: after `unblock_ended_chains`. Return the jobs."""
    rows = session.execute(_SCENE, {"queue": scene.queue}).all()
    names = {job_id: name for name, job_id in scene.ids.items()}
    awaited = {chain_id for row in rows for chain_id, is_open in zip(row.chains, row.opens, strict=True) if is_open}
    chains: dict[Any, list[Row[Any]]] = {}
    for row in rows:
        chains.setdefault(row.chain_id, []).append(row)
    for chain_id, members in chains.items():
        _check_chain(names[chain_id], members, awaited=chain_id in awaited, unblocked=unblocked)
    for row in rows:
        name, count = names[row.id], sum(row.opens)
        assert row.open_blockers == count, f"{name} counts {row.open_blockers} open blockers of {count}"
        if row.status not in ENDED:
            assert (row.status == JobStatus.BLOCKED) == (count > 0), f"{name} is {row.status} with {count} open blockers"
        assert row.dead_letters == (row.status == JobStatus.DEAD), (
            f"{name} is {row.status} and has {row.dead_letters} dead letters"
        )
        for chain_id, is_open, policy in zip(row.chains, row.opens, row.policies, strict=True):
            status = chains[chain_id][-1].status
            description = (
                f"{name} is {row.status} and waits with {policy}, the chain is {status}, the blocker open: {is_open}"
            )
            if not is_open:
                # One with on_failure `continue` stays resolved when the chain is opened again.
                assert status == JobStatus.COMPLETED or policy == OnFailure.CONTINUE, description
            elif unblocked and status in ENDED:
                assert status != JobStatus.COMPLETED, description
                assert policy != OnFailure.CONTINUE, description
                assert policy != OnFailure.FAIL or row.status != JobStatus.BLOCKED, description
    return {row.id: row for row in rows}


def _check_chain(name: str, members: Sequence[Row[Any]], *, awaited: bool, unblocked: bool) -> None:
    root, last = members[0], members[-1]
    assert [member.chain_index for member in members] == list(range(len(members)))
    assert all(member.status == JobStatus.COMPLETED for member in members[:-1]), f"chain {name} went on too early"
    ended = last.status in ENDED
    assert (root.chain_completed_at is not None) == ended, f"chain {name}: its last job is {last.status}"
    assert root.chain_status == (last.status if ended and len(members) > 1 else None), f"chain {name}: {root.chain_status}"
    if awaited and not ended:
        assert root.has_waiters, f"chain {name} has open edges, and will not tell"
    if unblocked and ended:
        assert not root.has_waiters, f"chain {name} has ended and is still to be settled"
