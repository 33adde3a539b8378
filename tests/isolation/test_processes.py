"""The messages between a worker and its children; and the watch over its own memory."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from sa_jobqueue import Job, JobQueue
from sa_jobqueue.context import AttemptContext, ClaimedJob, Continuation
from sa_jobqueue.errors import AttemptSignal, Discard, InvalidJobError, IsolatedHandlerError, Snooze
from sa_jobqueue.worker.finish.outcomes import of_error
from sa_jobqueue.worker.memory import resident_bytes
from sa_jobqueue.worker.run.isolation.messages import job_of, of_attempt, of_raise, of_return, packed, result_of, unpacked

pytestmark = pytest.mark.every_python

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


def test_column_values_survive_the_round_trip_to_a_child() -> None:
    request = of_attempt(AttemptContext(JOB, "w", lambda *_: None), None)
    assert job_of(json.loads(json.dumps(request))) == JOB
    values = {"a": Decimal("1.50"), "b": NOW.date(), "c": {"kind": "uuid"}, "d": None}
    assert unpacked(packed(values)) == values
    with pytest.raises(TypeError, match="stamp cannot be carried between processes"):
        packed({"stamp": object()})


def test_a_continuation_from_a_child_is_rebuilt_from_the_columns_that_it_sets() -> None:
    job = queue.job(
        "t", {"n": 7}, at=NOW, priority=3, timeout=timedelta(hours=1), blockers=[UUID(int=5)], fairness_key="ann"
    )
    answer = of_return(Continuation(job), handler.job_type)
    remade = result_of(json.loads(json.dumps(answer)), JOB, Job)
    assert isinstance(remade, Job)
    assert (remade.id, remade.input, remade.priority, remade.timeout) == (job.id, {"n": 7}, 3, timedelta(hours=1))
    assert (remade._at, remade._delay, remade.fairness_key, remade.chain_id) == (NOW, None, "ann", JOB.chain_id)
    assert [blocker.chain_id for blocker in remade._blockers] == [UUID(int=5)]
    with pytest.raises(InvalidJobError, match="priority"):
        result_of(answer | {"values": packed({"type_name": "t", "priority": 99})}, JOB, Job)


def test_the_end_that_a_child_decided_is_the_workers() -> None:
    for error, attempt in ((ValueError("a\x00b"), 1), (ValueError("last"), 3), (Snooze(at=NOW), 1), (Discard("no use"), 1)):
        job = JOB._replace(attempt=attempt)
        decided = of_error(job, error, handler.job_type)
        answer = json.loads(json.dumps(of_raise(job, error, handler.job_type)))
        with pytest.raises((IsolatedHandlerError, AttemptSignal)) as raised:
            result_of(answer, job, Job)
        end = of_error(job, raised.value, None)
        # A delay is drawn each time.
        assert replace(end, delay=decided.delay) == decided


def test_resident_memory_of_a_process_is_measured_in_bytes() -> None:
    before = resident_bytes(os.getpid())
    block = b"x" * 2**26
    assert resident_bytes(os.getpid()) - before > 2**25
    assert len(block) == 2**26
    assert resident_bytes(2**30) == 0  # there is no such process
