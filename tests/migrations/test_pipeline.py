"""The tables of Spark's writes and of the archive, which only queues with `queue_pipeline=True` have."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import Engine, inspect, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.cli import main
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.errors import PipelineMissingError
from sa_jobqueue.layout import PIPELINE_TABLES, Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.observe.health import health
from sa_jobqueue.operations import check_schema
from sa_jobqueue.pipeline.operations.writes import list_writes
from tests.fixtures.transactions import scalars, write
from tests.migrations.applications import PLAIN_MODELS, Application, both_scopes, commands
from tests.migrations.catalogs import catalog

pytestmark = pytest.mark.slow

MODELS = f"{PLAIN_MODELS}\n\nfrom sa_jobqueue import JobQueue\n\njobs = JobQueue(Job)\n"
WITH_PIPELINE = MODELS.replace("JobMixin, Base", "JobMixin, Base, queue_pipeline=True")
CREATE = f"migrate_job_queue(from_version=0, to_version={LATEST}, unit='pipeline')"
SENTENCE = "has no tables for Spark's writes and the archive: declare it with queue_pipeline=True"

Command = Callable[..., Result]


@pytest.fixture
def configure() -> str:
    """Give the arguments that its environment adds: none by default."""
    return ""


@pytest.fixture
def application(tmp_path: Path, engine: Engine, configure: str) -> Iterator[Application]:
    """Give an application whose queue was migrated without the pipeline."""
    new_application = Application(tmp_path, engine, MODELS, configure=configure)
    new_application.autogenerate()
    new_application.upgrade()
    yield new_application
    new_application.close()


@pytest.fixture
def command(application: Application) -> Command:
    """Give a function that runs `sa-jobqueue` with the application's class."""
    url = application.engine.url.render_as_string(hide_password=False)
    app = f"{application.models.__name__}:jobs"

    def run(*arguments: str, app: str | None = app) -> Result:
        sys.modules[application.models.__name__] = application.models
        environ = {"SA_JOBQUEUE_URL": url, "SA_JOBQUEUE_APP": app}
        return CliRunner().invoke(main, arguments, env=environ)

    return run


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names()) - {"alembic_version"}


def test_an_application_has_fifteen_tables_and_the_pipeline_five_more(application: Application) -> None:
    engine = application.engine
    assert len(tables(engine)) == 15
    application.edit(WITH_PIPELINE)
    application.autogenerate()
    application.upgrade()
    assert len(tables(engine)) == 20
    assert tables(engine) == set(Job.metadata.tables)


@both_scopes
@pytest.mark.usefixtures("configure")
def test_autogenerate_adds_the_tables_when_the_keyword_is_added(
    application: Application, make_engine: Callable[[], Engine]
) -> None:
    engine = application.engine
    with engine.connect() as connection:
        before = catalog(connection)
    application.edit(WITH_PIPELINE)
    assert commands(application.autogenerate()) == [CREATE]
    application.upgrade()
    application.check()
    created = make_engine()
    application.models.Base.metadata.create_all(created)
    with engine.connect() as migrated, created.connect() as created_connection:
        assert catalog(migrated) == catalog(created_connection)
    application.downgrade("-1")
    with engine.connect() as connection:
        assert catalog(connection) == before


@both_scopes
@pytest.mark.usefixtures("configure")
def test_a_removed_keyword_keeps_the_tables_and_logs_the_line_that_drops_them(
    application: Application, caplog: pytest.LogCaptureFixture
) -> None:
    application.edit(WITH_PIPELINE)
    application.autogenerate()
    application.upgrade()
    application.edit(MODELS)
    with caplog.at_level(logging.WARNING, "sa_jobqueue"):
        application.check()
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("The model of table job does not have queue_pipeline=True, which")
    line = f"op.migrate_job_queue(from_version={LATEST}, to_version=0, unit='pipeline')"
    assert message.endswith(f"write into a revision: {line}")
    application.autogenerate(edit=lambda script: script.replace("pass", line, 1))
    application.upgrade()
    assert len(tables(application.engine)) == 15


def test_the_names_of_its_tables_are_free_without_it(application: Application) -> None:
    names = (
        "\n\nfrom sqlalchemy.orm import Mapped, mapped_column\n\n\nclass Own(Base):\n    __tablename__ = 'job_bulk_write'\n"
    )
    application.edit(f"{MODELS}{names}    id: Mapped[int] = mapped_column(primary_key=True)\n")
    (line,) = commands(application.autogenerate())
    assert line.startswith("op.create_table('job_bulk_write',")
    application.upgrade()
    application.check()
    with application.engine.begin() as connection:
        assert runner.upgrade(connection, Layout()) == LATEST


