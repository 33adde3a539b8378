"""An id that is not of the queue's id type is refused by its field, before any statement is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import cancel_jobs, get_chain, get_job, list_jobs, operations
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.operations.completions import lock_chain

GOOD = uuid4()
ASKED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (get_job, {"job_id": "x"}, "job_id"),
    (operations.explain_job, {"job_id": 7}, "job_id"),
    (operations.get_progress, {"job_id": "x"}, "job_id"),
    (operations.list_attempts, {"job_id": "x"}, "job_id"),
    (operations.list_blockers, {"job_id": str(GOOD)}, "job_id"),
    (operations.complete_job, {"job_id": "x"}, "job_id"),
    (list_jobs, {"where": operations.JobFilter(ids=[GOOD, "x"])}, "ids[1]"),
    (list_jobs, {"where": operations.JobFilter(chain_ids=["x"])}, "chain_ids[0]"),
    (list_jobs, {"after": "x"}, "after"),
    (operations.set_priority, {"priority": 3, "where": operations.JobFilter(ids=["x"])}, "ids[0]"),
    (cancel_jobs, {"ids": [None]}, "ids[0]"),
    (cancel_jobs, {"ids": "x"}, "ids"),
    (operations.reschedule_jobs, {"ids": ["x"]}, "ids[0]"),
    (operations.trigger_jobs, {"ids": [GOOD, "x"]}, "ids[1]"),
    (get_chain, {"chain_id": "x"}, "chain_id"),
    (lock_chain, {"chain_id": "x"}, "chain_id"),
    (operations.list_chains, {"where": operations.ChainFilter(ids=["x"])}, "ids[0]"),
    (operations.list_chains, {"where": operations.ChainFilter(job_ids=["x"])}, "job_ids[0]"),
    (operations.list_chains, {"after": "x"}, "after"),
    (operations.list_chain_jobs, {"chain_id": "x"}, "chain_id"),
    (operations.list_blocked_jobs, {"chain_id": "x"}, "chain_id"),
    (operations.list_blocked_jobs, {"chain_id": GOOD, "after": "x"}, "after"),
    (operations.cancel_chains, {"chain_ids": ["x"]}, "chain_ids[0]"),
    (operations.delete_chains, {"chain_ids": ["x"]}, "chain_ids[0]"),
    (operations.list_dead_letters, {"where": operations.DeadLetterFilter(ids=["x"])}, "ids[0]"),
    (operations.list_dead_letters, {"after": "x"}, "after"),
    (operations.group_dead_letters, {"where": operations.DeadLetterFilter(job_ids=["x"])}, "job_ids[0]"),
    (operations.rerun_job, {"job_id": "x"}, "job_id"),
    (operations.redrive_dead_letters, {"where": operations.DeadLetterFilter(ids=["x"])}, "ids[0]"),
    (operations.dismiss_dead_letters, {"where": operations.DeadLetterFilter(ids=["x"]), "by": "me"}, "ids[0]"),
]


def test_an_invalid_id_is_refused_without_a_statement(engine: Engine) -> None:
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    with Session(engine) as session:
        for operation, ids, field in ASKED:
            with pytest.raises(InvalidJobError) as refused:
                operation(session, **ids)
            assert refused.value.field == field, operation
            assert "must be" in refused.value.reason, operation
    assert sent == []
    with pytest.raises(InvalidJobError, match=r"must be a UUID, .*'x'; uuid\.UUID\(\.\.\.\) reads one from text"):
        get_job(session, "x")
