"""Maintenance of the job tables and indexes: vacuum, reindex, and storage parameters.

Autovacuum normally suffices, unless something holds back the xmin horizon. So `vacuum` also returns what keeps dead rows
alive. No function waits long for a lock: tables and indexes that are locked are skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Final, TypeVar

from sqlalchemy import Engine, TextClause
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue.db.detached import detached
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.models.base import STORAGE_KEY
from sa_jobqueue.observe.health.figures import Holder, IndexHealth, TableHealth
from sa_jobqueue.observe.health.measuring import Reading, measured_holders, measured_indexes, measured_tables, options_of
from sa_jobqueue.statements import maintenance, storage
from sa_jobqueue.statements._parts import table as table_of

M = TypeVar("M", TableHealth, IndexHealth)

_LEFTOVERS: Final = ("_ccnew", "_ccold")
_LOCKED: Final = "55P03"
WORTH_BYTES: Final = 8 * 2**20
WORTH_SHARE: Final = 0.5
"""Minimum bloat of an index that is worth rebuilding, in bytes and as a share of its size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """The result of one table. Dead rows are those of the statistics."""

    table: str
    """Name of the table."""
    dead_before: int
    """Number of dead rows before."""
    dead_after: int
    """Number of dead rows after."""
    bytes_before: int
    """Size of the table in bytes before."""
    bytes_after: int
    """Size of the table in bytes after."""
    seconds: float
    """Duration in seconds."""
    skipped: str | None
    """Why it was skipped; None if it was not."""
    kept_for: Holder | None
    """The oldest holder that may still see remaining dead rows; None if none remain or it is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexed:
    """The result of one index."""

    index: str
    """Name of the index."""
    table: str
    """Name of its table."""
    bytes_before: int
    """Size of the index in bytes before."""
    bytes_after: int
    """Size of the index in bytes after."""
    seconds: float
    """Duration in seconds."""
    skipped: str | None
    """Why it was skipped; None if it was not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageParameter:
    """A storage parameter of a table: its current value and the recommended one."""

    table: str
    """Name of the table."""
    name: str
    """Name of the parameter."""
    current: str | None
    """None if the table does not set it, so that the server's default applies."""
    recommended: str
    """The value that the migrations set."""
    sql: str
    """The statement that sets the recommended value."""


def vacuum(
    engine: Engine,
    *,
    tables: Sequence[str] = (),
    analyze: bool = True,
    lock_timeout: timedelta = timedelta(seconds=10),
    model: JobClass = Job,
) -> list[Vacuumed]:
    """VACUUM the job tables, one after the other; return dead rows before and after, and what keeps the rest.

    `engine`: connects as the owner of the tables; others are skipped. `analyze`: also update the planner's statistics.
    `tables`: their names in the database; by default all. `lock_timeout`: how long to
    wait for the lock of each, 1 ms to 1 hour.
    Raises: InvalidOptionError for an unknown table or a `lock_timeout` out of bounds, before anything is done.
    """
    with _working(engine, lock_timeout, model) as reading:
        before = _by_name(measured_tables(reading))
        results = []
        for name in _chosen("tables", tables, before):
            begun = monotonic()
            skipped = _run(reading, maintenance.vacuum(model.__jobqueue__, name, analyze=analyze))
            after = _by_name(measured_tables(reading))[name]
            if skipped is None and after.last_vacuum == before[name].last_vacuum:
                skipped = "permission denied: not the owner of the table"  # PostgreSQL only sends a notice
            holders = measured_holders(reading) if after.dead and skipped is None else []
            results.append(
                Vacuumed(
                    table=name,
                    dead_before=before[name].dead,
                    dead_after=after.dead,
                    bytes_before=before[name].bytes + before[name].index_bytes,
                    bytes_after=after.bytes + after.index_bytes,
                    seconds=round(monotonic() - begun, 3),
                    skipped=skipped,
                    kept_for=holders[0] if holders else None,
                )
            )
    return results


