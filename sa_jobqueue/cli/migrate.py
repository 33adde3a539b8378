"""`sa-jobqueue migrate`: the queue's tables, for applications without Alembic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import click
from sqlalchemy import Connection

from sa_jobqueue.cli._options import Database, app_option, json_option, load_model, seconds, with_database
from sa_jobqueue.cli._output import echo, echo_lines, print_json
from sa_jobqueue.migrations import runner
from sa_jobqueue.migrations.locking import PATIENCE
from sa_jobqueue.migrations.versions import LATEST

_VERSION = click.IntRange(0)
_patience = click.option(
    "--patience",
    type=seconds,
    metavar="SECONDS",
    default=PATIENCE,
    help=f"How long to try for its locks, a second at a time.  [default: {PATIENCE.total_seconds():.0f}]",
)


@click.group()
def migrate() -> None:
    """Create and upgrade the queue's tables without Alembic.

    An application that uses Alembic lets `alembic upgrade head` do this.
    """


@migrate.command()
@click.option("--to", "to_version", type=_VERSION, help=f"Up to this version; to the latest, {LATEST}, unless given.")
@_patience
@json_option
@with_database
def upgrade(database: Database, /, *, to_version: int | None, patience: timedelta, as_json: bool) -> None:
    """Take the tables up to a version. Does nothing when they are there; safe at every start of a program.

    Columns and indexes are made first, while the queue goes on working, as by `prepare`.
    """
    _prepare(database, to_version, patience)
    with _transaction(database) as connection:
        before = runner.upgrade(connection, database.model.__jobqueue__, to_version=to_version, patience=patience)
        after = runner.current_version(connection, database.model.__jobqueue__)
    _tell(database, before, after, as_json)


@migrate.command()
@click.option("--to", "to_version", type=_VERSION, help=f"For this version; for the latest, {LATEST}, unless given.")
@_patience
@json_option
@with_database
def prepare(database: Database, /, *, to_version: int | None, patience: timedelta, as_json: bool) -> None:
    """Make empty columns and indexes of a new version ahead, on tables that are in use.

    For large tables, before `alembic upgrade head`: nobody waits for it, and the migration itself is short then.
    """
    made = _prepare(database, to_version, patience)
    if as_json:
        print_json({"made": made})
    else:
        echo(f"made {', '.join(made)}" if made else "there is nothing to do ahead")


@migrate.command()
@click.option("--to", "to_version", type=_VERSION, required=True, help="Down to this version; 0 drops the tables.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_patience
@json_option
@with_database
def downgrade(database: Database, /, *, to_version: int, yes: bool, patience: timedelta, as_json: bool) -> None:
    """Take the tables down to a version. Down to 0 every job is lost."""
    if not yes:
        lost = "drops every job" if to_version == 0 else "may drop columns and what is in them"
        table = database.model.__jobqueue__.qualified("job")
        click.confirm(f"Downgrading {table} to {to_version} {lost}. Go on?", abort=True, err=True)
    with _transaction(database) as connection:
        before = runner.downgrade(connection, database.model.__jobqueue__, to_version=to_version, patience=patience)
        after = runner.current_version(connection, database.model.__jobqueue__)
    _tell(database, before, after, as_json)


@migrate.command()
@json_option
@with_database
def version(database: Database, /, *, as_json: bool) -> None:
    """Tell which version the tables are of, and the latest this library knows. 0: they are not there."""
    with _transaction(database) as connection:
        found = runner.current_version(connection, database.model.__jobqueue__)
    if as_json:
        print_json({"version": found, "latest": LATEST})
    else:
        echo(f"{database.model.__jobqueue__.qualified('job')} is of version {found}; the latest is {LATEST}")


@migrate.command()
@app_option
@click.option("--from", "from_version", type=_VERSION, default=0, show_default=True)
@click.option("--to", "to_version", type=_VERSION, default=LATEST, show_default=True)
def sql(app: str | None, from_version: int, to_version: int) -> None:
    """Print the SQL from one version to another, as one transaction; no database is needed."""
    layout = load_model(app).__jobqueue__
    echo_lines("BEGIN;\n")
    for statement in runner.statements(layout, from_version=from_version, to_version=to_version):
        echo_lines(f"{statement};\n")
    echo("COMMIT;")


def _prepare(database: Database, to_version: int | None, patience: timedelta) -> list[str]:
    with database.connection() as connection:
        apart = connection.execution_options(isolation_level="AUTOCOMMIT")
        return runner.prepare(apart, database.model.__jobqueue__, to_version=to_version, patience=patience)


@contextmanager
def _transaction(database: Database) -> Iterator[Connection]:
    with database.connection() as connection, connection.begin():
        yield connection


def _tell(database: Database, before: int, after: int, as_json: bool) -> None:
    if as_json:
        print_json({"from": before, "to": after})
        return
    table = database.model.__jobqueue__.qualified("job")
    echo(f"{table} is of version {after}" + (f", was {before}" if before != after else " already"))
