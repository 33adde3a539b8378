"""Read the figures of a health report, with a dozen bounded statements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar
from uuid import UUID

from sqlalchemy import Engine, Executable, RowMapping, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.detached import detached
from sa_jobqueue.db.sessions import GUARDS, SETTINGS
from sa_jobqueue.db.splitting import sqlstate
from sa_jobqueue.ddl import read_stamp
from sa_jobqueue.display.printable import shortened
from sa_jobqueue.display.redaction import error_name, redacted_error
from sa_jobqueue.errors import NotFoundError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.observe.health import figures
from sa_jobqueue.observe.health.estimates import vacuum_threshold, wasted_in_heap, wasted_in_index
from sa_jobqueue.observe.health.figures import MISSED, SLOTS, Health
from sa_jobqueue.observe.health.findings import OF_PRIMARY, judge
from sa_jobqueue.observe.health.silencing import list_silenced
from sa_jobqueue.observe.health.thresholds import Thresholds, get_thresholds
from sa_jobqueue.observe.minutes import totals
from sa_jobqueue.operations import (
    QueueStatus,
    TypeStatus,
    explain_schedule,
    get_job,
    group_dead_letters,
    list_job_types,
    list_queues,
    list_schedules,
    list_workers,
)
from sa_jobqueue.operations.explaining import Cause, Explainer, Explanation
from sa_jobqueue.operations.lock_holders import list_lock_holders
from sa_jobqueue.operations.pages import member_or_text
from sa_jobqueue.operations.row_security import hidden_rows
from sa_jobqueue.operations.silence import list_silent
from sa_jobqueue.policies.rates import Rate
from sa_jobqueue.statements import health as statements
from sa_jobqueue.statements import horizon, jobs, limits, quarantine, recent, schema, sessions, steps, storage
from sa_jobqueue.statements.session_names import PREFIX
from sa_jobqueue.types import JobStatus, RefusedWrite

T = TypeVar("T")

COUNTED: Final = 10_000
"""Limit of the counts of a lane's jobs, of dead letters and of blocked jobs."""
MAX_EXAMINED: Final = 50_000
"""Limit of the jobs and attempts of the window that are scanned."""
_TRANSACTIONS: Final = 500_000
_RECENT_TRANSACTIONS: Final = 50_000
"""Where restarts and long chains are searched, which show up again and again."""
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
GROWTH: Final = timedelta(minutes=10)
"""Period over which growth and restarts are measured."""
LONG_CHAIN: Final = 1_000
"""Number of jobs from which on a chain is a long one."""
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
    last: Health | None = None,
    model: JobClass = Job,
) -> Health:
    """Measure the health of a queue: figures, findings, and what holds back the xmin horizon.

    `source`: an engine, of which one connection is used and then closed; or a session, whose transaction is used. With an
    async engine: `await connection.run_sync(lambda sync: health(Session(sync)))`. `thresholds`: by default those that are
    stored (`set_thresholds`). `window`: the period of the rates.
    `heartbeat_timeout`: that of the workers. `timeout`: of each statement, with an engine. Figures whose statement takes
    longer are left out and named in `missing`, and findings that depend on them are left out as well. After the first, the
    others have a tenth of the time each. `last`: an earlier report, to measure only queues, workers, waits and locks again.

    Cost: a dozen statements, each bounded by a limit or by the concurrency of the workers; counts stop at 10,000 per lane
    and are then marked as capped. With an engine no snapshot is held between them. Locks: none.
    Obliges: SELECT on the job tables; pg_monitor to see other users' sessions, else the report has a finding.
    Raises: exceptions of the driver; with a session, those of a cancelled statement as well.
    """

    def measure(session: Session, timeout: timedelta | None) -> Health:
        reading = Reading(session, model, window=window, heartbeat_timeout=heartbeat_timeout, timeout=timeout)
        return reading.report(thresholds, last)

    if isinstance(source, Session):
        return measure(source, None)
    with reading_session(source, timeout) as session:
        return measure(session, timeout)


