"""What blocks a worker's event loop is named while it does, with the stack, and once a minute at most."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, WorkerOptions
from sa_jobqueue.worker import assembly
from sa_jobqueue.worker.background import vitals
from sa_jobqueue.worker.background.vitals import VitalSigns
from tests.fixtures.jobs import Jobs
from tests.fixtures.workers import PATIENCE, Start, until, wait_until

pytestmark = pytest.mark.every_python


class Warnings(logging.Handler):
    """The warnings of a blocked loop, and an event that is set by each."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.records: list[logging.LogRecord] = []
        self.arrived = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "event", "") == "EventLoopBlocked":
            self.records.append(record)
            self.arrived.set()


@pytest.fixture
def warnings() -> Iterator[Warnings]:
    warnings_seen, logger = Warnings(), logging.getLogger("sa_jobqueue.worker")
    logger.addHandler(warnings_seen)
    yield warnings_seen
    logger.removeHandler(warnings_seen)


@pytest.mark.parametrize("is_child", [False, True], ids=["handler", "task of it"])
async def test_a_handler_that_blocks_the_event_loop_is_logged_while_it_blocks(
    is_child: bool, engine: Engine, jobs: Jobs, start: Start, warnings: Warnings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (vitals, assembly):
        monkeypatch.setattr(module, "TICK", 0.02)
    monkeypatch.setattr(vitals, "LIMIT", 0.1)
    queue = JobQueue()

    async def block() -> None:
        warnings.arrived.wait(PATIENCE)  # as time.sleep or a synchronous client

    @queue.handler("blocks")
    async def blocks() -> None:
        await (asyncio.create_task(block(), name="a task") if is_child else block())

    with Session(engine) as session, session.begin():
        session.add(job := blocks.job())
        session.flush()
        job_id = job.id
    async with start(queue):
        await until(lambda: jobs.status(job_id).value == "completed")
    (record,) = warnings.records
    fields: dict[str, Any] = vars(record)
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("event loop blocked for over ")
    assert fields["stack_info"].startswith("Stack (most recent call last):\n")
    assert "in block\n    warnings.arrived.wait(PATIENCE)" in fields["stack_info"]
    if is_child and sys.version_info < (3, 12):
        assert "by task a task" in record.getMessage()
        return
    assert (fields["job_id"], fields["job_type"], fields["job_attempt"]) == (str(job_id), "blocks", 1)
    assert fields["handler"] == f"{__name__}:{blocks.job_type.func.__qualname__}"
    assert f"job {job_id} (blocks) attempt 1, handler {fields['handler']}" in record.getMessage()


async def test_a_blocking_job_type_is_logged_at_most_once_a_minute(warnings: Warnings) -> None:
    clock, name = 1000.0, "mail"
    task = asyncio.current_task()
    assert task is not None
    signs = VitalSigns(WorkerOptions(), clock=lambda: clock)
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    for clock, name, count in [(1000.0, "mail", 1), (1059.9, "mail", 1), (1059.9, "text", 2), (1060.0, "mail", 3)]:
        task.set_name(name)
        signs._report(loop, thread_id, lambda task: (None, ""), 1.0)
        assert len(warnings.records) == count, (clock, name)


async def test_an_event_loop_without_a_running_task_is_not_reported_as_blocked(warnings: Warnings) -> None:
    """As after a pause of the whole process, or where the processor is taken."""
    loop, thread_id = asyncio.get_running_loop(), threading.get_ident()
    signs = VitalSigns(WorkerOptions())

    def report() -> None:
        wait_until(lambda: asyncio.current_task(loop) is None)
        signs._report(loop, thread_id, lambda task: (None, ""), 1.0)

    await asyncio.to_thread(report)
    assert warnings.records == []
