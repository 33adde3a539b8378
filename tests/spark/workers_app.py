"""An application for workers on executors: their processes import it by its name."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue

jobs: JobQueue[Any] = JobQueue()
EFFECTS = "CREATE TABLE effect (job_id uuid NOT NULL, attempt int NOT NULL, pid int NOT NULL)"


@jobs.handler("effect")
def effect(payload: dict[str, Any], session: Session, ctx: AttemptContext) -> None:
    """Write a row with the completion. With a `gate`, report where the first attempt runs, and wait until it is open."""
    if "gate" in payload and ctx.attempt == 1:
        gate = Path(payload["gate"])
        (gate / f"{ctx.job.id}.{os.getpid()}").touch()
        deadline = time.monotonic() + 60
        while not (gate / "open").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    row = {"job_id": ctx.job.id, "attempt": ctx.attempt, "pid": os.getpid()}
    session.execute(text("INSERT INTO effect VALUES (:job_id, :attempt, :pid)"), row)


@jobs.handler("fails", max_attempts=1)
def fails(payload: None) -> None:
    """Fail."""
    raise ValueError("the handler's own")


not_jobs = 7
empty: JobQueue[Any] = JobQueue()