class Reading:
    """Reads the figures of one report, but for those whose statement the server cancels.

    `timeout`: of each statement, each its own transaction. None: a cancelled statement ends the session's transaction, so
    the error is raised.
    """

    def __init__(
        self,
        session: Session,
        model: JobClass = Job,
        *,
        window: timedelta = timedelta(minutes=1),
        heartbeat_timeout: timedelta = timedelta(seconds=15),
        timeout: timedelta | None = None,
    ) -> None:
        self.session, self.model, self.window, self.heartbeat_timeout = session, model, window, heartbeat_timeout
        self._timeout = timeout
        before = datetime.now(UTC)
        self.server: RowMapping = session.execute(storage.server()).mappings().one()
        self._midpoint = before + (datetime.now(UTC) - before) / 2
        self.now: datetime = self.server["now"]
        self.thresholds = Thresholds()
        self.found: dict[str, Any] = {
            "rates": figures.Rates(window=window),
            "workers": figures.Workers(heartbeat_timeout=heartbeat_timeout),
        }
        """The figures that were read so far, by name."""
        self.missing: list[str] = []
        """Names of the figures that were left out."""
        self._is_limited = False

    def report(self, thresholds: Thresholds | None, last: Health | None = None) -> Health:
        """Return the report. `thresholds`: None for the stored ones. `last`: as of `health`. Raises: as `health`."""
        with self.part("thresholds"):
            self.thresholds = thresholds or get_thresholds(self.session, model=self.model)
        for name, figure in _FIGURES.items():
            if self.server["is_replica"] and name in OF_PRIMARY - {"workers"}:
                continue  # an unlogged table cannot even be read there
            if last is not None and name not in _FRESH:
                self.found[name] = getattr(last, name)
                self.missing += [name] if name in last.missing else []
                continue
            with self.part(name):
                self.found[name] = figure(self)
        if last is not None:
            self.found["older_at"] = last.older_at or last.measured_at
        server = _filled(figures.Server, self.server, clock_ahead=self.now - self._midpoint)
        report = Health(measured_at=self.now, server=server, missing=tuple(self.missing), **self.found)
        return judge(report, self.thresholds)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Leave a part out if its statement is cancelled; then the others have a tenth of the time each."""
        try:
            yield
        except DBAPIError as error:
            if self._timeout is None or sqlstate(error) not in _CANCELLED:
                raise
            if not self._is_limited:  # a dozen others may wait for the same
                self._limit(10)
                self._is_limited = True
            self.missing.append(name)

    def _limit(self, parts: int = 1) -> None:
        if self._timeout is not None:
            limit = _milliseconds(self._timeout / parts)
            self.session.execute(select(func.set_config("statement_timeout", limit, False)))

    def rows(self, statement: Executable, **parameters: Any) -> Sequence[RowMapping]:
        """Return the rows of a statement."""
        return self.session.execute(statement, parameters).mappings().all()

    def since(self, instant: datetime | None) -> timedelta | None:
        """Return how long ago an instant was; 0 if it is later than the start of the report, None for None."""
        return None if instant is None else max(self.now - instant, timedelta(0))


def _milliseconds(timeout: timedelta) -> str:
    return f"{max(1, round(timeout.total_seconds() * 1000))}ms"


@contextmanager
def reading_session(engine: Engine, timeout: timedelta) -> Iterator[Session]:
    """Yield a session for bounded reads, each in its own transaction, on a connection that is closed afterwards."""
    # Autocommit: within a transaction, the portal of the last SELECT keeps its snapshot until the next statement.
    with detached(engine, isolation_level="AUTOCOMMIT") as connection:
        settings = _SETTINGS | {"statement_timeout": _milliseconds(timeout)}
        connection.execute(select(*(func.set_config(name, value, False) for name, value in settings.items())))
        with Session(connection) as session:
            yield session


def _queues(reading: Reading) -> list[figures.QueueDepth]:
    rows = reading.rows(statements.depths(reading.model), limit=COUNTED)
    return [_filled(figures.QueueDepth, row, claim_age=reading.since(row["oldest_due_at"]) or timedelta(0)) for row in rows]


def _workers(reading: Reading) -> figures.Workers:
    workers = list_workers(reading.session, model=reading.model).items
    silences = list_silent(reading.session, workers, reading.heartbeat_timeout)
    return figures.Workers(heartbeat_timeout=reading.heartbeat_timeout, workers=workers, silences=silences)


def _latest(reading: Reading) -> list[figures.FailedAttempt]:
    rows = reading.rows(recent.failures(reading.model), limit=_LATEST, scan=_SCANNED)
    return [_filled(figures.FailedAttempt, row, error=_error(row)) for row in rows]


def _error(row: RowMapping) -> Any:
    return redacted_error(row["type_name"], {"type": row["error_type"], "message": row["error_message"]})


def _rates(reading: Reading) -> figures.Rates:
    parameters = {"window": reading.window, "transactions": _TRANSACTIONS, "limit": MAX_EXAMINED}
    rows = reading.rows(statements.lately(reading.model), **parameters)
    attempts = {row["outcome"]: row["n"] for row in reading.rows(statements.recent_attempts(reading.model), **parameters)}
    is_partial = max(sum(row["examined"] for row in rows), sum(attempts.values())) >= MAX_EXAMINED
    rates = figures.Rates(
        window=reading.window,
        queues=[_filled(figures.QueueRates, row) for row in rows],
        unsuccessful=attempts,
        is_partial=is_partial,
    )
    return rates if rates.failed_attempts < _FEW else replace(rates, failing=_failing(reading.found.get("latest", ())))


def _failing(latest: Sequence[figures.FailedAttempt]) -> tuple[str, str, str] | None:
    """Return the type, error and fairness key of more than half of the latest failures."""
    for (kind, error), n in Counter((failure.type_name, error_name(failure.error)) for failure in latest).most_common(1):
        keys = {
            failure.fairness_key for failure in latest if (failure.type_name, error_name(failure.error)) == (kind, error)
        }
        if 2 * n > len(latest):
            return kind, error, keys.pop() if len(keys) == 1 else ""
    return None


def _running(reading: Reading) -> figures.Running:
    rows = reading.rows(statements.running(reading.model), ttl=reading.heartbeat_timeout)
    return figures.Running(
        groups=[
            _filled(figures.RunningGroup, row, running_for=reading.since(row["started_at"]) or timedelta(0)) for row in rows
        ],
        **{name: sum(row[name] for row in rows) for name in ("running", "orphaned", "overdue")},
    )


def _failures(reading: Reading) -> figures.Failures:
    def row(statement: Executable) -> RowMapping:
        return reading.session.execute(statement, {"limit": COUNTED}).mappings().one()

    dead_letters, behind = row(statements.unresolved(reading.model)), row(statements.behind_dead(reading.model))
    cancelled, ended = row(statements.behind_cancelled(reading.model)), row(statements.chains_to_unblock(reading.model))
    chain_ids = behind["chain_ids"] or []
    dead = reading.rows(statements.dead_jobs(reading.model), chain_ids=chain_ids) if chain_ids else ()
    has_any = dead_letters["unresolved"]
    return _filled(
        figures.Failures,
        {**dead_letters, **behind, **cancelled, **ended},
        is_capped=has_any >= COUNTED,
        oldest_for=reading.since(dead_letters["oldest_at"]),
        groups=group_dead_letters(reading.session, scan=COUNTED, limit=_DEAD_GROUPS, model=reading.model) if has_any else (),
        dead_blockers=[(job["id"], job["type_name"]) for job in dead],
        example_chain_id=next(iter(chain_ids), None),
        behind_cancelled_ids=cancelled["behind_cancelled_ids"] or (),
        to_unblock_for=reading.since(ended["ended_at"]),
    )


def measured_tables(reading: Reading) -> list[figures.TableHealth]:
    """Return the job tables, by name."""
    return [_table(row, reading.server) for row in reading.rows(storage.tables(reading.model))]


def measured_indexes(reading: Reading) -> list[figures.IndexHealth]:
    """Return the indexes of the job tables, by name."""
    return [_index(row) for row in reading.rows(storage.indexes(reading.model))]


def _table(row: RowMapping, server: RowMapping) -> figures.TableHealth:
    options = options_of(row["options"])
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


def _index(row: RowMapping) -> figures.IndexHealth:
    wasted = None
    if row["kind"] == "btree" and row["tuples"] >= 0:
        fillfactor = int(options_of(row["options"]).get("fillfactor", 90))
        wasted = wasted_in_index(row["bytes"], rows=row["tuples"], key_bytes=row["key_bytes"], fillfactor=fillfactor)
    return _filled(figures.IndexHealth, row, wasted_bytes=wasted, scans=row["scans"] or 0)


def options_of(reloptions: Sequence[str] | None) -> dict[str, str]:
    """Return the storage parameters of a table or index, as the catalog has them, by name."""
    return dict(option.split("=", 1) for option in reloptions or ())


def measured_holders(reading: Reading) -> list[figures.Holder]:
    """Return what holds back the xmin horizon, oldest first."""
    rows = reading.rows(horizon.holders(), limit=_HOLDERS)
    job_id_by_pid = {
        row["pid"]: _job_id(reading.model, row["name"]) for row in rows if row["kind"] == figures.HolderKind.SESSION
    }
    ids = [job_id for job_id in job_id_by_pid.values() if job_id is not None]
    columns = ("id", "type_name", "status", "attempt", "leased_by")
    job_rows = reading.rows(jobs.named(reading.model, columns), ids=ids) if ids else []
    job_by_id = {str(job["id"]): {**job, "worker_id": job["leased_by"]} for job in job_rows}
    holders = []
    for row in rows:
        job_id = job_id_by_pid.get(row["pid"]) if row["kind"] == figures.HolderKind.SESSION else None
        of_row = {
            "kind": figures.HolderKind.HANDLER if job_id is not None else figures.HolderKind(row["kind"]),
            "held_for": None if row["seconds"] is None else timedelta(seconds=max(row["seconds"], 0.0)),
            "query": shortened(row["query"]),
            "job_id": job_id,
        }
        holders.append(_filled(figures.Holder, {**job_by_id.get(str(job_id), {}), **row}, **of_row))
    return holders


def _job_id(model: JobClass, name: str | None) -> Any:
    """Return the job id in the application_name of a handler's session; None for any other name."""
    if name is None or not name.startswith(PREFIX):
        return None
    id_text = name.removeprefix(PREFIX)
    if model.__jobqueue__.id_type == "text":
        return id_text
    try:
        return UUID(id_text)
    except ValueError:
        return None


