"""Enqueueing with a deduplication key: returns the chain that has the key, or creates it, also under concurrency.

`session.add` cannot do this: a second job with the key of an open chain violates a unique index, and that error aborts the
transaction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, object_session

from sa_jobqueue.errors import ConflictError, InvalidJobError, InvalidOptionError, StaleSnapshotError
from sa_jobqueue.errors.drivers import SERIALIZATION_FAILURE, diagnose
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.enqueueing import notify_workers
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.transactions import on_queue, queue_connection, require_transaction
from sa_jobqueue.statements import deduplication
from sa_jobqueue.types import INITIAL, LONGEST, Enqueued, JobId

JobT = TypeVar("JobT", bound=JobMixin[Any])

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """A deduplication policy: which jobs count as the same, and what happens to a job whose key is taken.

    `key`: any text that is not empty; keys of different job types are independent.
    `scope`: "open" considers chains that have not ended; "any" ended ones too; "waiting" only those whose first job has not
    started, which then does not start until the transaction ends. With "waiting", a chain that has started gives its key to
    the new job, so that no change is missed while it runs.
    `window`: of ended chains, consider only those enqueued within this time, by the database's clock; above 0.
    `exclude`: chains to ignore; an open one among them gives its key to the new job, so that a recurring job can enqueue
    its successor.
    `replace`: what the new job replaces in an existing one that has not started or waits for a retry: "input", "schedule"
    (a debounce) or "priority". `max_wait`: however often it is moved, the job is due this long after it was enqueued; above
    zero, at most 36,500 days.
    Raises: InvalidOptionError naming the field.
    """

    key: str
    scope: Literal["open", "any", "waiting"] = "open"
    window: timedelta | None = None
    exclude: Sequence[JobId] = ()
    replace: Collection[Literal["input", "schedule", "priority"]] = ()
    max_wait: timedelta | None = None

    @classmethod
    def throttle(cls, key: str, period: timedelta) -> Deduplicate:
        """Return a policy for at most one job per `period`: later calls return that job, even after it has ended."""
        return cls(key, scope="any", window=period)

    @classmethod
    def debounce(cls, key: str, *, max_wait: timedelta | None = None) -> Deduplicate:
        """Return a policy that runs one job after the last call: each replaces the input and schedule of the waiting job.

        The delay of the job is the time without further calls; `max_wait` limits the total wait.
        """
        return cls(key, scope="waiting", replace=("input", "schedule"), max_wait=max_wait)

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key or "\x00" in self.key:
            raise InvalidOptionError("key", f"must be text that is not empty, got {self.key!r}")
        if self.scope not in {"open", "any", "waiting"}:
            raise InvalidOptionError("scope", f"must be 'open', 'any' or 'waiting', got {self.scope!r}")
        _check_duration("window", self.window)
        if self.window is not None and self.scope != "any":
            raise InvalidOptionError("window", "needs scope='any': an open chain counts however old it is")
        if isinstance(self.exclude, (str, bytes)) or not isinstance(self.exclude, Collection):
            raise InvalidOptionError("exclude", "must be a list of ids, not one id")
        replaceable = isinstance(self.replace, Collection) and not isinstance(self.replace, str)
        if not replaceable or any(one not in list(deduplication.REPLACEABLE) for one in self.replace):
            known = ", ".join(deduplication.REPLACEABLE)
            raise InvalidOptionError("replace", f"must be a list of some of {known}, got {self.replace!r}")
        _check_duration("max_wait", self.max_wait)
        if self.max_wait is not None and "schedule" not in self.replace:
            raise InvalidOptionError("max_wait", "needs 'schedule' in replace: it limits how long the job is postponed")


def _check_duration(option: str, given: timedelta | None) -> None:
    if given is not None and not isinstance(given, timedelta):
        raise InvalidOptionError(option, f"must be a timedelta, got {given!r}")
    if given is not None and not timedelta(0) < given <= LONGEST:
        raise InvalidOptionError(option, f"must be above zero and at most {LONGEST.days} days, got {given}")


def enqueue(session: Session, job: JobT, *, deduplicate: Deduplicate | str | None = None) -> tuple[JobT, Enqueued]:
    """Enqueue a job unless its key is taken; return the job that has the key, and if it was created, updated or existed.

    `deduplicate`: a policy, or a text for `Deduplicate(key)`; None adds the job and flushes it. `job`: not in a session;
    the returned one is. Inputs are not compared.
    Changes: inserts or updates one row, or none; an excluded chain, or with scope "waiting" one that has started, may lose
    its key.
    Locks: the key, until the transaction ends: other transactions that enqueue with it wait. Also a job that is updated, or
    found with scope "waiting": a running claim is waited for, and later claims skip the job until then.
    Raises: InvalidJobError if the job is already in a session; TransactionRequiredError in AUTOCOMMIT; StaleSnapshotError
    in a REPEATABLE READ or SERIALIZABLE transaction that cannot see the chain with the key. Nothing is written then.
    """
    if deduplicate is not None:
        given = Deduplicate(deduplicate) if isinstance(deduplicate, str) else deduplicate
        (result,) = enqueue_unique(session, [(job, given)])
        return result
    _check_job("job", job)
    _check_free("job", job)
    with translated():
        session.add(job)
        session.flush()
    return job, Enqueued.CREATED


def enqueue_unique(session: Session, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[JobT, Enqueued]]:
    """Enqueue many jobs, each unless its key is taken; return for each what `enqueue` returns, in the given order.

    Jobs of the same call are considered too. Keys are locked in one order, so concurrent calls do not deadlock. Each job
    costs several statements; for thousands use `enqueue_many_unique`. Otherwise like `enqueue`. `new`: pairs of a job and
    its policy.
    """
    listed = list(new)
    for index, (job, given) in enumerate(listed):
        _check_one(f"new[{index}]", job, given)
        _check_free(f"new[{index}]", job)
    for kind in {type(job) for job, _ in listed}:
        require_transaction(queue_connection(session, kind), "deduplication")
    session.flush()
    keys = sorted({(type(job).__module__, type(job).__qualname__, job.type_name, given.key) for job, given in listed})
    models = {(type(job).__module__, type(job).__qualname__): type(job) for job, _ in listed}
    for module, name, type_name, key in keys:
        with on_queue(session, models[module, name]):
            session.execute(deduplication.lock_key(models[module, name], type_name, key))
    return [_find_or_make(session, job, given) for job, given in listed]


def _check_job(field: str, job: object) -> None:
    if not isinstance(job, JobMixin):
        raise InvalidJobError(field, f"must be a job, as Job(...) or handler.job(...) make it, got {type(job).__name__}")


def _check_free(field: str, job: object) -> None:
    if object_session(job) is not None:
        raise InvalidJobError(field, "is already in a session; pass a fresh job")


def _check_one(field: str, job: object, given: object) -> None:
    """Check what is enqueued, and how. Raises: InvalidJobError."""
    _check_job(field, job)
    if not isinstance(given, Deduplicate):
        raise InvalidJobError(field, f"must be deduplicated by a Deduplicate(...), got {type(given).__name__}")


def _find_or_make(session: Session, job: JobT, given: Deduplicate) -> tuple[JobT, Enqueued]:
    with on_queue(session, type(job)):
        return _found_or_made(session, job, given)


def _found_or_made(session: Session, job: JobT, given: Deduplicate) -> tuple[JobT, Enqueued]:
    for _ in range(_TRIES):
        found = _find(session, job, given)
        if found is not None:
            outcome = _merge(session, found, job, given)
            if outcome is not None:
                return found, outcome
            continue
        job.deduplication_key = given.key
        try:
            # A savepoint, because the lock does not bind those who bypass this function: a plain insert with the key,
            # a redrive that opens an old chain again. Their chain is found in the next round.
            with translated(), session.begin_nested():
                if given.exclude:  # there is a successor now to hand the key over to
                    session.execute(deduplication.give_up_key(type(job), job.type_name, given.key, given.exclude))
                session.add(job)
                session.flush()
        except DBAPIError as error:
            if diagnose(error).sqlstate == SERIALIZATION_FAILURE:
                check_snapshot(session, type(job), given.key, error)
            raise
        except ConflictError as error:
            if "uq_job_deduplication" not in error.constraint:
                raise
            check_snapshot(session, type(job), given.key, error)
            continue
        return job, Enqueued.CREATED
    raise ConflictError(f"the key {given.key!r} is taken and given up again too fast to follow", "uq_job_deduplication")


def check_snapshot(session: Session, model: type[JobMixin[Any]], key: str | None, cause: Exception) -> None:
    """Raise StaleSnapshotError if another read in this transaction could not see who has the key."""
    isolation_level = queue_connection(session, model).get_isolation_level()
    if isolation_level != "READ COMMITTED":
        raise StaleSnapshotError(key, isolation_level) from cause


def _merge(session: Session, found: JobT, job: JobT, given: Deduplicate) -> Enqueued | None:
    """Update the job that has the key from the other. None where that key is free now."""
    model = type(job)
    # Also where nothing is replaced: one that counts because it has not begun must not begin before our transaction is seen.
    is_held = bool(given.replace) or given.scope == "waiting"
    if found.chain_completed_at is not None or (found.status in INITIAL and not is_held):
        return Enqueued.EXISTING
    if found.status in INITIAL:
        changed = deduplication.replace(model, found.id, given.key, new=job, replaced=given.replace, max_wait=given.max_wait)
        with translated():
            is_changed = session.execute(changed).first() is not None
        session.scalars(deduplication.again(model, found.id)).one()
        if is_changed:
            notify_workers(session, queue_connection(session, model), model, found.queue, found.fairness_key)
            return Enqueued.UPDATED if given.replace else Enqueued.EXISTING
        return None  # a claim was faster, or it has ended: the next round tells
    if given.scope == "waiting":
        session.execute(deduplication.give_up_key(model, job.type_name, given.key, [found.id]))
        return None
    return Enqueued.EXISTING


def _find(session: Session, job: JobT, given: Deduplicate) -> JobT | None:
    scopes = [True, False] if given.scope == "any" else [True]
    for open_only in scopes:
        statement = deduplication.find(
            type(job),
            job.type_name,
            given.key,
            open_only=open_only,
            window=None if open_only else given.window,
            exclude=given.exclude,
        )
        found: JobT | None = session.scalars(statement).first()
        if found is not None:
            return found
    return None
