"""The statements about steps, in the shape of `cases`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.statements import steps
from sa_jobqueue.types import StepKind
from tests.fixtures.jobs import WORKER
from tests.statements.shapes import NOBODY, PK, Case, World

NONE: frozenset[str] = frozenset()


def recording(world: World) -> dict[str, Any]:
    """Give the parameters that record a step of a first attempt."""
    fence = {"job_id": world.running[0], "job_attempt": 1, "worker_id": WORKER}
    return fence | {"step_name": "ask", "step_key": "", "step_output": "1", "took": timedelta(seconds=1)}


STEP_CASES = [
    Case("steps_recorded", lambda: steps.recorded(Job), NONE, lambda world: {"job_id": NOBODY}),
    Case("steps_record", lambda: steps.record(Job, StepKind.STEP), PK, recording),
    Case("steps_record_sleep", lambda: steps.record(Job, StepKind.SLEEP), PK, recording),
]
