"""Read the figures of a health report, with a dozen bounded statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Engine, Executable, RowMapping, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.sessions import GUARDS, SETTINGS
from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.display.printable import shortened, span
from sa_jobqueue.display.redaction import redacted_error
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.observe.health import figures
from sa_jobqueue.observe.health.estimates import vacuum_threshold, wasted_in_heap, wasted_in_index
from sa_jobqueue.observe.health.figures import MISSED, SLOTS, Health
from sa_jobqueue.observe.health.findings import judge
from sa_jobqueue.observe.health.thresholds import Thresholds, get_thresholds
from sa_jobqueue.observe.minutes import totals
from sa_jobqueue.operations import (
    QueueStatus,
    TypeStatus,
    WorkerStatus,
    explain_schedule,
    get_job,
    group_dead_letters,
    list_job_types,
    list_queues,
    list_schedules,
    list_workers,
)
from sa_jobqueue.operations.explaining import Cause, Explainer, Explanation, end_of, holder_of
from sa_jobqueue.statements import health as statements
from sa_jobqueue.statements import horizon, jobs, quarantine, recent, schema, steps, storage
from sa_jobqueue.statements.session_names import PREFIX
from sa_jobqueue.types import AttemptOutcome, JobStatus, RefusedWrite

T = TypeVar("T")

COUNTED: Final = 10_000
"""Limit of the counts of a lane's jobs, of dead letters and of blocked jobs."""
MAX_EXAMINED: Final = 50_000
"""Limit of the jobs and attempts of the window that are scanned."""
_TRANSACTIONS: Final = 500_000
_HOLDERS: Final = 10
_QUARANTINED: Final = 1000
_WRITES: Final = 1000
_LATE_QUEUES: Final = 20
"""Maximum number of queues whose waiting jobs are explained."""
_GROUPS: Final = 5
"""Maximum number of groups of due jobs, by type and fairness key, that are explained of each queue; and of schedules."""
_RETRIES: Final = 1_000
"""Maximum number of jobs of a lane, due later, among which retries are counted."""
_FEW: Final = 10
"""Number of failed attempts from which it is asked of which type most are."""
_LATEST: Final = 200
"""Maximum number of unsuccessful attempts, among the latest `_SCANNED` attempts."""
_SCANNED: Final = 500
_DEAD_GROUPS: Final = 10
_TIMEOUT: Final = timedelta(seconds=10)
_CANCELLED: Final = {"57014", "55P03"}
"""SQLSTATEs of a statement that ran out of its time, or was cancelled; and of a lock that was."""
_SETTINGS: Final = {
    # The workers' guards, as a plan from the statistics of an empty table would read the whole backlog; except bitmap
    # scans, which block range indexes need.
    name: value
    for name, value in GUARDS.items()
    if name not in {"enable_bitmapscan", "plan_cache_mode"}
} | {
    # Not the encoding, which a driver reads when it connects.
    name: value
    for name, value in SETTINGS.items()
    if name != "client_encoding"
}


def health(
    source: Engine | Session,
    *,
    thresholds: Thresholds | None = None,
    window: timedelta = timedelta(minutes=1),
    heartbeat_timeout: timedelta = timedelta(seconds=15),
    timeout: timedelta = _TIMEOUT,
    model: JobClass = Job,
) -> Health:
    """Measure the health of a queue: figures, findings, and what holds back the xmin horizon.

    `source`: an engine, of which one connection is used and then closed; or a session, whose transaction is used. With an
    async engine: `await connection.run_sync(lambda sync: health(Session(sync)))`. `thresholds`: by default those that are
    stored (`set_thresholds`). `window`: the period of the rates.
    `heartbeat_timeout`: that of the workers. `timeout`: of each statement, with an engine. Figures whose statement takes
    longer are left out and named in `missing`, and findings that depend on them are left out as well. After the first, the
    others have a tenth of the time each.

    Cost: a dozen statements, each bounded by a limit or by the concurrency of the workers; counts stop at 10,000 per lane
    and are then marked as capped. With an engine no snapshot is held between them. Locks: none.
    Obliges: SELECT on the job tables; pg_monitor to see other users' sessions, else the report has a finding.
    Raises: exceptions of the driver; with a session, those of a cancelled statement as well.
    """
    if isinstance(source, Session):
        return measured(Parts(source), thresholds, window, heartbeat_timeout, model)
    with reading(source, timeout) as session:
        return measured(Parts(session, timeout=timeout), thresholds, window, heartbeat_timeout, model)