_CAUSES_OF_TYPES: Final = {Cause.TYPE_UNKNOWN, Cause.VERSION_UNKNOWN, Cause.TYPE_PAUSED}
"""Causes that hold up one job type."""


def _unserved(reading: Reading) -> list[str]:
    return list(reading.session.scalars(jobs.unserved_queues(reading.model), {"ttl": reading.heartbeat_timeout}))


def _waiting(reading: Reading) -> list[figures.Waiting]:
    """Explain the oldest job of the largest groups of due jobs of each late queue, and add up the groups of one cause."""
    queues: Sequence[figures.QueueDepth] = reading.found.get("queues", ())
    at = reading.thresholds
    late = [queue for queue in queues if not queue.fairness_key and queue.claim_age >= at.of(queue.queue).claim_age_warning]
    if not late:
        return []
    explainer = Explainer(reading.session, reading.model, reading.heartbeat_timeout)
    groups_of_causes: list[figures.Waiting] = []
    for queue in sorted(late, key=lambda queue: -queue.claim_age)[:_LATE_QUEUES]:
        by_cause: dict[tuple[str, str], list[tuple[RowMapping, Explanation]]] = {}
        for row in reading.rows(statements.due_groups(reading.model), queue=queue.queue, scan=COUNTED, limit=_GROUPS):
            with suppress(NotFoundError):
                explanation = explainer.explain(get_job(reading.session, row["job_id"], model=reading.model))
                if explanation.status is JobStatus.PENDING:  # it may have been claimed meanwhile
                    of_type = explanation.type_name if explanation.cause in _CAUSES_OF_TYPES else ""
                    by_cause.setdefault((explanation.cause, of_type), []).append((row, explanation))
        for groups in by_cause.values():
            oldest, explained = min(groups, key=lambda group: group[0]["oldest_at"])
            due = sum(row["n"] for row, _ in groups)
            keys = Counter[str]()
            for row, _ in groups:
                keys[row["fairness_key"]] += row["n"]
            key, of_key = keys.most_common(1)[0]
            is_one_key = key and 2 * of_key > due
            groups_of_causes.append(
                figures.Waiting(
                    queue=queue.queue,
                    cause=explained.cause,
                    due=due,
                    job_id=explained.job_id,
                    waiting_for=max(explainer.now - oldest["oldest_at"], timedelta(0)),
                    reason=explained.reason,
                    type_name=explained.type_name,
                    limit_of=explained.evidence.get("limit_of"),
                    per_second=explained.evidence.get("per_second") if explained.cause is Cause.RATE_LIMITED else None,
                    shared=_shared(explained),
                    fairness_key=key if is_one_key else "",
                    due_of_key=of_key if is_one_key else 0,
                )
            )
    return groups_of_causes


