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
from sa_jobqueue.db.sessions import GUARDS
from sa_jobqueue.statements import arrivals, claims
from sa_jobqueue.worker.claim.arrivals import CATCH_UP_EVERY
from sa_jobqueue.worker.claim.cursors import START, Arrival, Cursors, Lane, Plan, Segment, Snapshot

CLAIMS: Final = 200
_WARM: Final = 10
"""Claims before those measured: the driver prepares a statement when it has run a few times."""


def claim_one_at_a_time(place: Place, watch: Stopwatch) -> int:
    """Claim `CLAIMS` jobs, one at a time; note the median, the 99th percentile, and the pages one more claim looks at.

    As a busy worker does: lanes with jobs are open, it catches up every 50 ms, and a catch-up counts to the claim after it.
    """
    types = (rows.JOB_TYPE,)
    cursors = Cursors((), rows.LOWEST_ID)
    worker_parameters: dict[str, Any] = {"worker_id": pgbench.WORKER, "grace": rows.GRACE}
    caught_up_at = 0.0
    with connect(place) as connection:

        def catch_up() -> None:
            parameters = catch_up_parameters(cursors, types)
            arrival_rows = connection.execute(arrivals.catch_up(Job), parameters).all()
            late = [
                Arrival(Lane(row.queue, row.fairness_key, row.priority), row.scheduled_at, row.id, row.changed_xid)
                for row in arrival_rows
                if row.id is not None
            ]
            snapshot = arrival_rows[0]
            cursors.caught_up(late, Snapshot(snapshot.xmax, snapshot.xip), snapshot.now, is_cut=False)

        def claim() -> float:
            nonlocal caught_up_at
            began = time.monotonic()
            if began - caught_up_at >= CATCH_UP_EVERY:
                catch_up()
                caught_up_at = began
            late = [arrival for of_lane in cursors.late.values() for arrival in of_lane.items()]
            claim_plan = plan._replace(late=dict(late[:1]))
            answer = connection.execute(claims.claim(Job), cursors.parameters(claim_plan) | worker_parameters).all()
            took = time.monotonic() - began
            claimed_rows = [row for row in answer if row.id is not None]
            cursors.claimed(claim_plan, claimed_rows, answer[0].now)
            return took * len(claimed_rows)

        page: dict[str, Any] = {"after_queue": "", "after_fairness_key": "", "after_priority": -1000, "most": 1000}
        page["served_queues"] = ["default"]
        scanned_lanes = connection.execute(arrivals.full_scan(Job), page).all()
        lanes = [Lane(row.queue, row.fairness_key, row.priority) for row in reversed(scanned_lanes)]  # by falling priority
        for lane in lanes:
            cursors.lower(lane, START)
        plan = Plan([Segment(lanes, 1, types)], {}, 1)
        cursors.watermark = Snapshot(scanned_lanes[0].xmax, scanned_lanes[0].xip)
        for _ in range(_WARM):  # the first one scans its lane from the start, as a worker's first one does
            claim()
        with watch:
            waits = [claim() for _ in range(CLAIMS)]
        watch.figures["buffers"] = buffers(connection, claims.claim(Job), cursors.parameters(plan) | worker_parameters)
        watch.figures["buffers_behind"] = buffers(connection, arrivals.catch_up(Job), catch_up_parameters(cursors, types))
    return report(watch, waits)


def catch_up_parameters(cursors: Cursors, types: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a catch-up of a worker whose only lanes with a backlog are those of the cursors."""
    lanes = list(cursors.of_lane)
    snapshot = cursors.watermark or Snapshot("0", [])
    parameters: dict[str, Any] = {f"ended_{name}": [] for name in ("queues", "fairness_keys", "priorities", "types")}
    parameters |= {
        "known_queues": [lane.queue for lane in lanes],
        "known_fairness_keys": [lane.fairness_key for lane in lanes],
        "known_priorities": [lane.priority for lane in lanes],
        "known_types": [lane.type_name for lane in lanes],
        "known_at": [cursors.of_lane[lane][0] for lane in lanes],
        "known_id": [cursors.of_lane[lane][1] for lane in lanes],
    }
    parameters |= {"queues": ["default"], "types": list(types), "shared_types": list(types), "read_to": None}
    parameters |= {"paused_keys": [], "most": 2000, "most_read": 20_000}
    return parameters | {"xmax": snapshot.xmax, "xip": snapshot.xip}


def connect(place: Place) -> Connection:
    """Return a connection as a worker's own has it, that does not wait for the disk."""
    guards = " ".join(f"-c {name}={value}" for name, value in GUARDS.items())
    options = f"{guards} -c synchronous_commit=off"
    return place.engine(isolation_level="AUTOCOMMIT", connect_args={"options": options}).connect()


def report(watch: Stopwatch, waits: Sequence[float]) -> int:
    """Note the times of the claims, in ms; return their number."""
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
