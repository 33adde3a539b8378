"""`JobMixin`: checks of a job before it is written, and keywords of the class."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, Uuid
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, configure_mappers

from sa_jobqueue import Job, JobMixin, JobStatus
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, InvalidPayloadError
from sa_jobqueue.layout import Layout


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    """A queue with text ids and a column of the application's own."""

    tenant: Mapped[str | None]


numbers = itertools.count(1)


class NumberedJob(
    JobMixin[str], Base, queue_schema="app", queue_prefix="n_", queue_id_factory=lambda: f"job-{next(numbers)}"
):
    """A queue with ids of the application's making."""


def test_a_new_job_is_pending_and_the_root_of_its_own_chain() -> None:
    job = Job("send", {"to": "a@b"})
    assert isinstance(job.id, UUID)
    assert job.id.version == 7
    assert (job.chain_id, job.chain_type_name, job.chain_index) == (job.id, "send", 0)
    assert (job.type_name, job.input) == ("send", {"to": "a@b"})
    decided: list[object] = [job.queue, job.priority, job.max_attempts, job.timeout]  # by the database
    assert decided == [None, None, None, None]
    assert (job.status, job.open_blockers, job.attempt) == (JobStatus.PENDING, 0, 0)


@pytest.mark.parametrize("name", ["", " ", "a b", ".a", "-a", "x" * 101, "ä", "a\n", "a\0", 7, b"a"])
def test_an_invalid_type_or_queue_name_is_refused(name: Any) -> None:
    for field, keywords in (("type_name", {"type_name": name}), ("queue", {"type_name": "a", "queue": name})):
        with pytest.raises(InvalidJobError, match="must be 1 to 100 of") as caught:
            Job(**keywords)
        assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("priority", value) for value in (-10, 10, 1.0, "1", True)),
        *(("max_attempts", value) for value in (0, -1, 2**31, 1.5, "3", True)),
        *(("input_version", value) for value in (0, 2**31, "1")),
        *(("timeout", value) for value in (timedelta(0), timedelta(seconds=-1), timedelta.max, 5, "5s")),
        *(("delay", value) for value in (timedelta(microseconds=-1), timedelta.max, 5, "5s")),
        *(("at", value) for value in (datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC), "2026-01-01", 5)),
        *(("id", value) for value in ("x", 7, str(UUID(int=1)))),
        *(("deduplication_key", value) for value in ("", 7, "a\0", "x" * 501)),
        *(("ordering_key", value) for value in ("", 7, "a\0", "x" * 501, ["a"])),
        *(
            (field, value)
            for field in ("expires_at", "deadline")
            for value in (datetime(2026, 1, 1), datetime.max.replace(tzinfo=UTC), "2026-01-01", 5)
        ),
        *(("input", value) for value in (object(), float("nan"), "\0")),
    ],
)
def test_a_bad_field_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidJobError) as caught:
        Job("send", **{field: value})
    assert caught.value.field == field
    assert repr(value)[:20] in str(caught.value) or isinstance(caught.value, InvalidPayloadError) or field == "delay"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("priority", -9),
        ("priority", 9),
        ("max_attempts", 1),
        ("max_attempts", 2**31 - 1),
        ("timeout", timedelta(microseconds=1)),
        ("id", UUID(int=0)),
        ("deduplication_key", "x" * 500),
        ("ordering_key", "x" * 500),
        ("expires_at", datetime(8999, 12, 31, tzinfo=UTC)),
        ("deadline", datetime(8999, 12, 31, tzinfo=UTC)),
    ],
)
def test_a_field_is_accepted_at_its_bounds(field: str, value: Any) -> None:
    assert getattr(Job("send", **{field: value}), field) == value


def test_columns_of_the_queue_itself_are_not_taken_from_the_caller() -> None:
    job = Job("test", status=JobStatus.DEAD, open_blockers=1, chain_index=3, attempt=2)
    assert (job.status, job.open_blockers, job.chain_index, job.attempt) == (JobStatus.PENDING, 0, 0, 0)


def test_due_times_are_computed_by_the_database_clock() -> None:
    assert "scheduled_at" not in Job("send").__dict__
    assert "scheduled_at" not in Job("send", delay=timedelta(0)).__dict__
    assert "now() +" in str(Job("send", delay=timedelta(seconds=5)).scheduled_at)
    at = datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert "greatest(" in str(Job("send", at=at).scheduled_at)


def test_an_unknown_column_is_refused() -> None:
    with pytest.raises(TypeError, match="'tenant' is an invalid keyword argument for Job"):
        Job("send", tenant="a")
    assert TextJob("send", tenant="a").tenant == "a"


