"""The statements behind traces, in the shape of `cases`."""

from __future__ import annotations

from sa_jobqueue import Job
from sa_jobqueue.statements import traces
from tests.statements.shapes import PK, Case

TRACE_CASES = [
    Case(
        "trace_linked",
        lambda: traces.linked(Job),
        PK | {"pk_job_blocker"},
        lambda world: {"job_id": world.pending[0]},
    ),
]