class Parts:
    """Reads the parts of a report, but for those whose statement the server cancels.

    `timeout`: of each statement, each its own transaction. None: a cancelled statement ends the session's transaction, so
    the error is raised.
    """

    def __init__(self, session: Session, *, timeout: timedelta | None = None) -> None:
        self.session = session
        self._timeout = timeout
        self.missing: list[str] = []
        """Names of the parts that were left out."""

    def read(self, name: str, part: Callable[[Session], T], otherwise: T) -> T:
        """Return a part, or `otherwise` if its statement was cancelled."""
        try:
            return part(self.session)
        except DBAPIError as error:
            if self._timeout is None or sqlstate(error) not in _CANCELLED:
                raise
            if not self.missing:  # a dozen others may wait for the same
                self._limit(self._timeout / 10)
            self.missing.append(name)
            return otherwise

    def end(self) -> Sequence[str]:
        """Return the names of the parts that were left out; from now on statements have their whole time again."""
        if self.missing and self._timeout is not None:
            self._limit(self._timeout)
        return tuple(self.missing)

    def _limit(self, timeout: timedelta) -> None:
        self.session.execute(select(func.set_config("statement_timeout", _milliseconds(timeout), False)))


def _milliseconds(timeout: timedelta) -> str:
    return f"{max(1, round(timeout.total_seconds() * 1000))}ms"


@contextmanager
def reading(engine: Engine, timeout: timedelta) -> Iterator[Session]:
    """Yield a session for bounded reads, each in its own transaction, on a connection that is closed afterwards."""
    # Autocommit: within a transaction, the portal of the last SELECT keeps its snapshot until the next statement.
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # closed at the end, so that the pool does not keep its settings
        settings = _SETTINGS | {"statement_timeout": _milliseconds(timeout)}
        connection.execute(select(*(func.set_config(name, value, False) for name, value in settings.items())))
        with Session(connection) as session:
            yield session


def measured(
    parts: Parts, thresholds: Thresholds | None, window: timedelta, heartbeat_timeout: timedelta, model: JobClass
) -> Health:
    """Return a report; parts that `parts` has left out before are among its missing ones. Raises: as `health`."""
    server = parts.session.execute(storage.server()).mappings().one()
    now: datetime = server["now"]

    def rows(name: str, statement: Executable) -> Sequence[RowMapping]:
        return parts.read(name, lambda session: session.execute(statement).mappings().all(), ())

    if thresholds is None:
        thresholds = parts.read("thresholds", lambda session: get_thresholds(session, model=model), Thresholds())
    queues: Sequence[figures.QueueDepth] = parts.read("queues", lambda session: _queues(session, model, now), [])
    late = [one for one in queues if not one.fairness_key and one.claim_age >= thresholds.of(one.queue).claim_age_warning]
    workers: Sequence[WorkerStatus] = parts.read("workers", lambda session: list_workers(session, model=model).items, [])
    latest: Sequence[figures.FailedAttempt] = parts.read("latest", lambda session: _latest(session, model), [])
    report = Health(
        measured_at=now,
        queues=queues,
        rates=parts.read("rates", lambda session: _rates(session, model, window, latest), figures.Rates(window=window)),
        workers=figures.Workers(heartbeat_timeout=heartbeat_timeout, workers=workers),
        running=parts.read("running", lambda session: _running(session, model, now, heartbeat_timeout), figures.Running()),
        failures=parts.read("failures", lambda session: _failures(session, model, now), figures.Failures()),
        tables=parts.read("tables", lambda session: measured_tables(session, server, model), []),
        indexes=parts.read("indexes", lambda session: measured_indexes(session, model), []),
        horizon=figures.Horizon(holders=parts.read("horizon", lambda session: measured_holders(session, model), [])),
        server=_filled(figures.Server, server, version=server["server_version"]),
        unserved=parts.read("unserved", lambda session: _unserved(session, model, heartbeat_timeout), []),
        waiting=parts.read("waiting", lambda session: _waiting(session, model, heartbeat_timeout, late), []),
        awaited=parts.read("awaited", lambda session: _awaited(session, model, now, heartbeat_timeout), figures.Awaited()),
        retrying=parts.read("retrying", lambda session: _retrying(session, model, thresholds, queues), []),
        locks=parts.read("locks", lambda session: _locks(session, model), []),
        latest=latest,
        statuses={row["status"]: row["n"] for row in rows("statuses", storage.statuses(model))},
        settings=parts.read("settings", lambda session: list(_settings(session, model, now)), []),
        due_by_type=parts.read("due_by_type", lambda session: _due_by_type(session, model, now), {}),
        schedules=parts.read("schedules", lambda session: list(_late(session, model, heartbeat_timeout)), []),
        quarantined=parts.read("quarantined", lambda session: list(_quarantined(session, model, now)), []),
        bulk_writes=parts.read("bulk_writes", lambda session: _bulk_writes(session, model, now), figures.BulkWrites()),
    )
    missing = parts.end()
    if missing:
        report = replace(report, blockers=[dict(row) for row in rows("blockers", storage.exclusive_locks(model))])
    return judge(replace(report, missing=missing), thresholds)


