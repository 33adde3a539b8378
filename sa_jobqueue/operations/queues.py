"""Settings of queues and job types: read and change their rows, pause them, and synchronise them with the declarations.

A queue or type needs no row: one is inserted when a setting is first changed. Running workers read changed settings after
the transaction commits: immediately when notified, otherwise at their next tick (within 1 s if they do not listen).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError, NotFoundError
from sa_jobqueue.models import Job, JobClass, JobTypeMixin, QueueMixin
from sa_jobqueue.models.options import DECLARED, DEFAULT_QUEUE
from sa_jobqueue.operations import pages
from sa_jobqueue.operations.audit import record
from sa_jobqueue.operations.named_rows import Change
from sa_jobqueue.operations.pages import MAX_PAGE, BulkResult, Page
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.registry.settings import (
    Limits,
    QueueColumns,
    QueueName,
    QueueSettings,
    TypeName,
    TypeSettings,
    check_fairness_key,
    check_names,
    settings_of,
)
from sa_jobqueue.statements import controls, named_rows, queues

HEARTBEAT_TIMEOUT: Final = timedelta(seconds=15)
SettingsClass: TypeAlias = type[QueueMixin] | type[JobTypeMixin]
Differences: TypeAlias = dict[str, dict[str, tuple[Any, Any]]]
"""By queue and setting: the value in the row, and the declared one."""


@dataclass(frozen=True, kw_only=True)
class RowState:
    """State of a queue or job type beside its settings."""

    paused_at: datetime | None
    """When it was paused; None if it is not."""
    paused_by: str | None
    """Who paused it; None if it is not paused or no user was given."""
    created_at: datetime | None
    """When its row was inserted; None without a row."""
    updated_at: datetime | None
    """When its row was last changed; None without a row."""
    workers: int
    """How many live workers serve the queue, or have a handler for the type."""


@dataclass(frozen=True, kw_only=True)
class QueueStatus(QueueColumns, RowState, QueueName):
    """Settings and state of one queue; the defaults if it has no row.

    `name`, `fairness_key`, `weight`, `concurrency_per_key`, `global_concurrency`, `rate_limit`, `rate_period`,
    `rate_burst`: as in `QueueSettings`.
    `retry_base`, `retry_factor`, `retry_cap`: the backoff. `retain_completed`, `retain_cancelled`, `retain_dead`: the
    retention.
    `paused_at`, `paused_by`: when and by whom it was paused, or None. `created_at`, `updated_at`: of its row; None without
    one. `workers`: how many live workers serve it.
    """

    @property
    def settings(self) -> QueueSettings:
        """Its settings. Change them with `dataclasses.replace`, and write them with `upsert_queue`."""
        return self.of_queue(self.name, self.fairness_key)


@dataclass(frozen=True, kw_only=True)
class TypeStatus(Limits, RowState, TypeName):
    """Settings and state of one job type; the defaults if it has no row.

    `type_name`, `global_concurrency`, `rate_limit`, `rate_period`, `rate_burst`, `paused_at`, `paused_by`,
    `created_at`, `updated_at`, `workers`: as in `QueueStatus`. The other fields are declared by its handler, or None if no
    worker has recorded them.
    """

    queue: str | None
    """Queue of jobs that are written without one."""
    priority: int | None
    """Their priority."""
    max_attempts: int | None
    """Their attempts."""
    timeout: timedelta | None
    """Their timeout; None also for none."""
    rate_cost: int | None
    """Cost of an attempt against rates; None also for 1."""
    input_version: int | None
    """Version of the payloads."""

    @property
    def settings(self) -> TypeSettings:
        """Its settings. Change them with `dataclasses.replace`, and write them with `upsert_job_type`."""
        return TypeSettings(type_name=self.type_name, **{name: getattr(self, name) for name in settings_of(Limits)})


@dataclass(frozen=True, slots=True)
class SyncedQueues:
    """Changes made by `sync_queues`."""

    created: tuple[str, ...] = ()
    """Queues that had no row."""
    changed: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    """By queue and column: the old and the new value of its row."""
    unchanged: tuple[str, ...] = ()
    """Queues whose row already had the declared settings."""
    undeclared: tuple[str, ...] = ()
    """Queues that have a row but are not declared. They are not changed, because an operator may have created them."""


def list_queues(
    session: Session,
    *,
    names: Sequence[str] = (),
    fairness_key: str | None = None,
    after: tuple[str, str] | None = None,
    limit: int = MAX_PAGE,
    heartbeat_timeout: timedelta = HEARTBEAT_TIMEOUT,
    model: JobClass = Job,
) -> Page[QueueStatus]:
    """Return one page of the queues that have a row or a live worker, and of their fairness keys that have a row.

    Ordered by name; a queue comes before its keys. `names`: only these. `fairness_key`: only the settings of this key;
    empty: only those of the queues themselves; None: both. `after`: a name and a fairness key. `heartbeat_timeout`: the
    workers' setting.
    """
    if fairness_key is not None:
        check_fairness_key(fairness_key)
    pages.check_position(after, str, str)
    name, key = after or (None, None)
    parameters = {"of_key": fairness_key, "after": name, "after_key": key, "ttl": heartbeat_timeout}
    rows = _page(session, names, limit, model, types=False, parameters=parameters)
    statuses = [QueueStatus(**{**row, "weight": row["weight"] or 1}) for row in rows]
    return pages.page_of(statuses, limit=limit, position=lambda status: (status.name, status.fairness_key))


def list_job_types(
    session: Session,
    *,
    names: Sequence[str] = (),
    after: str | None = None,
    limit: int = MAX_PAGE,
    heartbeat_timeout: timedelta = HEARTBEAT_TIMEOUT,
    model: JobClass = Job,
) -> Page[TypeStatus]:
    """Return one page of the job types that have a row or a live worker, ordered by name.

    `names`: only these. `after`: a name. `heartbeat_timeout`: as in `list_queues`.
    """
    pages.check_position(after, str)
    statuses = [
        TypeStatus(**row)
        for row in _page(session, names, limit, model, types=True, parameters={"after": after, "ttl": heartbeat_timeout})
    ]
    return pages.page_of(statuses, limit=limit, position=lambda status: status.type_name)


def get_queue(
    session: Session, name: str, *, fairness_key: str = "", for_update: bool = False, model: JobClass = Job
) -> QueueStatus:
    """Return a queue's settings and state.

    `name`: name of the queue. `fairness_key`: return the settings of this key in the queue. `for_update`: lock the row, to
    write changed settings with `upsert_queue`. Changes, Locks: with `for_update`, inserts the row with default settings if
    it does not exist, and locks it.
    Raises: NotFoundError if the queue has neither a row nor a worker, or the key no row; not with `for_update`.
    InvalidOptionError.
    """
    _prepare(session, model.Queue, name, fairness_key=fairness_key, for_update=for_update)
    statuses = list_queues(session, names=[name], fairness_key=fairness_key, model=model).items
    if not statuses:
        raise _not_found(model.Queue, name, fairness_key)
    return statuses[0]


def get_job_type(session: Session, name: str, *, for_update: bool = False, model: JobClass = Job) -> TypeStatus:
    """Return a job type's settings and state.

    `name`: the job type. `for_update`: as in `get_queue`. Changes, Locks: as `get_queue`.
    Raises: NotFoundError if the type has neither a row nor a worker; not with `for_update`. InvalidOptionError.
    """
    _prepare(session, model.JobType, name, for_update=for_update)
    statuses = list_job_types(session, names=[name], model=model).items
    if not statuses:
        raise _not_found(model.JobType, name)
    return statuses[0]


def upsert_queue(
    session: Session, settings: QueueSettings, *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> bool:
    """Write the settings of a queue, but not whether it is paused; return whether anything changed.

    `settings`: the queue and all of its settings. The next `sync_queues` restores the settings declared in code.
    Changes: inserts or updates the row. Locks: the row.
    """
    return _put(session, "queue", settings.row, model, by=by, dry_run=dry_run)


def upsert_job_type(
    session: Session, settings: TypeSettings, *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> bool:
    """Write the settings of a job type, but not whether it is paused; return whether anything changed.

    `settings`: the job type and all of its settings.
    Changes: inserts or updates the row.
    Locks: the row.
    """
    return _put(session, "job_type", settings.row, model, by=by, dry_run=dry_run)


def delete_queues(
    session: Session,
    names: Sequence[str],
    *,
    fairness_key: str = "",
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[str]:
    """Delete the settings of queues, which then have the defaults and are not paused; return those that had settings.

    `names`: names of queues. `fairness_key`: delete only the settings of this key; without it, the settings of keys are
    kept. If code declares the queue, the next worker that starts writes its settings again.
    Changes: deletes the rows. Locks, Raises: as `pause_queues`.
    """
    return _queue_change(session, names, model, fairness_key=fairness_key, by=by, dry_run=dry_run).delete()


def delete_job_types(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Delete the settings of job types, which then have the defaults and are not paused; return those that had settings.

    `names`: job types. Workers that handle a type record its declaration again.
    Changes: deletes the rows. Locks, Raises: as `pause_queues`.
    """
    return _type_change(session, names, model, by=by, dry_run=dry_run).delete()


