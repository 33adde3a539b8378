"""The count, from the database alone and the same for every queue: the notes of handlers, beside the rows of the queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

_COUNTS: Final = {
    "enqueued": "SELECT count(DISTINCT number) FROM chaos_enqueued WHERE acknowledged",
    "ended": "SELECT count(DISTINCT number) FROM chaos_run WHERE how = 'ended'",
    "lost": """SELECT count(DISTINCT number) FROM chaos_enqueued e
               WHERE acknowledged AND kind <> 'poison' AND number NOT IN (SELECT number FROM open_jobs)
                 AND NOT EXISTS (SELECT FROM chaos_run r WHERE r.number = e.number AND r.how = 'ended')""",
    "stuck": "SELECT count(DISTINCT number) FROM open_jobs",
    "stuck_after_it_ended": """SELECT count(DISTINCT number) FROM open_jobs o
                               WHERE EXISTS (SELECT FROM chaos_run r WHERE r.number = o.number AND r.how = 'ended')""",
    "ended_twice": """SELECT count(*) FROM (SELECT number FROM chaos_run WHERE how = 'ended'
                                            GROUP BY number HAVING count(*) > 1) AS repeated""",
    "overlapped": "SELECT count(DISTINCT number) FROM beside_itself",
    "overlapped_awake": "SELECT count(DISTINCT number) FROM beside_itself WHERE NOT was_still",
    "runs": "SELECT count(*) FROM chaos_run",
}

_QUERY: Final = """
WITH open_jobs AS (SELECT number FROM ({open_jobs}) AS its_own WHERE number IS NOT NULL),
beside_itself AS (
    SELECT a.number, a.pid = ANY (%(frozen)s::int[]) OR EXISTS (
        SELECT FROM chaos_run held WHERE held.pid = a.pid AND held.kind = 'blocks'
        AND held.began <= a.finished AND (held.finished IS NULL OR held.finished >= a.began)) AS was_still
    FROM chaos_run a JOIN chaos_run b ON b.number = a.number AND b.run <> a.run
    WHERE a.began < b.began AND b.began < a.finished)
SELECT ({count})
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What became of the jobs."""

    enqueued: int
    """Acknowledged to the producer."""
    ended: int
    """Jobs whose handler came to its end at least once."""
    lost: int
    """Acknowledged, never run to the end, and no longer held by the queue; jobs that cannot be handled do not count."""
    stuck: int
    """Still not done when there was time for everything."""
    stuck_after_it_ended: int
    """Of these: the handler had come to its end."""
    ended_twice: int
    """Jobs whose handler came to its end more than once."""
    overlapped: int
    """Jobs that began again while an earlier run of them still ran. A run whose process was killed is no such run."""
    overlapped_awake: int
    """Of these: the earlier run was in a process that neither was frozen nor had its event loop blocked."""
    runs: int
    """Calls of the handler."""


def judge(conninfo: str, *, open_jobs: str, frozen: set[int]) -> Counts:
    """Count. `open_jobs` is the system's query; `frozen` are the processes that ever were stopped by a signal."""
    with psycopg.connect(conninfo) as connection:

        def count(query: str) -> Any:
            whole = _QUERY.format(open_jobs=open_jobs, count=query)
            row = connection.execute(whole.encode(), {"frozen": sorted(frozen)}).fetchone()
            assert row is not None
            return row[0]

        return Counts(**{name: count(query) for name, query in _COUNTS.items()})


def recovery(conninfo: str, over: float) -> float | None:
    """Return the seconds from the end of a fault to the end of the first run that began after it; None: there was none."""
    first = "SELECT min(finished) - %(over)s FROM chaos_run WHERE how = 'ended' AND began > %(over)s"
    found: float | None = _one(conninfo, first, over=over)
    return found


def rate(conninfo: str, begin: float, end: float) -> float:
    """Return how many jobs a second ended for the first time between two instants."""
    ends = """SELECT count(*) FROM (SELECT min(finished) AS at FROM chaos_run WHERE how = 'ended' GROUP BY number) AS first
              WHERE at BETWEEN %(begin)s AND %(end)s"""
    found: int = _one(conninfo, ends, begin=begin, end=end)
    return found / max(end - begin, 0.001)


def _one(conninfo: str, query: str, **values: Any) -> Any:
    with psycopg.connect(conninfo) as connection:
        row = connection.execute(query.encode(), values).fetchone()
        assert row is not None
        return row[0]
