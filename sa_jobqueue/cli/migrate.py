"""`sa-jobqueue migrate`: create and upgrade the job tables, for applications without Alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import click
from sqlalchemy import Connection

from sa_jobqueue.cli._options import Database, app_option, duration_option, load_model, reading, yes_option
from sa_jobqueue.cli._output import echo, echo_lines, print_result
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.migrations import runner
from sa_jobqueue.migrations.locking import PATIENCE

_VERSION = click.IntRange(0)
_to = click.option(
    "--to", "to_version", type=_VERSION, metavar="VERSION", help=f"Target version.  [default: {LATEST}, the latest]"
)
_patience = duration_option("--patience", "How long to retry for locks, one second per try.", default=PATIENCE)


@click.group()
def migrate() -> None:
    """Create and upgrade the job tables without Alembic.

    Applications with Alembic use `alembic upgrade head` instead.
    """


@migrate.command()
@_to
@_patience
@reading
def upgrade(database: Database, /, *, to_version: int | None, patience: timedelta, as_json: bool) -> None:
    """Upgrade the tables to a version. Does nothing if they have it, so it is safe at every start of a program.

    First it creates columns and indexes without blocking the queue, as `prepare` does.
    """
    _prepare(database, to_version, patience)
    with _transaction(database) as connection:
        before = runner.upgrade(connection, database.model.__jobqueue__, to_version=to_version, patience=patience)
        after = runner.current_version(connection, database.model.__jobqueue__)
    _print_change(database, before, after, as_json)


@migrate.command()
@_to
@_patience
@reading
def prepare(database: Database, /, *, to_version: int | None, patience: timedelta, as_json: bool) -> None:
    """Create the new columns and indexes of a version in advance, without blocking the queue.

    For large tables, before `alembic upgrade head`: it keeps the migration's own locks short.
    """
    made = _prepare(database, to_version, patience)
    print_result({"made": made}, f"created {', '.join(made)}" if made else "nothing to prepare", as_json=as_json)


@migrate.command()
@click.option(
    "--to", "to_version", type=_VERSION, metavar="VERSION", required=True, help="Target version; 0 drops the tables."
)
@yes_option
@_patience
@reading
def downgrade(database: Database, /, *, to_version: int, yes: bool, patience: timedelta, as_json: bool) -> None:
    """Downgrade the tables to a version. Downgrading to 0 deletes every job."""
    if not yes:
        lost = "deletes every job" if to_version == 0 else "may drop columns with their data"
        table = database.model.__jobqueue__.qualified("job")
        click.confirm(f"Downgrading {table} to version {to_version} {lost}. Continue?", abort=True, err=True)
    with _transaction(database) as connection:
        before = runner.downgrade(connection, database.model.__jobqueue__, to_version=to_version, patience=patience)
        after = runner.current_version(connection, database.model.__jobqueue__)
    _print_change(database, before, after, as_json)


@migrate.command()
@reading
def version(database: Database, /, *, as_json: bool) -> None:
    """Show the version of the tables and the latest one; 0 means that there are no tables."""
    with _transaction(database) as connection:
        found = runner.current_version(connection, database.model.__jobqueue__)
    text = f"{database.model.__jobqueue__.qualified('job')} is at version {found}; the latest is {LATEST}"
    print_result({"version": found, "latest": LATEST}, text, as_json=as_json)


@migrate.command()
@app_option
@click.option(
    "--from",
    "from_version",
    type=_VERSION,
    metavar="VERSION",
    default=0,
    help="Version to start from.  [default: 0, no tables]",
)
@_to
def sql(app: str | None, from_version: int, to_version: int | None) -> None:
    """Print the SQL of the migration between two versions, as one transaction. Needs no database."""
    layout = load_model(app).__jobqueue__
    echo_lines("BEGIN;\n")
    for statement in runner.statements(
        layout, from_version=from_version, to_version=LATEST if to_version is None else to_version
    ):
        echo_lines(f"{statement};\n")
    echo("COMMIT;")


def _prepare(database: Database, to_version: int | None, patience: timedelta) -> list[str]:
    with database.connection() as connection:
        autocommit = connection.execution_options(isolation_level="AUTOCOMMIT")
        return runner.prepare(autocommit, database.model.__jobqueue__, to_version=to_version, patience=patience)


@contextmanager
def _transaction(database: Database) -> Iterator[Connection]:
    with database.connection() as connection, connection.begin():
        yield connection


def _print_change(database: Database, before: int, after: int, as_json: bool) -> None:
    table = database.model.__jobqueue__.qualified("job")
    text = f"now at version {after}, was {before}" if before != after else f"already at version {after}"
    print_result({"from": before, "to": after}, f"{table} is {text}", as_json=as_json)
