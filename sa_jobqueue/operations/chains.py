"""Read chains: one, many, their jobs, their blockers, and the jobs that they block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn, overload

from sqlalchemy.orm import Session

from sa_jobqueue.errors import ChainNotFoundError, NotAChainError
from sa_jobqueue.models import BlockerMixin, ChainMixin, Job, JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.given_ids import check_after, check_id, check_ids
from sa_jobqueue.operations.pages import (
    SCAN_LIMIT,
    Page,
    check_columns,
    check_instants,
    check_limit,
    check_lists,
    check_statuses,
    few_unfinished,
    ordered_page,
    page_of,
    scanned_page,
)
from sa_jobqueue.registry.handlers import DEFAULT_MODEL, JobT
from sa_jobqueue.statements import listings
from sa_jobqueue.types import JobId, JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFilter:
    """Filter of a listing of chains; an empty field matches all.

    `ids`: these chains. `statuses`: of the chain, which are those of its last job. `types`, `queues`, `fairness_keys`: of
    its root. `job_ids`: chains that contain one of these jobs. `top_level`: chains that no job waits for or waited for.
    `created_after` (inclusive), `created_before` (exclusive): aware, when the root was enqueued.
    Raises: InvalidOptionError naming the field.
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

    def __post_init__(self) -> None:
        lists = ("statuses", "types", "queues", "fairness_keys", "ids", "job_ids")
        check_lists(**{name: getattr(self, name) for name in lists})
        check_statuses(self.statuses)
        check_instants(created_after=self.created_after, created_before=self.created_before)


def get_chain(session: Session, chain_id: JobId, *, model: type[JobMixin[Any]] = Job) -> ChainMixin[Any]:
    """Return a chain, read from the database.

    `chain_id`: id of the chain.
    Raises: ChainNotFoundError; NotAChainError, which names the chain, for the id of a continuation.
    """
    check_id(model, "chain_id", chain_id)
    with translated():
        chain = session.get(model.Chain, chain_id, populate_existing=True)
    if chain is None:
        _refuse(session, chain_id, model)
    return chain


@overload
def list_chains(
    session: Session,
    *,
    where: ChainFilter = ChainFilter(),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobMixin[Any]] = Job,
) -> Page[ChainMixin[Any]]: ...
@overload
def list_chains(
    session: Session,
    *,
    where: ChainFilter = ChainFilter(),
    columns: Sequence[str],
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
def list_chains(
    session: Session,
    *,
    where: ChainFilter = ChainFilter(),
    columns: Sequence[str] = (),
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of chains, ordered by id; otherwise like `list_jobs`.

    `scan_limit` counts jobs, because chains are found among them. Objects in the session are refreshed. `where`: only
    matching chains; all by default.
    Raises: InvalidOptionError.
    """
    check_limit(limit, scan_limit)
    check_columns(model.Chain, columns)
    check_ids(model, ids=where.ids, job_ids=where.job_ids)
    check_after(model, after)
    with translated():  # the status of a chain is that of its last job, the only one that can be unfinished
        unfinished = few_unfinished(session, model, where.statuses, most=scan_limit)
    statement = listings.chains(
        model,
        *listings.chains_like(
            model,
            statuses=where.statuses,
            types=where.types,
            queues=where.queues,
            fairness_keys=where.fairness_keys,
            top_level=where.top_level,
            created_after=where.created_after,
            created_before=where.created_before,
        ),
        narrowed=listings.chains_among(model, ids=where.ids, job_ids=where.job_ids, unfinished=unfinished),
        columns=columns,
        after=after,
        limit=limit,
        scan_limit=scan_limit,
        newest_first=newest_first,
    )
    statement = statement.execution_options(populate_existing=True)
    with translated():
        return scanned_page(session, statement, columns=columns, limit=limit, scan_limit=scan_limit)


@overload
def list_chain_jobs(
    session: Session,
    chain_id: JobId,
    *,
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> Page[JobT]: ...
@overload
def list_chain_jobs(
    session: Session,
    chain_id: JobId,
    *,
    columns: Sequence[str],
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
def list_chain_jobs(
    session: Session,
    chain_id: JobId,
    *,
    columns: Sequence[str] = (),
    after: int | None = None,
    limit: int = 50,
    newest_first: bool = False,
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of a chain's jobs, in their order in the chain.

    `chain_id`: id of the chain. `after`: a `chain_index`. Otherwise like `list_jobs`; only the last page is short.
    Raises: InvalidOptionError; for the first page ChainNotFoundError and NotAChainError, as `get_chain`.
    """
    check_limit(limit)
    check_columns(model, columns)
    check_id(model, "chain_id", chain_id)
    statement = listings.chain_jobs(model, chain_id, columns=columns, after=after, limit=limit, newest_first=newest_first)
    with translated():
        page = ordered_page(session, statement, columns=columns, limit=limit)
    if not page.items and after is None:
        _refuse(session, chain_id, model)
    return page


def list_blockers(
    session: Session, job_id: JobId, *, after: int | None = None, limit: int = 50, model: type[JobMixin[Any]] = Job
) -> Page[BlockerMixin[Any]]:
    """Return one page of a job's blockers in their order, including resolved ones; empty for an unknown job.

    `job_id`: id of the job that waits. `after`: an `index`.
    Shape: `Job.Blocker` objects with `index`, `is_resolved`, `on_failure`, and a freshly loaded `chain`.
    Raises: InvalidOptionError.
    """
    check_limit(limit)
    check_id(model, "job_id", job_id)
    statement = listings.blockers(model, job_id, after=after, limit=limit).execution_options(populate_existing=True)
    with translated():
        edges = list(session.scalars(statement))
    return page_of(edges, limit=limit, position=lambda edge: edge.index)


@overload
def list_blocked_jobs(
    session: Session,
    chain_id: JobId,
    *,
    open_only: bool = False,
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobT] = DEFAULT_MODEL,  # type: ignore[assignment]
) -> Page[JobT]: ...
@overload
def list_blocked_jobs(
    session: Session,
    chain_id: JobId,
    *,
    open_only: bool = False,
    columns: Sequence[str],
    after: JobId | None = None,
    limit: int = 50,
    newest_first: bool = True,
    scan_limit: int = SCAN_LIMIT,
    model: type[JobMixin[Any]] = Job,
) -> Page[dict[str, Any]]: ...
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
    model: type[JobMixin[Any]] = Job,
) -> Page[Any]:
    """Return one page of the jobs that wait or waited for a chain, ordered by id; empty for an unknown chain.

    `chain_id`: id of the chain. `open_only`: only jobs that still wait for it. Otherwise like `list_jobs`.
    Raises: InvalidOptionError.
    """
    check_limit(limit, scan_limit)
    check_columns(model, columns)
    check_id(model, "chain_id", chain_id)
    check_after(model, after)
    statement = listings.blocked_jobs(
        model,
        chain_id,
        open_only=open_only,
        columns=columns,
        after=after,
        limit=limit,
        scan_limit=scan_limit,
        newest_first=newest_first,
    )
    with translated():
        return scanned_page(session, statement, columns=columns, limit=limit, scan_limit=scan_limit)


def _refuse(session: Session, chain_id: JobId, model: type[JobMixin[Any]]) -> NoReturn:
    with translated():
        job = session.get(model, chain_id)
    if job is None:
        raise ChainNotFoundError([chain_id], field="chain_id", reason="")
    raise NotAChainError({chain_id: job.chain_id}, field="chain_id")
