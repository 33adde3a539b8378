"""Retention: delete ended chains, resolved dead letters and audit records past their retention, one page per call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from sqlalchemy import Connection, Select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.blocking import blocking
from sa_jobqueue.db.splitting import in_parts, is_of_a_row, is_of_a_trigger, sqlstate
from sa_jobqueue.errors import InvalidOptionError, JobQueueError
from sa_jobqueue.errors.drivers import DEADLOCK, REFERENCED
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations.chains import delete_jobs
from sa_jobqueue.operations.transactions import queue_connection, translated
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import deletion, retention, steps
from sa_jobqueue.types import JobId, JobStatus

R = TypeVar("R")

SCAN: Final = 500
"""Rows that one call looks at."""
MAX_SCAN: Final = 10_000
MOST_JOBS: Final = 1000
"""Jobs that one call deletes, about: a chain goes whole. Some 50 ms."""
PrunedTable: TypeAlias = Literal["jobs", "dead_letters", "audit"]
PRUNED_TABLES: Final[tuple[PrunedTable, ...]] = get_args(PrunedTable)
_LOCKED: Final = frozenset({DEADLOCK, "55P03"})
"""A deadlock, or a lock not given in time: the next run tries again."""
_PAGES: Final = {
    "jobs": retention.expired_chains,
    "dead_letters": retention.expired_dead_letters,
    "audit": retention.expired_audit,
}
"""Statements that read one page of a table."""


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
    """Chains past their retention that were kept: a row refers to them, an unfinished run of the archive has them, they
    are locked, or they cannot be deleted."""
    scanned: int = 0
    """How many jobs, dead letters or audit records were looked at."""
    next: PruneCursor | None = field(default=None, repr=False)
    """Position of the next call; None at the end of the last table."""
    referenced: Mapping[JobId, Exception] = field(default_factory=dict)
    """Rows that were kept because a row of the application refers to them, each with the error of its foreign key."""
    refused: Mapping[JobId, Exception] = field(default_factory=dict)
    """Rows that cannot be deleted for another reason, such as a trigger, each with the error. They stay."""


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
    ended_before: datetime | None = None,
    model: JobClass = Job,
) -> Pruned:
    """Delete rows past their retention among the next `scan` rows of a table; return the result and the next cursor.

    Commit, then call again with the result's `next` as `cursor`, until that is None. It walks through the jobs, then through
    the dead letters, then through the audit. A chain is deleted whole, but kept while it is open, while jobs that wait for
    it have not been unblocked, while a job of another kept chain waits or waited for it, and while an unfinished run of
    the archive has it, which deletes it. Unresolved dead letters of deleted chains are dismissed by `by`. Dead letters are
    kept while they are unresolved, their job is still dead, or such a run has their chain.
    Several processes can prune at the same time.

    `rules`: how long rows are kept; with `queue_rows`, the retention in a queue's row overrides them for chains.
    `excluded`: ids of rows to keep. `ended_before`: chains that ended since then are kept as well.
    `scan`: 1 to 10,000. `to_the_end`: without it, a table ends at a page of rows that are all too young.
    Changes: deletes rows of `job`, `job_blocker`, `job_attempt`, `dead_letter` and `job_audit`.
    Clock: the database's.
    Locks: the deleted rows; of chains all jobs, roots first, each in the order of their ids. Locked rows are left for the
    next run. Needs READ COMMITTED.
    Obliges: the transaction has no other work, because this checks its deferred constraints now,
    and later ones with each statement.
    Raises: ConflictError if such a constraint is violated; nothing was deleted.
    """
    if not 1 <= scan <= MAX_SCAN:
        raise InvalidOptionError("scan", f"must be from 1 to {MAX_SCAN:,}, got {scan}")
    session.flush()
    cursor = cursor or PruneCursor()
    if queue_rows and cursor.table == "jobs":
        rules = replace(rules, queues={**rules.queues, **_rules_of_queues(session, model)})
    shortest = rules.shortest
    cursors = [PruneCursor(table) for table in PRUNED_TABLES[PRUNED_TABLES.index(cursor.table) :] if table in shortest]
    if not cursors:
        return Pruned()
    following = next(iter(cursors[1:]), None)
    if cursor.table != cursors[0].table:
        cursor = cursors[0]
    parameters = {"rules": rules.document(), "shortest": shortest[cursor.table], "scan": scan, "ended_before": ended_before}
    ids, scanned, after = list(cursor.due), 0, cursor.after
    if not ids:
        page = _PAGES[cursor.table](model, first=after is None)
        ids, scanned, after = _read_page(session, page, parameters, cursor, to_the_end=to_the_end)
    ids = [row_id for row_id in ids if row_id not in excluded]
    due: tuple[Any, ...] = ()
    match cursor.table:
        case "jobs":
            pruned, due = _prune_chains(session, model, parameters, ids, resumed=bool(cursor.due), by=by, dry_run=dry_run)
        case "dead_letters":
            ids = _of_unarchived_chains(session, model, ids, lock=not dry_run)
            statement = retention.delete_dead_letters(model)
            deleted, failed = _delete_rows(session, model, statement, "ids", ids, dry_run=dry_run)
            pruned = Pruned(dead_letters=deleted, **_by_cause(failed))
        case "audit":
            deleted, failed = _delete_rows(session, model, retention.delete_audit(model), "ids", ids, dry_run=dry_run)
            pruned = Pruned(audit=deleted, **_by_cause(failed))
    next_page = following if after is None else PruneCursor(cursor.table, after)
    return replace(pruned, scanned=scanned, next=PruneCursor(after=after or cursor.after, due=due) if due else next_page)


def prune_events(
    session: Session, *, limit: int, excluded: Collection[str] = (), model: JobClass = Job
) -> tuple[int, int, dict[str, Exception]]:
    """Delete expired events; return how many were read and deleted, and those that cannot be deleted, each with the error.

    `limit`: how many are read. `excluded`: names of events to keep.
    Changes: deletes rows of `job_event`. Clock: the database's. Locks: the rows; locked ones are left for the next run.
    Obliges, Raises: as `prune`.
    """
    names = session.scalars(steps.expired_events(model), {"limit": limit, "excluded": list(excluded)}).all()
    deleted, failed = _delete_rows(session, model, steps.delete_events(model), "names", names)
    return len(names), deleted, failed


def is_reference(error: Exception) -> bool:
    """Return whether a row could not be deleted because a row of the application refers to it."""
    return sqlstate(error) in REFERENCED


def _by_cause(failed: Mapping[Any, Exception]) -> dict[str, Any]:
    referenced = {row_id: error for row_id, error in failed.items() if is_reference(error)}
    return {"referenced": referenced, "refused": {row_id: failed[row_id] for row_id in failed.keys() - referenced.keys()}}


def _check_at_once(session: Session, model: JobClass) -> None:
    """Make a violation of a deferred constraint an error of the part that causes it, not of the commit."""
    with translated():
        queue_connection(session, model).execute(deletion.check_at_once())


def _rules_of_queues(session: Session, model: JobClass) -> dict[str, Retention]:
    rows = session.execute(retention.of_queues(model))
    return {name: Retention(**dict(zip(OUTCOMES, ages, strict=True))) for name, *ages in rows}


def _read_page(
    session: Session, statement: Select[Any], parameters: dict[str, Any], cursor: PruneCursor, *, to_the_end: bool
) -> tuple[list[Any], int, Any]:
    """Return the ids that are due, the number of rows that were read, and the last of them, None at the end of the walk."""
    page = session.execute(statement, parameters | ({} if cursor.after is None else {"after": cursor.after})).one()
    is_last = page.scanned < parameters["scan"] or (page.is_young and not to_the_end)
    return list(page.ids or ()), page.scanned, None if is_last else page.last_id


def delete_in_parts(ids: Sequence[Any], delete: Callable[[Sequence[Any]], R]) -> tuple[list[R], dict[Any, Exception]]:
    """Delete rows together; halve them while one cannot be deleted, is locked, or is referred to by the application.

    `delete`: one transaction, or a savepoint in which no constraint is deferred.
    Shape: the results of the calls that succeeded; the ids that cannot be deleted, each with its error, without those that
    were only locked.
    """

    def cause_of(error: Exception) -> Exception:
        return error.__cause__ if isinstance(error, JobQueueError) and isinstance(error.__cause__, DBAPIError) else error

    def splits(error: Exception) -> bool:
        cause = cause_of(error)
        if isinstance(cause, JobQueueError):
            return False
        return sqlstate(cause) in _LOCKED or is_of_a_row(cause) or is_of_a_trigger(cause)

    async def delete_part(part: Sequence[Any]) -> R:
        return delete(part)

    results, failed = blocking(in_parts(ids, delete_part, splits=splits))
    causes = {row_id: cause_of(error) for row_id, error in failed}
    return results, {row_id: cause for row_id, cause in causes.items() if sqlstate(cause) not in _LOCKED}


def _delete_rows(
    session: Session, model: JobClass, statement: Any, parameter: str, ids: Sequence[Any], *, dry_run: bool = False
) -> tuple[int, dict[Any, Exception]]:
    """Delete rows without dependants of ours; return how many, and those that cannot be deleted, each with the error."""
    if not ids or dry_run:
        return len(ids), {}
    _check_at_once(session, model)

    def delete(part: Sequence[Any]) -> int:
        with session.begin_nested():
            return len(session.execute(statement, {parameter: list(part)}).all())

    deleted, failed = delete_in_parts(ids, delete)
    return sum(deleted), failed


class _Deleted(NamedTuple):
    kinds: list[tuple[str, JobStatus]]
    """Of each deleted chain, its type and status."""
    jobs: int
    freed: list[Any]
    """Chains to which these no longer refer."""
    expired: int
    """Of the requested chains, those that were not locked by another transaction."""


def _prune_chains(
    session: Session,
    model: JobClass,
    parameters: dict[str, Any],
    ids: list[Any],
    *,
    resumed: bool,
    by: str,
    dry_run: bool,
) -> tuple[Pruned, tuple[Any, ...]]:
    """Delete chains past their retention, or count them; return the result and the chains to look at next.

    `resumed`: the ids are of a cursor. Some may be of chains that are not past their retention, which do not count as kept.
    """
    lengths, later = _fill(session, model, ids)

    def delete(part: Sequence[Any]) -> _Deleted:
        with session.begin_nested():
            return _delete(session, model, parameters, part, lengths, by=by, dry_run=dry_run)

    if lengths and not dry_run:
        _check_at_once(session, model)
    parts, failed = delete_in_parts(list(lengths), delete)
    chains = Counter(kind for part in parts for kind in part.kinds)
    expired = sum(part.expired for part in parts) + len(failed) if resumed else len(lengths)
    pruned = Pruned(chains=chains, jobs=sum(part.jobs for part in parts), kept=expired - chains.total(), **_by_cause(failed))
    return pruned, (*(chain_id for part in parts for chain_id in part.freed), *later)


def _fill(session: Session, model: JobClass, ids: list[Any]) -> tuple[dict[Any, int], list[Any]]:
    """Return as many chains as one call may delete, with their lengths, and those that are left."""
    if not ids:
        return {}, []
    longer = {row.chain_id: row.n for row in session.execute(retention.lengths(model), {"ids": ids})}
    lengths: dict[Any, int] = {}
    jobs = 0
    for chain_id in ids:
        length = 1 + longer.get(chain_id, 0)
        if lengths and jobs + length > MOST_JOBS:
            break
        lengths[chain_id] = length
        jobs += length
    return lengths, ids[len(lengths) :]


def _delete(
    session: Session,
    model: JobClass,
    parameters: dict[str, Any],
    chain_ids: Sequence[Any],
    lengths: Mapping[Any, int],
    *,
    by: str,
    dry_run: bool,
) -> _Deleted:
    kinds: dict[Any, tuple[str, JobStatus]] = {}
    jobs: dict[Any, list[Any]] = {}
    for row in session.execute(retention.roots(model, lock=not dry_run), parameters | {"ids": list(chain_ids)}):
        kinds[row.id] = (row.type_name, JobStatus(row.outcome))
        jobs[row.id] = [row.id]
    for chain_id in _archived(session, model, list(kinds)):
        del jobs[chain_id]
    if dry_run:
        to_delete = unreferenced(session, model, jobs)
        return _Deleted(
            [kinds[chain_id] for chain_id in to_delete], sum(lengths[chain_id] for chain_id in to_delete), [], len(kinds)
        )
    # In statements of their own, later than the locks: each sees all that was committed before the locks were had, and
    # nothing can be added to these chains, or wait for them, any more.
    for row in session.execute(deletion.continuations(model, lock=True, skip_locked=True), {"ids": list(jobs)}):
        jobs[row.chain_id].append(row.id)
    # If a job is missing, another transaction holds it and may wait for the root next: waiting for it here could deadlock.
    whole = [chain_id for chain_id, chain_jobs in jobs.items() if len(chain_jobs) == lengths[chain_id]]
    to_delete = unreferenced(session, model, whole)
    if not to_delete:
        return _Deleted([], 0, [], len(kinds))
    job_ids = [job_id for chain_id in to_delete for job_id in jobs[chain_id]]
    freed = set(session.scalars(retention.waited_for(model), {"job_ids": job_ids})) - set(to_delete)
    delete_jobs(session, model, job_ids, by=by)
    return _Deleted([kinds[chain_id] for chain_id in to_delete], len(job_ids), list(freed), len(kinds))


def _archived(session: Session, model: JobClass, chain_ids: Sequence[Any]) -> set[Any]:
    """Return the chains that an unfinished run of the archive has: it deletes them when its files have them."""
    if not chain_ids or not session.scalar(retention.has_archive(model)):
        return set()
    return set(session.scalars(retention.archived_chains(model), {"ids": list(chain_ids)}))


def _of_unarchived_chains(session: Session, model: JobClass, ids: list[Any], *, lock: bool) -> list[Any]:
    """Return the dead letters without those of chains that an unfinished run of the archive has or may plan now."""
    chains = {row.id: row.chain_id for row in session.execute(retention.dead_letter_chains(model), {"ids": ids})}
    existing = {"ids": list(session.scalars(deletion.roots(model), {"ids": list(set(chains.values()))}))}
    free = set(session.scalars(retention.share_roots(model), existing)) if lock else set(existing["ids"])
    free -= _archived(session, model, existing["ids"])
    kept = set(existing["ids"]) - free
    return [row_id for row_id in ids if chains.get(row_id) not in kept]


def unreferenced(session: Session | Connection, model: JobClass, chain_ids: Iterable[Any]) -> list[Any]:
    """Return those chains that no job of a chain which stays waits for, or waited, in the order given."""
    to_delete = list(chain_ids)
    while to_delete:
        referred = set(session.scalars(deletion.referred_to(model), {"ids": to_delete}))
        if not referred:
            break
        to_delete = [chain_id for chain_id in to_delete if chain_id not in referred]
    return to_delete
