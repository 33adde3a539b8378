"""Workers on the executors of a cluster: the gain of a second executor, for jobs that wait and for jobs that compute."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Final

from sqlalchemy.orm import Session

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.spark_app import computing, waiting

_PATIENCE: Final = 300.0
_HANDLERS: Final = {"waiting": waiting, "computing": computing}
_SPAN: Final = "SELECT extract(epoch FROM max(completed_at) - min(started_at)) FROM job WHERE status = 'completed'"
_DONE: Final = "SELECT count(*) FROM job WHERE status = 'completed'"


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="executors",
        says="jobs of 20 ms by workers of one slot, one an executor of a standalone cluster; the start is not counted",
        cases=[
            Case(
                name=f"{kind}, {executors} executor{'s' * (executors > 1)}",
                run=partial(_run, kind, executors),
                against=Comparison(case=f"{kind}, 1 executor", figure="jobs_per_second") if executors > 1 else None,
                rated=False,
            )
            for kind in _HANDLERS
            for executors in (1, 2)
        ],
        jobs=1_000,
    )


def _run(kind: str, executors: int, place: Place, watch: Stopwatch, jobs: int) -> int:
    with Session(place.engine()) as session:
        _HANDLERS[kind].enqueue_many(session, [None] * jobs)
        session.commit()
    watch.round_trips, watch.is_divided = None, False
    with watch:
        subprocess.run(
            [sys.executable, "-m", "benchmarks.cluster", str(executors)],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            cwd=Path(__file__).parent.parent.parent,
            env=os.environ | {"SA_JOBQUEUE_URL": place.url},
        )
    job_count = int(place.scalar(_DONE))
    watch.figures["jobs_per_second"] = job_count / float(place.scalar(_SPAN))
    return job_count