def _retrying(
    session: Session, model: JobClass, at: Thresholds, queues: Sequence[figures.QueueDepth]
) -> list[figures.Retrying]:
    if sum(queue.later for queue in queues) < at.retry_minimum:
        return []
    given = {"after": at.claim_age_critical, "scan": _RETRIES, "limit": _GROUPS}
    found = session.execute(statements.retrying(model), given).mappings()
    return [_filled(figures.Retrying, row, count=row["n"]) for row in found]


def _unserved(session: Session, model: JobClass, heartbeat_timeout: timedelta) -> list[str]:
    return list(session.scalars(jobs.unserved_queues(model), {"ttl": heartbeat_timeout}))


def _locks(session: Session, model: JobClass) -> list[figures.LockHolder]:
    return [
        _filled(
            figures.LockHolder,
            row,
            pid=row["pid"] or None,
            description=holder_of(row),
            locked_for=row["locked_for"] or row["waited_for"],
            end=end_of(row),
        )
        for row in session.execute(storage.lock_holders(model)).mappings()
    ]


def _awaited(session: Session, model: JobClass, now: datetime, heartbeat_timeout: timedelta) -> figures.Awaited:
    row = session.execute(steps.awaited(model), {"limit": COUNTED}).one()
    if not row.jobs:
        return figures.Awaited()
    found = figures.Awaited(
        jobs=row.jobs, events=row.events, longest_job_id=row.job_id, longest_for=_since(row.since, now) or timedelta(0)
    )
    with suppress(NotFoundError):
        one = Explainer(session, model, heartbeat_timeout).explain(get_job(session, row.job_id, model=model))
        if one.cause is Cause.WAITING_FOR_EVENT:  # it may have been sent meanwhile
            seen = one.evidence
            return replace(found, sentence=one.sentence, event=seen["event"], similar_event=seen["similar_event"])
    return found


def _settings(session: Session, model: JobClass, now: datetime) -> Iterator[figures.Setting]:
    def setting(what: str, name: str, key: str, of: QueueStatus | TypeStatus) -> figures.Setting:
        paused_for = None if of.paused_at is None else now - of.paused_at
        limit = of.global_concurrency
        return figures.Setting(what=what, name=name, fairness_key=key, paused_for=paused_for, by=of.paused_by, limit=limit)

    for queue in list_queues(session, model=model):
        yield setting("queue", queue.name, queue.fairness_key, queue)
        if (most := queue.concurrency_per_key) is not None:
            yield figures.Setting(what="key", name=queue.name, fairness_key="", paused_for=None, by=None, limit=most)
    for kind in list_job_types(session, model=model):
        yield setting("type", kind.type_name, "", kind)


def _due_by_type(session: Session, model: JobClass, now: datetime) -> dict[str, int]:
    found = totals(session, since=now - timedelta(hours=1), by="type_name", model=model)
    return {type_name: int(figures.due) for type_name, figures in found.items()}


