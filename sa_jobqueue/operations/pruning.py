"""Retention: delete ended chains, resolved dead letters and audit records past their retention, one page per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.blocking import blocking
from sa_jobqueue.db.splitting import in_parts, is_of_a_row, sqlstate
from sa_jobqueue.errors import InvalidOptionError, JobQueueError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.chains import delete_jobs
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import audit, deletion, retention
from sa_jobqueue.types import JobId, JobStatus

R = TypeVar("R")

SCAN: Final = 500
"""Rows that one call looks at."""
MAX_SCAN: Final = 10_000
MOST_JOBS: Final = 1000
"""Jobs that one call deletes, about: a chain goes whole. Some 50 ms."""
PrunedTable: TypeAlias = Literal["jobs", "dead_letters", "audit"]
_TABLES: Final[tuple[PrunedTable, ...]] = get_args(PrunedTable)
_IN_THE_WAY: Final = frozenset({"23503", "40P01", "55P03"})
"""A reference by an application's row, a deadlock, or a lock not given in time: the next run tries again."""


@dataclass(frozen=True, slots=True)
class PruneCursor:
    """Position of a walk through the tables: pass it to the next call."""

    table: PrunedTable = "jobs"
    """The table that is walked through."""
    after: JobId | None = None
    """The last row looked at; None before the first."""
    due: tuple[Any, ...] = ()
    """Chains to look at first: those whose last reference is gone, and those for which the last call had no capacity."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Result of one call of `prune`. With `dry_run`, the rows to delete, including chains that are locked now."""

    chains: Mapping[tuple[str, JobStatus], int] = field(default_factory=dict)
    """Number of deleted chains, by the type of their first job and their status."""
    jobs: int = 0
    """Number of jobs of these chains."""
    dead_letters: int = 0
    """Number of deleted dead letters."""
    audit: int = 0
    """Number of deleted audit records."""
    kept: int = 0
    """Chains past their retention that were kept: a job of another chain refers to them, or they are locked."""
    scanned: int = 0
    """How many jobs or dead letters were looked at."""
    next: PruneCursor | None = field(default=None, repr=False)
    """Position of the next call; None at the end of the last table."""
    refused: Mapping[JobId, Exception] = field(default_factory=dict)
    """Chains and dead letters that cannot be deleted, for instance because of a trigger, each with the error. They stay."""


def prune(
    session: Session,
    rules: RetentionRules,
    *,
    cursor: PruneCursor | None = None,
    scan: int = SCAN,
    to_the_end: bool = True,
    queue_rows: bool = True,
    by: str = "retention",
    dry_run: bool = False,
    excluded: Collection[JobId] = (),
    model: JobClass = Job,
) -> Pruned:
    """Delete rows past their retention among the next `scan` rows of a table; return the result and the next cursor.

    Commit, then call again with the result's `next` as `cursor`, until that is None. It walks through the jobs, then through
    the dead letters, then through the audit. A chain is deleted whole, but kept while it is open, while jobs that wait for
    it have not been unblocked, and while a job of another kept chain waits or waited for it. Unresolved dead letters of
    deleted chains are dismissed by `by`. Dead letters are kept while they are unresolved or their job is still dead.
    Several processes can prune at the same time.

    `rules`: how long rows are kept; with `queue_rows`, the retention in a queue's row overrides them for chains.
    `excluded`: ids of chains and dead letters to keep.
    `scan`: 1 to 10,000. `to_the_end`: without it, a table ends at a page of rows that are all too young.
    Changes: deletes rows of `job`, `job_blocker`, `job_attempt`, `dead_letter` and `job_audit`.
    Clock: the database's.
    Locks: the deleted rows; of chains all jobs, roots first, each in the order of their ids. Locked rows are left for the
    next run. Needs READ COMMITTED.
    """
    if not 1 <= scan <= MAX_SCAN:
        raise InvalidOptionError("scan", f"must be from 1 to {MAX_SCAN:,}, got {scan}")
    session.flush()
    cursor = cursor or PruneCursor()
    if queue_rows and cursor.table == "jobs":
        rules = replace(rules, queues={**rules.queues, **_rules_of_queues(session, model)})
    shortest = rules.shortest
    left = [PruneCursor(table) for table in _TABLES[_TABLES.index(cursor.table) :] if table in shortest]
    if not left:
        return Pruned()
    following = next(iter(left[1:]), None)
    if cursor.table != left[0].table:
        cursor = left[0]
    if cursor.table == "audit":
        given = {"age": shortest["audit"], "limit": scan}
        if dry_run:
            return Pruned(audit=session.execute(audit.count_expired(model), given).scalar_one())
        deleted = len(session.execute(audit.prune(model), given).all())
        return Pruned(audit=deleted, next=cursor if deleted else None)
    given = {"rules": rules.document(), "shortest": shortest[cursor.table], "scan": scan}
    page = retention.expired_chains if cursor.table == "jobs" else retention.expired_dead_letters
    ids, scanned, after = list(cursor.due), 0, cursor.after
    if not ids:
        ids, scanned, after = _read_page(session, page(model, first=after is None), given, cursor, to_the_end=to_the_end)
    ids = [one for one in ids if one not in excluded]
    if cursor.table == "dead_letters":
        deleted, refused = _prune_dead_letters(session, model, ids, dry_run=dry_run)
        following = following if after is None else replace(cursor, after=after)
        return Pruned(dead_letters=deleted, scanned=scanned, next=following, refused=refused)
    taken, later = _fill(session, model, ids)

    def delete(part: Sequence[Any]) -> _Deleted:
        with session.begin_nested():
            return _delete(session, model, given, part, taken, by=by, dry_run=dry_run)

    parts, refused = delete_in_parts(list(taken), delete)
    counts = Counter(kind for part in parts for kind in part.kinds)
    due = (*(chain_id for part in parts for chain_id in part.freed), *later)
    return Pruned(
        chains=counts,
        jobs=sum(part.jobs for part in parts),
        kept=(sum(part.expired for part in parts) if cursor.due else len(taken)) - counts.total(),
        scanned=scanned,
        next=following if after is None and not due else PruneCursor(after=after or cursor.after, due=due),
        refused=refused,
    )