@pytest.mark.slow
def test_class_keywords_set_schema_and_prefix_of_the_tables() -> None:
    assert NumberedJob.__jobqueue__ == Layout("app", "n_", "text")
    companions: list[Any] = [NumberedJob.Attempt, NumberedJob.Blocker, NumberedJob.DeadLetter, NumberedJob.Worker]
    names = ["n_job", "n_job_attempt", "n_job_blocker", "n_dead_letter", "n_worker"]
    assert [str(kind.__table__) for kind in [NumberedJob, *companions]] == [f"app.{name}" for name in names]
    assert [kind.__name__ for kind in companions] == [
        f"NumberedJob{noun}" for noun in ("Attempt", "Blocker", "DeadLetter", "Worker")
    ]
    configure_mappers()
    for kind in [NumberedJob, *companions]:
        assert isinstance(kind.__table__, Table)
        assert kind.__table__.metadata is Base.metadata


def test_the_id_type_is_that_of_every_id_column() -> None:
    for kind, expected in ((Job, Uuid), (TextJob, Text)):
        columns = [kind.__table__.c.id, kind.__table__.c.chain_id, kind.__table__.c.root_id]
        columns += [kind.Attempt.__table__.c.job_id, kind.DeadLetter.__table__.c.id, kind.Blocker.__table__.c.job_id]
        assert {type(column.type) for column in columns} == {expected}


def test_two_job_classes_share_no_database_name() -> None:
    tables = [
        kind.__table__
        for queue in (TextJob, NumberedJob)
        for kind in (queue, queue.Attempt, queue.Blocker, queue.DeadLetter)
    ]
    names = [str(part.name) for table in tables for part in (*table.constraints, *table.indexes) if part.name]  # type: ignore[attr-defined]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("keywords", "option"),
    [({"queue_schema": "x" * 64}, "queue_schema"), ({"queue_prefix": "x" * 21}, "queue_prefix")],
)
def test_a_bad_class_keyword_is_named(keywords: Any, option: str) -> None:
    class OtherBase(DeclarativeBase):
        pass

    with pytest.raises(InvalidOptionError) as caught:
        type("BadJob", (JobMixin, OtherBase), {}, **keywords)
    assert caught.value.option == option


def test_the_mixin_listed_after_the_base_is_refused() -> None:
    class OtherBase(DeclarativeBase):
        pass

    with pytest.raises(InvalidOptionError, match="list JobMixin before the declarative base"):
        type("WrongJob", (OtherBase, JobMixin), {})


def test_a_subclass_of_the_mixin_has_no_table_until_mapped() -> None:
    class OtherBase(DeclarativeBase):
        pass

    class TenantMixin(JobMixin[str]):
        tenant: Mapped[str | None]

    class TenantJob(TenantMixin, OtherBase, queue_prefix="t_"):
        pass

    assert not hasattr(TenantMixin, "__table__")
    assert TenantJob.__jobqueue__ == Layout(None, "t_", "text")
    assert TenantJob("a", tenant="b").tenant == "b"


def test_repr_shows_no_input_and_runs_no_query() -> None:
    job = Job("send", {"password": "secret"})
    assert repr(job) == f"<Job {job.id} send pending>"
    assert repr(Job.__new__(Job)) == "<Job None None None>"


def test_repr_of_an_expired_job_shows_its_id_and_type(session: Session) -> None:
    job = Job("send")
    session.add(job)
    session.commit()
    assert (repr(job), session.in_transaction()) == (f"<Job {job.id} send (expired)>", False)
    session.expunge_all()
    loaded = session.get_one(Job, job.id)
    assert repr(loaded) == f"<Job {job.id} send pending>"
    session.commit()
    assert (repr(loaded), session.in_transaction()) == (f"<Job {job.id} send (expired)>", False)


@pytest.mark.slow
def test_a_table_of_another_metadata_is_no_conflict() -> None:
    class Own(DeclarativeBase):
        metadata = MetaData()

        def __init_subclass__(cls, **keywords: Any) -> None:
            if "bind" in cls.__dict__:  # as Flask-SQLAlchemy does for a bind key
                cls.metadata = MetaData()
            super().__init_subclass__(**keywords)

    Table("worker", Own.metadata, Column("id", Integer, primary_key=True))

    class Elsewhere(JobMixin, Own):
        bind = "jobs"

    class Child(Elsewhere):
        pass

    assert Child.__table__ is Elsewhere.__table__
    assert "job" in Elsewhere.metadata.tables


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tables", "listed"),
    [
        ("job", "table job is"),
        ("schedule", "table schedule is"),
        ("job_chain", "table job_chain is"),
        ("worker queue", "tables queue, worker are"),
    ],
)
def test_a_table_of_the_applications_is_named_before_anything_is_mapped(tables: str, listed: str) -> None:
    class Own(DeclarativeBase):
        pass

    for name in [*tables.split(), "unrelated"]:
        Table(name, Own.metadata, Column("id", Integer, primary_key=True))
    with pytest.raises(InvalidOptionError, match=f'{listed} in this metadata already: .*queue_prefix="jobs_"') as caught:
        type("Job", (JobMixin, Own), {})
    assert caught.value.option == "queue_prefix"
    configure_mappers()  # nothing of the class is left

    class Corrected(JobMixin, Own, queue_prefix="jobs_"):
        pass

    configure_mappers()
    assert Corrected.Schedule.__table__.name == "jobs_schedule"  # type: ignore[attr-defined]
