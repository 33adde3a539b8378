"""Alembic's environment for the ready-made models, `sa_jobqueue.Job` and its companions.

The database is that of SA_JOBQUEUE_URL, or the connection a program hands over as `config.attributes["connection"]`.
This folder has no `__init__.py`: with one it would be imported in Alembic's place.
"""

from __future__ import annotations

import logging
import os

from alembic import context
from alembic.util import CommandError
from sqlalchemy import Connection, NullPool, create_engine

import sa_jobqueue.pipeline  # noqa: F401 - its tables are among those of the ready-made models
from sa_jobqueue.models import Base


def migrate(connection: Connection) -> None:
    """Run what the command asks for on a connection."""
    context.configure(connection=connection, target_metadata=Base.metadata)
    with context.begin_transaction():
        context.run_migrations()


def migrate_database() -> None:
    """Run what the command asks for on the connection handed over, or on one of our own."""
    handed_over = context.config.attributes.get("connection")
    if handed_over is not None:
        migrate(handed_over)
        return
    url = os.environ.get("SA_JOBQUEUE_URL")
    if not url:
        raise CommandError(
            "set SA_JOBQUEUE_URL to the database, such as postgresql+psycopg://user@host/name, "
            "or give --sql to print the statements"
        )
    engine = create_engine(url, poolclass=NullPool)
    with engine.connect() as connection:
        migrate(connection)


def print_statements() -> None:
    """Print what the command would run; no database is needed."""
    context.configure(
        dialect_name="postgresql", target_metadata=Base.metadata, literal_binds=True, dialect_opts={"paramstyle": "named"}
    )
    with context.begin_transaction():
        context.run_migrations()


if context.config.cmd_opts is not None:  # run by hand: say what is done
    logging.basicConfig(format="%(message)s")
    logging.getLogger("alembic.runtime.migration").setLevel(logging.INFO)
if context.is_offline_mode():
    print_statements()
else:
    migrate_database()
