"""Jobs, chains and edges a page at a time.

A listing walks one index from the end of the previous page, and reads a bounded number of entries per call, however few of
them match: a filter with few matches must not hold a snapshot for minutes. So a page may be short, or empty, without being
the last. A statement returns its position in its own rows, since a second statement could see another snapshot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import aliased, contains_eager, load_only
from sqlalchemy.sql.base import ExecutableOption

from sa_jobqueue.statements._parts import Tables, alike, bound, status
from sa_jobqueue.types import MIN_PRIORITY, JobId, JobStatus


@bound
def jobs(
    t: Tables, /, *conditions: sa.ColumnElement[bool], narrowed: Sequence[sa.ColumnElement[bool]] = (), **walk: Any
) -> sa.Select[Any]:
    """Return one page of jobs by id: with UUIDv7 the order of enqueueing, by the clients' clocks.

    `walk`: the other arguments of `scan`. Shape: `(id, place, fits, Job)`. Index: the primary key.
    """
    return scan(t.model, t.job.c.id, *narrowed, fits=conditions, **walk)


@bound
def chains(
    t: Tables, /, *conditions: sa.ColumnElement[bool], narrowed: Sequence[sa.ColumnElement[bool]] = (), **walk: Any
) -> sa.Select[Any]:
    """Return one page of chains by id, that of their root job; otherwise as `jobs`.

    Shape: `(id, place, fits, Chain)`. Index: the primary key, `scan_limit` entries, continuations among them; for the
    status of a chain that goes on `uq_job_chain`, for its being waited for `ix_job_blocker_chain`, one probe each.
    """
    job = t.job
    return scan(t.model.Chain, job.c.id, *narrowed, fits=(job.c.root_id.is_(None), *conditions), **walk)


@bound
def chain_jobs(
    t: Tables, chain_id: JobId, *, columns: Sequence[str] = (), after: int | None, limit: int, newest_first: bool
) -> sa.Select[Any]:
    """Return one page of a chain's jobs, by their place in it; `after` is the `chain_index` of the last one before.

    Shape: `(chain_index, Job)`, with `columns` only those of `Job`; one more than `limit` where there are more.
    Index: the primary key for the root, `uq_job_chain` for the others, as many entries as rows.
    """
    place: sa.ColumnElement[int] = t.job.c.chain_index
    order = place.desc() if newest_first else place.asc()
    root = sa.select(t.job.c.id, place).where(t.job.c.id == chain_id, t.job.c.root_id.is_(None))
    continuations = sa.select(t.job.c.id, place).where(t.job.c.root_id == chain_id).order_by(order).limit(limit + 1)
    if after is not None:
        beyond = place < after if newest_first else place > after
        root, continuations = root.where(beyond), continuations.where(beyond)
    members = sa.union_all(root, continuations).subquery("members")
    place = members.c.chain_index
    order = place.desc() if newest_first else place.asc()
    page = sa.select(members).order_by(order).limit(limit + 1).subquery("page")
    place = page.c.chain_index
    return (
        sa.select(place, t.model)
        .options(*_loading(t.model, columns))
        .select_from(page)
        .join(t.model, t.model.id == page.c.id)
        .order_by(place.desc() if newest_first else place.asc())
    )


@bound
def blockers(t: Tables, job_id: JobId, *, after: int | None, limit: int) -> sa.Select[Any]:
    """Return one page of the edges of a job, each with its chain, in the order of the job's blockers.

    Shape: `(Blocker,)`, its `chain` loaded; one more than `limit` where there are more. `after`: the last `index` before.
    Index: `pk_job_blocker`, every edge of that job; for the chains the primary key of jobs and `uq_job_chain`.
    """
    page = sa.select(t.blocker).where(t.blocker.c.job_id == job_id).order_by(t.blocker.c.index).limit(limit + 1)
    if after is not None:
        page = page.where(t.blocker.c.index > after)
    chosen = aliased(t.model.Blocker, page.subquery("page"))
    return sa.select(chosen).join(chosen.chain).options(contains_eager(chosen.chain)).order_by(chosen.index)


@bound
def blocked_jobs(t: Tables, /, chain_id: JobId, *, open_only: bool, **walk: Any) -> sa.Select[Any]:
    """Return one page of the jobs that wait for a chain, or did, by id; otherwise as `jobs`.

    Shape: `(id, place, fits, Job)`. Index: `ix_job_blocker_chain`, at most `scan_limit` entries; the jobs' primary key.
    """
    edge = t.blocker
    fits = [~edge.c.is_resolved] if open_only else []
    return scan(t.model, edge.c.job_id, edge.c.blocked_by_chain_id == chain_id, fits=fits, **walk)


@bound
def audit(t: Tables, /, *conditions: sa.ColumnElement[bool], **walk: Any) -> sa.Select[Any]:
    """Return one page of the audit by id, the order of the operations; otherwise as `jobs`.

    Shape: `(id, place, fits, Audit)`. Index: the primary key.
    """
    return scan(t.model.Audit, t.audit.c.id, fits=conditions, **walk)


def objects(
    key: Any, *conditions: sa.ColumnElement[bool], after: Any, limit: int, newest_first: bool = False
) -> sa.Select[Any]:
    """Return one page of mapped objects by a key of theirs, an attribute of their class.

    Shape: up to `limit` objects, those behind the key `after`. Index: that of the key.
    """
    chosen = sa.select(key.class_).where(*conditions).order_by(key.desc() if newest_first else key.asc()).limit(limit)
    return chosen if after is None else chosen.where(key < after if newest_first else key > after)


@bound
def count_continuations(t: Tables, chain_ids: Sequence[JobId]) -> sa.Select[Any]:
    """Count the jobs of chains without their roots, by the place of each chain's last.

    Shape: `(count,)`. Index: `uq_job_chain`, one probe a chain, however long it is.
    """
    chain = sa.func.unnest(t.given_ids(chain_ids)).table_valued(sa.column("id", t.id_type))
    chain = chain.render_derived("chain")
    last = sa.select(t.job.c.chain_index).where(t.job.c.root_id == chain.c.id).order_by(t.job.c.chain_index.desc()).limit(1)
    return sa.select(sa.func.coalesce(sa.func.sum(last.scalar_subquery()), sa.literal_column("0"))).select_from(chain)


@bound
def unfinished(
    t: Tables,
    statuses: Sequence[JobStatus],
    *,
    queues: Sequence[str] = (),
    fairness_keys: Sequence[str] = (),
    limit: int,
) -> sa.Select[Any]:
    """Return jobs in states of which an index has only those: all but completed and cancelled.

    Shape: `(id, root_id)`, `limit` a state. Index: `ix_job_claim`, `ix_job_running`, `ix_job_blocked_or_dead`.
    """
    parts = []
    for job_status in dict.fromkeys(map(JobStatus, statuses)):
        rows = sa.select(t.job.c.id, t.job.c.root_id).where(t.job.c.status == status(job_status))
        if job_status is JobStatus.PENDING:
            rows = rows.where(t.job.c.priority >= sa.literal_column(f"'{MIN_PRIORITY}'"))
            column_values = ((t.job.c.queue, queues), (t.job.c.fairness_key, fairness_keys))
            rows = rows.where(*(column.in_(list(values)) for column, values in column_values if values))
        parts.append(sa.select(rows.limit(limit).subquery()))
    every = sa.union_all(*parts).subquery("unfinished")
    return sa.select(every.c.id, every.c.root_id)


def count(rows: sa.Select[Any], *, limit: int) -> sa.Select[Any]:
    """Count the rows of a statement, up to `limit`. Shape: `(count,)`."""
    return sa.select(sa.func.count()).select_from(rows.limit(limit).subquery("counted"))


@bound
def jobs_like(t: Tables, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a `JobFilter` that no index serves."""
    conditions = alike(where, _columns(t.job) | {"chain_types": t.job.c.chain_type_name})
    if where.statuses:
        conditions.append(t.job.c.status.in_([status(value) for value in where.statuses]))
    if where.chain_ids:
        conditions.append(t.job.c.chain_id == sa.any_(t.given_ids(where.chain_ids)))
    return conditions


