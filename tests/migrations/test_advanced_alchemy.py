"""Advanced Alchemy's own command line and templates, whose revisions run in an `autocommit_block()`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine, inspect, text

from sa_jobqueue import ddl
from sa_jobqueue.errors import SchemaMissingError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner

MODELS = """
import os
from uuid import UUID

from advanced_alchemy.base import BigIntAuditBase, DefaultBase
from advanced_alchemy.config import {alembic}, {config}
from sqlalchemy import ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue import JobMixin


class Job(JobMixin, DefaultBase):
    pass


class Author(BigIntAuditBase):
    name: Mapped[str]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey(Job.id))


config = {config}(
    connection_string=os.environ["DATABASE_URL"],
    alembic_config={alembic}(script_location="migrations", script_config="migrations/alembic.ini"),
)
"""
KINDS = {
    "sync": ("postgresql+psycopg", "SQLAlchemySyncConfig", "AlembicSyncConfig"),
    "asyncpg": ("postgresql+asyncpg", "SQLAlchemyAsyncConfig", "AlembicAsyncConfig"),
}


def alchemy(place: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "advanced_alchemy", "--config", "shop.config", *arguments]
    process = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert process.returncode == 0, f"{arguments}: {process.stdout}\n{process.stderr}"
    return process.stdout


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_stock_templates_migrate_the_queue(
    kind: str, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, config, alembic = KINDS[kind]
    url = engine.url.set(drivername=driver)
    (tmp_path / "shop.py").write_text(MODELS.format(config=config, alembic=alembic))
    monkeypatch.setenv("DATABASE_URL", url.render_as_string(hide_password=False))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    alchemy(tmp_path, "init", "migrations", "--no-prompt")
    alchemy(tmp_path, "make-migrations", "-m", "queue", "--no-prompt")
    (revision,) = (tmp_path / "migrations" / "versions").glob("*queue*.py")
    assert "autocommit_block" in revision.read_text()
    alchemy(tmp_path, "upgrade", "--no-prompt")
    alchemy(tmp_path, "check")
    assert {"job", "author"} <= set(inspect(engine).get_table_names())
    alchemy(tmp_path, "downgrade", "base", "--no-prompt")
    assert not {"job", "author"} & set(inspect(engine).get_table_names())
    alchemy(tmp_path, "upgrade", "--no-prompt")
    assert {"job", "author"} <= set(inspect(engine).get_table_names())


def test_a_migration_in_autocommit_is_one_transaction(engine: Engine) -> None:
    layout = Layout()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("CREATE TABLE chain_waiter ()"))
        refuse = "CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''no views''; END'"
        connection.execute(text(refuse))
        connection.execute(
            text("CREATE EVENT TRIGGER tr ON ddl_command_start WHEN TAG IN ('CREATE VIEW') EXECUTE FUNCTION refuse()")
        )
        with pytest.raises(Exception, match="no views"):  # a later statement
            runner.upgrade(connection, layout)
        assert inspect(connection).get_table_names() == ["chain_waiter"]
        connection.execute(text("DROP FUNCTION refuse() CASCADE"))
        connection.execute(text("DROP TABLE chain_waiter"))
        with pytest.raises(SchemaMissingError):
            runner.migrate(connection, layout, from_version=1, to_version=0)
        assert runner.upgrade(connection, layout) == 0
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert runner.current_version(connection, layout) == ddl.LATEST
        assert runner.downgrade(connection, layout, to_version=0) == ddl.LATEST
    with engine.connect() as connection:
        assert runner.current_version(connection, layout) == 0