def _shared(explained: Explanation) -> str:
    """Return what jobs of other queues may wait for as well."""
    if explained.cause is Cause.LOCKED:
        return f"session {explained.evidence['locked_by']}"
    if limit := explained.evidence.get("limit_of"):
        return f"type {limit[1]}" if limit[0] == "type" else ""
    if explained.cause in {Cause.BUSY, Cause.QUEUED, Cause.DRAINING}:
        return f"{SLOTS} of {', '.join(explained.evidence.get('workers', ()))}"
    return ""


def _awaited(reading: Reading) -> figures.Awaited:
    row = reading.rows(steps.awaited(reading.model), limit=COUNTED)[0]
    if not row["jobs"]:
        return figures.Awaited()
    awaited = _filled(figures.Awaited, row, waiting_for=reading.since(row["since"]) or timedelta(0))
    with suppress(NotFoundError):
        explainer = Explainer(reading.session, reading.model, reading.heartbeat_timeout)
        explanation = explainer.explain(get_job(reading.session, awaited.job_id, model=reading.model))
        if explanation.cause is Cause.WAITING_FOR_EVENT:  # it may have been sent meanwhile
            evidence = explanation.evidence
            times_out_at: datetime | None = evidence["times_out_at"]
            return replace(
                awaited,
                sentence=explanation.sentence,
                event=evidence["event"],
                similar_event=evidence["similar_event"],
                times_out_in=None if times_out_at is None else times_out_at - reading.now,
            )
    return awaited


