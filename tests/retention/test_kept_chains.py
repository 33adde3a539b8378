"""An application's keys and triggers keep only the rows that they hold, by name; everything else goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine, func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker
from sa_jobqueue.cli import main
from sa_jobqueue.errors import ConflictError, SchemaMissingError
from sa_jobqueue.events import ChainsPruned, ChainsReferenced, ComponentFailed, Event, EventBus, WriteQuarantined
from sa_jobqueue.observe.health import Code, Severity, health
from sa_jobqueue.operations import PruneCursor, Pruned, delete_chains, explain_job, prune
from sa_jobqueue.settings import Retention, RetentionRules
from sa_jobqueue.worker.background import pruner as pruning
from sa_jobqueue.worker.background.pruner import Pruner
from tests.fixtures.database import both_servers
from tests.fixtures.jobs import Jobs
from tests.fixtures.retention import DAY, dead_letters_of, ended, resolved
from tests.fixtures.transactions import call, scalar, scalars
from tests.fixtures.workers import Start, shared

pytestmark = both_servers

RULES = RetentionRules(default=Retention(completed=30 * DAY))
REFUSE = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
  $$ BEGIN IF OLD.queue = 'kept' THEN RAISE EXCEPTION 'kept by law' USING ERRCODE = '{state}'; END IF; RETURN OLD; END $$
"""
HOLDS = {
    "at once": ["CREATE TABLE receipt (job_id uuid REFERENCES job)", "INSERT INTO receipt VALUES (:id)"],
    "restrict": ["CREATE TABLE receipt (job_id uuid REFERENCES job ON DELETE RESTRICT)", "INSERT INTO receipt VALUES (:id)"],
    "deferrable": ["CREATE TABLE receipt (job_id uuid REFERENCES job DEFERRABLE)", "INSERT INTO receipt VALUES (:id)"],
    "deferred": [
        "CREATE TABLE receipt (job_id uuid REFERENCES job DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO receipt VALUES (:id)",
    ],
    "restrict, deferred": [
        "CREATE TABLE receipt (job_id uuid REFERENCES job ON DELETE RESTRICT DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO receipt VALUES (:id)",
    ],
    "several columns": [
        "CREATE UNIQUE INDEX uq_of_receipt ON job (id, type_name)",
        "CREATE TABLE receipt (job_id uuid, kind text, FOREIGN KEY (job_id, kind) REFERENCES job (id, type_name) "
        "DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO receipt VALUES (:id, 'test')",
    ],
    "behind a cascade": [
        "CREATE TABLE receipt (id int PRIMARY KEY, job_id uuid REFERENCES job ON DELETE CASCADE)",
        "CREATE TABLE entry (receipt int REFERENCES receipt DEFERRABLE INITIALLY DEFERRED)",
        "INSERT INTO receipt VALUES (1, :id)",
        "INSERT INTO entry VALUES (1)",
    ],
}
TRIGGERS = {
    "trigger": (
        "P0001",
        "CREATE TRIGGER refuse BEFORE DELETE ON job FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "deferred trigger": (
        "P0001",
        "CREATE CONSTRAINT TRIGGER refuse AFTER DELETE ON job DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "trigger without a right": (
        "42501",
        "CREATE TRIGGER refuse BEFORE DELETE ON job FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
    "trigger of another state": (
        "55000",
        "CREATE TRIGGER refuse BEFORE DELETE ON job FOR EACH ROW EXECUTE FUNCTION refuse()",
    ),
}


def run(engine: Engine, statements: list[str], **parameters: Any) -> None:
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), parameters if ":id" in statement else {})


def refer(engine: Engine, job_id: UUID, hold: str) -> None:
    """Make the application refer to a job."""
    run(engine, HOLDS[hold], id=job_id)


def walk(engine: Engine) -> Iterator[Pruned]:
    cursor: PruneCursor | None = PruneCursor()
    while cursor is not None:
        pruned = call(engine, prune, RULES, cursor=cursor)
        yield pruned
        cursor = pruned.next


@pytest.mark.parametrize(
    "hold", [hold if hold == "at once" else pytest.param(hold, marks=pytest.mark.slow) for hold in HOLDS]
)
def test_one_referenced_chain_is_kept_and_named_and_all_others_go(engine: Engine, jobs: Jobs, hold: str) -> None:
    chains = [ended(jobs, engine) for _ in range(6)]
    refer(engine, chains[2], hold)
    (pruned,) = walk(engine)
    assert (pruned.jobs, pruned.kept, dict(pruned.refused)) == (5, 1, {})
    assert list(pruned.referenced) == [chains[2]]
    assert set(jobs.statuses()) == {chains[2]}


