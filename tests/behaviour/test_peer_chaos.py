"""The chaos run beside other queues: its counts are the counts of their rows."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import make_url

from benchmarks.chaos import judge
from benchmarks.chaos.journals import Journals, Run

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
