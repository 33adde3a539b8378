"""Keeping a queue's tables and indexes small, by hand: vacuum, rebuilt indexes, and what autovacuum is told.

Autovacuum does all of this by itself where nothing holds the horizon. So what a vacuum could not remove is told with whom
it is kept for, and nothing here waits long for a lock: what is held is left out, and said.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic
from typing import Any, Final

from sqlalchemy import Connection, Engine, TextClause, func, select
from sqlalchemy.exc import DBAPIError

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.models.base import STORAGE_KEY
from sa_jobqueue.observe.health import Health, Holder, IndexHealth, TableHealth, health
from sa_jobqueue.statements import maintenance, storage
from sa_jobqueue.statements._parts import table as table_of

OnProgress = Callable[[str, str, int, int], None]
"""Called now and then, from a thread, with a table's or index's name, the phase, and how much of how much is done."""

_LOOK: Final = 0.3
"""Seconds between two looks at the progress."""
_LEFTOVERS: Final = ("_ccnew", "_ccold")
_LOCKED: Final = "55P03"
WORTH_BYTES: Final = 8 * 2**20
WORTH_SHARE: Final = 0.5
"""An index is worth building anew where so many bytes, and so large a part of it, are waste."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What became of one table. Dead rows as vacuum itself reports them to the statistics."""

    table: str
    dead_before: int
    dead_after: int
    bytes_before: int
    bytes_after: int
    seconds: float
    skipped: str | None
    """Why nothing was done; null where it was."""
    kept_for: Holder | None
    """The oldest that may still see dead rows that are left; null where none are left, or nobody is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexed:
    """What became of one index."""

    index: str
    table: str
    bytes_before: int
    bytes_after: int
    seconds: float
    skipped: str | None
    """Why nothing was done; null where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What autovacuum, or storage, is told of a table, and what this library tells it."""

    table: str
    name: str
    current: str | None
    """Null where the table says nothing, and the server's default holds."""
    recommended: str
    sql: str
    """What makes it so."""


def vacuum(
    engine: Engine,
    *,
    tables: Sequence[str] = (),
    analyze: bool = True,
    lock_timeout: timedelta = timedelta(seconds=10),
    on_progress: OnProgress | None = None,
    model: type[JobMixin[Any]] = Job,
) -> list[Vacuumed]:
    """VACUUM a queue's tables, one after the other; tell what went, and for whose sake the rest stays.

    `tables`: by their names in the database; all that the queue writes to unless given. `lock_timeout`: how long each may
    wait for a lock, 1 ms to 1 hour. Needs to be the tables' owner; a table of somebody else's is left out, and said.
    Raises: InvalidOptionError naming an unknown table, before anything is done.
    """
    with _working(engine, lock_timeout) as connection:
        before = _by_name(health(engine, model=model).tables)
        wanted = _chosen("tables", tables, before)
        done = []
        for name in wanted:
            begun = monotonic()
            statement = maintenance.vacuum(model.__jobqueue__, name, analyze=analyze)
            skipped = _run(engine, connection, statement, name, on_progress)
            seen = health(engine, model=model)
            after = _by_name(seen.tables)[name]
            if skipped is None and after.last_vacuum == before[name].last_vacuum:
                skipped = "this role may not vacuum it"  # which PostgreSQL says in a notice alone
            done.append(_vacuumed(name, before[name], after, seen, seconds=monotonic() - begun, skipped=skipped))
    return done


def reindex(
    engine: Engine,
    *,
    indexes: Sequence[str] = (),
    every: bool = False,
    lock_timeout: timedelta = timedelta(seconds=10),
    on_progress: OnProgress | None = None,
    model: type[JobMixin[Any]] = Job,
) -> list[Reindexed]:
    """Build indexes anew while everybody goes on working; drop what an ended rebuild left. Return what became of each.

    `indexes`: by name. Without them those of a queue's tables that are invalid or mostly waste; with `every` all of them.
    `lock_timeout`: as `vacuum`; it is also how long a rebuild waits for one transaction that may use the old index. One that
    waited too long is dropped again. Needs to be the tables' owner, and the disk room of each index for a while.
    Raises: InvalidOptionError naming an unknown index, before anything is done.
    """
    layout = model.__jobqueue__
    with _working(engine, lock_timeout) as connection:
        seen = health(engine, model=model)
        _drop_leftovers(connection, model, seen)
        before = {index.name: index for index in seen.indexes if not index.name.endswith(_LEFTOVERS)}
        worth = [index.name for index in before.values() if every or worth_rebuilding(index)]
        done = []
        for name in _chosen("indexes", indexes, before) if indexes else worth:
            begun = monotonic()
            skipped = _run(engine, connection, maintenance.reindex(layout, name), name, on_progress)
            if skipped is not None:
                _drop_leftovers(connection, model, health(engine, model=model))
            rows = connection.execute(storage.indexes(model)).mappings()
            size = next((row["bytes"] for row in rows if row["name"] == name), 0)
            old = before[name]
            told: dict[str, Any] = {"index": name, "table": old.table, "bytes_before": old.bytes, "bytes_after": size}
            done.append(Reindexed(**told, seconds=round(monotonic() - begun, 3), skipped=skipped))
    return done


