"""One claim after another, as a worker sends them that has been running for a while; no commit waits for the disk."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import Connection

from benchmarks import pgbench, rows
from benchmarks.harness import percentile
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from sa_jobqueue import Job
from sa_jobqueue.db.session_settings import GUARDS
from sa_jobqueue.statements import claims
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY
from sa_jobqueue.worker.claim.floors import Floors, Lane

CLAIMS: Final = 200
_WARM: Final = 10
"""Claims before those measured: the driver prepares a statement when it has run a few times."""


def claim_one_at_a_time(place: Place, watch: Stopwatch, *, types: Sequence[str] = (rows.JOB_TYPE,)) -> int:
    """Claim `CLAIMS` jobs, one at a time; note the median, the 99th percentile, and the pages one more claim looks at."""
    priorities = range(MAX_PRIORITY, MIN_PRIORITY - 1, -1)
    floors = Floors([Lane("default", one) for one in priorities], rows.LOWEST_ID)
    fixed: dict[str, Any] = {"types": list(types), "limit": 1, "worker_id": pgbench.WORKER, "grace": rows.GRACE}
    with connect(place) as connection:

        def claim() -> float:
            changed = floors.prepare(time.monotonic(), idle=False)
            parameters = floors.parameters(changed=changed) | fixed
            began = time.monotonic()
            found = connection.execute(claims.claim(Job, changed=changed), parameters).all()
            took = time.monotonic() - began
            taken = [(row.queue, row.priority, row.scheduled_at, row.id) for row in found if row.id is not None]
            floors.advance(
                taken,
                limit=1,
                changed=changed,
                database_now=found[0].now,
                snapshot=(found[0].xmax, found[0].xip),
                started=began,
                now=time.monotonic(),
            )
            return took * len(taken)

        for _ in range(_WARM):  # the first one walks its lanes from the start, as a worker's first one does
            claim()
        with watch:
            waits = [claim() for _ in range(CLAIMS)]
        for changed in (False, True):
            name = "buffers_behind" if changed else "buffers"
            parameters = floors.parameters(changed=changed) | fixed
            watch.figures[name] = buffers(connection, claims.claim(Job, changed=changed), parameters)
    return tell(watch, waits)


def connect(place: Place) -> Connection:
    """Return a connection as a worker's own has it, that does not wait for the disk."""
    guards = " ".join(f"-c {name}={value}" for name, value in GUARDS.items())
    options = f"{guards} -c synchronous_commit=off"
    return place.engine(isolation_level="AUTOCOMMIT", connect_args={"options": options}).connect()


def tell(watch: Stopwatch, waits: Sequence[float]) -> int:
    """Note what the claims took, in ms; return how many they were."""
    watch.figures |= {f"p{percent}_ms": percentile(waits, percent) * 1000 for percent in (50, 99)}
    return len(waits)


def buffers(connection: Connection, statement: Any, parameters: dict[str, Any]) -> float:
    """Return how many pages a statement looks at; it is run."""
    compiled = statement.compile(dialect=connection.dialect)
    explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {compiled}"
    plan = connection.exec_driver_sql(explain, compiled.construct_params(parameters)).scalar_one()
    if isinstance(plan, str):
        plan = json.loads(plan)
    return float(plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"])
