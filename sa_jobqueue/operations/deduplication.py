"""Enqueueing with a deduplication key: returns the chain that has the key, or creates it, also under concurrency.

`session.add` cannot do this: a second job with the key of an open chain violates a unique index, and that error aborts the
transaction. `enqueue_many` decides by that index for all jobs together, with `INSERT ... ON CONFLICT`: of two
transactions with an equal key, the second waits for the first and then finds its job. Only windows and ended chains need
locks on the keys as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar, overload

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ConflictError, InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.drivers import DEADLOCK, SERIALIZATION_FAILURE, diagnose
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.operations.bulk import arrays, check_new, group_by_columns, require_carried, write_many
from sa_jobqueue.operations.transactions import on_queue, queue_connection, require_transaction, translated
from sa_jobqueue.operations.writer import notify_workers, queue_key_of
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.statements import deduplication
from sa_jobqueue.tracing import announce
from sa_jobqueue.types import INITIAL, LONGEST, Enqueued, JobId

JobT = TypeVar("JobT", bound=JobMixin[Any])

_TRIES: Final = 10
_Key = tuple[str, str]
"""Job type and deduplication key."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """A deduplication policy: which jobs count as the same, and what happens to a job whose key is taken.

    `key`: any text that is not empty; keys of different job types are independent.
    `scope`: "open" considers chains that have not ended; "any" ended ones too; "waiting" only those whose first job has
    not started: a chain that has started gives its key to the new job.
    `window`: of ended chains, consider only those enqueued within this time, by the database's clock; above 0.
    `exclude`: chains to ignore; if a new job is made, an open one gives it its key.
    `replace`: values that the new job replaces in an existing one that waits: "input", "schedule" (a debounce) or
    "priority".
    `max_wait`: however often it is moved, the job is due this long after it was enqueued; above zero, at most 36,500 days.
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

    `job`: not in a session; the returned one is. Inputs are not compared.
    `deduplicate`: a policy, or a text for `Deduplicate(key)`; None adds the job and flushes it.
    Changes: inserts or updates one row, or none; an excluded chain, or with scope "waiting" one that has started, may lose
    its key.
    Locks: the key, and a job that is updated or found with scope "waiting".
    Obliges: enqueue several in the order of their types and keys, so that transactions do not wait for each other.
    Raises: InvalidJobError if the job is already in a session; InvalidOptionError in AUTOCOMMIT; ConflictError
    in a REPEATABLE READ or SERIALIZABLE transaction that cannot see the chain with the key.
    """
    check_new("job", job, type(job))
    if deduplicate is None:
        with translated():
            session.add(job)
            session.flush()
        return job, Enqueued.CREATED
    given, model = _policy("job", deduplicate), type(job)
    require_transaction(queue_connection(session, model), "deduplication")
    session.flush()
    with on_queue(session, model):
        _lock(session, model, [(job.type_name, given.key)])
        return _found_or_made(session, job, given)


def _found_or_made(session: Session, job: JobT, given: Deduplicate) -> tuple[JobT, Enqueued]:
    model, ended = type(job), given.scope == "any"
    keys = _keys((job.type_name, given.key))
    find, among = deduplication.find(model, ended=ended), {"excluded": list(given.exclude)} | _window(given)
    for _ in range(_TRIES):
        found = session.scalars(find, keys | among).first()
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
                    session.execute(deduplication.give_up(model, begun=False), keys | {"ids": list(given.exclude)})
                session.add(job)
                session.flush()
        except DBAPIError as error:
            if diagnose(error).sqlstate == SERIALIZATION_FAILURE:
                check_snapshot(session, model, given.key, error)
            raise
        except ConflictError as error:
            if "uq_job_deduplication" not in error.constraint:
                raise
            check_snapshot(session, model, given.key, error)
            continue
        return job, Enqueued.CREATED
    raise _unsettled(given.key)


def _keys(*keys: _Key) -> dict[str, Any]:
    return {"type_names": [name for name, _ in keys], "keys": [key for _, key in keys]}


def _window(given: Deduplicate) -> dict[str, Any]:
    return {"window": given.window} if given.scope == "any" else {}


def _unsettled(key: str) -> ConflictError:
    return ConflictError(f"the key {key!r} is taken and given up again too fast to follow", "uq_job_deduplication")


def check_snapshot(session: Session, model: JobClass, key: str | None, cause: Exception) -> None:
    """Raise ConflictError if another read in this transaction could not see who has the key."""
    isolation_level = queue_connection(session, model).get_isolation_level()
    if isolation_level != "READ COMMITTED":
        raise ConflictError(
            f"deduplication key {'' if key is None else f'{key!r} '}was taken by another transaction after this one, "
            f"{isolation_level}, took its snapshot; retry the transaction, or use READ COMMITTED",
            "uq_job_deduplication",
        ) from cause


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
            notify_workers(session, queue_connection(session, model), model, queue_key_of(found))
            return Enqueued.UPDATED if given.replace else Enqueued.EXISTING
        return None  # a claim was faster, or it has ended: the next round tells
    if given.scope == "waiting":
        session.execute(deduplication.give_up(model, begun=True), _keys((job.type_name, given.key)))
        return None
    return Enqueued.EXISTING


MOST_LOCKED: Final = 1_000
"""Keys of one call that are locked: each has a place in the server's lock table, which by default has some 6,000."""
_Result = tuple[Any, Enqueued]