@bound
def foreign(t: Tables, condition: sa.ColumnElement[bool]) -> bool:
    """Return whether a condition reads other relations than the jobs' table, apart from its subqueries."""
    return any(getattr(source, "fullname", None) != t.job.fullname for source in sa.select(condition).get_final_froms())


@bound
def chains_like(t: Tables, where: Any) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of a `ChainFilter` on a root that no index serves."""
    job, later, edge = t.job, t.job.alias("later"), t.blocker
    conditions = alike(where, _columns(job))
    if where.statuses:
        last = sa.select(later.c.status).where(later.c.root_id == job.c.id).order_by(later.c.chain_index.desc()).limit(1)
        stands = sa.case(
            (job.c.chain_completed_at.is_not(None), sa.func.coalesce(job.c.chain_status, job.c.status)),
            (job.c.status != status(JobStatus.COMPLETED), job.c.status),
            else_=sa.func.coalesce(last.scalar_subquery(), job.c.status),
        )
        conditions.append(stands.in_([status(value) for value in where.statuses]))
    if where.top_level:
        # Not EXISTS, which the planner may answer for every edge there is, at once, and keep in a hash table.
        awaiting: sa.Select[Any] = sa.select(sa.literal_column("1")).where(edge.c.blocked_by_chain_id == job.c.id).limit(1)
        conditions.append(awaiting.scalar_subquery().is_(None))
    return conditions


@bound
def jobs_among(
    t: Tables, *, ids: Sequence[JobId] = (), chain_ids: Sequence[JobId] = (), unfinished: sa.Select[Any] | None = None
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that lead to few jobs by an index: `pk_job`, `uq_job_chain`, those of `unfinished`."""
    job, later = t.job, t.job.alias("later")
    conditions: list[sa.ColumnElement[bool]] = [job.c.id == sa.any_(t.given_ids(ids))] if ids else []
    if chain_ids:
        roots = t.given_ids(chain_ids)
        continuations = sa.select(later.c.id).where(later.c.root_id == sa.any_(roots))
        # An array, computed once, and not a join: so that there is one way to the jobs, by their primary key.
        conditions.append(
            job.c.id == sa.any_(sa.func.array(continuations.scalar_subquery(), type_=roots.type).concat(roots))
        )
    if unfinished is not None:
        conditions.append(job.c.id == sa.any_(_array_of(t, unfinished, lambda rows: rows.c.id)))
    return conditions