@pytest.mark.slow
@pytest.mark.parametrize("trigger", TRIGGERS)
def test_one_chain_that_a_trigger_refuses_to_delete_is_kept_and_named(engine: Engine, jobs: Jobs, trigger: str) -> None:
    state, statement = TRIGGERS[trigger]
    chains = [ended(jobs, engine), ended(jobs, engine, queue="kept"), ended(jobs, engine)]
    run(engine, [REFUSE.format(state=state), statement])
    (pruned,) = walk(engine)
    assert (pruned.jobs, pruned.kept, dict(pruned.referenced)) == (2, 1, {})
    assert list(pruned.refused) == [chains[1]]
    assert set(jobs.statuses()) == {chains[1]}


def test_prune_names_a_violation_of_the_callers_own_transaction(engine: Engine, jobs: Jobs) -> None:
    chain_id = ended(jobs, engine)
    run(engine, HOLDS["deferred"][:1])
    with Session(engine) as session:
        session.execute(text("INSERT INTO receipt VALUES (gen_random_uuid())"))
        with pytest.raises(ConflictError, match="receipt"):
            prune(session, RULES)
    assert set(jobs.statuses()) == {chain_id}


@pytest.mark.parametrize("hold", ["at once", "restrict", "deferrable", "several columns"])
def test_delete_chains_names_the_foreign_key_of_any_mode(engine: Engine, jobs: Jobs, hold: str) -> None:
    chain_id = ended(jobs, engine)
    refer(engine, chain_id, hold)
    with Session(engine) as session:
        session.execute(text("SET CONSTRAINTS ALL IMMEDIATE"))
        with pytest.raises(ConflictError) as caught:
            delete_chains(session, [chain_id])
    assert "receipt" in (caught.value.constraint or "")
    assert set(jobs.statuses()) == {chain_id}