@overload
def enqueue_many(session: Session, new: Iterable[JobMixin[Any]]) -> list[Any]: ...
@overload
def enqueue_many(
    session: Session, new: Iterable[JobT], *, deduplicate_by: Callable[[JobT], Deduplicate | str]
) -> list[tuple[Any, Enqueued]]: ...
def enqueue_many(
    session: Session, new: Iterable[JobT], *, deduplicate_by: Callable[[JobT], Deduplicate | str] | None = None
) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return their ids in the given order.

    `new`: jobs of one class, not in a session. They stay transient, which makes this much cheaper than
    `session.add_all`. A `scheduled_at` that is set directly is ignored: use `delay` or `at`.
    `deduplicate_by`: returns a job's policy, or a text for `Deduplicate(key)`. A job whose key is taken is then not
    inserted, as by `enqueue`, and the result is the id of the job with the key and what happened, for each. All have
    the same policy except for the key, without `exclude` and blockers. Of jobs with equal keys the first is inserted,
    and the last one's values replace others.
    Changes: inserts a row each; with `deduplicate_by` it may update one, and with scope "waiting" chains that have started
    lose their keys.
    Locks: the new rows; with `deduplicate_by` also the keys, and rows as `enqueue`, in the order of their keys.
    Raises: InvalidJobError for jobs of several classes, or a job in a session, or naming the job and the option of a policy
    that is not supported; InvalidOptionError in AUTOCOMMIT; nothing is written then. ConflictError for an id or key
    that is taken; ConflictError as in `enqueue`.
    """
    if deduplicate_by is None:
        return write_many(session, new)
    listed = list(new)
    policies = [_policy(f"new[{index}]", deduplicate_by(job)) for index, job in enumerate(listed)]
    return _write_unique(session, listed, policies) if listed else []


def _policy(field: str, given: object) -> Deduplicate:
    policy = Deduplicate(given) if isinstance(given, str) else given
    if not isinstance(policy, Deduplicate):
        raise InvalidJobError(field, f"must be deduplicated by a Deduplicate(...), got {type(policy).__name__}")
    return policy


def _write_unique(session: Session, listed: Sequence[JobT], policies: Sequence[Deduplicate]) -> list[_Result]:
    model, given = type(listed[0]), policies[0]
    by_key: dict[_Key, list[JobT]] = {}
    for index, (job, policy) in enumerate(zip(listed, policies, strict=True)):
        field = f"new[{index}]"
        check_new(field, job, model)
        if replace(policy, key=given.key) != given:
            raise InvalidJobError(
                field, "has other deduplication options than the first; use enqueue for each, or several calls"
            )
        if policy.exclude or job._blockers:
            raise InvalidJobError(field, f"{'excludes chains' if policy.exclude else 'has blockers'}; use enqueue")
        by_key.setdefault((job.type_name, policy.key), []).append(job)
    require_transaction(queue_connection(session, model), "deduplication")
    # With scope "waiting" keys are given up before others are taken, which is no one order.
    if given.scope == "any" or (given.scope == "waiting" and len(by_key) <= MOST_LOCKED):
        _lock(session, model, sorted(by_key))
    first_jobs = {key: jobs[0] for key, jobs in sorted(by_key.items())}
    results = _put(session, model, first_jobs, given)
    last_jobs = {key: jobs[-1] for key, jobs in sorted(by_key.items()) if len(jobs) > 1}
    repeated = _put(session, model, last_jobs, given) if given.replace and last_jobs else {}
    outcomes: list[_Result] = []
    for job, policy in zip(listed, policies, strict=True):
        key = (job.type_name, policy.key)
        if first_jobs[key] is job:
            outcomes.append(results[key])
        else:
            outcomes.append(repeated.get(key, (results[key][0], Enqueued.EXISTING)))
    return outcomes


def _lock(session: Session, model: JobClass, keys: Sequence[_Key]) -> None:
    if len(keys) > MOST_LOCKED:
        raise InvalidJobError("new", f"must have at most {MOST_LOCKED:,} keys with scope 'any', got {len(keys):,}; split it")
    names = [deduplication.lock_name(model, *key) for key in keys]
    queue_connection(session, model).execute(deduplication.lock_keys(), {"names": names})


def _put(session: Session, model: JobClass, jobs: dict[_Key, Any], given: Deduplicate) -> dict[_Key, _Result]:
    """Insert one job per key or find the existing one; return the outcome for each.

    A key that was in use when its job was to be inserted, and was free when its chain was looked up, is tried again.
    Other transactions may by then wait for keys that we hold and that sort after it, so those are released first: otherwise
    PostgreSQL would break the cycle with a deadlock error. If keys keep changing, the outcomes so far are kept.
    """
    connection = queue_connection(session, model)
    results: dict[_Key, _Result] = {}
    queues: set[str] = set()
    announce(session, list(jobs.values()))
    for number in range(_TRIES):
        left = {key: job for key, job in jobs.items() if key not in results}
        savepoint = connection.begin_nested()
        try:
            decided, touched = _put_once(connection, model, left, given)
        except DBAPIError as error:
            savepoint.rollback()
            state = diagnose(error).sqlstate
            if state == SERIALIZATION_FAILURE:
                check_snapshot(session, model, next(iter(left))[1] if len(left) == 1 else None, error)
            if state != DEADLOCK:
                raise
            continue
        if len(decided) < len(left) and number < _TRIES // 2:
            savepoint.rollback()
            continue
        savepoint.commit()
        results |= decided
        queues |= touched
        if len(results) == len(jobs):
            for made, (_, became) in results.items():
                jobs[made]._is_enqueued = became is Enqueued.CREATED
            for queue_key in sorted(queues):
                notify_workers(session, connection, model, queue_key)
            return results
    raise _unsettled(next(key for name, key in jobs if (name, key) not in results))


def _put_once(
    connection: Connection, model: JobClass, left: dict[_Key, Any], given: Deduplicate
) -> tuple[dict[_Key, _Result], set[str]]:
    """Try it with each key once; return what became of those that were decided, and the queues that have something new."""
    replaced, ended, held = tuple(sorted(given.replace)), given.scope == "any", given.scope == "waiting"
    more = _window(given) | ({"max_wait": given.max_wait} if "schedule" in replaced else {})
    results: dict[_Key, _Result] = {}
    queues: set[str] = set()
    keys = _keys(*left)
    if held:
        connection.execute(deduplication.give_up(model, begun=True), keys)
    touched: set[Any] = set()
    for (_, key), job in left.items():
        job.deduplication_key = key
    with translated():
        new = list(left.values())
        groups = group_by_columns(model, new, in_order=True)
        require_carried(model, groups, new, "enqueue")
        for names, group in groups:
            statement = deduplication.put(model, tuple(names), replaced, ended=ended, held=held)
            touched |= set(connection.execute(statement, arrays(model, names, group, connection.dialect) | more).scalars())
    found = connection.execute(deduplication.holders(model, ended=ended), keys | _window(given)).all()
    for type_name, key, holder, queue, fairness_key in found:
        job = left[type_name, key]
        if holder in touched:
            queues.add(QueueKey(queue, fairness_key).text)
            merged = Enqueued.UPDATED if replaced else Enqueued.EXISTING
            results[type_name, key] = (holder, Enqueued.CREATED if holder == job.id else merged)
        elif not held:
            results[type_name, key] = (holder, Enqueued.EXISTING)
    return results, queues