def _rules_of_queues(session: Session, model: JobClass) -> dict[str, Retention]:
    rows = session.execute(retention.of_queues(model))
    return {name: Retention(**dict(zip(OUTCOMES, ages, strict=True))) for name, *ages in rows}


def _read_page(
    session: Session, statement: Select[Any], given: dict[str, Any], cursor: PruneCursor, *, to_the_end: bool
) -> tuple[list[Any], int, Any]:
    """Return the ids that are due, the number of rows that were read, and the last of them, None at the end of the walk."""
    page = session.execute(statement, given | ({} if cursor.after is None else {"after": cursor.after})).one()
    is_last = page.scanned < given["scan"] or (page.is_young and not to_the_end)
    return list(page.ids or ()), page.scanned, None if is_last else page.last_id


def delete_in_parts(ids: Sequence[Any], delete: Callable[[Sequence[Any]], R]) -> tuple[list[R], dict[Any, Exception]]:
    """Delete rows together; halve them while one cannot be deleted, is locked, or is referred to by the application.

    `delete`: one transaction or savepoint.
    Shape: the results of the calls that succeeded; the ids that cannot be deleted, each with its error.
    """

    def cause_of(error: Exception) -> Exception:
        return error.__cause__ if isinstance(error, JobQueueError) and isinstance(error.__cause__, DBAPIError) else error

    def splits(error: Exception) -> bool:
        cause = cause_of(error)
        return sqlstate(cause) in _IN_THE_WAY or (is_of_a_row(cause) and not isinstance(cause, JobQueueError))

    async def some(part: Sequence[Any]) -> R:
        return delete(part)

    done, failed = blocking(in_parts(ids, some, splits=splits))
    causes = {one: cause_of(error) for one, error in failed}
    return done, {one: cause for one, cause in causes.items() if sqlstate(cause) not in _IN_THE_WAY}


def _prune_dead_letters(
    session: Session, model: JobClass, ids: list[Any], *, dry_run: bool
) -> tuple[int, dict[Any, Exception]]:
    if dry_run or not ids:
        return len(ids), {}

    def delete(part: Sequence[Any]) -> int:
        with session.begin_nested():
            return len(session.execute(retention.delete_dead_letters(model), {"ids": list(part)}).all())

    deleted, refused = delete_in_parts(ids, delete)
    return sum(deleted), refused


class _Deleted(NamedTuple):
    kinds: list[tuple[str, JobStatus]]
    """Of each deleted chain, its type and status."""
    jobs: int
    freed: list[Any]
    """Chains to which these no longer refer."""
    expired: int
    """Of the requested chains, those that were not locked by another transaction."""


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


def _delete(
    session: Session,
    model: JobClass,
    given: dict[str, Any],
    chain_ids: Sequence[Any],
    lengths: Mapping[Any, int],
    *,
    by: str,
    dry_run: bool,
) -> _Deleted:
    kinds: dict[Any, tuple[str, JobStatus]] = {}
    jobs: dict[Any, list[Any]] = {}
    for row in session.execute(retention.roots(model, lock=not dry_run), given | {"ids": list(chain_ids)}):
        kinds[row.id] = (row.type_name, JobStatus(row.outcome))
        jobs[row.id] = [row.id]
    if dry_run:
        to_delete = unreferenced(session, model, kinds)
        return _Deleted([kinds[one] for one in to_delete], sum(lengths[one] for one in to_delete), [], len(kinds))
    # In statements of their own, later than the locks: each sees all that was committed before the locks were had, and
    # nothing can be added to these chains, or wait for them, any more.
    for row in session.execute(deletion.continuations(model, lock=True, skip_locked=True), {"ids": list(jobs)}):
        jobs[row.chain_id].append(row.id)
    # If a job is missing, another transaction holds it and may wait for the root next: waiting for it here could deadlock.
    whole = [chain_id for chain_id, own in jobs.items() if len(own) == lengths[chain_id]]
    to_delete = unreferenced(session, model, whole)
    if not to_delete:
        return _Deleted([], 0, [], len(kinds))
    job_ids = [job_id for chain_id in to_delete for job_id in jobs[chain_id]]
    freed = set(session.scalars(retention.waited_for(model), {"job_ids": job_ids})) - set(to_delete)
    delete_jobs(session, model, job_ids, by=by)
    return _Deleted([kinds[one] for one in to_delete], len(job_ids), list(freed), len(kinds))


def unreferenced(session: Session | Connection, model: JobClass, chain_ids: Iterable[Any]) -> list[Any]:
    """Return those chains that no job of a chain which stays waits for, or waited, in the order given."""
    to_delete = list(chain_ids)
    while to_delete:
        referred = set(session.scalars(deletion.referred_to(model), {"ids": to_delete}))
        if not referred:
            break
        to_delete = [chain_id for chain_id in to_delete if chain_id not in referred]
    return to_delete
