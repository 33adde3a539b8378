"""Enqueueing thousands of jobs with deduplication keys: the guarantees of `enqueue`, with a few statements for all jobs.

`INSERT ... ON CONFLICT` decides by the unique index: of two transactions with an equal key, the second waits for the first
and then finds its job. Only windows and ended chains need locks on the keys as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, inspect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ConflictError, InvalidJobError
from sa_jobqueue.errors.drivers import DEADLOCK, SERIALIZATION_FAILURE, diagnose
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.deduplicate import Deduplicate, _check_one, check_snapshot
from sa_jobqueue.operations.enqueueing import arrays, group_neighbours_by_columns, notify_workers
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.transactions import queue_connection, require_transaction
from sa_jobqueue.statements import deduplication
from sa_jobqueue.tracing import announce
from sa_jobqueue.types import Enqueued

JobT = TypeVar("JobT", bound=JobMixin[Any])

MOST_LOCKED: Final = 1_000
"""Keys of one call that are locked: each has a place in the server's lock table, which by default has some 6,000."""
_TRIES: Final = 10

_Key = tuple[str, str]
_Result = tuple[Any, Enqueued]


def enqueue_many_unique(session: Session, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[Any, Enqueued]]:
    """Enqueue thousands of jobs, each unless its key is taken; return the id of the job with each key, and what happened.

    Like `enqueue_unique`, with a few statements for all jobs, which stay transient. All jobs have one class and the same
    policy except for the key, without `exclude` and blockers. Of jobs with equal keys the first is inserted, and the last
    one's values replace others. Jobs that set different columns need one statement for each run of neighbours, in the order
    of their keys, with the same columns.
    Changes: inserts or updates a row each; with scope "waiting", chains that have started lose their keys.
    Locks: new and changed rows, with scope "waiting" also found ones, in the order of their keys, until the transaction
    ends; transactions with equal keys are waited for. With scope "any" also the keys, at most 1,000 per call; with "waiting"
    too if there are no more than that. It works in a savepoint and retries after a deadlock.
    Raises: InvalidJobError naming the job and the unsupported option, TransactionRequiredError in AUTOCOMMIT; nothing is
    written then. ConflictError for an id that is taken; StaleSnapshotError as in `enqueue_unique`.
    """
    listed = list(new)
    if not listed:
        return []
    given = _check(listed)
    model = type(listed[0][0])
    require_transaction(queue_connection(session, model), "deduplication")
    by_key: dict[_Key, list[JobT]] = {}
    for job, one in listed:
        job.deduplication_key = one.key
        by_key.setdefault((job.type_name, one.key), []).append(job)
    # With scope "waiting" keys are given up before others are taken, which is no one order.
    if given.scope == "any" or (given.scope == "waiting" and len(by_key) <= MOST_LOCKED):
        _lock(session, model, sorted(by_key))
    first_jobs = {key: jobs[0] for key, jobs in sorted(by_key.items())}
    results = _put(session, model, first_jobs, given)
    last_jobs = {key: jobs[-1] for key, jobs in sorted(by_key.items()) if len(jobs) > 1}
    repeated = _put(session, model, last_jobs, given) if given.replace and last_jobs else {}
    outcomes: list[_Result] = []
    for job, one in listed:
        key = (job.type_name, one.key)
        if first_jobs[key] is job:
            outcomes.append(results[key])
        else:
            outcomes.append(repeated.get(key, (results[key][0], Enqueued.EXISTING)))
    return outcomes


def _check(listed: Sequence[tuple[JobMixin[Any], Deduplicate]]) -> Deduplicate:
    """Return what all have in common. Raises: InvalidJobError."""
    (first, given) = listed[0]
    for index, (job, one) in enumerate(listed):
        field = f"new[{index}]"
        _check_one(field, job, one)
        if type(job) is not type(first):
            raise InvalidJobError(field, f"is a {type(job).__name__}, the first is a {type(first).__name__}")
        if not inspect(job).transient:
            raise InvalidJobError(field, "is or was in a session; pass a fresh job")
        if replace(one, key=given.key) != given:
            raise InvalidJobError(
                field, "has other deduplication options than the first; use enqueue_unique, or several calls"
            )
        if one.exclude:
            raise InvalidJobError(field, "excludes chains; use enqueue_unique")
        if job._blockers:
            raise InvalidJobError(field, "has blockers; use enqueue_unique")
    return given


def _lock(session: Session, model: type[JobMixin[Any]], keys: Sequence[_Key]) -> None:
    if len(keys) > MOST_LOCKED:
        raise InvalidJobError("new", f"must have at most {MOST_LOCKED:,} keys with scope 'any', got {len(keys):,}; split it")
    names = [deduplication.lock_name(model, *key) for key in keys]
    queue_connection(session, model).execute(deduplication.lock_keys(), {"names": names})


def _put(session: Session, model: type[JobMixin[Any]], jobs: dict[_Key, Any], given: Deduplicate) -> dict[_Key, _Result]:
    """Insert one job per key or find the existing one; return the outcome for each.

    A key that was in use when its job was to be inserted, and was free when its chain was looked up, is tried again.
    Other transactions may by then wait for keys that we hold and that sort after it, so those are released first: otherwise
    PostgreSQL would break the cycle with a deadlock error. If keys keep changing, the outcomes so far are kept.
    """
    connection = queue_connection(session, model)
    results: dict[_Key, _Result] = {}
    queues: set[tuple[str, str]] = set()
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
            for queue, fairness_key in sorted(queues):
                notify_workers(session, connection, model, queue, fairness_key)
            return results
    _, key = next(missing for missing in jobs if missing not in results)
    raise ConflictError(f"the key {key!r} is taken and given up again too fast to follow", "uq_job_deduplication")


def _put_once(
    connection: Connection, model: type[JobMixin[Any]], left: dict[_Key, Any], given: Deduplicate
) -> tuple[dict[_Key, _Result], set[tuple[str, str]]]:
    """Try it with each key once; return what became of those that were decided, and the queues that have something new."""
    replaced, ended, held = tuple(sorted(given.replace)), given.scope == "any", given.scope == "waiting"
    window = {"window": given.window} if ended else {}
    more = window | ({"max_wait": given.max_wait} if "schedule" in replaced else {})
    results: dict[_Key, _Result] = {}
    queues: set[tuple[str, str]] = set()
    keys = {"type_names": [name for name, _ in left], "keys": [key for _, key in left]}
    if held:
        connection.execute(deduplication.give_up_begun(model), keys)
    touched: set[Any] = set()
    with translated():
        for names, group in group_neighbours_by_columns(model, list(left.values())):
            statement = deduplication.put(model, tuple(names), replaced, ended=ended, held=held)
            touched |= set(connection.execute(statement, arrays(model, names, group, connection.dialect) | more).scalars())
    found = connection.execute(deduplication.holders(model, ended=ended), keys | window).all()
    for type_name, key, holder, queue, fairness_key in found:
        job = left[type_name, key]
        if holder in touched:
            queues.add((queue, fairness_key))
            merged = Enqueued.UPDATED if replaced else Enqueued.EXISTING
            results[type_name, key] = (holder, Enqueued.CREATED if holder == job.id else merged)
        elif not held:
            results[type_name, key] = (holder, Enqueued.EXISTING)
    return results, queues