def pause_queues(
    session: Session,
    names: Sequence[str],
    *,
    fairness_key: str = "",
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[str]:
    """Pause queues: none of their jobs is started until they are resumed. Return the queues that were not paused before.

    `names`: names of queues. `fairness_key`: pause only the jobs of this key in them. Running jobs continue.
    Changes: sets `paused_at` and `paused_by` if the queue is not paused; inserts missing rows.
    Locks: the rows, in the order of their names.
    Raises: NotFoundError for a name without settings, active workers and pending jobs.
    """
    return _queue_change(session, names, model, fairness_key=fairness_key, by=by, dry_run=dry_run).pause()


def resume_queues(
    session: Session,
    names: Sequence[str],
    *,
    fairness_key: str = "",
    by: str | None = None,
    dry_run: bool = False,
    model: JobClass = Job,
) -> BulkResult[str]:
    """Resume paused queues. Return the queues that were paused.

    `names`, `fairness_key`: as in `pause_queues`.
    Changes: clears `paused_at` and `paused_by`. Locks, Raises: as `pause_queues`.
    """
    return _queue_change(session, names, model, fairness_key=fairness_key, by=by, dry_run=dry_run).resume()


def pause_job_types(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Pause job types: none of their jobs is started until they are resumed. Return the types that were not paused before.

    `names`: job types. Changes, Locks: as `pause_queues`.
    Raises: NotFoundError for a type that has no settings and that no active worker handles.
    """
    return _type_change(session, names, model, by=by, dry_run=dry_run).pause()


def resume_job_types(
    session: Session, names: Sequence[str], *, by: str | None = None, dry_run: bool = False, model: JobClass = Job
) -> BulkResult[str]:
    """Resume paused job types. Return the types that were paused.

    `names`: job types.
    Changes: clears `paused_at` and `paused_by`. Locks, Raises: as `pause_queues`.
    """
    return _type_change(session, names, model, by=by, dry_run=dry_run).resume()


def sync_queues(
    session: Session, new: Iterable[QueueSettings], *, by: str | None = None, model: JobClass = Job
) -> SyncedQueues:
    """Synchronise the rows of queues with the declarations in code; return the changes. For a dry run, roll back.

    `new`: `jobs.declared_queues` of a `JobQueue`. Nothing is deleted, and paused queues stay paused.
    Changes: rows that differ. Locks: the rows of the given names, in their order.
    Raises: InvalidOptionError for a name that is declared twice.
    """
    return _sync(session, new, model, by=by)


def add_declared_queues(session: Session, new: Iterable[QueueSettings], *, model: JobClass = Job) -> Differences:
    """Insert the rows of declared queues that have none, as workers do at start; existing rows do not change.

    `new`: `jobs.declared_queues` of a `JobQueue`.
    Shape: for each queue or fairness key whose row differs from its declaration, by column: the value of the row and the
    declared value.
    Changes: inserts the missing rows. Locks: these, in the order of their names.
    """
    return _sync(session, new, model, by=None, updates=False).changed


def _sync(
    session: Session, new: Iterable[QueueSettings], model: JobClass, *, by: str | None, updates: bool = True
) -> SyncedQueues:
    """Insert the rows of declared queues that have none, compare the others with their declarations, and update them."""
    declared: dict[QueueKey, QueueSettings] = {}
    for settings in new:
        key = QueueKey(settings.name, settings.fairness_key)
        if key in declared:
            raise InvalidOptionError("new", f"declares {key.label} twice")
        declared[key] = settings
    rows = [settings.row for settings in declared.values()]
    columns = {name: [row[name] for row in rows] for name in rows[0]} if rows else {}
    created_keys = {QueueKey(*row) for row in session.execute(queues.add_missing(model), columns)} if rows else set()
    statuses = pages.every_item(lambda after: list_queues(session, after=after, model=model))
    existing = {QueueKey(status.name, status.fairness_key): status for status in statuses if status.created_at is not None}
    differences = {}
    for key in sorted(existing.keys() & declared.keys() - created_keys):
        compared = ((name, getattr(existing[key], name), now) for name, now in declared[key].row.items())
        if different := {name: (stored, now) for name, stored, now in compared if stored != now}:
            differences[key] = different
            if updates:
                session.execute(queues.put(model.Queue), declared[key].row)
    written_keys = sorted({*created_keys, *(differences if updates else ())})
    if written_keys:
        session.execute(controls.notify_rules(model))
    record(session, "sync_queues", by=by, ids=[key.label for key in written_keys], matched=len(declared), model=model)
    return SyncedQueues(
        created=tuple(key.label for key in sorted(created_keys)),
        changed={key.label: values for key, values in differences.items()},
        unchanged=tuple(key.label for key in sorted(declared) if key not in created_keys and key not in differences),
        undeclared=tuple(key.label for key in existing if key not in declared),
    )


def recorded_values(job_type: JobType) -> tuple[Any, ...]:
    """Return the values that a handler declares for its job type, in the order of `models.options.DECLARED`."""
    return tuple(job_type.new[name] for name in DECLARED)


def record_job_types(session: Session, declared: Iterable[JobType], *, model: JobClass = Job) -> list[str]:
    """Record what handlers declare, as workers do at start; return the types whose rows were written.

    `declared`: `jobs.registry` of a `JobQueue`. Jobs that are written without a queue, priority, attempts or version,
    by a process that does not have the handler or by SQL, then have these.
    Changes: inserts missing rows; these settings of rows that differ. Locks: these, in the order of their names.
    """
    rows = [(job_type.name, *recorded_values(job_type)) for job_type in declared]
    if not rows:
        return []
    names = ("type_name", *DECLARED)
    parameters = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
    return sorted(session.scalars(queues.record_types(model), parameters))


def _page(
    session: Session, names: Sequence[str], limit: int, model: JobClass, *, types: bool, parameters: dict[str, Any]
) -> list[Any]:
    pages.check_limit(limit)
    pages.check_lists(names=names)
    all_parameters = {"names": list(names) or None, "limit": limit + 1, **parameters}
    return list(session.execute(queues.page(model, types=types), all_parameters).mappings())


def _prepare(session: Session, entity: SettingsClass, name: str, *, for_update: bool, fairness_key: str = "") -> None:
    check_fairness_key(fairness_key)
    if for_update:
        check_names("name", [name])
        parameters = {"names": [name], "of_key": fairness_key}
        session.execute(named_rows.make(entity), parameters)
        session.execute(named_rows.rows(entity, lock=True), parameters)


def _put(
    session: Session,
    noun: Literal["queue", "job_type"],
    row: dict[str, Any],
    model: JobClass,
    *,
    by: str | None,
    dry_run: bool,
) -> bool:
    entity: SettingsClass = model.Queue if noun == "queue" else model.JobType
    name = row[named_rows.key_of(entity).name]
    if dry_run:
        parameters = {"names": [name], "of_key": row.get("fairness_key")}
        stored = session.execute(named_rows.rows(entity, lock=False), parameters).one_or_none()
        return stored is None or any(getattr(stored, setting) != value for setting, value in row.items())
    is_written = session.execute(queues.put(entity), row).first() is not None
    if is_written:
        session.execute(controls.notify_rules(model))
    record(session, f"upsert_{noun}", by=by, ids=[name] if is_written else [], matched=1, model=model, settings=row)
    return is_written


def _queue_change(
    session: Session, names: Sequence[str], model: JobClass, *, fairness_key: str, by: str | None, dry_run: bool
) -> Change:
    return Change(session, model.Queue, names, model, "queue", by, dry_run, _check_queues_known, fairness_key)


def _type_change(session: Session, names: Sequence[str], model: JobClass, *, by: str | None, dry_run: bool) -> Change:
    return Change(session, model.JobType, names, model, "job_type", by, dry_run, _check_types_known)


def _check_queues_known(session: Session, names: Sequence[str], model: JobClass) -> None:
    """Check queues that get a row now: with a misspelt one, an operator would believe that the jobs have stopped."""
    if unknown := _unknown(session, names, model, types=False):
        pending = set(session.scalars(queues.with_pending_jobs(model), {"names": unknown}))
        for name in unknown:
            if name not in pending:
                raise _not_found(model.Queue, name)


def _check_types_known(session: Session, names: Sequence[str], model: JobClass) -> None:
    """Check job types as `_check_queues_known` checks queues."""
    if unknown := _unknown(session, names, model, types=True):
        raise _not_found(model.JobType, unknown[0])


def _unknown(session: Session, names: Sequence[str], model: JobClass, *, types: bool) -> list[str]:
    """Return the names that have neither a row nor a live worker."""
    if not names:
        return []
    parameters = {"names": list(names), "limit": None, "ttl": HEARTBEAT_TIMEOUT, "of_key": None}
    known_names = {DEFAULT_QUEUE, *session.scalars(queues.page(model, types=types), parameters)}
    return [name for name in names if name not in known_names]


def _not_found(entity: SettingsClass, name: str, fairness_key: str = "") -> NotFoundError:
    if fairness_key:
        return NotFoundError(f"fairness key of queue {name}", [fairness_key], reason="it has no settings")
    if issubclass(entity, QueueMixin):
        return NotFoundError("queue", [name], reason="it has no settings and no active worker")
    return NotFoundError("job type", [name], reason="it has no settings and no active worker has a handler for it")
