"""Enqueueing with a deduplication key: returns the chain that has the key, or creates it, also under concurrency.

`session.add` cannot do this: a second job with the key of an open chain violates a unique index, and that error aborts the
transaction. Here the chains that have the keys are looked for, and the other jobs written, under a savepoint. `enqueue_many`
writes with `ON CONFLICT DO NOTHING`: of two transactions with an equal key, the second waits for the first and then finds
its job. Windows and ended chains need locks on the keys as well.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final, Literal, TypeVar, overload

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ConflictError, InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, shown
from sa_jobqueue.errors.drivers import DEADLOCK, SERIALIZATION_FAILURE, diagnose
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.checks import TEXT_RULE, check_text, is_text
from sa_jobqueue.operations.references import complete
from sa_jobqueue.operations.rows import arrays
from sa_jobqueue.operations.transactions import on_queue, queue_connection, require_transaction, translated
from sa_jobqueue.operations.writer import check_new, write_many
from sa_jobqueue.statements import deduplication
from sa_jobqueue.types import Enqueued, JobId

JobT = TypeVar("JobT", bound=JobMixin[Any])

_TRIES: Final = 10
_Key = tuple[str, str]
"""Job type and deduplication key."""


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """A deduplication policy: which jobs count as the same, and what happens to a job whose key is taken.

    `key`: text of 1 to 500 characters and at most 1,000 bytes; keys of different job types are independent.
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
        if not is_text(self.key):
            raise InvalidOptionError("key", f"{TEXT_RULE}, got {shown(self.key)}")
        if self.scope not in {"open", "any", "waiting"}:
            raise InvalidOptionError("scope", f"must be 'open', 'any' or 'waiting', got {self.scope!r}")
        if self.window is not None:
            check_duration("window", self.window)
        if self.window is not None and self.scope != "any":
            raise InvalidOptionError("window", "needs scope='any': an open chain counts however old it is")
        if isinstance(self.exclude, (str, bytes)) or not isinstance(self.exclude, Collection):
            raise InvalidOptionError("exclude", "must be a list of ids, not one id")
        replaceable = isinstance(self.replace, Collection) and not isinstance(self.replace, str)
        if not replaceable or any(part not in list(deduplication.REPLACEABLE) for part in self.replace):
            names = ", ".join(deduplication.REPLACEABLE)
            raise InvalidOptionError("replace", f"must be a list of some of {names}, got {self.replace!r}")
        if self.max_wait is not None:
            check_duration("max_wait", self.max_wait)
            if "schedule" not in self.replace:
                raise InvalidOptionError("max_wait", "needs 'schedule' in replace: it limits how long the job is postponed")


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
    policy, model = _policy("", deduplicate), type(job)

    def add(_: object) -> list[Any]:
        session.add(job)
        session.flush()
        return [job.id]

    require_transaction(queue_connection(session, model), "deduplication")
    complete(session, [job])
    with on_queue(session, model):
        # For each scope: without it, the second of two transactions violates the index, and the server logs the error.
        _lock(session, model, [(job.type_name, policy.key)])
        ((job_id, outcome),) = _settle(session, model, {(job.type_name, policy.key): job}, policy, add).values()
        holder = job if outcome is Enqueued.CREATED else session.scalars(deduplication.again(model, job_id)).one()
    return holder, outcome


MOST_LOCKED: Final = 1_000
"""Keys of one call that are locked: each has a place in the server's lock table, which by default has some 6,000."""
_Result = tuple[Any, Enqueued]
_Write = Callable[[Sequence[Any]], Sequence[Any]]


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
    complete(session, listed)  # before keys are made of their inputs
    policies = [_policy(f"new[{index}].", deduplicate_by(job)) for index, job in enumerate(listed)]
    return _write_unique(session, listed, policies) if listed else []


def _policy(place: str, policy: object) -> Deduplicate:
    if isinstance(policy, Deduplicate):
        return policy
    if isinstance(policy, str):
        check_text(f"{place}deduplication_key", policy)
        return Deduplicate(policy)
    reason = f"must be deduplicated by a Deduplicate(...) or a text, got {type(policy).__name__}"
    raise InvalidJobError(place.rstrip(".") or "job", reason)


def _write_unique(session: Session, listed: Sequence[JobT], policies: Sequence[Deduplicate]) -> list[_Result]:
    model, first_policy = type(listed[0]), policies[0]
    by_key: dict[_Key, list[JobT]] = {}
    for index, (job, policy) in enumerate(zip(listed, policies, strict=True)):
        field = f"new[{index}]"
        check_new(field, job, model)
        if replace(policy, key=first_policy.key) != first_policy:
            raise InvalidJobError(
                field, "has other deduplication options than the first; use enqueue for each, or several calls"
            )
        if policy.exclude or job._blockers:
            raise InvalidJobError(field, f"{'excludes chains' if policy.exclude else 'has blockers'}; use enqueue")
        by_key.setdefault((job.type_name, policy.key), []).append(job)
    require_transaction(queue_connection(session, model), "deduplication")
    # With scope "waiting" keys are given up before others are taken, which is no one order.
    if first_policy.scope == "any" or (first_policy.scope == "waiting" and len(by_key) <= MOST_LOCKED):
        _lock(session, model, sorted(by_key))
    write = partial(write_many, session, unless_taken=True)
    first_jobs = {key: jobs[0] for key, jobs in sorted(by_key.items())}
    results = _settle(session, model, first_jobs, first_policy, write)
    last_jobs = {key: jobs[-1] for key, jobs in sorted(by_key.items()) if len(jobs) > 1}
    repeated = _settle(session, model, last_jobs, first_policy, write) if first_policy.replace and last_jobs else {}
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
    queue_connection(session, model).execute(deduplication.lock_keys(model), _keys(keys))


