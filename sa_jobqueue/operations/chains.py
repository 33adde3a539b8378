"""Chains: read one or many, their jobs, and the blockers on both sides; cancel and delete them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NoReturn

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.errors import ChainReferencedError, ConflictError, InvalidJobError, NotFoundError, not_chains
from sa_jobqueue.errors.drivers import DEADLOCK, diagnose
from sa_jobqueue.models import BlockerMixin, ChainMixin, Job, JobClass
from sa_jobqueue.models.checks import check_id
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.jobs import _cancel
from sa_jobqueue.operations.pages import SCAN_LIMIT, BulkResult, Filter, Page
from sa_jobqueue.operations.transactions import require_transaction, translated
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, JobT
from sa_jobqueue.statements import chains, deletion, jobs, listings, notifications, steps
from sa_jobqueue.types import JobId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFilter(Filter):
    """Filter of a listing of chains; an empty field matches all.

    `ids`: these chains. `statuses`: of the chain, which are those of its last job. `types`, `queues`, `fairness_keys`: of
    its root. `job_ids`: chains that contain one of these jobs. `top_level`: chains that no job waits for or waited for.
    `created_after` (inclusive), `created_before` (exclusive): aware, when the root was enqueued.
    """

    statuses: Sequence[JobStatus] = ()
    types: Sequence[str] = ()
    queues: Sequence[str] = ()
    fairness_keys: Sequence[str] = ()
    ids: Sequence[JobId] = ()
    job_ids: Sequence[JobId] = ()
    top_level: bool = False
    created_after: datetime | None = None
    created_before: datetime | None = None


def get_chain(session: Session, chain_id: JobId, *, model: JobClass = Job) -> ChainMixin[Any]:
    """Return a chain, read from the database.

    Raises: NotFoundError, including for the id of a continuation.
    """
    check_id(model, "chain_id", chain_id)
    with translated():
        chain = session.get(model.Chain, chain_id, populate_existing=True)
    if chain is None:
        _refuse(session, chain_id, model)
    return chain


def list_chains(
    session: Session,
    *,
    where: ChainFilter = ChainFilter(),
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: JobClass = Job,
) -> Page[ChainMixin[Any]]:
    """Return one page of chains, ordered by id; otherwise like `list_jobs`.

    `scan_limit` counts jobs, because chains are found among them. Objects in the session are refreshed.
    """
    pages.check_limit(limit, scan_limit)
    pages.check_columns(model.Chain, columns)
    pages.check_ids(model, ids=where.ids, job_ids=where.job_ids)
    pages.check_after(model, after)
    with translated():  # the status of a chain is that of its last job, the only one that can be unfinished
        unfinished = pages.few_unfinished(session, model, where.statuses, most=scan_limit)
    walk = {"columns": columns, "after": after, "limit": limit, "scan_limit": scan_limit, "newest_first": newest_first}
    statement = listings.chains(
        model,
        *listings.chains_like(model, where),
        narrowed=listings.chains_among(model, ids=where.ids, job_ids=where.job_ids, unfinished=unfinished),
        **walk,
    )
    statement = statement.execution_options(populate_existing=True)
    with translated():
        return pages.scanned_page(session, statement, limit=limit, scan_limit=scan_limit)


def list_chain_jobs(
    session: Session,
    chain_id: JobId,
    *,
    columns: Sequence[str] = (),
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> Page[JobT]:
    """Return one page of a chain's jobs, in their order in the chain.

    `after`: a `chain_index`. Otherwise like `list_jobs`; only the last page is short.
    Raises: for the first page NotFoundError, as `get_chain`.
    """
    pages.check_limit(limit)
    pages.check_columns(model, columns)
    check_id(model, "chain_id", chain_id)
    statement = listings.chain_jobs(model, chain_id, columns=columns, after=after, limit=limit, newest_first=newest_first)
    with translated():
        page = pages.ordered_page(session, statement, limit=limit)
    if not page.items and after is None:
        _refuse(session, chain_id, model)
    return page


def list_blockers(
    session: Session, job_id: JobId, *, after: int | None = None, limit: int = 50, model: JobClass = Job
) -> Page[BlockerMixin[Any]]:
    """Return one page of a job's blockers in their order, including resolved ones; empty for an unknown job.

    `job_id`: id of the job that waits. `after`: an `index`.
    Shape: `Job.Blocker` objects with `index`, `is_resolved`, `on_failure`, and a freshly loaded `chain`.
    """
    pages.check_limit(limit)
    check_id(model, "job_id", job_id)
    statement = listings.blockers(model, job_id, after=after, limit=limit).execution_options(populate_existing=True)
    with translated():
        edges = list(session.scalars(statement))
    return pages.page_of(edges, limit=limit, position=lambda edge: edge.index)


def list_blocked_jobs(
    session: Session,
    chain_id: JobId,
    *,
    open_only: bool = False,
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> Page[JobT]:
    """Return one page of the jobs that wait or waited for a chain, ordered by id; empty for an unknown chain.

    `open_only`: only jobs that still wait for it. Otherwise like `list_jobs`.
    """
    pages.check_limit(limit, scan_limit)
    pages.check_columns(model, columns)
    check_id(model, "chain_id", chain_id)
    pages.check_after(model, after)
    walk = {"columns": columns, "after": after, "limit": limit, "scan_limit": scan_limit, "newest_first": newest_first}
    statement = listings.blocked_jobs(model, chain_id, open_only=open_only, **walk)
    with translated():
        return pages.scanned_page(session, statement, limit=limit, scan_limit=scan_limit)


def _refuse(session: Session, chain_id: JobId, model: JobClass) -> NoReturn:
    with translated():
        job = session.get(model, chain_id)
    if job is None:
        raise NotFoundError("chain", [chain_id], field="chain_id", reason="")
    raise not_chains({chain_id: job.chain_id}, field="chain_id")


MAX_CHAINS: Final = 1000
_MAX_REFERENCES: Final = 1000
_TRIES: Final = 10


def delete_chains(
    session: Session,
    chain_ids: Sequence[JobId],
    *,
    cascade: bool = False,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Delete chains in any state, with all their jobs; return the deleted chains, sorted.

    Running jobs are stopped, and later writes of their handlers' sessions rolled back. Callers that wait for one of the
    chains are notified. Unresolved dead letters are dismissed.

    `chain_ids`: at most 1,000 per call.
    `cascade`: also delete every chain that one of their jobs waits for or waited for, and so on.
    `by`: recorded in the dead letters too; the database user by default.
    `dry_run`: does not check rows of the application that refer to the jobs.
    Changes: deletes rows of `job`, `job_blocker` and `job_attempt`.
    Locks: all jobs of the chains, the roots in the order of their ids, then the others in theirs. Needs READ COMMITTED.
    Raises: NotFoundError, including for the id of a continuation; ChainReferencedError if a job of another chain
    waits or waited for one of the chains; ConflictError if concurrent transactions kept adding dependencies, or
    if a row of the application refers to a job. No lock is kept then.
    """
    root_ids = _check_chain_ids(model, chain_ids)
    session.flush()
    if not root_ids:
        return BulkResult([], 0)
    all_ids = _connected(session, model, root_ids) if cascade else set(root_ids)
    if dry_run:
        roots, jobs = _jobs_of(session, model, all_ids)
        _refuse_missing(session, model, root_ids, roots)
        _refuse_references(session, model, roots, jobs)
        return BulkResult(roots, len(roots))
    require_transaction(session.connection(bind_arguments={"mapper": model}), "deleting chains")
    for _ in range(_TRIES):
        savepoint = session.begin_nested()
        try:
            with savepoint:
                deleted, all_ids = _try(session, model, root_ids, all_ids, cascade=cascade, by=by)
                if deleted:
                    record(session, "delete_chains", by=by, ids=deleted, model=model, chains=root_ids, cascade=cascade)
                    return BulkResult(deleted, len(deleted))
                # The locks go with the savepoint: a chain more would have to be locked out of its turn.
                savepoint.rollback()
        except DBAPIError as error:
            # Not of ours alone: a handler's session may hold chains in any order. What it did is undone; once more.
            if diagnose(error).sqlstate != DEADLOCK:
                raise
    raise ConflictError("concurrent transactions kept changing the chains' dependencies; nothing was changed, try again")


