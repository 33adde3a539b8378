"""The promises of the queue, as plain Python: no SQL, no locks, no indexes, and time in whole hours."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.exc import DBAPIError, IntegrityError

from sa_jobqueue import errors

OPEN = ("blocked", "pending", "running")
NOBODY: frozenset[int] = frozenset()


class Refused(Exception):  # noqa: N818 - an expectation, not an error
    """The queue must raise this. `is_fatal`: its transaction is over then; otherwise nothing was written in it."""

    def __init__(self, kind: type[Exception], *, is_fatal: bool = False) -> None:
        self.kind = kind
        self.is_fatal = is_fatal
        super().__init__(kind.__name__)


@dataclass(frozen=True)
class Wait:
    """The blockers of a new job."""

    chain: int
    policy: str = "wait"


@dataclass(frozen=True)
class NewJob:
    """A job to be written."""

    n: int
    type_name: str = "a"
    queue: str = "default"
    priority: int = 0
    delay: int = 0
    max_attempts: int = 2
    timeout: int | None = None
    """In hours, and half an hour more, so that it never ends on the hour."""
    key: str | None = None
    waits: tuple[Wait, ...] = ()


@dataclass(frozen=True)
class Once:
    """What counts as the same job: `Deduplicate`, its window in hours."""

    key: str
    scope: str = "open"
    window: int | None = None
    exclude: tuple[int, ...] = ()


@dataclass
class BlockerState:
    """A chain that a job waits for, or waited for."""

    policy: str
    is_open: bool


@dataclass
class DeadLetter:
    """A dead letter; it outlives its job."""

    job: int
    reason: str
    attempts: int
    resolution: str | None = None


@dataclass
class ModelJob:
    """One job. `n` is its number here; jobs of a chain share `chain`, the number of the first."""

    n: int
    chain: int
    index: int
    new: NewJob
    due: int
    born: int
    """The transaction that wrote it."""
    created: int
    max_attempts: int
    key: str | None
    status: str = "pending"
    attempt: int = 0
    worker: str | None = None
    lease: int | None = None
    output: int | None = None
    completed_by: str | None = None
    error: str | None = None
    has_waiters: bool = False
    waits: dict[int, BlockerState] = field(default_factory=dict)
    history: list[tuple[int, str, str | None]] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        return self.status in OPEN

    @property
    def open_blockers(self) -> list[int]:
        return [chain for chain, blocker in self.waits.items() if blocker.is_open]


@dataclass
class Unblocking:
    """What unblocking the dependants of chains did."""

    moved: dict[int, str] = field(default_factory=dict)
    unblocked: set[int] = field(default_factory=set)
    unfinished: set[int] = field(default_factory=set)


@dataclass
class Model:
    """All jobs by number, all dead letters, the workers' last heartbeats, and the database's clock."""

    jobs: dict[int, ModelJob] = field(default_factory=dict)
    dead_letters: list[DeadLetter] = field(default_factory=list)
    heartbeats: dict[str, int] = field(default_factory=dict)
    now: int = 0
    transaction: int = 0

    # What there is.

    def jobs_of(self, chain: int) -> list[ModelJob]:
        return sorted((job for job in self.jobs.values() if job.chain == chain), key=lambda job: job.index)

    def last(self, chain: int) -> ModelJob:
        return self.jobs_of(chain)[-1]

    def has_ended(self, chain: int) -> bool:
        return not self.last(chain).is_open

    @property
    def chains(self) -> list[int]:
        return [job.n for job in self.jobs.values() if job.index == 0]

    def waiting_for(self, chain: int) -> list[tuple[ModelJob, BlockerState]]:
        return [(job, job.waits[chain]) for job in self.jobs.values() if chain in job.waits]

    def waits_for(self, chain: int) -> set[int]:
        """Return the chain and all that it waits for, or waited for, and theirs in turn."""
        reached, todo = {chain}, [chain]
        while todo:
            chains = {wait for job in self.jobs_of(todo.pop()) for wait in job.waits} - reached
            reached |= chains
            todo += chains
        return reached

    def with_status(self, *statuses: str) -> list[int]:
        return [job.n for job in self.jobs.values() if job.status in statuses]

    def due(self, locked: AbstractSet[int] = NOBODY) -> list[int]:
        """Return the jobs a claim may take."""
        return [n for n in self.with_status("pending") if self.jobs[n].due <= self.now and n not in locked]

    def chains_to_unblock(self) -> set[int]:
        """Return the ended chains whose dependants are not unblocked yet."""
        return {chain for chain in self.chains if self.jobs[chain].has_waiters and self.has_ended(chain)}

    def owns(self, worker: str, n: int, attempt: int) -> bool:
        """Return whether an attempt is still this worker's: the fence."""
        job = self.jobs.get(n)
        return job is not None and (job.status, job.worker, job.attempt) == ("running", worker, attempt)

    # What applications do.

    def add(self, new: Sequence[NewJob], *, conflict: type[Exception] = IntegrityError) -> list[int]:
        """Write new chains together; those waited for come first. A key that is taken is an error of the kind `taken`."""
        numbers = {new_job.n for new_job in new}
        self._check_waits([wait for new_job in new for wait in new_job.waits if wait.chain not in numbers])
        for new_job in new:
            self._write(new_job)
        self._check_keys(conflict)
        return [new_job.n for new_job in new]

    def add_once(self, new: Sequence[tuple[NewJob, Once]]) -> list[tuple[frozenset[int], bool]]:
        """Write chains unless their key is taken; return for each which chains may be meant, and whether it was made."""
        return [self._find_or_make(new_job, once) for new_job, once in new]

    def _find_or_make(self, new_job: NewJob, once: Once) -> tuple[frozenset[int], bool]:
        having = [
            self.jobs[chain]
            for chain in self.chains
            if (self.jobs[chain].new.type_name, self.jobs[chain].key) == (new_job.type_name, once.key)
        ]
        candidates = [job for job in having if job.n not in once.exclude]
        still_open = [job for job in candidates if not self.has_ended(job.n)]
        if once.scope == "any" and not still_open:
            young = [job for job in candidates if once.window is None or self.now - job.created <= once.window]
            newest = max((job.born for job in young), default=None)
            still_open = [job for job in young if job.born == newest]
        if still_open:
            return frozenset(job.n for job in still_open), False
        self._check_waits(new_job.waits)
        for job in having:
            if job.n in once.exclude and not self.has_ended(job.n):
                job.key = None
        self._write(new_job).key = once.key
        return frozenset({new_job.n}), True

    def cancel(self, numbers: Sequence[int]) -> list[int]:
        self._check_jobs(numbers)
        cancelled = [n for n in numbers if self.jobs[n].is_open]
        for n in cancelled:
            self._cancel(self.jobs[n])
        self.unblock_all(self.jobs[n].chain for n in cancelled)
        return cancelled

    def cancel_chains(self, chains: Sequence[int]) -> set[int]:
        self._check_chains(chains)
        return {self.jobs[n].chain for n in self.cancel([self.last(chain).n for chain in chains])}

    def reschedule(self, numbers: Sequence[int], delay: int) -> None:
        self._check_jobs(numbers)
        if any(self.jobs[n].status not in {"pending", "blocked"} for n in numbers):
            raise Refused(errors.IllegalTransitionError)
        for n in numbers:
            self.jobs[n].due = self.now + delay

    def redrive(self, numbers: Collection[int], in_order: Callable[[Iterable[int]], list[int]]) -> list[int]:
        """Redrive dead jobs by their open dead letters, but none whose key an open chain has; none named means all."""
        unresolved = {dead_letter.job for dead_letter in self.dead_letters if dead_letter.resolution is None}
        dead = {n for n in self.with_status("dead") if n in unresolved and (n in numbers or not numbers)}
        redriven = []
        for n in in_order(dead):
            key = self._key_of(self.jobs[n].chain)
            if key is None or key not in map(self._key_of, self._open_chains()):
                self._redrive(self.jobs[n])
                redriven.append(n)
        return redriven

    def dismiss(self, numbers: Collection[int]) -> int:
        dead_letters = [
            letter for letter in self.dead_letters if letter.resolution is None and (letter.job in numbers or not numbers)
        ]
        for dead_letter in dead_letters:
            dead_letter.resolution = "dismissed"
        return len(dead_letters)

    def complete_unclaimed(self, n: int, output: int | None, following: NewJob | None = None) -> None:
        self._check_jobs([n])
        job = self.jobs[n]
        if not job.is_open:
            raise Refused(errors.JobEndedError)
        if following is not None and any(wait.chain == job.chain for wait in following.waits):
            raise Refused(errors.InvalidJobError)
        if job.status == "running":
            job.history.append((job.attempt, "superseded", job.worker))
        self._check_waits(following.waits if following else (), is_fatal=False)
        self._complete(job, None, output, following)
        if following is None:
            self.unblock_all([job.chain])

    def delete(self, chains: Sequence[int], *, cascade: bool) -> set[int]:
        self._check_chains(chains)
        doomed = set().union(*(self.waits_for(chain) for chain in chains)) if cascade else set(chains)
        if any(job.chain not in doomed for chain in doomed for job, _ in self.waiting_for(chain)):
            raise Refused(errors.ChainReferencedError)
        deleted = {job.n for chain in doomed for job in self.jobs_of(chain)}
        for dead_letter in self.dead_letters:
            if dead_letter.job in deleted and dead_letter.resolution is None:
                dead_letter.resolution = "dismissed"
        self.jobs = {n: job for n, job in self.jobs.items() if n not in deleted}
        return doomed

    def change_by_sql(self, n: int, status: str) -> bool:
        """Set a job's status through the view; return whether there is such a job."""
        job = self.jobs.get(n)
        if job is None:
            return False
        if (status, job.status) == ("pending", "dead"):
            self._redrive(job)
            self._check_keys(IntegrityError)
        elif status == "cancelled" and job.is_open:
            self._cancel(job)
        elif status != job.status:
            raise Refused(DBAPIError, is_fatal=True)
        return True

    def await_end(self, chain: int) -> bool:
        """Note that a caller waits for a chain; return whether that is news."""
        job = self.jobs.get(chain)
        if job is None or job.index or job.has_waiters or self.has_ended(chain):
            return False
        job.has_waiters = True
        return True

    # What workers do.

    def claim(self, worker: str, numbers: Iterable[int]) -> None:
        for n in numbers:
            job = self.jobs[n]
            job.status, job.worker, job.attempt = "running", worker, job.attempt + 1
            job.lease = None if job.new.timeout is None else self.now + job.new.timeout + 1

    def complete(
        self,
        worker: str,
        attempts: Sequence[tuple[int, int]],
        *,
        output: int,
        following: dict[int, NewJob] | None = None,
        locked: AbstractSet[int] = NOBODY,
    ) -> set[int]:
        """Complete attempts; return the jobs that were still this worker's, and whose rows were not locked."""
        numbers = {n for n, attempt in attempts if self.owns(worker, n, attempt) and self._is_free(n, locked)}
        for n in numbers:
            next_job = (following or {}).get(n)
            self._complete(self.jobs[n], worker, None if next_job else output, next_job)
        return numbers

    def complete_in_session(
        self, worker: str, n: int, attempt: int, *, output: int | None, following: NewJob | None
    ) -> int | None:
        """Complete an attempt in its handler's transaction; return its chain if that ended and has waiters."""
        if not self.owns(worker, n, attempt):
            raise Refused(errors.LostAttemptError, is_fatal=True)
        job = self.jobs[n]
        self._complete(job, worker, output, following)
        return job.chain if following is None and self.jobs[job.chain].has_waiters else None

    def finish(
        self, worker: str, n: int, attempt: int, *, outcome: str, status: str, delay: int, locked: AbstractSet[int] = NOBODY
    ) -> set[int]:
        """End an attempt without success."""
        if not self.owns(worker, n, attempt) or not self._is_free(n, locked):
            return set()
        job = self.jobs[n]
        job.max_attempts += outcome in {"snoozed", "released"}
        self._to_pending(job, status, outcome, error="Boom", reason="exhausted", delay=delay)
        return {n}

    def extend(self, worker: str, n: int, attempt: int, hours: int) -> set[int]:
        if not self.owns(worker, n, attempt):
            return set()
        self.jobs[n].lease = self.now + hours + 1
        return {n}

    def rescue(self, *, orphans: bool, locked: AbstractSet[int] = NOBODY) -> dict[int, str]:
        """Rescue jobs of workers that are silent, or not registered at all; return where each stands."""
        rescued = {}
        for n in self.with_status("running"):
            job = self.jobs[n]
            reason = self._lost(job, orphans=orphans)
            if reason is not None and self._is_free(n, locked):
                status = "dead" if job.attempt >= job.max_attempts else "pending"
                self._to_pending(job, status, "lost", error="Lost", reason=reason)
                rescued[n] = status
        return rescued

    def _lost(self, job: ModelJob, *, orphans: bool) -> str | None:
        heartbeat = self.heartbeats.get(job.worker or "")
        if orphans or heartbeat is None:
            return "lost" if orphans and heartbeat is None else None
        if heartbeat < self.now:
            return "lost"
        return "timed_out" if job.lease is not None and job.lease <= self.now else None

    def unblock(self, chains: Iterable[int], *, locked: AbstractSet[int] = NOBODY) -> Unblocking:
        """Pass on the end of those chains that have ended and are awaited."""
        result = Unblocking()
        closed, failed = set(), set()
        for chain in self.chains_to_unblock().intersection(chains):
            if chain in locked:
                result.unfinished.add(chain)
                continue
            completed = self.last(chain).status == "completed"
            for job, blocker in self.waiting_for(chain):
                if not blocker.is_open or not (completed or blocker.policy != "wait"):
                    continue
                if not self._is_free(job.n, locked):
                    result.unfinished.add(chain)
                elif completed or blocker.policy == "continue":
                    blocker.is_open = False
                    closed.add(job.n)
                else:
                    failed.add(job.n)
            if chain not in result.unfinished:
                result.unblocked.add(chain)
        for n in closed | failed:
            job = self.jobs[n]
            if job.status != "blocked":
                continue
            if n in failed:
                self._die(job, "blocker_failed", "BlockerFailed")
            elif not job.open_blockers:
                job.status, job.due = "pending", max(job.due, self.now)
            if job.status != "blocked":
                result.moved[n] = job.status
                if job.status == "dead" and self.jobs[job.chain].has_waiters:
                    result.unfinished.add(job.chain)
        for chain in result.unblocked:
            self.jobs[chain].has_waiters = False
        return result

    def unblock_all(self, chains: Iterable[int]) -> None:
        """Pass on the end of chains, and of those that end by it."""
        todo = set(chains)
        while todo:
            todo = self.unblock(todo).unfinished

    # How.

    def _write(self, new_job: NewJob, before: ModelJob | None = None) -> ModelJob:
        job = ModelJob(
            new_job.n,
            before.chain if before else new_job.n,
            before.index + 1 if before else 0,
            new_job,
            due=self.now + new_job.delay,
            born=self.transaction,
            created=self.now,
            max_attempts=new_job.max_attempts,
            key=new_job.key,
        )
        for wait in new_job.waits:
            last = self.last(wait.chain)
            failed = last.status in {"dead", "cancelled"}
            is_open = last.is_open or (failed and wait.policy != "continue")
            job.waits[wait.chain] = BlockerState(wait.policy, is_open)
            self.jobs[wait.chain].has_waiters |= is_open
        job.status = "blocked" if job.open_blockers else "pending"
        self.jobs[new_job.n] = job
        return job

    def _complete(self, job: ModelJob, worker: str | None, output: int | None, following: NewJob | None) -> None:
        job.status, job.output, job.completed_by = "completed", output, worker
        job.worker = job.lease = job.error = None
        if following is not None:
            self._check_waits(following.waits)
            self._write(following, job)

    def _cancel(self, job: ModelJob) -> None:
        if job.status == "running":
            job.history.append((job.attempt, "cancelled", job.worker))
        job.status, job.worker, job.lease = "cancelled", None, None

    def _to_pending(self, job: ModelJob, status: str, outcome: str, *, error: str, reason: str, delay: int = 0) -> None:
        job.history.append((job.attempt, outcome, job.worker))
        job.status, job.worker, job.lease, job.error = status, None, None, error
        if status == "pending":
            job.due = self.now + delay
        elif status == "dead":
            self._die(job, reason, error)

    def _die(self, job: ModelJob, reason: str, error: str) -> None:
        job.status, job.error = "dead", error
        self.dead_letters.append(DeadLetter(job.n, reason, job.attempt))

    def _redrive(self, job: ModelJob) -> None:
        job.status = "blocked" if job.open_blockers else "pending"
        job.due, job.max_attempts = self.now, job.attempt + job.new.max_attempts
        for dead_letter in self.dead_letters:
            if dead_letter.job == job.n and dead_letter.resolution is None:
                dead_letter.resolution = "redriven"
        # Those who still wait for this chain, and the chains that it still waits for, have to be unblocked again.
        self.jobs[job.chain].has_waiters |= any(blocker.is_open for _, blocker in self.waiting_for(job.chain))
        for chain in job.open_blockers:
            self.jobs[chain].has_waiters = True

    def _is_free(self, n: int, locked: AbstractSet[int]) -> bool:
        return n not in locked and self.jobs[n].chain not in locked

    def _check_jobs(self, numbers: Iterable[int]) -> None:
        if any(n not in self.jobs for n in numbers):
            raise Refused(errors.NotFoundError)

    def _check_chains(self, numbers: Iterable[int]) -> None:
        if any(n not in self.jobs for n in numbers):
            raise Refused(errors.NotFoundError)
        if any(self.jobs[n].index for n in numbers):
            raise Refused(errors.NotFoundError)

    def _check_waits(self, waits: Iterable[Wait], *, is_fatal: bool = True) -> None:
        for wait in waits:
            if wait.chain not in self.jobs:
                raise Refused(errors.NotFoundError, is_fatal=is_fatal)
            if self.jobs[wait.chain].index:
                raise Refused(errors.NotFoundError, is_fatal=is_fatal)

    def _check_keys(self, kind: type[Exception]) -> None:
        keys = [key for chain in self._open_chains() if (key := self._key_of(chain)) is not None]
        if len(set(keys)) < len(keys):
            raise Refused(kind, is_fatal=True)

    def _open_chains(self) -> list[int]:
        return [n for n in self.chains if not self.has_ended(n)]

    def _key_of(self, chain: int) -> tuple[str, str] | None:
        root = self.jobs[chain]
        return None if root.key is None else (root.new.type_name, root.key)

    # As the database would show it.

    def state(self) -> dict[str, Any]:
        """Return everything that can be compared, by subject."""
        state: dict[str, Any] = {}
        for job in self.jobs.values():
            ended = job.index == 0 and self.has_ended(job.chain)
            last = self.last(job.chain)
            state[f"job {job.n}"] = {
                "chain": job.chain,
                "index": job.index,
                "type": job.new.type_name,
                "queue": job.new.queue,
                "priority": job.new.priority,
                "input": job.n,
                "status": job.status,
                "open_blockers": len(job.open_blockers),
                "has_waiters": job.has_waiters,
                "due": max(job.due - self.now, 0) if job.status in {"pending", "blocked"} else None,
                "attempt": job.attempt,
                "max_attempts": job.max_attempts,
                "worker": job.worker,
                "lease": None if job.lease is None else max(job.lease - self.now, 0),
                "output": job.output,
                "completed_by": job.completed_by,
                "error": job.error,
                "key": job.key,
                "has_ended": not job.is_open,
                "chain_has_ended": ended,
                "chain_status": last.status if ended and last.index else None,
            }
            for chain, blocker in job.waits.items():
                state[f"blocker from {job.n} to {chain}"] = {"policy": blocker.policy, "open": blocker.is_open}
            if job.history:
                state[f"attempts of {job.n}"] = sorted(job.history)
        for n in {dead_letter.job for dead_letter in self.dead_letters}:
            dead_letters = [
                (letter.reason, letter.attempts, str(letter.resolution)) for letter in self.dead_letters if letter.job == n
            ]
            state[f"dead letters of {n}"] = sorted(dead_letters)
        for chain in self.chains:
            root, last = self.jobs[chain], self.last(chain)
            state[f"chain {chain}"] = {
                "type": root.new.type_name,
                "status": last.status,
                "output": last.output if last.status == "completed" else None,
                "error": last.error if last.status in {"dead", "cancelled"} else None,
                "has_ended": not last.is_open,
                "length": len(self.jobs_of(chain)),
                "last": last.n,
                "last_type": last.new.type_name,
                "key": root.key,
            }
        return state