def reindex(
    engine: Engine,
    *,
    indexes: Sequence[str] = (),
    every: bool = False,
    lock_timeout: timedelta = timedelta(seconds=10),
    model: JobClass = Job,
) -> list[Reindexed]:
    """Rebuild indexes concurrently, and drop the remains of interrupted rebuilds; return the result of each.

    `engine`: as in `vacuum`. `indexes`: their names; by default those that are invalid or mostly bloat, with
    `every` all of the queue's. `lock_timeout`: as in `vacuum`; also how long a rebuild waits for each transaction that may
    use the old index. After a timeout the new index is dropped. Needs temporary disk space for each index.
    Raises: InvalidOptionError for an unknown index or a `lock_timeout` out of bounds, before anything is done.
    """
    with _working(engine, lock_timeout, model) as reading:
        _drop_leftovers(reading)
        before = _by_name(index for index in measured_indexes(reading) if not index.name.endswith(_LEFTOVERS))
        worth = [index.name for index in before.values() if every or worth_rebuilding(index)]
        results = []
        for name in _chosen("indexes", indexes, before) if indexes else worth:
            begun = monotonic()
            skipped = _run(reading, maintenance.reindex(model.__jobqueue__, name))
            if skipped is not None:
                _drop_leftovers(reading)
            after = _by_name(measured_indexes(reading)).get(name)
            results.append(
                Reindexed(
                    index=name,
                    table=before[name].table,
                    bytes_before=before[name].bytes,
                    bytes_after=after.bytes if after else 0,
                    seconds=round(monotonic() - begun, 3),
                    skipped=skipped,
                )
            )
    return results


def worth_rebuilding(index: IndexHealth) -> bool:
    """Return whether an index is invalid, or bloated enough to rebuild. Pure."""
    wasted = index.wasted_bytes or 0
    return not index.is_valid or (wasted >= WORTH_BYTES and wasted >= WORTH_SHARE * index.bytes)


def storage_settings(engine: Engine, *, model: JobClass = Job) -> list[StorageParameter]:
    """Return the storage parameters of the job tables, with the values that the migrations set.

    `engine`: reads the catalog.
    """
    models = (model, model.Attempt, model.Blocker, model.DeadLetter, model.Worker, model.RateState)
    layout = model.__jobqueue__
    nouns = {table_of(mapped_class).name: table_of(mapped_class) for mapped_class in models}
    with engine.connect() as connection:
        options = {row.name: options_of(row.options) for row in connection.execute(storage.tables(model))}
    return [
        StorageParameter(
            table=table,
            name=name,
            current=current.get(name),
            recommended=str(value),
            sql=f"ALTER TABLE {layout.qualified(table.removeprefix(layout.prefix))} SET ({name} = {value})",
        )
        for table, current in options.items()
        for name, value in nouns[table].info.get(STORAGE_KEY, {}).items()
    ]


@contextmanager
def _working(engine: Engine, lock_timeout: timedelta, model: JobClass) -> Iterator[Reading]:
    if not timedelta(milliseconds=1) <= lock_timeout <= timedelta(hours=1):
        raise InvalidOptionError("lock_timeout", f"must be between 1 ms and 1 hour, got {lock_timeout}")
    with detached(engine, isolation_level="AUTOCOMMIT") as connection:
        connection.execute(maintenance.bounded(lock_timeout_ms=round(lock_timeout.total_seconds() * 1000)))
        with Session(connection) as session:
            yield Reading(session, model)


def _by_name(relations: Iterable[M]) -> dict[str, M]:
    return {relation.name: relation for relation in relations}


def _chosen(option: str, names: Sequence[str], relations: dict[str, Any]) -> list[str]:
    for name in names:
        if name not in relations:
            raise InvalidOptionError(
                option, f"{name!r} does not belong to this queue: must be one of {', '.join(relations)}"
            )
    return list(names or relations)


def _run(reading: Reading, statement: TextClause) -> str | None:
    """Run a statement; return why it failed, if that is a lock or a missing privilege, else None."""
    connection = reading.session.connection()
    try:
        connection.execute(statement)
    except DBAPIError as error:
        if connection.invalidated:
            raise
        if getattr(error.orig, "sqlstate", None) == _LOCKED:
            return "lock not available within the lock timeout"
        return str(error.orig).strip().partition("\n")[0]
    return None


def _drop_leftovers(reading: Reading) -> None:
    for index in measured_indexes(reading):
        if not index.is_valid and index.name.rstrip("0123456789").endswith(_LEFTOVERS):
            with suppress(DBAPIError):  # locked: the next run drops it, and health reports it until then
                reading.session.execute(maintenance.drop_index(reading.model.__jobqueue__, index.name))
