"""Databases that this library accepts, and its errors for others."""

from __future__ import annotations

from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import JobMixin, ddl, errors
from sa_jobqueue.ddl import LATEST
from sa_jobqueue.operations import check_schema, schema
from tests.fixtures.database import both_servers

pytestmark = both_servers


class Base(DeclarativeBase):
    pass


class OtherJob(JobMixin, Base, queue_schema="app", queue_prefix="other_"):
    pass


def stamp(session: Session, comment: str | None) -> None:
    session.execute(text("COMMENT ON TABLE job IS " + ("NULL" if comment is None else f"'{comment}'")))


def test_the_tables_of_this_version_and_the_next_pass_the_check(session: Session) -> None:
    """A migration goes before the code that needs it: meanwhile the release before runs on the next tables."""
    assert check_schema(session) == LATEST
    stamp(session, f"sa_jobqueue version={LATEST + 1}")
    assert check_schema(session) == LATEST + 1


def test_missing_tables_raise_an_error_with_the_command_to_run(session: Session) -> None:
    with pytest.raises(
        errors.SchemaMissingError, match=r'table "app"\.other_job does not exist: run .*alembic upgrade head'
    ):
        check_schema(session, model=OtherJob)


def test_a_schema_that_the_user_may_not_use_is_named_if_its_tables_would_be_used(session: Session) -> None:
    user = f"no_rights_{uuid4().hex[:8]}"
    comment = ddl.stamp("queue", LATEST).comment
    session.execute(text(f"CREATE ROLE {user}"))
    for name in ('"Jobs of Others"', '"The Jobs"', user):
        session.execute(text(f"CREATE SCHEMA {name} CREATE TABLE job (id integer)"))
        session.execute(text(f"COMMENT ON TABLE {name}.job IS '{comment}'"))
    session.execute(text(f"SET LOCAL ROLE {user}"))
    session.execute(text('SET LOCAL search_path = "The Jobs", pg_temp'))
    with pytest.raises(errors.SchemaMissingError, match=r'in the schema The Jobs, .* GRANT USAGE ON SCHEMA "The Jobs", or'):
        check_schema(session)
    session.execute(text('SET LOCAL search_path = "$user", pg_temp'))
    with pytest.raises(errors.SchemaMissingError, match=f'GRANT USAGE ON SCHEMA "{user}", or'):
        check_schema(session)
    session.execute(text("SET LOCAL search_path = pg_temp"))
    with pytest.raises(errors.SchemaMissingError, match="table job does not exist"):
        check_schema(session)


def test_older_tables_raise_an_error_with_the_command_to_run(session: Session) -> None:
    stamp(session, f"sa_jobqueue version={LATEST - 1}")
    with pytest.raises(
        errors.SchemaOutdatedError, match=f"is of version {LATEST - 1}, this library needs {LATEST}: alembic revision"
    ):
        check_schema(session)


def test_newer_tables_raise_an_error_that_asks_for_an_upgrade(session: Session) -> None:
    stamp(session, f"sa_jobqueue version={LATEST + 2}")
    with pytest.raises(errors.SchemaTooNewError, match=f"is of version {LATEST + 2}, .* upgrade sa-jobqueue"):
        check_schema(session)


def test_an_unsupported_server_is_reported_before_its_tables(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "MIN_SERVER_VERSION", 990_000)
    with pytest.raises(errors.UnsupportedServerError, match=r"this server is 1\d"):
        check_schema(session)


def test_tables_in_another_schema_are_found(session: Session, engine: Engine) -> None:
    Base.metadata.create_all(engine)
    check_schema(session, model=OtherJob)


@pytest.mark.parametrize(
    "comment", [None, "", "jobs of the sales department", "sa_jobqueue version=", "sa_jobqueue version=1 "]
)
def test_a_foreign_table_named_job_raises_an_error(session: Session, comment: str | None) -> None:
    stamp(session, comment)
    with pytest.raises(errors.SchemaMissingError, match="table job is not a job queue's table"):
        check_schema(session)


@pytest.mark.parametrize("build", ["", " build=0123abcd"])
def test_tables_of_another_build_raise_an_error_with_the_way_out(session: Session, build: str) -> None:
    stamp(session, f"sa_jobqueue version={LATEST}{build}")
    with pytest.raises(
        errors.SchemaBuildError, match=rf"table job was made by another build of version {LATEST} .* downgrade --to 0"
    ) as raised:
        check_schema(session)
    assert (raised.value.version, raised.value.build) == (LATEST, build.removeprefix(" build="))
    assert raised.value.expected == ddl.stamp("queue", LATEST).build
    session.execute(text("COMMENT ON TABLE job_bulk_write IS 'sa_jobqueue version=1'"))
    stamp(session, ddl.stamp("queue", LATEST).comment)
    with pytest.raises(errors.SchemaBuildError, match="table job_bulk_write was made by another build"):
        check_schema(session, unit="pipeline")


def test_columns_indexes_and_triggers_of_the_application_are_no_other_build(session: Session) -> None:
    session.execute(text("ALTER TABLE job ADD COLUMN tenant int"))
    session.execute(text("CREATE INDEX ix_job_tenant ON job (tenant)"))
    session.execute(text("CREATE TRIGGER tr_tenant BEFORE UPDATE ON job FOR EACH ROW EXECUTE FUNCTION job_stamp()"))
    assert check_schema(session) == LATEST
    session.rollback()
