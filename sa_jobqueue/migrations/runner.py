"""Migrate the job tables from one schema version to another.

The version a database has is in the comment of `job`, and of `job_bulk_write` for the tables of Spark's writes and of the
archive. Alembic's operation and applications without Alembic both come through here; nothing here needs Alembic.

A queue is in use while it is migrated. Waiting for a lock that a long transaction holds makes every later session
wait as well, so the steps are tried with a short patience (`migrations.locking`); and an index on a table that is full is
built ahead, without holding writers up (`migrations.ahead`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import Connection, text

from sa_jobqueue import ddl, errors
from sa_jobqueue.ddl.objects import created_names
from sa_jobqueue.layout import STAMPED, Layout, Unit
from sa_jobqueue.migrations import ahead
from sa_jobqueue.migrations.locking import PATIENCE, in_transaction, with_short_locks
from sa_jobqueue.models import Job
from sa_jobqueue.models.base import verbatim
from sa_jobqueue.models.collisions import check_names_are_free, enums_of, unused_enums

_FIND = text("SELECT to_regclass(:name) IS NOT NULL AS present, obj_description(to_regclass(:name), 'pg_class') AS comment")
_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended('sa_jobqueue migration of ' || :job, 0))")


def statements(layout: Layout, *, from_version: int, to_version: int, unit: Unit = "queue") -> list[str]:
    """Return the DDL that migrates a unit's tables from one version to another, up or down. Reads no database.

    `layout`: placement of the tables: `Job.__jobqueue__` of the mapped class.
    `from_version`, `to_version`: schema versions; 0 means no tables.
    `unit`: "queue", or "pipeline" for the tables of Spark's writes and of the archive.
    Shape: statements without semicolons at their ends; the last stamps the version. Empty if the versions are equal.
    Raises: SchemaTooNewError for a version this library does not know, InvalidOptionError for a negative one.
    """
    if unit not in ddl.UNITS:
        raise errors.InvalidOptionError("unit", f"must be {' or '.join(map(repr, ddl.UNITS))}, got {unit!r}")
    for option, version in (("from_version", from_version), ("to_version", to_version)):
        if version < 0:
            raise errors.InvalidOptionError(option, f"must be 0 (no tables) or a schema version, got {version}")
        if version > ddl.LATEST:
            raise _too_new(f"the migration of {layout.qualified(STAMPED[unit])} names", version)
    names = {"schema": layout.schema, "prefix": layout.prefix, "id_type": layout.id_type}
    if from_version <= to_version:
        steps = [step.upgrade(**names) for step in ddl.UNITS[unit][from_version:to_version]]
    else:
        steps = [step.downgrade(**names) for step in reversed(ddl.UNITS[unit][to_version:from_version])]
    return [statement for step in steps for statement in step]


def current_version(connection: Connection, layout: Layout, unit: Unit = "queue") -> int:
    """Return the version of a unit's tables; 0 if they are not there.

    `connection`: reads the catalog. `layout`, `unit`: as in `statements`.
    Raises: SchemaError if a table of that name exists without a stamp; UnsupportedServerError without PostgreSQL.
    """
    stamp = _stamp(connection, layout, unit)
    return 0 if stamp is None else stamp.version


def _stamp(connection: Connection, layout: Layout, unit: Unit) -> ddl.Stamp | None:
    """Return the stamp of a unit's tables, None if they are not there. Raises: as `current_version`."""
    errors.require_postgresql(connection.dialect.name)
    name = layout.qualified(STAMPED[unit])
    present, comment = connection.execute(_FIND, {"name": name}).one()
    stamp = ddl.read_stamp(comment)
    if stamp is None and present and layout.has_table(STAMPED[unit]):  # otherwise it is a table of the application
        raise errors.SchemaError(
            f"table {name} exists, but its comment does not mark it as a job queue. If it is the application's own table, "
            "use another prefix for the queue: class Job(JobMixin, Base, queue_prefix=...). If it is a queue whose "
            f"comments were lost, restore its version: COMMENT ON TABLE {name} IS '{ddl.stamp(unit, ddl.LATEST).comment}'"
        )
    return stamp