def _try(
    session: Session, model: JobClass, root_ids: list[JobId], all_ids: set[Any], *, cascade: bool, by: str | None
) -> tuple[list[Any], set[Any]]:
    """Lock chains and delete them, unless by now others are connected with them; return the deleted ones, and all."""
    roots, jobs = _jobs_of(session, model, all_ids, for_update=True)
    _refuse_missing(session, model, root_ids, roots)
    # Again, in a later statement: what was added before the roots were locked is visible now, and nothing can be added
    # any more.
    connected_ids = _connected(session, model, root_ids) if cascade else all_ids
    if not connected_ids <= all_ids:
        return [], connected_ids
    to_delete = [job_id for job_id, chain_id in jobs.items() if chain_id in connected_ids]
    _refuse_references(session, model, connected_ids, to_delete)
    delete_jobs(session, model, to_delete, by=by)
    return [chain_id for chain_id in roots if chain_id in connected_ids], connected_ids


def _check_chain_ids(model: JobClass, chain_ids: Sequence[JobId]) -> list[JobId]:
    """Return the ids without duplicates. Raises: InvalidJobError if they are not ids of this queue, or too many."""
    pages.check_ids(model, chain_ids=chain_ids)
    unique_ids = list(dict.fromkeys(chain_ids))
    if len(unique_ids) > MAX_CHAINS:
        raise InvalidJobError(
            "chain_ids", f"must be at most {MAX_CHAINS:,} a call, got {len(unique_ids):,}; commit between calls"
        )
    return unique_ids


