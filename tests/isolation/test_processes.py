"""What a worker makes of what its children say: it believes nothing; and the watch over its own memory."""

from __future__ import annotations

import asyncio
import json
import os
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.context import ClaimedJob, Continuation
from sa_jobqueue.errors import InvalidJobError, InvalidOutputError, IsolatedHandlerError
from sa_jobqueue.types import LONGEST, AttemptOutcome, DeadReason
from sa_jobqueue.worker.background.memory_guard import MemoryGuard
from sa_jobqueue.worker.finish.outcomes import MAX_TEXT, Finished, of_error
from sa_jobqueue.worker.memory import resident_bytes
from sa_jobqueue.worker.run.isolation.answers import of_raise, of_return, result_of
from sa_jobqueue.worker.run.isolation.messages import Message, packed, packed_job, parsed, unpacked, unpacked_job
from tests.fixtures.workers import PATIENCE

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
JOB = ClaimedJob(
    id=UUID(int=1),
    type_name="t",
    queue="q",
    fairness_key="",
    priority=0,
    chain_id=UUID(int=1),
    chain_type_name="t",
    chain_index=0,
    input={"a": [1, "é"]},
    input_version=1,
    attempt=1,
    max_attempts=3,
    timeout=timedelta(days=2, microseconds=1),
    created_at=NOW,
    scheduled_at=NOW,
    started_at=NOW,
    trace_context=None,
    chain_trace_context=None,
)
queue = JobQueue()


@queue.handler("t", isolation="process")
def handler(payload: Any) -> Any: ...


def ended(**fields: Any) -> Message:
    """Return the message of a failed attempt, with other fields where they are given."""
    return of_raise(JOB, ValueError("bad"), handler.job_type) | fields


def end_of(answer: Message) -> Finished:
    """Return the end that an answer means."""
    with pytest.raises(IsolatedHandlerError) as raised:
        result_of(answer, JOB, Job)
    return of_error(JOB, raised.value, None)


def test_column_values_survive_the_round_trip_to_a_child() -> None:
    assert unpacked_job(packed_job(JOB)) == JOB
    values = {"a": Decimal("1.50"), "b": NOW.date(), "c": {"kind": "uuid"}, "d": None}
    assert unpacked(packed(values)) == values
    with pytest.raises(TypeError, match="stamp cannot be carried between processes"):
        packed({"stamp": object()})


def test_a_continuation_from_a_child_is_rebuilt_from_allowed_columns_only() -> None:
    made = queue.job(
        "t", {"n": 7}, at=NOW, priority=3, timeout=timedelta(hours=1), blockers=[UUID(int=5)], fairness_key="ann"
    )
    answer = of_return(Continuation(made), handler.job_type)
    remade = result_of(json.loads(json.dumps(answer)), JOB, Job)
    assert isinstance(remade, Job)
    assert (remade.id, remade.input, remade.priority, remade.timeout) == (made.id, {"n": 7}, 3, timedelta(hours=1))
    assert (remade._at, remade._delay, remade.fairness_key, remade.chain_id) == (NOW, None, "ann", JOB.chain_id)
    assert [one.chain_id for one in remade._blockers] == [UUID(int=5)]
    columns = packed({"type_name": "t", "input": 7, "leased_by": "me"})
    for forged in ({"status": ["json", "completed"]}, {"attempt": ["json", 9]}, {"no_column": ["json", 1]}):
        with pytest.raises((ValueError, TypeError)):
            result_of(answer | {"columns": columns | forged}, JOB, Job)
    with pytest.raises(InvalidJobError, match="priority"):
        result_of(answer | {"columns": packed({"type_name": "t", "priority": 99})}, JOB, Job)


@pytest.mark.parametrize(
    "forged",
    [
        {"status": "completed"},
        {"status": "running"},
        {"status": "dead", "reason": None},
        {"status": "pending", "reason": "lost"},
        {"outcome": "lost"},
        {"outcome": "released"},
        {"outcome": "nonsense"},
        {"status": "cancelled"},
        {"due": packed({"delay": timedelta(0), "at": NOW.replace(tzinfo=None)})},
        {"due": packed({"delay": timedelta(0), "at": NOW.replace(year=9999)})},
        {"due": packed({"delay": "soon", "at": None})},
        {"due": {}},
        {"error": "text"},
        {"is": "nothing"},
    ],
)
def test_an_invalid_outcome_from_a_child_is_refused(forged: Message) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)) as refused:
        result_of(ended(**forged), JOB, Job)
    assert not isinstance(refused.value, IsolatedHandlerError)


def test_a_failure_reported_by_a_child_is_bounded_and_sanitized() -> None:
    error = {"type": "a\x00b", "message": "x" * 10**6, "traceback": "\ud800"}
    due = packed({"delay": timedelta(days=10**6), "at": None})
    end = end_of(ended(error=error, fingerprint="f" * 99 + "\x00", due=due))
    assert (end.status, end.outcome, end.reason) == (JobStatus.PENDING, AttemptOutcome.FAILED, None)
    assert end.delay == LONGEST
    assert end.error == {"type": "a\\x00b", "message": "x" * MAX_TEXT, "traceback": "\\ud800"}
    assert end.fingerprint == "f" * 16
    dead = end_of(ended(status="dead", reason="discarded"))
    assert (dead.status, dead.reason) == (JobStatus.DEAD, DeadReason.DISCARDED)


@pytest.mark.parametrize("output", ['"\\u0000"', '"\\ud800"', "NaN", "[" * 600 + "]" * 600, f'"{"x" * 2**20}"'])
def test_an_output_that_the_database_refuses_fails_its_own_attempt(output: str) -> None:
    with pytest.raises(InvalidOutputError):
        result_of({"is": "output", "output": output}, JOB, Job)


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b'{"is": 3}', b'"is"'])
def test_a_malformed_frame_from_a_child_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):
        parsed(body)


async def test_the_memory_guard_reports_an_exceeded_limit_once() -> None:
    held, reported = iter([10, 20, 30, 31]), list[int]()
    guard = MemoryGuard(20, reported.append, held=lambda: next(held), rest=timedelta(0))
    await asyncio.wait_for(guard.run(), PATIENCE)
    assert reported == [30]


def test_resident_memory_of_a_process_is_measured_in_bytes() -> None:
    before = resident_bytes(os.getpid())
    block = b"x" * 2**26
    assert resident_bytes(os.getpid()) - before > 2**25
    assert len(block) == 2**26
    assert resident_bytes(2**30) == 0  # there is no such process