def existing(connection: Connection, layout: Layout) -> Layout:
    """Return a layout with the pipeline if the database has its tables, else without. Raises: as `current_version`."""
    return replace(layout, pipeline=current_version(connection, layout, "pipeline") > 0)


def known_version(connection: Connection, layout: Layout, unit: Unit = "queue", *, any_build: bool = False) -> int:
    """Return the version of a unit's tables, as `current_version` does.

    `connection`, `layout`, `unit`: as in `current_version`. `any_build`: whether another build may have made them.
    Raises: SchemaTooNewError for a version that this library does not know, SchemaBuildError for one that another build has
    made; SchemaError as `current_version`.
    """
    stamp = _stamp(connection, layout, unit)
    if stamp is None:
        return 0
    name = layout.qualified(STAMPED[unit])
    if stamp.version > ddl.LATEST:
        raise _too_new(f"table {name} is of", stamp.version)
    if stamp.is_of_another_build(unit) and not any_build:
        raise errors.SchemaBuildError.from_stamps(name, stamp, ddl.stamp(unit, stamp.version))
    return stamp.version


def migrate(
    connection: Connection,
    layout: Layout,
    *,
    from_version: int,
    to_version: int,
    unit: Unit = "queue",
    patience: timedelta = PATIENCE,
) -> None:
    """Migrate a unit's tables from their current version to another, up or down. The queue's down to 0, all jobs are lost.

    `connection`: connects as the owner of the tables. In AUTOCOMMIT it is given a transaction that is committed here.
    `layout`, `from_version`, `to_version`, `unit`: as in `statements`.
    `patience`: how long to try to get the locks; 2 minutes by default.
    Changes: tables, types, functions and views; the schema is created with the first version, and dropped with the last one
    if nothing else is in it.
    Locks: an advisory lock, so that two migrations never overlap, and those in the versions' docstrings. It waits at most a
    second for each, then releases them all, pauses, and tries again.
    Obliges: commit immediately.
    Raises: UnsupportedServerError if it is not PostgreSQL, or the encoding is not UTF8; SchemaMissingError or SchemaError
    if the tables are not of `from_version`, or objects of others have their names; SchemaBuildError unless all is dropped;
    SchemaTooNewError for a version this library does not know; SchemaBusyError if other transactions held the tables all
    the time.
    """
    layout.check_translation(connection.get_execution_options())
    with in_transaction(connection):
        _migrate(connection, layout, unit, from_version=from_version, to_version=to_version, patience=patience)


def _migrate(
    connection: Connection, layout: Layout, unit: Unit, *, from_version: int, to_version: int, patience: timedelta
) -> None:
    planned = statements(layout, from_version=from_version, to_version=to_version, unit=unit)
    if to_version and (encoding := connection.execute(text("SHOW server_encoding")).scalar_one()) != "UTF8":
        raise errors.UnsupportedServerError.of_encoding(encoding)
    _lock(connection, layout)
    version = known_version(connection, layout, unit, any_build=to_version == 0)
    if version != from_version:
        name = layout.qualified(STAMPED[unit])
        if version == 0:
            raise errors.SchemaMissingError(f"table {name} is not there; this migration starts at version {from_version}")
        message = f"table {name} is of version {version}; this migration starts at version {from_version}"
        if from_version == 0 and version == to_version:
            message += ". If Base.metadata.create_all made the tables, record this revision as done: alembic stamp REVISION"
        raise errors.SchemaError(message)

    check_names(connection, layout, from_version=from_version, to_version=to_version, unit=unit)

    def take_steps() -> None:
        for statement in planned:
            if not _is_done(connection, layout, statement):
                connection.execute(verbatim(statement))

    with_short_locks(connection, layout, take_steps, patience=patience)


def check_names(connection: Connection, layout: Layout, *, from_version: int, to_version: int, unit: Unit = "queue") -> None:
    """Check that no other object has the name of an object that a migration creates.

    `connection`, `layout`, `from_version`, `to_version`, `unit`: as in `migrate`. Columns and indexes that `prepare` made,
    and enum types that nothing uses, may exist.
    Raises: SchemaError with the advice of a prefix.
    """
    if from_version < to_version:
        present = created_names(statements(layout, from_version=0, to_version=from_version, unit=unit))
        planned = statements(layout, from_version=from_version, to_version=to_version, unit=unit)
        created = created_names(statement for statement in planned if not _is_done(connection, layout, statement))
        check_names_are_free(connection, layout, created.without(present))