def _connected(session: Session, model: JobClass, chain_ids: Iterable[JobId]) -> set[Any]:
    return set(session.scalars(deletion.connected(model), {"ids": list(chain_ids)}))


def _jobs_of(
    session: Session, model: JobClass, chain_ids: Iterable[JobId], *, for_update: bool = False
) -> tuple[list[Any], dict[Any, Any]]:
    """Return the ids of the chains that exist, sorted, and the chain of each of their jobs; with `for_update`, lock them."""
    roots = list(session.scalars(deletion.roots(model, lock=for_update), {"ids": list(chain_ids)}))
    jobs = {chain_id: chain_id for chain_id in roots}
    for row in session.execute(deletion.continuations(model, lock=for_update), {"ids": roots}):
        jobs[row.id] = row.chain_id
    return roots, jobs


def _refuse_missing(session: Session, model: JobClass, chain_ids: Sequence[JobId], roots: Iterable[JobId]) -> None:
    """Refuse ids that are not ids of chains: unknown ids, or ids of continuations."""
    existing = set(roots)
    if missing := [chain_id for chain_id in chain_ids if chain_id not in existing]:
        belongs = {row.id: row.chain_id for row in session.execute(jobs.named(model, ("id", "chain_id")), {"ids": missing})}
        unknown = [chain_id for chain_id in missing if chain_id not in belongs]
        raise NotFoundError("chain", unknown, field="chain_ids") if unknown else not_chains(belongs)


def _refuse_references(session: Session, model: JobClass, chain_ids: Iterable[JobId], job_ids: Iterable[JobId]) -> None:
    parameters = {"ids": list(chain_ids), "job_ids": list(job_ids), "limit": _MAX_REFERENCES}
    references = session.execute(deletion.references(model), parameters).all()
    if references:
        raise ChainReferencedError([(row.chain_id, row.job_id) for row in references])


