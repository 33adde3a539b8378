"""Queues with text ids, a schema, a prefix, and columns of the application's own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, Integer, insert, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sa_jobqueue import JobMixin, JobStatus
from sa_jobqueue.pipeline.archive import UnarchivedColumnsError, archive, preview, read
from sa_jobqueue.pipeline.history import DATASETS
from tests.archive.sample_data import fill, in_archive, in_tables, states
from tests.fixtures.chains import Chains
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.schemas import NASTY_SCHEMA
from tests.fixtures.transactions import write


class Base(DeclarativeBase):
    pass


class Mail(JobMixin[str], Base, queue_schema=NASTY_SCHEMA, queue_prefix="m_", queue_pipeline=True):
    tenant: Mapped[int] = mapped_column(Integer, nullable=True)
    tags: Mapped[Any] = mapped_column(JSONB, nullable=True)


def test_a_column_that_the_archive_would_not_keep_is_refused_before_anything_is_moved(
    engine: Engine, tmp_path: Path
) -> None:
    fill(engine)
    before = in_tables(engine)
    for table, cure in (("job", "--app"), ("job_attempt", "drop them")):
        write(engine, f"ALTER TABLE {table} ADD COLUMN tenant int, ADD COLUMN note text DEFAULT 'x'")
        for act in (
            lambda: archive(engine, tmp_path, before=timedelta(days=30)),
            lambda: preview(engine, before=timedelta(days=30)),
        ):
            with pytest.raises(UnarchivedColumnsError, match=f"note, tenant of table {table}: .*{cure}") as raised:
                act()
            assert (raised.value.table, raised.value.columns) == (table, ("note", "tenant"))
        write(engine, f"ALTER TABLE {table} DROP COLUMN tenant, DROP COLUMN note")
    assert in_tables(engine) == before
    assert list(tmp_path.iterdir()) == []


@own_database
@both_servers
def test_archiving_supports_text_ids_schema_prefix_and_application_columns(engine: Engine, tmp_path: Path) -> None:
    Base.metadata.create_all(engine)
    chains = Chains(engine, Mail)
    old = datetime.now(UTC) - timedelta(days=40)
    ids = ["ä", "B", "a'b\x1f"]
    for job_id in ids:
        chains.add(JobStatus.COMPLETED, id=job_id, chain_id=job_id, tenant=7, tags={"x": ["ä"]})
    with engine.begin() as connection:
        connection.execute(update(Mail).values(chain_completed_at=old))
        waits = {"job_id": "B", "blocked_by_chain_id": "ä", "index": 0, "is_resolved": True}
        connection.execute(insert(Mail.Blocker).values(waits))
    before = in_tables(engine, Mail)
    archive(engine, tmp_path, before=timedelta(days=30), model=Mail)
    assert in_archive(tmp_path) == before
    assert in_tables(engine, Mail) == {name: {} for name in DATASETS}
    assert read(tmp_path)["application"].to_pylist() == ['{"tags": {"x": ["ä"]}, "tenant": 7}'] * 3
    assert states(engine, Mail) == ["done"]