def _retrying(reading: Reading) -> list[figures.Retrying]:
    queues: Sequence[figures.QueueDepth] = reading.found.get("queues", ())
    if sum(queue.later for queue in queues) < reading.thresholds.retry_minimum:
        return []
    after = reading.thresholds.claim_age_critical
    rows = reading.rows(statements.retrying(reading.model), after=after, scan=_RETRIES, limit=_GROUPS)
    return [_filled(figures.Retrying, row) for row in rows]


def _statuses(reading: Reading) -> dict[str, int]:
    return {row["status"]: row["n"] for row in reading.rows(storage.statuses(reading.model))}


def _settings(reading: Reading) -> list[figures.Restriction]:
    queues, types = list_queues(reading.session, model=reading.model), list_job_types(reading.session, model=reading.model)
    tokens: dict[tuple[bool, str, str], float] = {}
    if any(row.rate_limit is not None for row in [*queues, *types]):
        for limited in reading.session.execute(limits.current(reading.model), {"limit": COUNTED}):
            if (rate := Rate.of(limited)) is not None:
                tokens[limited.is_type, limited.name, limited.fairness_key] = rate.left
    settings = []
    for queue in queues:
        tokens_left = tokens.get((False, queue.name, queue.fairness_key))
        settings.append(_restriction(reading, "queue", queue.name, queue, tokens_left))
        if (most := queue.concurrency_per_key) is not None:
            settings.append(figures.Restriction(what="key", name=queue.name, limit=most))
    return settings + [
        _restriction(reading, "type", kind.type_name, kind, tokens.get((True, kind.type_name, ""))) for kind in types
    ]


def _restriction(
    reading: Reading, kind: str, name: str, row: QueueStatus | TypeStatus, tokens: float | None
) -> figures.Restriction:
    return figures.Restriction(
        what=kind,
        name=name,
        fairness_key=getattr(row, "fairness_key", ""),
        paused_for=None if row.paused_at is None else reading.now - row.paused_at,
        by=row.paused_by,
        limit=row.global_concurrency,
        tokens=tokens,
    )


def _due_by_type(reading: Reading) -> dict[str, int]:
    totals_by_type = totals(reading.session, since=reading.now - timedelta(hours=1), by="type_name", model=reading.model)
    return {type_name: int(figures.due) for type_name, figures in totals_by_type.items()}


def _growth(reading: Reading) -> list[figures.Growth]:
    totals_by_type = totals(reading.session, since=reading.now - GROWTH, by="type_name", model=reading.model)
    return [
        figures.Growth(
            type_name=type_name,
            enqueued=total.enqueued,
            ended=total.completed + total.died + total.cancelled,
            due=int(total.due),
        )
        for type_name, total in totals_by_type.items()
    ]