def delete_jobs(session: Session, model: JobClass, job_ids: list[Any], *, by: str | None) -> None:
    """Delete jobs with their blockers and attempts, and notify workers and callers that wait.

    Obliges: the jobs are locked, and no other job refers to them.
    """
    parameters = {"job_ids": job_ids}
    # What the session holds of the rows deleted leaves it with them, and comes back if they do.
    fetch = {"synchronize_session": "fetch"}
    session.execute(deletion.delete_edges(model), parameters, execution_options=fetch)
    session.execute(deletion.delete_attempts(model), parameters, execution_options=fetch)
    session.execute(deletion.dismiss_dead_letters(model), parameters | {"by": by}, execution_options=fetch)
    with translated():
        deleted = session.execute(deletion.delete_jobs(model), parameters, execution_options=fetch).all()
    lost = [str(job_id) for job_id, status, _, _ in deleted if status is JobStatus.RUNNING]
    ended = [str(job_id) for job_id, _, chain_id, has_waiters in deleted if job_id == chain_id and has_waiters]
    if lost:
        session.execute(notifications.notify_each(model, "lost"), {"ids": lost})
    if ended:
        session.execute(notifications.notify_each(model, "ended"), {"ids": ended})


def cancel_chains(
    session: Session,
    chain_ids: Sequence[JobId],
    *,
    children: bool = False,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[Any]:
    """Cancel chains that have not ended, each by its current job; return those that were cancelled, sorted.

    Completed jobs of the chains do not change, and no continuation is enqueued.

    `chain_ids`: at most 1,000 per call.
    `children`: also the chains whose results the cancelled jobs wait for by `AttemptContext.run`, `all` or `first`, their
    children and so on. They follow in the result.
    Changes: as `cancel_jobs`.
    Locks: the roots of the chains, then their current jobs, each in the order of their ids; after them, in the same way,
    their children.
    Raises: NotFoundError naming every unknown id, or for the id of a continuation.
    """
    unique_ids = _check_chain_ids(model, chain_ids)
    session.flush()
    if dry_run:
        roots = list(session.scalars(deletion.roots(model), {"ids": unique_ids}))
    else:
        roots = [row.id for row in session.execute(chains.lock(model), {"ids": unique_ids}) if row.id == row.chain_id]
    _refuse_missing(session, model, unique_ids, roots)
    cancelled, level, visited = list[Any](), list[Any](unique_ids), set(unique_ids)
    while level:
        batch, level = level[:MAX_CHAINS], level[MAX_CHAINS:]
        current = _cancel_current_jobs(session, batch, model, dry_run=dry_run)
        cancelled += current.values()
        if children and current:
            # A job that is cancelled, and locked, begins to wait for no other.
            child_ids = set(session.scalars(steps.children(model), {"job_ids": list(current)})) - visited
            visited |= child_ids
            level += sorted(child_ids, key=str)
    matched = max(len(unique_ids), len(cancelled))
    if not dry_run:
        arguments = {"chains": unique_ids} | ({"children": True} if children else {})
        record(session, "cancel_chains", by=by, ids=cancelled, matched=matched, model=model, **arguments)
    return BulkResult(cancelled, matched)


def _cancel_current_jobs(session: Session, chain_ids: Sequence[JobId], model: JobClass, *, dry_run: bool) -> dict[Any, Any]:
    """Cancel the current jobs of chains that have not ended; return their chains, by id of the job."""
    if not dry_run:
        session.execute(chains.lock(model), {"ids": list(chain_ids)}).all()
    rows = session.execute(deletion.current_jobs(model), {"ids": list(chain_ids)}).all()
    job_ids = [row.id for row in rows]
    if not dry_run:
        _cancel(session, job_ids, model, {row.id: row for row in session.execute(jobs.lock(model, job_ids))})
    return {row.id: row.chain_id for row in rows}
