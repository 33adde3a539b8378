"""The `alembic/` folder of this repository, and Alembic's own import with our plugin in it, as commands of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, inspect

from sa_jobqueue import ddl
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.models import Job
from tests.fixtures.jobs import enqueue
from tests.migrations.catalogs import catalog
from tests.migrations.conftest import one_server

ROOT = Path(__file__).parents[2]

FIRST_IMPORTS = [
    "alembic",
    "alembic.autogenerate.api",
    "alembic.autogenerate.render",
    "alembic.command",
    "alembic.config",
    "alembic.context",
    "alembic.ddl.impl",
    "alembic.op",
    "alembic.operations.ops",
    "alembic.runtime.environment",
    "alembic.runtime.plugins",
    "alembic.script",
    "alembic.util",
    "sa_jobqueue",
    "sa_jobqueue.migrations.autogenerate",
    "sa_jobqueue.migrations.operation",
    "sa_jobqueue.migrations.plugin",
]


# Each in a fork of one interpreter that has loaded everything but Alembic and us: that is quicker than a new one.
IMPORTER = """
import os, sys, traceback, warnings
import mako.template, psycopg, pydantic, sqlalchemy.ext.asyncio, sqlalchemy.orm
warnings.simplefilter("error")
assert not [name for name in sys.modules if name.startswith(("alembic", "sa_jobqueue"))]
for module in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            __import__(module)
            from alembic import op
            op.migrate_job_queue
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        print(f"{module} cannot be imported first", file=sys.stderr)
"""


@pytest.mark.long
def test_alembic_imports_work_in_any_order() -> None:
    command = [sys.executable, "-W", "error", "-c", IMPORTER, *FIRST_IMPORTS]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def alembic(*arguments: str, url: str | None) -> subprocess.CompletedProcess[str]:
    """Run Alembic in a checkout: from its root, where a folder is named like Alembic itself."""
    environ = {name: value for name, value in os.environ.items() if name != "SA_JOBQUEUE_URL"}
    if url is not None:
        environ["SA_JOBQUEUE_URL"] = url
    line = [sys.executable, "-m", "alembic", *arguments]
    return subprocess.run(line, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.long
@one_server
def test_a_checkout_is_migrated_with_the_url_option(engine: Engine) -> None:
    url = engine.url.render_as_string(hide_password=False)
    with engine.connect() as connection:
        nothing = catalog(connection)
    for line in (["upgrade", "head"], ["check"], ["downgrade", "base"], ["upgrade", "head"]):
        process = alembic(*line, url=url)
        assert process.returncode == 0, process.stderr
        with engine.connect() as connection:
            assert (catalog(connection) == nothing) is (line == ["downgrade", "base"])
    enqueue(engine, Job("mail"))


@pytest.mark.long
def test_a_checkout_prints_its_sql_without_a_database() -> None:
    process = alembic("upgrade", "head", "--sql", url=None)
    assert process.returncode == 0, process.stderr
    position = 0
    for statement in runner.statements(Layout(), from_version=0, to_version=ddl.LATEST):
        position = process.stdout.index(f"{statement};", position)


@pytest.mark.slow
def test_a_missing_url_raises_a_clear_error() -> None:
    process = alembic("upgrade", "head", url=None)
    assert process.returncode != 0
    assert "set SA_JOBQUEUE_URL to the database" in process.stdout + process.stderr


def test_a_connection_passed_by_the_program_is_used(engine: Engine) -> None:
    config = Config(ROOT / "alembic.ini")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        command.check(config)
    assert "dead_letter" in inspect(engine).get_table_names()


def test_the_alembic_folder_does_not_shadow_the_package() -> None:
    assert not (ROOT / "alembic" / "__init__.py").exists()
