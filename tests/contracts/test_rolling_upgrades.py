"""A worker of the release before, beside tables that the next release has migrated, as in every deploy."""

from __future__ import annotations

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker, ddl
from sa_jobqueue.events import SchemaAhead
from sa_jobqueue.worker.logs import describe
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import enqueue
from tests.fixtures.transactions import write
from tests.fixtures.workers import EventLog, quick


@own_database
@both_servers
async def test_a_worker_older_than_the_schema_runs_jobs_and_logs_a_warning(engine: Engine) -> None:
    queue = JobQueue()

    @queue.handler("test")
    async def run() -> int:
        return 7

    ahead = ddl.LATEST + 1
    write(engine, f"COMMENT ON TABLE job IS 'sa_jobqueue version={ahead}'")
    enqueue(engine, job := Job("test"))
    worker = Worker(queue, engine, options=quick())
    log = EventLog(worker)
    await worker.run_until_idle()
    with Session(engine) as session:
        assert session.get_one(Job, job.id).status is JobStatus.COMPLETED
    (event,) = log.of(SchemaAhead)
    assert (event.version, event.known_version) == (ahead, ddl.LATEST)
    record = describe(event)
    assert f"found schema version {ahead}, newer than its own ({ddl.LATEST})" in record.message % record.arguments
