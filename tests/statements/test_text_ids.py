"""Ids that are text: the database and the worker must sort them alike, or a floor passes a job."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import Engine, insert
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue import JobMixin
from sa_jobqueue.statements import claims
from tests.fixtures.database import both_servers, own_database
from tests.statements.cases import claim_parameters
from tests.statements.conftest import Run


class Base(DeclarativeBase):
    pass


class TextJob(JobMixin[str], Base, queue_prefix="text_"):
    pass


@own_database
@both_servers
def test_text_ids_are_ordered_by_code_point_as_in_the_worker(engine: Engine, run: Run) -> None:
    """By code point: most collations of a database would put "a" before "B"."""
    Base.metadata.create_all(engine)
    due = datetime(2026, 1, 1, tzinfo=UTC)
    names = ["a", "B", "ä", "Z", "_", "b", "\U0001f600", "\uffff"]
    with engine.begin() as connection:
        for name in names:
            row = {"id": name, "chain_id": name, "type_name": "test", "chain_type_name": "test", "scheduled_at": due}
            connection.execute(insert(TextJob.__table__).values(row))  # type: ignore[arg-type]
    parameters = claim_parameters(limit=1)
    parameters["cursor_id"] = [""] * len(parameters["queues"])
    order = []
    for _ in names:
        (row,) = run(claims.claim(TextJob), parameters)
        order.append(row.id)
        parameters["cursor_at"], parameters["cursor_id"] = (
            [due] * len(parameters["queues"]),
            [row.id] * len(parameters["queues"]),
        )
    assert order == sorted(names)