def logged(events: list[Event], kind: type[Event]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


async def test_a_worker_names_a_foreign_key_once_and_warns_of_no_chain_that_it_keeps(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    chains = [ended(jobs, engine) for _ in range(4)]
    refer(engine, chains[0], "restrict")
    run(engine, ["INSERT INTO receipt VALUES (:id)"], id=chains[1])
    bus, events = EventBus(), list[Event]()
    bus.subscribe(events.append)
    pruner = Pruner(shared(async_engine, JobQueue(retention=RULES.default), events=bus))
    for _ in range(2):
        await pruner.prune()
    assert set(jobs.statuses()) == set(chains[:2])
    [event] = logged(events, ChainsReferenced)
    assert (event.constraint, event.chains, event.chain_id) == ("receipt_job_id_fkey", 2, chains[0])
    assert not logged(events, WriteQuarantined)
    [finding] = [finding for finding in call(engine, health).findings if finding.code is Code.QUARANTINED]
    assert finding.severity is Severity.OK
    assert "receipt_job_id_fkey" in finding.summary
    assert f"2 chains past their retention are kept, such as {chains[0]}" in finding.summary
    run(engine, ["DELETE FROM receipt"])
    pruner._references.clear()  # their pauses have ended
    await pruner.prune()
    assert not jobs.statuses()
    assert scalars(engine, select(Job.Quarantine.subject)) == []


async def test_a_referenced_chain_is_tried_again_after_growing_pauses(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain_id = ended(jobs, engine)
    refer(engine, chain_id, "deferred")
    pruner = Pruner(shared(async_engine, JobQueue(retention=RULES.default)))
    clock: Any = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(pruning, "time", clock)
    tries = []
    for clock.now in (1.0, 2.0, 4.0, 8.0, 13.0):
        await pruner.walk(to_the_end=False)
        tries.append(pruner._references[chain_id].failures)
    assert tries == [1, 1, 2, 2, 3]
    run(engine, ["DELETE FROM receipt"])
    clock.now = 60.0
    await pruner.walk(to_the_end=False)
    assert not jobs.statuses()


async def test_explain_names_the_error_that_keeps_an_ended_chain(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    chain_id = ended(jobs, engine, queue="kept")
    run(engine, [REFUSE.format(state="P0001"), TRIGGERS["trigger"][1]])
    await Pruner(shared(async_engine, JobQueue(retention=RULES.default))).walk(to_the_end=False)
    explained = call(engine, explain_job, chain_id)
    assert explained.sentence.endswith(": RaiseException: kept by law.")
    assert explained.evidence["statement"] == "prune"


async def test_a_walk_that_fails_stops_no_other_and_is_reported(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    ended(jobs, engine)
    run(
        engine,
        [
            "INSERT INTO job_event (name, payload, expires_at) VALUES ('old', '1', now() - interval '1 day')",
            "INSERT INTO job_audit (id, done_by, operation, arguments, matched, changed, ids, done_at) "
            "VALUES (gen_random_uuid(), 'ann', 'pause', '{}', 1, 1, '[]', now() - interval '1 year')",
            "ALTER TABLE dead_letter RENAME TO elsewhere",  # no chain can be deleted, and no dead letter read
        ],
    )
    bus, events = EventBus(), list[Event]()
    bus.subscribe(events.append)
    retention = Retention(completed=30 * DAY, dead_letters=30 * DAY, audit=30 * DAY)
    pruner = Pruner(shared(async_engine, JobQueue(retention=retention), events=bus))
    with pytest.raises(SchemaMissingError, match="dead_letter"):
        await pruner.prune()
    [reported] = logged(events, ComponentFailed)
    assert "dead_letter" in str(reported.error)
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Job.Event)) == 0
        assert connection.scalar(select(func.count()).select_from(Job.Audit)) == 0
        assert connection.scalar(select(func.count()).select_from(Job.Minute)) == 40
    assert len(jobs.statuses()) == 1


async def test_one_audit_record_or_dead_letter_that_cannot_go_is_kept_and_the_others_go(
    engine: Engine, async_engine: AsyncEngine, jobs: Jobs
) -> None:
    for _ in range(3):
        resolved(jobs, engine)
    run(
        engine,
        [
            "INSERT INTO job_audit (id, done_by, operation, arguments, matched, changed, ids, done_at) "
            "SELECT gen_random_uuid(), 'ann', 'pause', '{}', 1, 1, '[]', now() - interval '90 d' FROM generate_series(1, 5)",
            "CREATE TABLE note (record uuid REFERENCES job_audit DEFERRABLE INITIALLY DEFERRED, "
            "letter uuid REFERENCES dead_letter DEFERRABLE INITIALLY DEFERRED)",
            "INSERT INTO note SELECT (SELECT id FROM job_audit ORDER BY id LIMIT 1), "
            "(SELECT id FROM dead_letter ORDER BY id LIMIT 1)",
        ],
    )
    pruner = Pruner(shared(async_engine, JobQueue(retention=Retention(dead_letters=DAY, audit=DAY))))
    await pruner.prune()
    assert scalar(engine, select(func.count()).select_from(Job.Audit)) == 1
    assert len(dead_letters_of(jobs)) == 1


async def test_a_run_until_idle_prunes_before_it_ends(engine: Engine, jobs: Jobs, start: Start) -> None:
    queue: JobQueue[Any] = JobQueue(retention=RULES.default)

    @queue.handler("later")
    def later() -> None: ...

    ended(jobs, engine)
    run(
        engine,
        ["INSERT INTO job_event (name, payload, expires_at) VALUES ('old', '1', now() - interval '1 day')"],
    )
    worker, events = Worker(queue, engine), list[Event]()
    worker.events.subscribe(events.append)
    await worker.run_until_idle()
    assert logged(events, ChainsPruned) == [ChainsPruned(1, 1)]
    with engine.connect() as connection:
        assert connection.scalar(select(func.count()).select_from(Job.Event)) == 0
        assert connection.scalar(select(func.count()).select_from(Job.Minute)) == 40


async def test_a_failure_of_the_last_pruning_is_reported_and_the_run_ends(engine: Engine) -> None:
    queue: JobQueue[Any] = JobQueue(retention=Retention(dead_letters=DAY))

    @queue.handler("later")
    def later() -> None: ...

    run(engine, ["ALTER TABLE job_minute RENAME TO elsewhere"])
    worker, events = Worker(queue, engine), list[Event]()
    worker.events.subscribe(events.append)
    await worker.run_until_idle()
    [reported] = logged(events, ComponentFailed)
    assert reported.component == "pruner"


def test_the_command_prunes_the_rest_and_names_what_it_keeps(database_url: str, engine: Engine, jobs: Jobs) -> None:
    chains = [ended(jobs, engine) for _ in range(3)] + [ended(jobs, engine, queue="kept")]
    refer(engine, chains[0], "deferred")
    run(engine, [REFUSE.format(state="P0001"), TRIGGERS["deferred trigger"][1]])

    def call(*arguments: str) -> str:
        environment = {"SA_JOBQUEUE_URL": database_url}
        result = CliRunner().invoke(main, ["prune", "--older-than", "1d", *arguments], env=environment)
        assert result.exit_code == 0, result.output
        return result.output

    document = json.loads(call("--json"))
    assert (document["jobs"], document["kept"]) == (2, 2)
    assert {(entry["rows"], entry["id"]) for entry in document["kept_by"]} == {(1, str(chains[0])), (1, str(chains[3]))}
    lines = call().splitlines()
    assert any("receipt_job_id_fkey" in line and str(chains[0]) in line for line in lines), lines
    assert any("kept by law" in line and str(chains[3]) in line for line in lines), lines
