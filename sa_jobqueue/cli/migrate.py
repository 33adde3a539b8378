"""`sa-jobqueue migrate`: create and upgrade the job tables, for applications without Alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from itertools import chain

import click
from sqlalchemy import Connection

from sa_jobqueue.cli import Group
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo_script, print_result
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.layout import STAMPED, Unit
from sa_jobqueue.migrations import runner
from sa_jobqueue.migrations.locking import PATIENCE

_VERSION = click.IntRange(0, LATEST)
_to = click.option(
    "--to", "to_version", type=_VERSION, metavar="VERSION", help=f"Target version.  [default: {LATEST}, the latest]"
)
_pipeline = click.option(
    "--pipeline",
    is_flag=True,
    help="Include the tables for Spark's writes and the archive.",
)
_patience = opts.duration_option("--patience", "How long to retry for locks, one second per try.", default=PATIENCE)


@click.group(cls=Group)
def migrate() -> None:
    """Create and upgrade the job tables without Alembic.

    Applications with Alembic use `alembic upgrade head` instead.
    """


@migrate.command()
@_to
@_pipeline
@_patience
@opts.reading
def upgrade(database: opts.Database, /, *, to_version: int | None, pipeline: bool, patience: timedelta) -> None:
    """Upgrade the tables to a version. Does nothing if they have it, so it is safe at every start of a program.

    First it creates columns and indexes without blocking the queue, as `prepare` does.
    """
    _prepare(database, to_version, patience)
    layout = database.model.__jobqueue__
    layout = replace(layout, pipeline=layout.pipeline or pipeline)
    with _changing(database) as connection:
        runner.upgrade(connection, layout, to_version=to_version, patience=patience)


@migrate.command()
@_to
@_patience
@opts.reading
def prepare(database: opts.Database, /, *, to_version: int | None, patience: timedelta) -> None:
    """Create the new columns and indexes of a version in advance, without blocking the queue.

    For large tables, before `alembic upgrade head`: it keeps the migration's own locks short.
    """
    objects = _prepare(database, to_version, patience)
    print_result({"made": objects}, f"created {', '.join(objects)}" if objects else "nothing to prepare")


@migrate.command()
@click.option(
    "--to", "to_version", type=_VERSION, metavar="VERSION", required=True, help="Target version; 0 drops the tables."
)
@opts.yes_option
@_patience
@opts.reading
def downgrade(database: opts.Database, /, *, to_version: int, yes: bool, patience: timedelta) -> None:
    """Downgrade the tables to a version. Downgrading to 0 deletes every job."""
    if not yes:
        lost = "deletes every job" if to_version == 0 else "may drop columns with their data"
        table = database.model.__jobqueue__.qualified("job")
        click.confirm(f"Downgrading {table} to version {to_version} {lost}. Continue?", abort=True, err=True)
    with _changing(database) as connection:
        runner.downgrade(connection, database.model.__jobqueue__, to_version=to_version, patience=patience)


@migrate.command()
@opts.reading
def version(database: opts.Database, /) -> None:
    """Show the version of the tables and the latest one; 0 means that there are no tables."""
    with database.connection() as connection:
        version_by_unit = _versions(connection, database)
    lines = [
        f"{_table(database, unit)} is at version {version}; the latest is {LATEST}"
        for unit, version in version_by_unit.items()
    ]
    document = {"version": version_by_unit["queue"], "pipeline": version_by_unit.get("pipeline"), "latest": LATEST}
    print_result(document, *lines)


@migrate.command()
@opts.app_option
@click.option(
    "--from",
    "from_version",
    type=_VERSION,
    metavar="VERSION",
    default=0,
    help="Version to start from.  [default: 0, no tables]",
)
@_to
@_pipeline
def sql(app: str | None, from_version: int, to_version: int | None, pipeline: bool) -> None:
    """Print the SQL of the migration between two versions, as one transaction. Needs no database."""
    layout = opts.load_model(app).__jobqueue__
    last = LATEST if to_version is None else to_version
    units = [unit for unit, noun in STAMPED.items() if pipeline or layout.has_table(noun)]
    parts = (
        runner.statements(layout, from_version=from_version, to_version=last, unit=unit)
        for unit in (units if from_version <= last else reversed(units))
    )
    echo_script(chain.from_iterable(parts))


def _prepare(database: opts.Database, to_version: int | None, patience: timedelta) -> list[str]:
    with database.connection() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        return runner.prepare(autocommit, database.model.__jobqueue__, to_version=to_version, patience=patience)


@contextmanager
def _changing(database: opts.Database) -> Iterator[Connection]:
    """Yield a connection in a transaction, then print the versions before and after it."""
    with database.connection() as connection, connection.begin():
        before = _versions(connection, database)
        yield connection
        after = _versions(connection, database)
    changes = {unit: {"from": before.get(unit, 0), "to": after.get(unit, 0)} for unit in before | after}
    lines = []
    for unit, change in changes.items():
        changed = f"now at version {change['to']}, was {change['from']}"
        same = f"already at version {change['to']}"
        lines.append(f"{_table(database, unit)} is {same if change['from'] == change['to'] else changed}")
    document = {**changes["queue"], "pipeline": changes.get("pipeline")}
    print_result(document, *lines)


def _versions(connection: Connection, database: opts.Database) -> dict[Unit, int]:
    """Return the versions of the units that the model or the database has."""
    layout = database.model.__jobqueue__
    version_by_unit = {unit: runner.current_version(connection, layout, unit) for unit in STAMPED}
    return {unit: version for unit, version in version_by_unit.items() if version or layout.has_table(STAMPED[unit])}


def _table(database: opts.Database, unit: Unit) -> str:
    return database.model.__jobqueue__.qualified(STAMPED[unit])
