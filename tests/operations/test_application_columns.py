"""Queues with an application's own columns, a schema, a prefix, text ids: enqueued one by one or many at once alike."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from sqlalchemy import JSON, Engine, ForeignKey, Numeric, event, func, select, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship

from sa_jobqueue import JobMixin, JobStatus, cancel_jobs, enqueue_many, get_job, list_jobs
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.notifications import Notifications

pytestmark = [own_database, both_servers]

numbers = itertools.count(1)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Base(DeclarativeBase):
    pass


class Tenant(Base):
    __tablename__ = "tenant"

    id: Mapped[int] = mapped_column(primary_key=True)


class TenantJob(JobMixin[str], Base, queue_schema="app", queue_prefix="t_", queue_id_factory=lambda: f"job-{next(numbers)}"):
    tenant_id: Mapped[int | None] = mapped_column(ForeignKey(Tenant.id))
    tenant: Mapped[Tenant | None] = relationship()
    colour: Mapped[Colour | None]
    amount: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    token: Mapped[UUID] = mapped_column(default=uuid4)
    kind: Mapped[str] = mapped_column(default="plain")
    region: Mapped[str] = mapped_column(server_default=text("'eu'"))
    noted_at: Mapped[str] = mapped_column(default=func.lower("NOW"))
    seen_at: Mapped[str | None] = mapped_column(default=func.lower("NEVER"))
    null_note: Mapped[Any | None] = mapped_column(JSONB(none_as_null=True))
    json_note: Mapped[Any | None] = mapped_column("note", JSON)


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    """A queue with text ids and nothing else of its own."""


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Tenant(id=1))
        session.commit()
        yield session


def columns_of(session: Session) -> list[dict[str, Any]]:
    """Return the stored rows, without ids, times and random values."""
    rows = session.execute(select(TenantJob.__table__).order_by(func.length(TenantJob.id), TenantJob.id)).mappings()
    volatile = {"id", "chain_id", "created_at", "scheduled_at", "changed_xid", "token"}
    return [{name: value for name, value in row.items() if name not in volatile} for row in rows]


def made() -> list[TenantJob]:
    return [
        TenantJob("send", {"n": 1}),
        TenantJob("send", tenant_id=1, colour=Colour.BLUE, amount=Decimal("1.50")),
        TenantJob("send", kind="special", region="us", null_note=None, json_note=None),
        TenantJob("send", null_note={"a": None}, json_note=[1], seen_at="today"),
        TenantJob("send", colour=None, amount=None, tenant_id=None),
    ]


@pytest.mark.slow
def test_enqueue_many_stores_application_columns_like_add(session: Session) -> None:
    session.add_all(made())
    session.commit()
    one_by_one = columns_of(session)
    session.execute(text("TRUNCATE app.t_job CASCADE"))
    enqueue_many(session, made())
    session.commit()
    assert columns_of(session) == one_by_one
    kinds = select(func.json_typeof(TenantJob.json_note), TenantJob.null_note.is_(None)).order_by(
        func.length(TenantJob.id), TenantJob.id
    )
    assert [tuple(row) for row in session.execute(kinds)] == [
        (None, True),
        (None, True),
        ("null", True),
        ("array", False),
        (None, True),
    ]


def test_a_python_default_is_evaluated_for_each_job(session: Session) -> None:
    enqueue_many(session, [TenantJob("send") for _ in range(5)])
    session.commit()
    assert len(set(session.scalars(select(TenantJob.token)))) == 5


def test_jobs_with_equal_columns_share_one_statement(session: Session, engine: Engine) -> None:
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *args: statements.append(args[2]))
    enqueue_many(session, [TenantJob("send", tenant_id=1, priority=n) for n in range(5)])
    assert len([sql for sql in statements if sql.startswith("INSERT")]) == 1
    enqueue_many(session, [TenantJob("send", region="us" if n % 2 else "eu") for n in range(3)] + [TenantJob("send")])
    assert len([sql for sql in statements if sql.startswith("INSERT")]) == 3


def test_operations_work_on_the_given_job_class(session: Session) -> None:
    ids = enqueue_many(session, [TenantJob("send"), TenantJob("send")])
    session.commit()
    assert all(job_id.startswith("job-") for job_id in ids)
    job = get_job(session, ids[0], model=TenantJob)
    assert isinstance(job, TenantJob)
    assert cancel_jobs(session, ids[:1], model=TenantJob).ids == ids[:1]
    assert job.status is JobStatus.CANCELLED
    assert {job.id for job in list_jobs(session, model=TenantJob)} == set(ids)


def test_each_job_class_has_its_own_channels(session: Session, database_url: str, notifications: Notifications) -> None:
    tenant_notifications = Notifications(database_url, TenantJob.__jobqueue__)
    session.add(TenantJob("send", queue="q"))
    session.commit()
    assert tenant_notifications.seen() == [("due", "q")]
    tenant_notifications.close()
    assert notifications.seen() == []


def test_a_database_generated_uuid7_is_text_where_ids_are_text(session: Session) -> None:
    session.execute(text("INSERT INTO text_job_queue (type_name) VALUES ('send')"))
    session.commit()
    (job,) = list_jobs(session, model=TextJob)
    assert UUID(job.id).version == 7
