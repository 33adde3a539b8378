"""`create_all` and the versions make the same objects, on every server."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import new_class
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, MetaData, func, insert, select, text, update
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import ddl
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.base import CURRENT_XID
from sa_jobqueue.operations import enqueue_many
from sa_jobqueue.statements.minutes import COUNTS
from tests.fixtures.transactions import call
from tests.migrations.catalogs import Catalog, catalog, without_kept_value

pytestmark = pytest.mark.slow

LAYOUTS = [
    Layout(),
    Layout(id_type="text"),
    Layout(prefix="mail_", pipeline=True),
    Layout("jobs", "mail_"),
    Layout("jobs", "mail_", "text", pipeline=True),
    Layout("public"),
    Layout("s" * 32, "p" * 19 + "_"),
]
layouts = pytest.mark.parametrize(
    "layout",
    # Between them the two of the default run have everything that the others have but the longest names.
    [pytest.param(layout, marks=[] if number in {0, 4} else pytest.mark.long) for number, layout in enumerate(LAYOUTS)],
    ids=lambda parameter: f"{parameter.schema}.{parameter.prefix}-{parameter.id_type}",
)


def model_of(layout: Layout, metadata: MetaData | None = None) -> type[Any]:
    base = type("Base", (DeclarativeBase,), {"metadata": metadata or MetaData()})
    mixin: Any = JobMixin[str] if layout.id_type == "text" else JobMixin
    place = {"queue_schema": layout.schema, "queue_prefix": layout.prefix, "queue_pipeline": layout.pipeline}
    return new_class("Job", (mixin, base), place)


def catalog_of(engine: Engine) -> Catalog:
    with engine.connect() as connection:
        return catalog(connection)


def upgrade(engine: Engine, layout: Layout, to_version: int | None = None) -> int:
    with engine.begin() as connection:
        return runner.upgrade(connection, layout, to_version=to_version)


def downgrade(engine: Engine, layout: Layout, to_version: int) -> int:
    with engine.begin() as connection:
        return runner.downgrade(connection, layout, to_version=to_version)


@layouts
def test_create_all_creates_what_the_migrations_create(make_engine: Callable[[], Engine], layout: Layout) -> None:
    created, migrated = make_engine(), make_engine()
    model_of(layout).metadata.create_all(created)
    upgrade(migrated, layout)
    by_models, by_versions = catalog_of(created), catalog_of(migrated)
    for kind in by_versions:
        assert by_models[kind] == by_versions[kind], kind
        assert by_versions[kind], f"no {kind} were compared"


@layouts
def test_downgrading_to_zero_removes_everything(make_engine: Callable[[], Engine], layout: Layout) -> None:
    created, migrated = make_engine(), make_engine()
    before = catalog_of(created)
    model_of(layout).metadata.create_all(created)
    upgrade(migrated, layout)
    for engine in (created, migrated):
        assert downgrade(engine, layout, 0) == ddl.LATEST
        assert catalog_of(engine) == before


@layouts
def test_drop_all_leaves_only_the_schema(engine: Engine, layout: Layout) -> None:
    before = catalog_of(engine)
    model = model_of(layout)
    model.metadata.create_all(engine)
    model.metadata.drop_all(engine)
    assert {**catalog_of(engine), "schemas": []} == {**before, "schemas": []}
    model.metadata.create_all(engine)


@layouts
def test_every_version_can_be_downgraded_and_upgraded_again(engine: Engine, layout: Layout, next_version: int) -> None:
    catalogs = {0: catalog_of(engine)}
    for version in range(1, next_version + 1):
        assert upgrade(engine, layout, version) == version - 1
        catalogs[version] = catalog_of(engine)
        with engine.connect() as connection:
            assert runner.current_version(connection, layout) == version
    for version in reversed(range(next_version)):
        downgrade(engine, layout, version)
        assert without_kept_value(catalog_of(engine)) == catalogs[version]
    upgrade(engine, layout)
    assert catalog_of(engine) == catalogs[next_version]


@pytest.mark.long
def test_tables_may_be_created_and_dropped_in_several_steps(make_engine: Callable[[], Engine]) -> None:
    migrated, engine = make_engine(), make_engine()
    nothing = catalog_of(engine)
    upgrade(migrated, Layout(pipeline=True))
    metadata = model_of(Layout(pipeline=True)).metadata
    for nouns in (["job"], ["dead_letter"], ["job", "job_bulk_staging"]):
        first = [metadata.tables[noun] for noun in nouns]
        metadata.create_all(engine, tables=first)
        metadata.create_all(engine)
        assert catalog_of(engine) == catalog_of(migrated), nouns
        metadata.drop_all(engine, tables=[metadata.tables[noun] for noun in ("job", "job_blocker")])
        metadata.create_all(engine)
        assert catalog_of(engine) == catalog_of(migrated), nouns
        metadata.drop_all(engine)
        assert catalog_of(engine) == nothing, nouns


def write_rows(session: Session, model: type[Any]) -> None:
    """Write one or more rows into the tables of jobs and workers."""
    first = model("mail", {"to": ["ä:b", "100%"]}, delay=timedelta(hours=1), timeout=timedelta(seconds=5))
    waits = model("digest", None, status="blocked", open_blockers=1)
    enqueue_many(session, [first, waits])
    dead: dict[str, Any] = {"chain_id": first.id, "queue": "default", "type_name": "mail", "reason": "lost"}
    worker = {"id": "w:1", "name": "w", "host": "h", "pid": 1, "version": "0"}
    session.add_all(
        [
            model.Blocker(job_id=waits.id, blocked_by_chain_id=first.id, index=0, is_resolved=True),
            model.Attempt(job_id=first.id, attempt=1, outcome="failed", error={"type": "E"}),
            model.Step(job_id=first.id, name="ask", kind="step", attempt=1, output={"a": 1}, started_at=func.now()),
            model.Event(name="approved:7", payload={"by": "ann"}, expires_at=func.now() + timedelta(days=1)),
            model.Minute(minute=func.now(), queue="", type_name="", **dict.fromkeys(COUNTS, 0), wait=[0], run=[0]),
            model.DeadLetter(id=waits.id, job_id=first.id, input_version=1, attempts=1, died_at=datetime.now(UTC), **dead),
        ]
    )
    session.execute(insert(model.Worker.__table__).values(worker | {"queues": ["q"], "job_types": [], "concurrency": 1}))


def write_rows_of_pipelines(session: Session, model: type[Any]) -> None:
    """Write a row into each table of bulk writes and of the archive."""
    row = {"write_id": "w", "sequence": 0, "task_id": 1, "row": 0}
    run = model.ArchiveRun(id=uuid4(), path="/archive", engine="pyarrow", cutoff=datetime.now(UTC))
    key = "j-1" if model.__jobqueue__.id_type == "text" else uuid4()
    staged = row | {"id": key, "blockers": [key], "delay": timedelta(hours=1), "input": {"a": 1}}
    session.execute(insert(model.Stage.__table__).values(staged))
    session.add_all(
        [
            model.Write(write_id="w", sequence=0, staged=1, enqueued=0, duplicates=0, rejected=1),
            model.Reject(**row, field="priority", reason="too large", record="{}"),
            run,
            model.ArchiveChain(run_id=run.id, chain_id=key, part=0, completed_on=datetime.now(UTC).date()),
        ]
    )


def write_rows_of_control(session: Session, model: type[Any]) -> None:
    """Write a row into each table of settings, schedules and limits."""
    minute = timedelta(minutes=1)
    session.add_all(
        [
            model.Queue(name="mail", weight=2, rate_limit=10, rate_period=minute, retain_dead=timedelta(days=90)),
            model.JobType(type_name="send", paused_at=func.now(), paused_by="the night shift", global_concurrency=1),
            model.Schedule(name="nightly", type_name="report", cron="0 3 * * *", input={"a": 1}),
            model.RateState(is_type=False, name="mail", tokens=2.5, spent_at=func.now()),
            model.Quarantine(subject="nightly", statement="fire", error="DataError: no time", retry_at=func.now()),
            model.Threshold(name="long_running", queue="reports", value=3.0),
            model.Audit(id=uuid4(), done_by="ann", operation="pause_queues", arguments={}, matched=1, changed=0, ids=[]),
        ]
    )


TABLES = {
    **{
        "job": 2,
        "job_blocker": 1,
        "job_attempt": 1,
        "job_step": 1,
        "job_event": 1,
        "job_minute": 1,
        "dead_letter": 1,
        "worker": 1,
        "job_queue": 2,
    },
    **dict.fromkeys(("job_bulk_staging", "job_bulk_write", "job_bulk_reject", "archive_run", "archive_chain"), 1),
    **dict.fromkeys(("queue", "job_type", "schedule", "rate_state", "quarantine", "threshold", "job_audit"), 1),
}
"""Tables and a view, and how many rows the functions above write to each."""


@pytest.mark.parametrize(
    "layout",
    [Layout(), Layout("jobs", "mail_", "text", pipeline=True)],
    ids=["default", "elsewhere, text ids, with the pipeline"],
)
def test_rows_survive_every_version_up_and_down(engine: Engine, layout: Layout, request: pytest.FixtureRequest) -> None:
    model = model_of(layout)
    count_by_noun = {noun: count for noun, count in TABLES.items() if layout.has_table(noun)}

    def rows() -> list[list[str]]:
        with engine.connect() as connection:
            tables = [
                f"SELECT (to_jsonb(t) - '{{note,remark}}'::text[])::text FROM {layout.qualified(noun)} t ORDER BY 1"
                for noun in count_by_noun
            ]
            return [list(connection.scalars(text(table.replace("::", r"\:\:")))) for table in tables]

    upgrade(engine, layout)
    with Session(engine) as session, session.begin():
        write_rows(session, model)
        if layout.pipeline:
            write_rows_of_pipelines(session, model)
        write_rows_of_control(session, model)
    first, latest = rows(), ddl.LATEST
    assert [len(table) for table in first] == list(count_by_noun.values())
    following = request.getfixturevalue("next_version")
    assert upgrade(engine, layout) == latest
    assert rows() == first
    assert downgrade(engine, layout, latest) == following
    assert rows() == first


def test_a_dead_letter_update_sets_changed_xid(engine: Engine) -> None:
    model = model_of(Layout())
    upgrade(engine, Layout())
    call(engine, write_rows, model)
    with Session(engine) as session, session.begin():  # as a redrive does, in another transaction than the one it died in
        session.execute(update(model.DeadLetter).values(resolution="dismissed", resolved_at=func.now()))
        assert str(session.scalar(select(model.DeadLetter.changed_xid))) == session.scalar(select(CURRENT_XID))


def test_a_queue_without_a_schema_uses_the_schema_of_its_metadata(make_engine: Callable[[], Engine]) -> None:
    model = model_of(Layout(), MetaData(schema="app"))
    assert model.__jobqueue__ == Layout("app")
    created, migrated = make_engine(), make_engine()
    model.metadata.create_all(created)
    upgrade(migrated, model.__jobqueue__)
    assert catalog_of(created) == catalog_of(migrated)


def test_a_naming_convention_does_not_rename_library_constraints(make_engine: Callable[[], Engine]) -> None:
    convention = {
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
    model = model_of(Layout(), MetaData(naming_convention=convention))
    created, migrated = make_engine(), make_engine()
    model.metadata.create_all(created)
    upgrade(migrated, Layout())
    assert catalog_of(created) == catalog_of(migrated)
