"""List workers, drain them, change their concurrency, and rescue jobs of a dead one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, cast

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError, LostAttemptError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.completions import Finished, finish_parameters
from sa_jobqueue.operations.pages import MAX_PAGE, BulkResult, Filter, Page
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.statements import completions, controls, leases, workers
from sa_jobqueue.types import MOST_CONCURRENT, AttemptOutcome, DeadReason, JobId, JobStatus, WorkerState

MOST_LOST: Final = 100
"""Maximum number of jobs rescued in one transaction."""
_LOST: Final = {
    DeadReason.LOST: "stopped sending heartbeats",
    DeadReason.TIMED_OUT: "did not renew the lease in time",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFilter(Filter):
    """Filter of workers; an empty field matches all.

    `ids`: these workers. `names`: names given to workers, where `*` matches any characters: `["reports-*"]`. `queues`:
    workers that serve one of these.
    """

    ids: Sequence[str] = ()
    names: Sequence[str] = ()
    queues: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """State of one worker at its last heartbeat."""

    id: str
    """Its name and a random suffix, new at every start."""
    name: str
    """Its name; the host name by default."""
    host: str
    """Host name."""
    pid: int
    """Process id."""
    version: str
    """Version of this library."""
    queues: list[str]
    """The queues that it serves."""
    job_types: list[str]
    """The job types that it has handlers for."""
    concurrency: int
    """Maximum number of jobs it runs at a time."""
    state: str
    """Its state, one of `WorkerState`."""
    started_at: datetime
    """When it registered, by the database's clock."""
    heartbeat_at: datetime
    """Its last heartbeat, by the database's clock."""
    drain_requested_at: datetime | None
    """When it was asked to drain; None if it was not."""
    silent_for: timedelta
    """Time since its last heartbeat, less the longer pause of an idle worker. Above its heartbeat timeout, it is
    lost."""
    running: int
    """Number of jobs that it runs."""
    selectors: dict[str, Any] = field(default_factory=dict)
    """Selectors by queue: `function`, `window`, and `max_wait` in seconds, or null."""
    type_slots: dict[str, int] = field(default_factory=dict)
    """Maximum number of concurrent jobs by job type, for handlers with a limit."""
    type_versions: dict[str, int] = field(default_factory=dict)
    """The latest version of the payload that it knows, by job type; jobs of newer versions wait for another worker."""
    stuck_threads: int = 0
    """Number of slots taken by threads of ended attempts: handlers that did not stop when they were cancelled."""
    failure: str | None = None
    """Its component that keeps failing, with the error; None if none does."""
    resident_bytes: int | None = None
    """Resident memory of its process; None if it is not known."""
    declared: dict[str, str] = field(default_factory=dict)
    """A digest of each job type, queue and schedule that its code declares, by kind and name, such as `type refund`."""

    @property
    def is_claiming(self) -> bool:
        """Whether its claimer works; if it keeps failing, the worker starts no job."""
        return not (self.failure or "").startswith("claimer: ")

    @property
    def used(self) -> int:
        """Number of slots in use: by the jobs that it runs, and by threads that have not returned."""
        return self.running + self.stuck_threads


def list_workers(
    session: Session,
    *,
    where: WorkerFilter = WorkerFilter(),
    after: tuple[str, str] | None = None,
    limit: int = MAX_PAGE,
    model: JobClass = Job,
) -> Page[WorkerStatus]:
    """Return one page of workers, ordered by name and id, including those that died within the last minutes.

    `after`: a name and an id.
    """
    pages.check_limit(limit)
    pages.check_position(after, str, str)
    statement = workers.page(model, *workers.matching(model, where), after=after, limit=limit + 1)
    rows = session.execute(statement).mappings()
    reported = (_reported(row) for row in rows)
    statuses = [WorkerStatus(**{**row, "state": pages.member_or_text(WorkerState, row["state"])}) for row in reported]
    return pages.page_of(statuses, limit=limit, position=lambda worker: (worker.name, worker.id))


