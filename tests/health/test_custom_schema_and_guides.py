"""A queue in a schema of its own with ids of text; and guides that know every name the report and the metrics use."""

from __future__ import annotations

from pathlib import Path

from prometheus_client import CollectorRegistry
from sqlalchemy import Engine
from sqlalchemy.orm import DeclarativeBase, Session

from sa_jobqueue import JobMixin, events
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.observe.metrics.database import DatabaseCollector
from sa_jobqueue.observe.metrics.workers import subscribe
from sa_jobqueue.statements.session_names import name_session
from tests.fixtures.holders import Holders
from tests.fixtures.schemas import NASTY_SCHEMA

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


class Base(DeclarativeBase):
    pass


class Mail(JobMixin[str], Base, queue_schema=NASTY_SCHEMA, queue_prefix="post_"):
    pass


def test_a_queue_in_another_schema_with_text_ids_has_the_same_report(engine: Engine, holders: Holders) -> None:
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Mail("letter", id="order/7"))
    with holders.session("BEGIN", "SELECT pg_current_xact_id()", name_session("order/7")):
        report = health(engine, model=Mail)
    assert report.due == 1
    assert {table.name for table in report.tables} >= {"post_job", "post_job_attempt", "post_worker"}
    assert "post_ix_job_claim" in {index.name for index in report.indexes}
    (holder,) = report.horizon.holders
    assert (holder.kind, holder.job_id, holder.type_name) == ("handler", "order/7", "letter")
    assert {finding.code for finding in report.findings} == {Code.NO_WORKER}


def test_the_guides_document_every_finding_and_metric(engine: Engine) -> None:
    runbook, monitoring = (GUIDES / "on-call.md").read_text(), (GUIDES / "monitoring.md").read_text()
    assert [code for code in Code if f"| `{code}` |" not in runbook] == []
    registry = CollectorRegistry()
    subscribe(events.EventBus(), registry, types=[], running=dict, slots=1)
    registry.register(DatabaseCollector(lambda: health(engine)))
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()}
    unknown = [name for name in names if f"{name.removeprefix('sa_jobqueue_')}`" not in monitoring]
    assert unknown == []