def _starts(reading: Reading) -> list[figures.Starts]:
    parameters = {"window": GROWTH, "transactions": _RECENT_TRANSACTIONS, "limit": MAX_EXAMINED, "least": 4}
    return [_filled(figures.Starts, row) for row in reading.rows(recent.starts(reading.model), **parameters)]


def _long_chains(reading: Reading) -> list[figures.LongChain]:
    parameters = {"least": LONG_CHAIN - 1, "transactions": _RECENT_TRANSACTIONS, "limit": MAX_EXAMINED}
    return [_filled(figures.LongChain, row) for row in reading.rows(recent.long_chains(reading.model), **parameters)]


def _connected(reading: Reading) -> dict[str, int]:
    return {row["name"]: row["n"] for row in reading.rows(sessions.by_name(), limit=_GROUPS)}


def _schedules(reading: Reading) -> list[figures.LateSchedule]:
    schedules = []
    explained = 0
    for schedule in list_schedules(reading.session, model=reading.model):
        if schedule.overdue is not None or schedule.error is not None or schedule.missed_from is not None:
            reason = ""
            if schedule.overdue is not None and (explained := explained + 1) <= _GROUPS:
                with suppress(NotFoundError):
                    explanation = explain_schedule(
                        reading.session, schedule.name, heartbeat_timeout=reading.heartbeat_timeout, model=reading.model
                    )
                    reason = explanation.reason
            missed = len(schedule.missed_times(MISSED))
            schedules.append(_filled(figures.LateSchedule, asdict(schedule), reason=reason, missed=missed))
    return schedules


def _quarantined(reading: Reading) -> list[figures.Quarantined]:
    return [
        _filled(
            figures.Quarantined,
            row,
            statement=member_or_text(RefusedWrite, row["statement"]),
            failing_for=reading.since(row["first_failed_at"]),
        )
        for row in reading.rows(quarantine.page(reading.model), subjects=None, limit=_QUARANTINED)
    ]


def _bulk_writes(reading: Reading) -> figures.BulkWrites:
    # Tables of an application may have these names; a comment marks ours, whether the class is mapped to them or not.
    if read_stamp(reading.session.execute(schema.versions(reading.model.__jobqueue__, "pipeline")).one().stamp) is None:
        return figures.BulkWrites()
    rejected = reading.rows(statements.rejected_rows(reading.model), limit=COUNTED)[0]
    for oldest in reading.rows(statements.unfinished_writes(reading.model), limit=_WRITES):
        return _filled(figures.BulkWrites, {**rejected, **oldest}, oldest_for=reading.since(oldest["staged_at"]))
    return _filled(figures.BulkWrites, rejected)


_FIGURES: Final[Mapping[str, Callable[[Reading], Any]]] = {
    "hidden": lambda reading: hidden_rows(reading.session, commands=["SELECT"], model=reading.model),
    "queues": _queues,
    "workers": _workers,
    "latest": _latest,
    "rates": _rates,
    "running": _running,
    "failures": _failures,
    "tables": measured_tables,
    "indexes": measured_indexes,
    "horizon": lambda reading: figures.Horizon(holders=measured_holders(reading)),
    "unserved": _unserved,
    "waiting": _waiting,
    "awaited": _awaited,
    "retrying": _retrying,
    "locks": lambda reading: list_lock_holders(reading.session, reading.model),
    "statuses": _statuses,
    "settings": _settings,
    "due_by_type": _due_by_type,
    "growth": _growth,
    "starts": _starts,
    "long_chains": _long_chains,
    "connected": _connected,
    "silenced": lambda reading: list_silenced(reading.session, now=reading.now, model=reading.model),
    "schedules": _schedules,
    "quarantined": _quarantined,
    "bulk_writes": _bulk_writes,
}
"""Functions that read a figure, by its name in the report, in their order: some use those before."""


_FRESH: Final = frozenset({"hidden", "queues", "workers", "unserved", "waiting", "locks", "settings", "silenced"})
"""The figures that tell an outage, and cost little."""


def _filled(kind: Callable[..., T], row: Mapping[Any, Any], /, **fields_by_name: Any) -> T:
    """Return figures with the columns of a row that have the names of their fields, and the others by name."""
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in row.items() if name in names} | fields_by_name)
