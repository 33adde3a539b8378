"""The statements about steps, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import steps, visibility
from sa_jobqueue.types import StepKind
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import BATCH, NOBODY, PK, Case, World

NONE: frozenset[str] = frozenset()


def recording(world: World) -> dict[str, Any]:
    """Give the parameters that record a step of a first attempt."""
    fence = {"job_id": world.running[0], "job_attempt": 1, "worker_id": WORKER}
    return fence | {"step_name": "ask", "step_key": "", "step_output": "1", "took": timedelta(seconds=1)}


def waiting(world: World) -> dict[str, Any]:
    """Give the parameters that record a wait of a first attempt."""
    fence = {"job_id": world.running[0], "job_attempt": 1, "worker_id": WORKER, "step_name": "ask", "step_key": ""}
    return fence | {"event": "approved:7", "took": timedelta(days=1), "is_over": False, "step_output": None}


def several(world: World) -> dict[str, Any]:
    """Give the ids of chains."""
    return {"ids": list(world.running[:BATCH])}


def fanning_out(world: World) -> dict[str, Any]:
    """Give the parameters that record two children of a first attempt."""
    fence = {"job_id": world.running[0], "job_attempt": 1, "worker_id": WORKER, "is_over": False}
    children = {"names": ["ship"] * 2, "keys": ["1", "2"], "child_chain_ids": [NOBODY] * 2, "outputs": [None] * 2}
    return fence | children


def sending(world: World) -> dict[str, Any]:
    """Give the parameters that send an event for which no job waits."""
    return {"event": "approved:7", "payload": "1", "keep": timedelta(days=1)}


def copying(world: World) -> dict[str, Any]:
    """Give the parameters that copy the steps of a job that has none."""
    return {"job_id": NOBODY, "copy_id": NOBODY, "step_name": "charge"}


def listing(world: World) -> dict[str, Any]:
    """Give the parameters of a page of awaited events."""
    return {"after": "", "scan_limit": 100, "limit": 100}


STEP_CASES = [
    Case("steps_recorded", lambda: steps.recorded(Job), NONE, lambda world: {"job_id": NOBODY}),
    Case("steps_record", lambda: steps.record(Job, StepKind.STEP), PK, recording),
    Case(
        "steps_record_in_session",
        lambda: steps.record(Job, StepKind.TRANSACTION, in_session=True),
        PK,
        lambda world: recording(world) | {"table_oid": world.table_oid},
        guarded=False,
    ),
    Case(
        "rows_in_session",
        lambda: visibility.rows(Job),
        PK,
        lambda world: {"ids": list(world.running[:BATCH]), "table_oid": world.table_oid},
        guarded=False,
    ),
    Case("steps_lock_event", lambda: steps.lock_event(Job), NONE, lambda world: {"event": "approved:7"}),
    Case("steps_event_sent", lambda: steps.event_sent(Job), NONE, lambda world: {"event": "approved:7"}),
    Case("steps_wait", lambda: steps.record(Job, StepKind.WAIT), PK, waiting),
    Case("steps_expired_events", lambda: steps.expired_events(Job), NONE, lambda world: {"limit": 100, "excluded": ["a"]}),
    Case("steps_delete_events", lambda: steps.delete_events(Job), NONE, lambda world: {"names": ["approved:7"]}),
    Case("steps_open_child", lambda: steps.open_child(Job), NONE, lambda world: {"job_id": NOBODY, "ids": None}),
    Case("steps_children", lambda: steps.children(Job), NONE, lambda world: {"job_ids": [NOBODY]}),
    Case("steps_copy_before", lambda: steps.copy_before(Job), PK, copying),
    Case("steps_lost_children", lambda: steps.lost_children(Job), PK, copying),
    Case("steps_child_results", lambda: steps.child_results(Job), PK | {"uq_job_chain"}, several),
    Case("steps_record_children", lambda: steps.record_children(Job), PK, fanning_out),
    Case("steps_record_sleep", lambda: steps.record(Job, StepKind.SLEEP), PK, recording),
]
