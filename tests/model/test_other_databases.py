"""Another database than PostgreSQL is refused by one sentence, wherever an application meets it first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from sa_jobqueue import JobMixin, JobQueue, Worker
from sa_jobqueue.errors import UnsupportedServerError
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.testing import drain
from tests.migrations.applications import PLAIN_MODELS, Application


class Base(DeclarativeBase):
    pass


class SqliteJob(JobMixin, Base):
    pass


class Customer(Base):
    __tablename__ = "customer"

    id: Mapped[int] = mapped_column(primary_key=True)


jobs = JobQueue(SqliteJob)


@jobs.handler("greet")
def greet(name: str) -> None: ...


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    yield engine
    engine.dispose()


def in_session(work: Callable[[Session], object]) -> Callable[[Engine], object]:
    def call(engine: Engine) -> object:
        with Session(engine) as session:
            return work(session)

    return call


def add(session: Session) -> None:
    session.add(greet.job("a"))
    session.commit()


def add_blocked(session: Session) -> None:
    session.add(greet.job("a", blockers=[greet.job("b")]))
    session.commit()


def on_connection(work: Callable[..., object], **options: Any) -> Callable[[Engine], object]:
    def call(engine: Engine) -> object:
        with engine.connect() as connection:
            return work(connection, Layout(), **options)

    return call


PLACES: dict[str, Callable[[Engine], object]] = {
    "create_all": Base.metadata.create_all,
    "upgrade": on_connection(runner.upgrade),
    "downgrade": on_connection(runner.downgrade, to_version=0),
    "migrate": on_connection(runner.migrate, from_version=0, to_version=1),
    "prepare": on_connection(runner.prepare),
    "add": in_session(add),
    "add with blockers": in_session(add_blocked),
    "handler.enqueue": in_session(lambda session: greet.enqueue(session, "a")),
    "worker": lambda engine: Worker(jobs, engine),
    "drain": lambda engine: drain(jobs, engine),
}


@pytest.mark.parametrize("place", PLACES)
def test_another_database_is_refused(sqlite: Engine, place: str) -> None:
    with pytest.raises(UnsupportedServerError, match="needs PostgreSQL, and this database is sqlite: change the URL"):
        PLACES[place](sqlite)
    assert inspect(sqlite).get_table_names() == []


def test_other_tables_of_the_application_can_be_created(sqlite: Engine) -> None:
    Base.metadata.create_all(sqlite, tables=[Base.metadata.tables["customer"]])
    assert inspect(sqlite).get_table_names() == ["customer"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:autogenerate skipping metadata-specified expression-based index")
def test_alembic_refuses_another_database(sqlite: Engine, tmp_path: Path) -> None:
    application = Application(tmp_path, sqlite, PLAIN_MODELS)
    try:
        with pytest.raises(UnsupportedServerError, match="this database is sqlite"):
            application.autogenerate()
        (application.versions / "first.py").write_text(
            "from alembic import op\nrevision = 'a'\ndown_revision = None\n\n\n"
            "def upgrade():\n    op.migrate_job_queue(from_version=0, to_version=1)\n"
        )
        for offline in (False, True):
            with pytest.raises(UnsupportedServerError, match="this database is sqlite"):
                application.upgrade(sql=offline)
    finally:
        application.close()