def _settle(
    session: Session, model: JobClass, jobs: dict[_Key, JobT], policy: Deduplicate, write: _Write
) -> dict[_Key, _Result]:
    """Find the chain that has each key, or write its job; return the outcome for each.

    `write`: writes jobs unless their keys are taken, and returns the ids of those written; or raises that one is.
    A key that was in use when its job was to be inserted, and was free when its chain was looked up, is tried again.
    Other transactions may by then wait for keys that we hold and that sort after it, so those are released first: otherwise
    PostgreSQL would break the cycle with a deadlock error. If keys keep changing, the outcomes so far are kept.
    """
    results: dict[_Key, _Result] = {}
    for number in range(_TRIES):
        undecided = {key: job for key, job in jobs.items() if key not in results}
        single_key = next(iter(undecided))[1] if len(undecided) == 1 else None
        try:
            with translated(), session.begin_nested() as savepoint:
                decided = _find_or_write(session, model, undecided, policy, write)
                if len(decided) == len(undecided) or number >= _TRIES // 2:
                    results |= decided
                else:
                    savepoint.rollback()
        except ConflictError as error:  # one that enqueues without this function has the key
            if "uq_job_deduplication" not in error.constraint:
                raise
            _check_snapshot(session, model, single_key, error)
        except DBAPIError as error:
            state = diagnose(error).sqlstate
            if state == SERIALIZATION_FAILURE:
                _check_snapshot(session, model, single_key, error)
            if state != DEADLOCK:
                raise
        if len(results) == len(jobs):
            for key, (_, outcome) in results.items():
                jobs[key]._is_enqueued = outcome is Enqueued.CREATED
            return results
    _, contested_key = next(key for key in jobs if key not in results)
    raise ConflictError(f"the key {contested_key!r} is taken and given up again too fast to follow", "uq_job_deduplication")


def _check_snapshot(session: Session, model: JobClass, key: str | None, cause: Exception) -> None:
    """Raise ConflictError if another read in this transaction could not see who has the key."""
    isolation_level = queue_connection(session, model).get_isolation_level()
    if isolation_level != "READ COMMITTED":
        raise ConflictError(
            f"deduplication key {'' if key is None else f'{key!r} '}was taken by another transaction after this one, "
            f"{isolation_level}, took its snapshot; retry the transaction, or use READ COMMITTED",
            "uq_job_deduplication",
        ) from cause


def _find_or_write(
    session: Session, model: JobClass, jobs: dict[_Key, JobT], policy: Deduplicate, write: _Write
) -> dict[_Key, _Result]:
    """Try it with each key once; return the outcome for each key that was decided."""
    results, begun = _find(session, model, jobs, policy)
    # An INSERT would violate the unique index, which the server logs: the chain that has the key is looked up again.
    new = {key: job for key, job in jobs.items() if key not in results and key not in begun}
    if not new:
        return results
    for (_, key), job in new.items():
        job.deduplication_key = key
    if policy.exclude:  # there is a successor now to hand the key over to
        queue_connection(session, model).execute(
            deduplication.give_up(model, begun=False), _keys(new) | {"ids": list(policy.exclude)}
        )
    written_ids = set(write(list(new.values())))
    results |= {key: (job.id, Enqueued.CREATED) for key, job in new.items() if job.id in written_ids}
    undecided = {key: job for key, job in new.items() if job.id not in written_ids}
    return results | (_find(session, model, undecided, policy)[0] if undecided else {})


def _find(
    session: Session, model: JobClass, jobs: dict[_Key, JobT], policy: Deduplicate
) -> tuple[dict[_Key, _Result], set[_Key]]:
    """Return the chains that have keys, and what became of each; and the keys of chains that began meanwhile."""
    connection = queue_connection(session, model)
    keys, ended, is_waiting = _keys(jobs), policy.scope == "any", policy.scope == "waiting"
    if is_waiting:
        connection.execute(deduplication.give_up(model, begun=True), keys)
    among: dict[str, Any] = {"excluded": list(policy.exclude)} | ({"window": policy.window} if ended else {})
    results: dict[_Key, _Result] = {}
    waiting_keys: dict[Any, _Key] = {}
    begun: set[_Key] = set()
    for type_name, key, holder, waits in connection.execute(deduplication.holders(model, ended=ended), keys | among):
        # Also where nothing is replaced: one that counts because it has not begun must not begin before our transaction is
        # seen.
        if waits and (policy.replace or is_waiting):
            waiting_keys[holder] = type_name, key
        elif is_waiting:
            begun.add((type_name, key))
        else:
            results[type_name, key] = (holder, Enqueued.EXISTING)
    if waiting_keys:
        replaced = tuple(sorted(policy.replace))
        names = {name: name for name in ("deduplication_key", *deduplication.replaced_columns(replaced))}
        later = [jobs[key] for key in waiting_keys.values()]
        for key in waiting_keys.values():
            jobs[key].deduplication_key = key[1]
        values = {
            f"next_{name}": values_of_jobs
            for name, values_of_jobs in arrays(model, names, later, connection.dialect).items()
        }
        more = {"ids": list(waiting_keys)} | ({"max_wait": policy.max_wait} if "schedule" in replaced else {})
        outcome = Enqueued.UPDATED if replaced else Enqueued.EXISTING
        for (holder,) in connection.execute(deduplication.replace(model, replaced), values | more):
            results[waiting_keys[holder]] = (holder, outcome)
    return results, begun | (set(waiting_keys.values()) - results.keys())


def _keys(keys: Iterable[_Key]) -> dict[str, Any]:
    names, texts = zip(*keys, strict=True)
    return {"type_names": list(names), "keys": list(texts)}
