"""Retention: delete ended chains and resolved dead letters after their retention period, one page of the table per call."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.splitting import is_of_a_row, sqlstate
from sa_jobqueue.errors import ConflictError, InvalidOptionError, JobQueueError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.chains import delete_jobs
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import deletion, retention
from sa_jobqueue.types import JobId, JobStatus

SCAN: Final = 500
"""Jobs that one call looks at."""
MAX_SCAN: Final = 10_000
MOST_JOBS: Final = 1000
"""Jobs that one call deletes, about: a chain goes whole. Some 50 ms."""
_LOCKED_OUT: Final = frozenset({"40P01", "55P03"})
"""A deadlock, or a lock not given in time."""


@dataclass(frozen=True, slots=True)
class PruneCursor:
    """Position of a walk through the table: pass it to the next call."""

    after: JobId | None
    """The last job looked at; None before the first."""
    due: tuple[Any, ...] = ()
    """Chains to look at first: those whose last reference is gone, and those for which the last call had no capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Result of one call of `prune`. With `dry_run`, the rows to delete, including chains that are locked now."""

    chains: Mapping[tuple[str, JobStatus], int]
    """Number of deleted chains, by the type of their first job and their status."""
    jobs: int
    """Number of jobs of these chains."""
    kept: int
    """Chains past their retention that were kept: a job of another chain refers to them, or they are locked."""
    scanned: int
    """How many jobs were looked at."""
    is_young: bool
    """Whether all of these were created too recently to be deleted."""
    next: PruneCursor | None = field(repr=False)
    """Position of the next call; None at the end of the table."""
    refused: Mapping[JobId, Exception] = field(default_factory=dict)
    """Chains that cannot be deleted, for instance because of a trigger, each with the error. They stay."""


def prune(
    session: Session,
    rules: RetentionRules,
    *,
    cursor: PruneCursor | None = None,
    scan: int = SCAN,
    queue_rows: bool = True,
    by: str = "retention",
    dry_run: bool = False,
    excluded: Collection[JobId] = (),
    model: JobClass = Job,
) -> Pruned:
    """Delete whole chains whose retention period has ended, among the next `scan` jobs; return the result and next cursor.

    Commit, then call again with the result's `next` as `cursor`, until that is None. A chain is kept while it is open,
    while jobs that wait for it have not been unblocked, and while a job of another kept chain waits or waited for it.
    Unresolved dead letters of deleted chains are dismissed by `by`. Several processes can prune at the same time.

    `rules`: how long chains are kept; with `queue_rows`, the retention in a queue's row overrides them.
    `excluded`: ids of chains to keep.
    `scan`: 1 to 10,000.
    Changes: deletes rows of `job`, `job_blocker` and `job_attempt`.
    Clock: the database's.
    Locks: the jobs of the deleted chains, roots first, each in the order of their ids; locked chains are left for the next
    run. Needs READ COMMITTED.
    """
    _check_scan(scan)
    session.flush()
    if queue_rows:
        rules = replace(rules, queues={**rules.queues, **_rules_of_queues(session, model)})
    shortest = rules.shortest
    if shortest is None:
        return Pruned(chains={}, jobs=0, kept=0, scanned=0, is_young=True, next=None)
    given = rules.parameters()
    cursor = cursor or PruneCursor(None)
    ids, page = list(cursor.due), None
    if not ids:
        page = _read_page(session, model, given, cursor, scan=scan, shortest=shortest)
        ids = list(page.ids or ())
    if excluded:
        ids = [chain_id for chain_id in ids if chain_id not in excluded]
    taken, later = _fill(session, model, ids)
    found = _remove(session, model, given, taken, by=by, dry_run=dry_run)
    due = (*found.freed, *later)
    after = page.last_id if page is not None and page.scanned else cursor.after
    is_last = page is not None and page.scanned < scan
    counts: dict[tuple[str, JobStatus], int] = {}
    for kind in found.deleted.values():
        counts[kind] = counts.get(kind, 0) + 1
    return Pruned(
        chains=counts,
        jobs=found.jobs,
        kept=(len(taken) if page is not None else found.expired) - len(found.deleted),
        scanned=page.scanned if page is not None else 0,
        is_young=page is not None and bool(page.is_young),
        next=None if is_last and not due else PruneCursor(after, due),
        refused=found.refused,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedDeadLetters:
    """Result of one call of `prune_dead_letters`. With `dry_run`, the rows to delete."""

    dead_letters: int
    """Number of deleted dead letters."""
    scanned: int
    """How many were looked at."""
    is_young: bool
    """Whether all of these died too recently to be deleted."""
    next: JobId | None = field(repr=False)
    """Position of the next call; None at the end of the table."""
    refused: Mapping[JobId, Exception] = field(default_factory=dict)
    """Dead letters that could not be deleted, for instance because of a trigger, each with the error. They stay."""


def prune_dead_letters(
    session: Session,
    rules: RetentionRules,
    *,
    after: JobId | None = None,
    scan: int = SCAN,
    dry_run: bool = False,
    excluded: Collection[JobId] = (),
    model: JobClass = Job,
) -> PrunedDeadLetters:
    """Delete resolved dead letters whose retention period has ended, among the next `scan`; return the next position.

    Commit, then call again with `after`, the result's `next`, until that is None. Unresolved dead letters are kept, and
    those of jobs that are still dead.

    `rules`: how long they are kept; settings of queues do not apply.
    `scan`: 1 to 10,000.
    `excluded`: ids of dead letters to keep.
    Clock: the database's.
    Locks: the deleted rows; locked ones are skipped.
    """
    _check_scan(scan)
    shortest = rules.shortest_of_dead_letters
    if shortest is None:
        return PrunedDeadLetters(dead_letters=0, scanned=0, is_young=True, next=None)
    session.flush()
    given = rules.dead_letter_parameters() | {"shortest": shortest, "excluded": list(excluded)}
    return _prune_page(session, model, given, after, scan=scan, dry_run=dry_run)


def _prune_page(
    session: Session, model: JobClass, given: dict[str, Any], after: JobId | None, *, scan: int, dry_run: bool
) -> PrunedDeadLetters:
    given |= {"scan": scan} | ({} if after is None else {"after": after})
    try:
        with session.begin_nested():
            page = session.execute(retention.dead_letters(model, first=after is None, remove=not dry_run), given).one()
    except Exception as error:
        if dry_run or not is_of_a_row(error):
            raise
        refused = error
    else:
        cursor = None if page.scanned < scan else page.last_id
        return PrunedDeadLetters(dead_letters=page.deleted, scanned=page.scanned, is_young=bool(page.is_young), next=cursor)
    if scan == 1:
        page = session.execute(retention.dead_letters(model, first=after is None, remove=False), given).one()
        return PrunedDeadLetters(
            dead_letters=0, scanned=1, is_young=False, next=page.last_id, refused={page.last_id: refused}
        )
    one = _prune_page(session, model, given, after, scan=scan // 2, dry_run=False)
    if one.next is None:
        return one
    other = _prune_page(session, model, given, one.next, scan=scan - scan // 2, dry_run=False)
    return PrunedDeadLetters(
        dead_letters=one.dead_letters + other.dead_letters,
        scanned=one.scanned + other.scanned,
        is_young=one.is_young and other.is_young,
        next=other.next,
        refused={**one.refused, **other.refused},
    )


@dataclass(slots=True)
class _Found:
    deleted: dict[Any, tuple[str, JobStatus]] = field(default_factory=dict)
    jobs: int = 0
    freed: list[Any] = field(default_factory=list)
    expired: int = 0
    """Of the requested chains, those that were not locked by another transaction."""
    refused: dict[Any, Exception] = field(default_factory=dict)


def _check_scan(scan: int) -> None:
    if not 1 <= scan <= MAX_SCAN:
        raise InvalidOptionError("scan", f"must be from 1 to {MAX_SCAN:,}, got {scan}")


def _rules_of_queues(session: Session, model: JobClass) -> dict[str, Retention]:
    rows = session.execute(retention.of_queues(model))
    return {name: Retention(**dict(zip(OUTCOMES, ages, strict=True))) for name, *ages in rows}


def _read_page(
    session: Session, model: JobClass, given: dict[str, Any], cursor: PruneCursor, *, scan: int, shortest: timedelta
) -> Any:
    first = cursor.after is None
    where = {} if first else {"after": cursor.after}
    return session.execute(
        retention.expired_chains(model, first=first), given | where | {"scan": scan, "shortest": shortest}
    ).one()


def _fill(session: Session, model: JobClass, ids: list[Any]) -> tuple[dict[Any, int], list[Any]]:
    """Return as many chains as one call may delete, with their lengths, and those that are left."""
    if not ids:
        return {}, []
    longer = {row.chain_id: row.n for row in session.execute(retention.lengths(model), {"ids": ids})}
    taken: dict[Any, int] = {}
    jobs = 0
    for chain_id in ids:
        length = 1 + longer.get(chain_id, 0)
        if taken and jobs + length > MOST_JOBS:
            break
        taken[chain_id] = length
        jobs += length
    return taken, ids[len(taken) :]


def _remove(
    session: Session, model: JobClass, given: dict[str, Any], taken: dict[Any, int], *, by: str, dry_run: bool
) -> _Found:
    """Delete what of some chains may go. A row of the application's that refers to one must not keep the others."""
    if not taken:
        return _Found()
    savepoint = session.begin_nested()
    refused: Exception | None = None
    try:
        with savepoint:
            return _delete(session, model, given, taken, by=by, dry_run=dry_run)
    except ConflictError:
        pass
    except Exception as error:
        cause = error.__cause__ if isinstance(error, JobQueueError) and isinstance(error.__cause__, DBAPIError) else error
        if sqlstate(cause) not in _LOCKED_OUT:
            if not is_of_a_row(cause):
                raise
            refused = cause
    if len(taken) == 1:
        return _Found(refused={} if refused is None else dict.fromkeys(taken, refused))
    both = list(taken.items())
    halves = (dict(both[: len(both) // 2]), dict(both[len(both) // 2 :]))
    one, other = (_remove(session, model, given, half, by=by, dry_run=dry_run) for half in halves)
    return _Found(
        one.deleted | other.deleted,
        one.jobs + other.jobs,
        one.freed + other.freed,
        one.expired + other.expired,
        one.refused | other.refused,
    )


def _delete(
    session: Session, model: JobClass, given: dict[str, Any], taken: dict[Any, int], *, by: str, dry_run: bool
) -> _Found:
    asked = given | {"ids": list(taken)}
    kinds: dict[Any, tuple[str, JobStatus]] = {}
    jobs: dict[Any, list[Any]] = {}
    for row in session.execute(retention.roots(model, lock=not dry_run), asked):
        kinds[row.id] = (row.type_name, JobStatus(row.outcome))
        jobs[row.id] = [row.id]
    if dry_run:
        to_delete = _unreferenced(session, model, kinds)
        return _Found(
            {chain_id: kinds[chain_id] for chain_id in to_delete},
            sum(taken[chain_id] for chain_id in to_delete),
            [],
            len(kinds),
        )
    # In statements of their own, later than the locks: each sees all that was committed before the locks were had, and
    # nothing can be added to these chains, or wait for them, any more.
    for row in session.execute(deletion.lock_others(model), {"ids": list(jobs)}):
        jobs[row.chain_id].append(row.id)
    # If a job is missing, another transaction holds it and may wait for the root next: waiting for it here could deadlock.
    whole = [chain_id for chain_id, own in jobs.items() if len(own) == taken[chain_id]]
    to_delete = _unreferenced(session, model, whole)
    if not to_delete:
        return _Found(expired=len(kinds))
    job_ids = [job_id for chain_id in to_delete for job_id in jobs[chain_id]]
    freed = set(session.scalars(retention.waited_for(model), {"job_ids": job_ids})) - set(to_delete)
    delete_jobs(session, model, job_ids, by=by)
    return _Found({chain_id: kinds[chain_id] for chain_id in to_delete}, len(job_ids), list(freed), len(kinds))


def _unreferenced(session: Session, model: JobClass, chain_ids: Sequence[Any] | Mapping[Any, Any]) -> list[Any]:
    """Return those that no job of a chain which stays waits for, or waited, in the order given."""
    to_delete = list(chain_ids)
    while to_delete:
        referred = set(session.scalars(deletion.referred_to(model), {"ids": to_delete}))
        if not referred:
            break
        to_delete = [chain_id for chain_id in to_delete if chain_id not in referred]
    return to_delete