def _reported(row: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the columns of a worker's row with those of its report."""
    columns = {**row, **{name: row[name] or {} for name in ("selectors", "type_slots", "type_versions")}}
    report = columns.pop("report") or {}
    return columns | {
        "resident_bytes": report.get("resident_bytes") or None,
        "declared": report.get("declared") or {},
    }


def drain_workers(
    session: Session, *, where: WorkerFilter, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Ask workers to drain, as SIGTERM does: claim no more, finish running jobs and stop. Return their ids, sorted.

    `where`: which workers; an empty filter matches all. Each stops after its shutdown timeout at the latest.
    Changes: sets `drain_requested_at` if it is not set.
    Locks: their rows in the order of their ids. **Commit immediately**: their heartbeats wait for these locks.
    """
    values = {"drain_requested_at": workers.first_request(model)}
    return _request(session, "drain_workers", where, values, by=by, dry_run=dry_run, model=model)


def resize_workers(
    session: Session,
    concurrency: int | None,
    *,
    where: WorkerFilter,
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[str]:
    """Ask workers to change their concurrency; None restores the one they were started with. Return their ids, sorted.

    `where`: as in `drain_workers`. `concurrency`: 1 to 10,000. Running jobs still finish. A worker whose handlers take
    sessions is limited by the connection pool. A restarted worker has its original concurrency.
    Changes: `concurrency_requested`. Locks: as `drain_workers`. **Commit immediately.**
    """
    if concurrency is not None and (not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_CONCURRENT):
        raise InvalidOptionError("concurrency", f"must be from 1 to {MOST_CONCURRENT:,}, or None, got {concurrency!r}")
    values, about = {"concurrency_requested": concurrency}, concurrency or "as started"
    return _request(session, "resize_workers", where, values, by=by, dry_run=dry_run, model=model, concurrency=about)


def _request(
    session: Session,
    operation: str,
    where: WorkerFilter,
    values: dict[str, Any],
    *,
    by: str | None,
    dry_run: bool,
    model: JobClass,
    **about: Any,
) -> BulkResult[str]:
    conditions = workers.matching(model, where)
    if dry_run:
        worker_ids = list(session.scalars(workers.ids(model, *conditions)))
        return BulkResult(worker_ids, len(worker_ids))
    worker_ids = sorted(session.scalars(workers.request(model, *conditions, **values)))
    session.execute(controls.notify_rules(model))
    record(session, operation, by=by, ids=worker_ids, model=model, where=where, **about)
    return BulkResult(worker_ids, len(worker_ids))


def rescue_from(session: Session, worker_id: str, *, model: JobClass = Job) -> int:
    """Rescue at most `MOST_LOST` jobs of a worker whose process has died; return how many.

    Call it only if you know that the process is dead, like a parent that has waited for it. An ended database session is no
    proof: the worker may only be disconnected.
    Changes: as the rescuer: the jobs are due again after a backoff, with the attempt counted, or become dead letters with
    the reason `lost`.
    Locks: the rescued jobs; jobs locked by other transactions are left to the rescuer.
    Obliges: call it again in another transaction until it returns fewer.
    """
    return len(rescue(session.connection(), model, {"worker_id": worker_id, "limit": MOST_LOST}))


class Rescued(NamedTuple):
    """A job that was rescued."""

    id: JobId
    type_name: str
    attempt: int
    status: JobStatus
    worker_id: str
    chain_id: JobId
    has_waiters: bool


def rescue(
    connection: Connection,
    model: JobClass,
    parameters: Mapping[str, Any],
    backoff: Callable[[int, BaseException], timedelta] = Backoff(),
) -> list[Rescued]:
    """End the attempts of lost workers: their jobs are due again after a backoff, or dead when it was the last attempt.

    `parameters`: those of `leases.lost`, without `ttl` and `worker_id` for jobs whose worker has no row; with `ids` only
    these. Changes, Locks: as `leases.lost` and `completions.finish`.
    Obliges: a READ COMMITTED transaction; one job can make all fail.
    """
    orphans = not parameters.keys() & {"ttl", "worker_id"}
    statement = leases.lost(model, orphans=orphans, ended="worker_id" in parameters, only="ids" in parameters)
    lost = connection.execute(statement, dict(parameters)).all()
    rescued = []
    for worker_id in sorted({row.leased_by for row in lost}):
        rows = [row for row in lost if row.leased_by == worker_id]
        ends = [
            Finished(
                cast("Any", row),
                JobStatus.DEAD if row.attempt >= row.max_attempts else JobStatus.PENDING,
                AttemptOutcome.LOST,
                delay=backoff(row.attempt, LostAttemptError(row.id, row.attempt)),
                error={"type": "Lost", "message": f"worker {worker_id} {_LOST[row.reason]}", "worker": worker_id},
                fingerprint=row.reason,
                reason=DeadReason(row.reason),
            )
            for row in rows
        ]
        by_id, ended = {row.id: row for row in rows}, finish_parameters(ends, worker_id=worker_id, model=model)
        for job_id, status, chain_id, has_waiters in connection.execute(completions.finish(model), ended):
            row = by_id[job_id]
            rescued.append(Rescued(job_id, row.type_name, row.attempt, JobStatus(status), worker_id, chain_id, has_waiters))
    return rescued