@bound
def chains_among(
    t: Tables, *, ids: Sequence[JobId] = (), job_ids: Sequence[JobId] = (), unfinished: sa.Select[Any] | None = None
) -> list[sa.ColumnElement[bool]]:
    """Return the conditions that lead to few chains by an index. `job_ids`, `unfinished`: jobs anywhere in them."""
    job, member = t.job, t.job.alias("member")
    conditions: list[sa.ColumnElement[bool]] = [job.c.id == sa.any_(t.given_ids(ids))] if ids else []
    if job_ids:
        members = t.given_ids(job_ids)
        theirs = sa.select(member.c.chain_id).where(member.c.id == sa.any_(members))
        conditions.append(job.c.id == sa.any_(sa.func.array(theirs.scalar_subquery(), type_=members.type)))
    if unfinished is not None:
        root = _array_of(t, unfinished, lambda rows: sa.func.coalesce(rows.c.root_id, rows.c.id))
        conditions.append(job.c.id == sa.any_(root))
    return conditions


def _columns(job: sa.Table) -> dict[str, sa.ColumnElement[Any]]:
    created = {"created_after": job.c.created_at, "created_before": job.c.created_at}
    return {"types": job.c.type_name, "queues": job.c.queue, "fairness_keys": job.c.fairness_key, **created}


def scan(
    entity: Any,
    key: sa.ColumnElement[Any],
    *narrowed: sa.ColumnElement[bool],
    fits: Sequence[sa.ColumnElement[bool]],
    columns: Sequence[str] = (),
    after: Any,
    limit: int,
    scan_limit: int,
    newest_first: bool,
) -> sa.Select[Any]:
    """Return one page of a walk along a key, in its order, from the first after `after`.

    Shape: `(id, place, fits, entity)`, with `columns` only those of the entity; one row more than `limit` means that there
    are more. A last row that does not fit, at place `scan_limit`, is where to continue; without either it was the end.
    Index: that of the key, at most `scan_limit` entries of it.
    """

    def ordered(column: Any) -> Any:
        return column.desc() if newest_first else column.asc()

    verdict = sa.and_(sa.true(), *fits)
    # The filter is a column of the walk, and not its condition: that would make the walk as long as it takes.
    place = sa.func.row_number().over(order_by=ordered(key)).label("place")
    walk = sa.select(key.label("id"), place, verdict.label("fits")).where(*narrowed)
    if after is not None:
        walk = walk.where(key < after if newest_first else key > after)
    scanned = walk.order_by(ordered(key)).limit(scan_limit).subquery("scanned")
    matches = sa.select(scanned).where(sa.or_(scanned.c.fits, scanned.c.place == scan_limit))
    page = matches.order_by(ordered(scanned.c.id)).limit(limit + 1).subquery("page")
    return (
        sa.select(page.c.id, page.c.place, page.c.fits, entity)
        .options(*_loading(entity, columns))
        .select_from(page)
        .outerjoin(entity, (entity.id == page.c.id) & page.c.fits)
        .order_by(ordered(page.c.id))
    )


def _loading(entity: Any, columns: Sequence[str]) -> list[ExecutableOption]:
    return [load_only(*(getattr(entity, name) for name in columns))] if columns else []


def _array_of(t: Tables, rows: sa.Select[Any], value: Callable[[Any], sa.ColumnElement[Any]]) -> Any:
    """Return an array of the ids in rows, computed once for the statement."""
    relation = rows.subquery("found")
    return sa.func.array(sa.select(value(relation)).scalar_subquery(), type_=ARRAY(t.id_type))