def test_migrate_adds_the_tables_and_removes_them_with_the_queue(application: Application, command: Command) -> None:
    application.edit(WITH_PIPELINE)
    assert command("migrate", "version").stdout.splitlines()[1] == f"job_bulk_write is at version 0; the latest is {LATEST}"
    assert command("migrate", "upgrade").stdout.splitlines() == [
        f"job is already at version {LATEST}",
        f"job_bulk_write is now at version {LATEST}, was 0",
    ]
    assert set(PIPELINE_TABLES) <= tables(application.engine)
    script = command("migrate", "sql", "--from", str(LATEST), "--to", "0").stdout
    assert script.index("archive_run") < script.index("DROP VIEW IF EXISTS job_queue")
    application.edit(MODELS)  # a release before the keyword
    assert command("migrate", "downgrade", "--to", "0", "--yes").exit_code == 0
    assert tables(application.engine) == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ("writes", "list"),
        ("writes", "show", "w"),
        ("writes", "prune", "--older-than", "1d"),
        ("archive", "runs"),
        ("archive", "--before", "1d", "--dry-run"),
        ("archive", "--before", "1d", "--to", "/nowhere"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("has_app", [True, False], ids=["its class", "the ready-made class"])
def test_its_commands_name_the_keyword_in_one_sentence(
    command: Command, arguments: tuple[str, ...], *, has_app: bool
) -> None:
    result = command(*arguments) if has_app else command(*arguments, app=None)
    assert result.exit_code == 1
    last = result.output.splitlines()[-1]  # after lines of progress
    assert last.startswith(f"Error: {'Job' if has_app else 'table job'} {SENTENCE}")


def test_the_classes_of_its_tables_raise_the_error(application: Application) -> None:
    model = application.models.Job
    with pytest.raises(PipelineMissingError, match=r"^Job has no tables"):
        _ = model.Write
    assert not hasattr(model, "ArchiveRun")
    with Session(application.engine) as session:
        with pytest.raises(PipelineMissingError, match=r"^Job has no tables"):
            check_schema(session, unit="pipeline", model=model)
        with pytest.raises(PipelineMissingError, match=r"^table job has no tables"):
            list_writes(session)


@pytest.mark.parametrize("has_app", [True, False], ids=["its class", "the ready-made class"])
def test_other_commands_work_without_its_tables(application: Application, command: Command, *, has_app: bool) -> None:
    app = {} if has_app else {"app": None}
    granted = command("grants", "--apply", "--roles", "plain", **app)
    assert granted.exit_code == 0, granted.output
    for line in ("health", "reindex", "prune --older-than 1d", "vacuum"):
        result = command(*line.split(), **app)
        assert result.exit_code == 0, (line, result.output)
    checks = command("doctor", "--role", "operator", **app).output
    assert "ok       schema" in checks
    assert "job_bulk" not in checks
    model = application.models.Job if has_app else Job
    assert health(application.engine, model=model).bulk_writes.unfinished == 0


def test_grants_cover_its_tables_where_they_are(application: Application, command: Command) -> None:
    def granted() -> set[str]:
        return set(
            scalars(
                application.engine,
                "SELECT table_name FROM information_schema.table_privileges WHERE grantee = 'with_operator'",
            )
        )

    assert command("grants", "--apply", "--roles", "with").exit_code == 0
    assert not granted() & set(PIPELINE_TABLES)
    application.edit(WITH_PIPELINE)
    assert "job_bulk" in command("grants", "--roles", "with").stdout
    assert command("migrate", "upgrade").exit_code == 0
    assert command("grants", "--apply", "--roles", "with").exit_code == 0
    assert granted() >= set(PIPELINE_TABLES)


def test_doctor_reports_a_keyword_that_is_not_migrated(application: Application, command: Command) -> None:
    application.edit(WITH_PIPELINE)
    result = command("doctor")
    assert "error    schema: table job has no tables for Spark's writes and the archive" in result.output


READY_MADE = """
import sys
{imports}
from alembic.autogenerate import produce_migrations, render_python_code
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, create_engine, inspect
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.models import Base

engine = create_engine(sys.argv[1])
with engine.connect() as connection:
    for metadata in (Base.metadata, MetaData()):
        context = MigrationContext.configure(connection, opts={{"target_metadata": metadata}})
        print(render_python_code(produce_migrations(context, metadata).upgrade_ops))
with engine.begin() as connection:
    {creates}
print(len(inspect(engine).get_table_names()))
"""


@pytest.mark.parametrize("creates", ["upgrade(connection)", "Base.metadata.create_all(connection)"])
def test_the_ready_made_models_get_the_tables_by_an_import_and_keep_them_without_it(
    make_engine: Callable[[], Engine], creates: str
) -> None:
    """In processes of their own: this one has imported the pipeline."""
    engine = make_engine()

    def run(imports: str) -> list[str]:
        script = READY_MADE.format(imports=imports, creates=creates)
        url = engine.url.render_as_string(hide_password=False)
        process = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, url], capture_output=True, text=True, check=False, timeout=120
        )
        assert process.returncode == 0, process.stderr
        lines = [line.strip() for line in process.stdout.splitlines()]
        return [line for line in lines if line and not line.startswith("#")]

    create_queue = f"migrate_job_queue(from_version=0, to_version={LATEST})"
    assert run("") == [create_queue, "pass", "15"]
    assert run("import sa_jobqueue.pipeline") == [CREATE, "pass", "20"]
    with engine.begin() as connection:
        connection.execute(text("CREATE INDEX ix_own ON job_bulk_write (rejected)"))
        connection.execute(text("ALTER TABLE archive_run ADD own integer UNIQUE"))
    assert run("") == ["pass", "pass", "20"]


def test_health_counts_bulk_writes_where_no_class_has_their_tables(application: Application) -> None:
    application.edit(WITH_PIPELINE)
    application.autogenerate()
    application.upgrade()
    application.edit(MODELS)
    write(application.engine, "INSERT INTO job_bulk_staging (write_id, sequence, task_id, row) VALUES ('a', 1, 1, 1)")
    assert health(application.engine, model=application.models.Job).bulk_writes.unfinished == 1


def test_migrate_creates_the_tables_of_any_class_if_it_is_asked_to(application: Application, command: Command) -> None:
    assert command("migrate", "upgrade", "--pipeline").stdout.splitlines() == [
        f"job is already at version {LATEST}",
        f"job_bulk_write is now at version {LATEST}, was 0",
    ]
    assert set(PIPELINE_TABLES) <= tables(application.engine)
