"""The chaos run beside other queues: its counts are the counts of their rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

from sa_jobqueue.testing.binaries import binary_dirs
from tests.chaos.peers import judge
from tests.chaos.peers.journals import Journals, Run
from tests.chaos.peers.systems import named

ROOT = Path(__file__).parents[2]
FROZEN, AWAKE, BLOCKED = 1, 2, 3


def run_of(number: int, began: float, finished: float | None, *, pid: int = AWAKE, **fields: str) -> Run:
    given = {"kind": "plain", "how": "ended"} | fields
    return Run(f"{number}-{began}", number, given["kind"], pid, began, finished, given["how"] if finished else None)


def test_lost_stuck_and_repeated_jobs_are_counted_exactly(database_url: str, tmp_path: Path) -> None:
    runs = [
        run_of(1, 0, 1),
        run_of(2, 0, None),  # its process was killed, and the job ran again
        run_of(2, 3, 4),
        run_of(3, 0, 1, how="failed"),  # lost
        run_of(4, 0, None),  # stuck
        run_of(5, 0, 1),  # stuck, although its handler ended
        run_of(6, 0, 9),  # in two workers at once, both awake
        run_of(6, 4, 5, pid=FROZEN),
        run_of(7, 0, 9, pid=FROZEN),  # in two at once, the first of which had been frozen
        run_of(7, 4, 5),
        run_of(8, 0, 7, pid=BLOCKED),  # in two at once, the first of which another job blocked
        run_of(8, 4, 5),
        run_of(9, 1, 6, pid=BLOCKED, kind="blocks"),
        run_of(10, 0, 1, kind="poison", how="failed"),
        run_of(11, 0, 1),  # twice, one after the other
        run_of(11, 2, 3),
    ]
    journals = Journals(tmp_path, {one.run: one for one in runs})
    journals.enqueued = [(number, "poison" if number == 10 else "plain", True, 0.0) for number in range(1, 12)]
    journals.enqueued.append((12, "plain", False, 0.0))  # never acknowledged: its producer does not know that it exists
    conninfo = make_url(database_url).set(drivername="postgresql").render_as_string(hide_password=False)
    journals.copy(conninfo)

    found = judge.judge(conninfo, open_jobs="SELECT 4 AS number UNION ALL SELECT 5", frozen={FROZEN})

    assert found == judge.Counts(
        enqueued=11,
        ended=8,
        lost=1,
        stuck=2,
        stuck_after_it_ended=1,
        ended_twice=4,
        overlapped=3,
        overlapped_awake=1,
        runs=16,
    )
    # What ran already when the fault was over is no sign that anything works.
    assert judge.recovery(conninfo, over=2.5) == pytest.approx(1.5)
    assert judge.recovery(conninfo, over=8.5) is None


@pytest.mark.long
@pytest.mark.timeout(500)
def test_this_queue_and_procrastinate_lose_no_job_when_a_worker_is_killed() -> None:
    if not binary_dirs():
        pytest.skip("no PostgreSQL programs at hand to start a server of their own from")
    # As in the benchmarks, other queues are on few machines: what is missing is left out, there and here.
    beside = [name for name in ("procrastinate",) if named(name).why_not() is None]
    chosen = [word for name in ("sa_jobqueue", *beside) for word in ("--system", name)]
    faults = [word for name in ("kill -9 of a worker", "kill -9 in the handler") for word in ("--fault", name)]
    command = [sys.executable, "-m", "tests.chaos.peers", "--rounds", "1", "--json", *chosen, *faults]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False, timeout=490)
    print(done.stderr, done.stdout)  # pytest shows it when the test failed
    assert done.returncode == 0
    found: dict[str, Any] = json.loads(done.stdout)
    assert [one["name"] for one in found["systems"]] == ["sa_jobqueue", *beside]
    for system in found["systems"]:
        assert system["enqueued"] > 100
        assert (system["lost"], system["stuck"], system["overlapped"]) == (0, 0, 0)
        # The job that killed its worker ran again, so dead workers' jobs are rescued.
        assert system["runs"] > system["ended"] == system["enqueued"]
        assert [one["fault"] for one in system["faults"]] != []
        assert system["never_recovered"] == 0
    if not beside:
        pytest.skip("only this queue was broken: no other is installed (python -m benchmarks peers install)")