def worth_rebuilding(index: IndexHealth) -> bool:
    """Whether it is invalid, or enough of it waste. Pure."""
    wasted = index.wasted_bytes or 0
    return not index.is_valid or (wasted >= WORTH_BYTES and wasted >= WORTH_SHARE * index.bytes)


def worth_vacuuming(table: TableHealth) -> bool:
    """Whether autovacuum would begin with it, or nobody has analyzed it since it has rows. Pure."""
    return table.dead >= table.vacuum_at or (table.live > 0 and table.last_autoanalyze is None and table.last_vacuum is None)


def storage_settings(engine: Engine, *, model: type[JobMixin[Any]] = Job) -> list[Setting]:
    """Return what autovacuum and storage are told of a queue's tables beside what this library's migrations tell them."""
    known = (model, model.Attempt, model.Blocker, model.DeadLetter, model.Worker, model.RateState)
    nouns = {table_of(one).name: table_of(one) for one in known}
    with engine.connect() as connection:
        rows = connection.execute(storage.tables(model)).mappings().all()
    told = []
    for row in rows:
        current = dict(option.split("=", 1) for option in row["options"] or ())
        recommended = nouns[row["name"]].info.get(STORAGE_KEY, {})
        for name, value in recommended.items():
            sql = f"ALTER TABLE {row['name']} SET ({name} = {value})"
            kinds = {"table": row["name"], "name": name, "current": current.get(name)}
            told.append(Setting(**kinds, recommended=str(value), sql=sql))
    return told


@contextmanager
def _working(engine: Engine, lock_timeout: timedelta) -> Iterator[Connection]:
    if not timedelta(milliseconds=1) <= lock_timeout <= timedelta(hours=1):
        raise InvalidOptionError("lock_timeout", f"must be from 1 ms to 1 hour, got {lock_timeout}")
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.detach()  # closed at the end, so that nobody inherits the settings
        connection.execute(maintenance.bounded(lock_timeout_ms=round(lock_timeout.total_seconds() * 1000)))
        yield connection


def _by_name(tables: Sequence[TableHealth]) -> dict[str, TableHealth]:
    return {table.name: table for table in tables}


def _chosen(option: str, names: Sequence[str], known: Sequence[str] | dict[str, Any]) -> list[str]:
    for name in names:
        if name not in known:
            raise InvalidOptionError(option, f"{name!r} is none of this queue's: {', '.join(known)}")
    return list(names or known)


def _run(
    engine: Engine, connection: Connection, statement: TextClause, name: str, on_progress: OnProgress | None
) -> str | None:
    """Run a statement; return why it did not, where that is somebody's lock or a missing right."""
    try:
        with _watched(engine, connection, name, on_progress):
            connection.execute(statement)
    except DBAPIError as error:
        if connection.invalidated:
            raise
        if getattr(error.orig, "sqlstate", None) == _LOCKED:
            return "somebody held it up for longer than the lock timeout"
        return str(error.orig).strip().partition("\n")[0]
    return None


@contextmanager
def _watched(engine: Engine, connection: Connection, name: str, on_progress: OnProgress | None) -> Iterator[None]:
    """Tell how far a connection's statement has come, from a thread and another connection."""
    if on_progress is None:
        yield
        return
    tell, ended = on_progress, threading.Event()
    pid = connection.execute(select(func.pg_backend_pid())).scalar_one()

    def look() -> None:
        with suppress(DBAPIError), engine.connect().execution_options(isolation_level="AUTOCOMMIT") as other:
            while not ended.wait(_LOOK):
                for phase, done, total in other.execute(maintenance.progress(), {"pid": pid}):
                    tell(name, phase, done, total)

    thread = threading.Thread(target=look, name="sa_jobqueue maintenance progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _drop_leftovers(connection: Connection, model: type[JobMixin[Any]], seen: Health) -> None:
    for index in seen.indexes:
        if not index.is_valid and index.name.rstrip("0123456789").endswith(_LEFTOVERS):
            with suppress(DBAPIError):  # held: it is dropped the next time, and health tells of it meanwhile
                connection.execute(maintenance.drop_index(model.__jobqueue__, index.name))


def _vacuumed(
    name: str, before: TableHealth, after: TableHealth, seen: Health, *, seconds: float, skipped: str | None
) -> Vacuumed:
    holders = seen.horizon.holders
    return Vacuumed(
        table=name,
        dead_before=before.dead,
        dead_after=after.dead,
        bytes_before=before.bytes + before.index_bytes,
        bytes_after=after.bytes + after.index_bytes,
        seconds=round(seconds, 3),
        skipped=skipped,
        kept_for=holders[0] if holders and after.dead and skipped is None else None,
    )