def _is_done(connection: Connection, layout: Layout, statement: str) -> bool:
    # An older `create_all` of SQLAlchemy's, of other tables alone, created the enum types of the whole MetaData.
    enums = enums_of([statement])
    return ahead.is_done(connection, statement) or bool(enums and unused_enums(connection, layout, enums))


def upgrade(
    connection: Connection,
    layout: Layout | None = None,
    *,
    to_version: int | None = None,
    patience: timedelta = PATIENCE,
) -> int:
    """Upgrade the tables to a version, by default the latest; return the previous version of `job`.

    Changes nothing if they have that version or a newer known one: safe at every start of a program. The pipeline's tables
    are created if `layout` has them, and upgraded if they are there.

    `connection`, `patience`: as in `migrate`.
    `layout`: that of the ready-made models by default.
    `to_version`: None means the latest.
    Locks, Obliges, Raises: as `migrate`.
    """
    target_version = ddl.LATEST if to_version is None else to_version
    return _walk(connection, layout or Job.__jobqueue__, target_version, up=True, patience=patience)


def downgrade(
    connection: Connection, layout: Layout | None = None, *, to_version: int, patience: timedelta = PATIENCE
) -> int:
    """Downgrade all tables to a version; return the previous version of `job`. Down to 0, all jobs are lost.

    Changes nothing if they have that version or an older one.
    `connection`, `layout`, `patience`: as in `upgrade`. `to_version`: 0 or a schema version.
    Locks, Obliges, Raises: as `migrate`.
    """
    return _walk(connection, layout or Job.__jobqueue__, to_version, up=False, patience=patience)


def prepare(
    connection: Connection,
    layout: Layout | None = None,
    *,
    to_version: int | None = None,
    patience: timedelta = PATIENCE,
) -> list[str]:
    """Create the empty columns and the indexes of a later version ahead of its migration; return their names.

    Run it before `upgrade` or `alembic upgrade head` if a table is large: reads and writes go on meanwhile, and the version
    stays. An incomplete index of an earlier attempt is built again.

    `connection`: in AUTOCOMMIT.
    `layout`, `to_version`: as in `upgrade`.
    `patience`: as in `migrate`, for each column.
    Locks: as `migrate` for each column; for an index none that readers or writers wait for, and it waits for transactions
    that were open when it began.
    Raises: SchemaTooNewError, SchemaError as `current_version`; SchemaBusyError; InvalidOptionError if it is not in
    AUTOCOMMIT. Objects created until then stay.
    """
    layout = layout or Job.__jobqueue__
    target_version = ddl.LATEST if to_version is None else to_version
    planned: list[str] = []
    for unit in STAMPED:
        stored_version = known_version(connection, layout, unit)
        if 0 < stored_version < target_version:
            planned += statements(layout, from_version=stored_version, to_version=target_version, unit=unit)
    return ahead.do_ahead(connection, layout, planned, patience=patience) if planned else []


def _walk(connection: Connection, layout: Layout, to_version: int, *, up: bool, patience: timedelta) -> int:
    layout.check_translation(connection.get_execution_options())
    with in_transaction(connection):
        _lock(connection, layout)  # before the look, so that the second of two programs that start together finds it done
        is_drop = not up and to_version == 0
        version_by_unit = {unit: known_version(connection, layout, unit, any_build=is_drop) for unit in STAMPED}
        for unit, version in version_by_unit.items() if up else reversed(version_by_unit.items()):
            is_wanted = version > 0 or layout.has_table(STAMPED[unit])
            if is_wanted and version != to_version and (version < to_version) is up:
                _migrate(connection, layout, unit, from_version=version, to_version=to_version, patience=patience)
        return version_by_unit["queue"]


def _lock(connection: Connection, layout: Layout) -> None:
    connection.execute(_LOCK, {"job": layout.qualified("job")})


def _too_new(subject: str, version: int) -> errors.SchemaTooNewError:
    return errors.SchemaTooNewError(
        f"{subject} version {version}, this library knows up to {ddl.LATEST}: upgrade sa-jobqueue here"
    )