def _late(session: Session, model: JobClass, heartbeat_timeout: timedelta) -> Iterator[figures.LateSchedule]:
    explained = 0
    for one in list_schedules(session, model=model):
        if one.overdue is not None or one.error is not None or one.missed_from is not None:
            sentence = f"It has been due for {span(one.overdue)}." if one.overdue else ""
            if one.overdue is not None and (explained := explained + 1) <= _GROUPS:
                with suppress(NotFoundError):
                    found = explain_schedule(session, one.name, heartbeat_timeout=heartbeat_timeout, model=model)
                    sentence = found.sentence
            yield figures.LateSchedule(
                name=one.name,
                sentence=sentence,
                overdue=one.overdue,
                error=one.error,
                missed_from=one.missed_from,
                missed_until=one.missed_until,
                missed=len(one.missed_times(MISSED)),
            )


def _quarantined(session: Session, model: JobClass, now: datetime) -> Iterator[figures.Quarantined]:
    for row in session.execute(quarantine.page(model), {"subjects": None, "limit": _QUARANTINED}).mappings():
        failing_for = max(now - row["first_failed_at"], timedelta(0))
        yield _filled(figures.Quarantined, row, statement=RefusedWrite(row["statement"]), failing_for=failing_for)


def _bulk_writes(session: Session, model: JobClass, now: datetime) -> figures.BulkWrites:
    layout = model.__jobqueue__
    if not layout.pipeline or not session.execute(schema.versions(layout, "pipeline")).one().present:
        return figures.BulkWrites()
    oldest = session.execute(statements.unfinished_writes(model), {"limit": _WRITES}).mappings().first()
    rejected = session.execute(statements.rejected_rows(model), {"limit": COUNTED}).mappings().one()
    return figures.BulkWrites(
        unfinished=oldest["unfinished"] if oldest else 0,
        oldest_write_id=oldest["write_id"] if oldest else None,
        oldest_for=_since(oldest["staged_at"], now) if oldest else None,
        rejected=rejected["rejected"],
        rejected_last_day=rejected["last_day"],
    )


def _queues(session: Session, model: JobClass, now: datetime) -> list[figures.QueueDepth]:
    rows = session.execute(statements.depths(model), {"limit": COUNTED}).mappings()
    return [
        _filled(
            figures.QueueDepth,
            row,
            oldest_due_at=row["oldest_at"],
            claim_age=_since(row["oldest_at"], now) or timedelta(0),
            next_due_at=row["next_at"],
        )
        for row in rows
    ]


def _waiting(
    session: Session, model: JobClass, heartbeat_timeout: timedelta, queues: Sequence[figures.QueueDepth]
) -> list[figures.Waiting]:
    """Explain the oldest job of the largest groups of due jobs of each queue, and add up the groups of one cause."""
    if not queues:
        return []
    explainer = Explainer(session, model, heartbeat_timeout)
    found: list[figures.Waiting] = []
    for queue in sorted(queues, key=lambda one: -one.claim_age)[:_LATE_QUEUES]:
        given = {"queue": queue.queue, "scan": COUNTED, "limit": _GROUPS}
        by_cause: dict[tuple[str, str], list[tuple[Any, Any]]] = {}
        for row in session.execute(statements.due_groups(model), given):
            with suppress(NotFoundError):
                one = explainer.explain(get_job(session, row.job_id, model=model))
                if one.status is JobStatus.PENDING:  # it may have been claimed meanwhile
                    of_type = one.type_name if one.cause in {Cause.TYPE_UNKNOWN, Cause.TYPE_PAUSED} else ""
                    by_cause.setdefault((one.cause, of_type), []).append((row, one))
        for (cause, _), groups in by_cause.items():
            oldest, explained = min(groups, key=lambda group: group[0].oldest_at)
            due = sum(row.n for row, _ in groups)
            keys = Counter[str]()
            for row, _ in groups:
                keys[row.fairness_key] += row.n
            key, of_key = keys.most_common(1)[0]
            is_one_key = key and 2 * of_key > due
            found.append(
                figures.Waiting(
                    queue=queue.queue,
                    cause=cause,
                    due=due,
                    oldest_job_id=explained.job_id,
                    waiting_for=max(explainer.now - oldest.oldest_at, timedelta(0)),
                    sentence=explained.sentence,
                    type_name=explained.type_name,
                    limit_of=explained.evidence.get("limit_of"),
                    shared=_shared(explained),
                    move=explained.evidence.get("move", ""),
                    fairness_key=key if is_one_key else "",
                    due_of_key=of_key if is_one_key else 0,
                )
            )
    return found


