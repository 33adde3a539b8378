"""An id that is not of the queue's id type is refused by its field, before any statement is sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.orm import Session

from sa_jobqueue import cancel_jobs, get_chain, get_job, list_jobs
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.operations import (
    ChainFilter,
    DeadLetterFilter,
    JobFilter,
    cancel_chains,
    complete_job,
    delete_chains,
    dismiss_dead_letters,
    explain_job,
    get_progress,
    group_dead_letters,
    list_attempts,
    list_blocked_jobs,
    list_blockers,
    list_chain_jobs,
    list_chains,
    list_dead_letters,
    redrive_dead_letters,
    rerun_job,
    reschedule_jobs,
    set_priority,
    trigger_jobs,
)
from sa_jobqueue.operations.completions import lock_chain

GOOD = uuid4()
ASKED: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (get_job, {"job_id": "x"}, "job_id"),
    (explain_job, {"job_id": 7}, "job_id"),
    (get_progress, {"job_id": "x"}, "job_id"),
    (list_attempts, {"job_id": "x"}, "job_id"),
    (list_blockers, {"job_id": str(GOOD)}, "job_id"),
    (complete_job, {"job_id": "x"}, "job_id"),
    (list_jobs, {"where": JobFilter(ids=[GOOD, "x"])}, "ids[1]"),
    (list_jobs, {"where": JobFilter(chain_ids=["x"])}, "chain_ids[0]"),
    (list_jobs, {"after": "x"}, "after"),
    (set_priority, {"priority": 3, "where": JobFilter(ids=["x"])}, "ids[0]"),
    (cancel_jobs, {"ids": [None]}, "ids[0]"),
    (cancel_jobs, {"ids": "x"}, "ids"),
    (reschedule_jobs, {"ids": ["x"]}, "ids[0]"),
    (trigger_jobs, {"ids": [GOOD, "x"]}, "ids[1]"),
    (get_chain, {"chain_id": "x"}, "chain_id"),
    (lock_chain, {"chain_id": "x"}, "chain_id"),
    (list_chains, {"where": ChainFilter(ids=["x"])}, "ids[0]"),
    (list_chains, {"where": ChainFilter(job_ids=["x"])}, "job_ids[0]"),
    (list_chains, {"after": "x"}, "after"),
    (list_chain_jobs, {"chain_id": "x"}, "chain_id"),
    (list_blocked_jobs, {"chain_id": "x"}, "chain_id"),
    (list_blocked_jobs, {"chain_id": GOOD, "after": "x"}, "after"),
    (cancel_chains, {"chain_ids": ["x"]}, "chain_ids[0]"),
    (delete_chains, {"chain_ids": ["x"]}, "chain_ids[0]"),
    (list_dead_letters, {"where": DeadLetterFilter(ids=["x"])}, "ids[0]"),
    (list_dead_letters, {"after": "x"}, "after"),
    (group_dead_letters, {"where": DeadLetterFilter(job_ids=["x"])}, "job_ids[0]"),
    (rerun_job, {"job_id": "x"}, "job_id"),
    (redrive_dead_letters, {"where": DeadLetterFilter(ids=["x"])}, "ids[0]"),
    (dismiss_dead_letters, {"where": DeadLetterFilter(ids=["x"]), "by": "me"}, "ids[0]"),
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