def _shared(explained: Explanation) -> str:
    """Return what jobs of other queues may wait for as well."""
    if explained.cause is Cause.LOCKED:
        return f"session {explained.evidence['locked_by']}"
    if limit := explained.evidence.get("limit_of"):
        return f"type {limit[1]}" if limit[0] == "type" else ""
    return SLOTS if explained.cause in {Cause.BUSY, Cause.QUEUED, Cause.DRAINING} else ""


def _latest(session: Session, model: JobClass) -> list[figures.FailedAttempt]:
    rows = session.execute(recent.failures(model), {"limit": _LATEST, "scan": _SCANNED}).mappings()
    return [_filled(figures.FailedAttempt, row, error=_error(row)) for row in rows]


def _error(row: RowMapping) -> Any:
    return redacted_error(row["type_name"], {"type": row["error_type"], "message": row["error_message"]})


def _rates(session: Session, model: JobClass, window: timedelta, latest: Sequence[figures.FailedAttempt]) -> figures.Rates:
    parameters = {"window": window, "transactions": _TRANSACTIONS, "limit": MAX_EXAMINED}
    rows = session.execute(statements.lately(model), parameters).mappings().all()
    attempts = session.execute(statements.recent_attempts(model), parameters).all()
    examined = max(sum(row["examined"] for row in rows), sum(n for _, n in attempts))
    failing = None
    if sum(n for outcome, n in attempts if outcome in statements.UNSUCCESSFUL) >= _FEW:
        for (kind, error), n in Counter((one.type_name, one.error["type"] or "") for one in latest).most_common(1):
            keys = {one.fairness_key for one in latest if (one.type_name, one.error["type"] or "") == (kind, error)}
            failing = (kind, error, keys.pop() if len(keys) == 1 else "") if 2 * n > len(latest) else None
    return figures.Rates(
        window=window,
        queues=[_filled(figures.QueueRates, row, died=row["dead"]) for row in rows],
        failing=failing,
        unsuccessful={AttemptOutcome(outcome): n for outcome, n in attempts},
        is_partial=examined >= MAX_EXAMINED,
    )


def _running(session: Session, model: JobClass, now: datetime, heartbeat_timeout: timedelta) -> figures.Running:
    rows = session.execute(statements.running(model), {"ttl": heartbeat_timeout}).mappings().all()
    groups = [
        _filled(
            figures.RunningGroup,
            row,
            worker_id=row["leased_by"],
            running_for=_since(row["started_at"], now) or timedelta(0),
        )
        for row in rows
    ]
    return figures.Running(
        groups=groups, **{name: sum(row[name] for row in rows) for name in ("running", "orphaned", "overdue")}
    )


def _failures(session: Session, model: JobClass, now: datetime) -> figures.Failures:
    dead_letters = session.execute(statements.unresolved(model), {"limit": COUNTED}).mappings().one()
    groups = group_dead_letters(session, scan=COUNTED, limit=_DEAD_GROUPS, model=model) if dead_letters["unresolved"] else ()
    behind = session.execute(statements.behind_dead(model), {"limit": COUNTED}).mappings().one()
    dead = session.execute(statements.dead_jobs(model), {"chain_ids": behind["chain_ids"]}).all() if behind["chains"] else ()
    cancelled = session.execute(statements.behind_cancelled(model), {"limit": COUNTED}).one()
    chains_to_unblock = session.execute(statements.chains_to_unblock(model), {"limit": COUNTED}).mappings().one()
    return _filled(
        figures.Failures,
        dead_letters,
        is_capped=dead_letters["unresolved"] >= COUNTED,
        oldest_for=_since(dead_letters["oldest_at"], now),
        groups=groups,
        waiting=behind["waiting"],
        dead_chains=behind["chains"],
        dead_blockers=[(row.id, row.type_name) for row in dead],
        example_chain_id=behind["chain_ids"][0] if behind["chains"] else None,
        behind_cancelled=cancelled.waiting,
        cancelled_chains=cancelled.chains,
        behind_cancelled_ids=cancelled.job_ids or (),
        blocked=cancelled.blocked,
        dead=cancelled.dead,
        chains_to_unblock=chains_to_unblock["chains_to_unblock"],
        to_unblock_for=_since(chains_to_unblock["oldest_at"], now),
    )


def measured_tables(session: Session, server: Mapping[Any, Any], model: JobClass) -> list[figures.TableHealth]:
    """Return the job tables, by name. `server`: the row of `storage.server`."""
    return [_table(row, server) for row in session.execute(storage.tables(model)).mappings()]


def measured_indexes(session: Session, model: JobClass) -> list[figures.IndexHealth]:
    """Return the indexes of the job tables, by name."""
    return [_index(row) for row in session.execute(storage.indexes(model)).mappings()]


def _table(row: Mapping[Any, Any], server: Mapping[Any, Any]) -> figures.TableHealth:
    options = _options(row["options"])
    return _filled(
        figures.TableHealth,
        row,
        vacuum_at=vacuum_threshold(
            live=row["live"],
            threshold=float(options.get("autovacuum_vacuum_threshold", server["vacuum_threshold"])),
            scale_factor=float(options.get("autovacuum_vacuum_scale_factor", server["vacuum_scale_factor"])),
        ),
        wasted_bytes=wasted_in_heap(
            row["heap_bytes"],
            rows=row["live"],
            row_bytes=row["row_bytes"],
            fillfactor=int(options.get("fillfactor", 100)),
        ),
        is_vacuumed=server["autovacuum"] and options.get("autovacuum_enabled", "true") not in {"false", "off"},
        last_vacuum=max((at for at in (row["last_vacuum"], row["last_autovacuum"]) if at), default=None),
    )


def _index(row: Mapping[Any, Any]) -> figures.IndexHealth:
    wasted = None
    if row["kind"] == "btree" and row["tuples"] >= 0:
        fillfactor = int(_options(row["options"]).get("fillfactor", 90))
        wasted = wasted_in_index(row["bytes"], rows=row["tuples"], key_bytes=row["key_bytes"], fillfactor=fillfactor)
    return _filled(figures.IndexHealth, row, table=row["table_name"], wasted_bytes=wasted, scans=row["scans"] or 0)


def _options(given: Sequence[str] | None) -> dict[str, str]:
    return dict(option.split("=", 1) for option in given or ())


def measured_holders(session: Session, model: JobClass) -> list[figures.Holder]:
    """Return what holds back the xmin horizon, oldest first."""
    rows = session.execute(horizon.holders(), {"limit": _HOLDERS}).mappings().all()
    named = {row["pid"]: _job_id(model, row["name"]) for row in rows if row["kind"] == figures.HolderKind.SESSION}
    ids = [job_id for job_id in named.values() if job_id is not None]
    columns = ("id", "type_name", "status", "attempt", "leased_by")
    found = session.execute(jobs.named(model, columns), {"ids": ids}).all() if ids else []
    held = {str(job.id): job for job in found}
    holders = []
    for row in rows:
        job_id = named.get(row["pid"]) if row["kind"] == figures.HolderKind.SESSION else None
        job = held.get(str(job_id))
        holders.append(
            _filled(
                figures.Holder,
                row,
                kind=figures.HolderKind.HANDLER if job_id is not None else figures.HolderKind(row["kind"]),
                held_for=None if row["seconds"] is None else timedelta(seconds=max(row["seconds"], 0.0)),
                query=shortened(row["query"]),
                job_id=job_id,
                **({} if job is None else {"type_name": job.type_name, "attempt": job.attempt, "worker_id": job.leased_by}),
            )
        )
    return holders


def _job_id(model: JobClass, name: str | None) -> Any:
    """Return the job id in the application_name of a handler's session; None for any other name."""
    if name is None or not name.startswith(PREFIX):
        return None
    written = name.removeprefix(PREFIX)
    if model.__jobqueue__.id_type == "text":
        return written
    try:
        return UUID(written)
    except ValueError:
        return None


def _filled(kind: Callable[..., T], row: Mapping[Any, Any], /, **others: Any) -> T:
    """Return figures with the columns of a row that have the names of their fields, and `others`."""
    names = {one.name for one in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in row.items() if name in names} | others)


def _since(instant: datetime | None, now: datetime) -> timedelta | None:
    return None if instant is None else max(now - instant, timedelta(0))
