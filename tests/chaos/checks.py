"""The verdict, from the database alone: each check is a query for rows that must not be there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from tests.chaos.application import ATTEMPTS, LINKS
from tests.chaos.world import World
from tests.fixtures.workers import is_running

_EFFECT_KINDS: Final = "('session', 'async_session', 'slow_session', 'link', 'holds_gil', 'commit_fails', 'dies_in_session')"

CHECKS: Final[dict[str, str]] = {
    "every job has ended": """
        SELECT id, type_name, status::text, attempt FROM job WHERE status NOT IN ('completed', 'dead', 'cancelled')""",
    "no job that was enqueued is gone": """
        SELECT job_id, kind FROM enqueued WHERE NOT EXISTS (SELECT FROM job WHERE id = job_id)""",
    "effects happened exactly once a completed job": f"""
        SELECT id, type_name, attempt, n FROM job, LATERAL
            (SELECT count(*) AS n FROM effect e WHERE e.job_id = job.id) AS made,
            LATERAL (SELECT count(*) AS right_ones FROM effect e WHERE e.job_id = job.id AND e.attempt = job.attempt
                     AND e.worker_id = completed_by) AS meant
        WHERE type_name IN {_EFFECT_KINDS} AND (n <> (status = 'completed')::int OR right_ones <> n)
        UNION ALL
        SELECT job_id, 'no such job', attempt, 1 FROM effect WHERE NOT EXISTS (SELECT FROM job WHERE id = job_id)""",
    "no attempt had two owners at once": """
        WITH owned AS (
            SELECT job_id, attempt, worker_id, started_at, ended_at FROM job_attempt
            UNION ALL SELECT id, attempt, completed_by, started_at, completed_at FROM job WHERE status = 'completed')
        SELECT a.job_id, a.attempt, a.worker_id, b.attempt, b.worker_id
        FROM owned a JOIN owned b ON b.job_id = a.job_id AND b.attempt > a.attempt AND b.started_at < a.ended_at""",
    "attempts are counted, without gaps and without doubles": """
        SELECT id, type_name, status::text, job.attempt, found FROM job, LATERAL
            (SELECT coalesce(array_agg(a.attempt ORDER BY a.attempt), '{}') AS found
             FROM job_attempt a WHERE a.job_id = job.id) AS recorded
        WHERE found <> ARRAY(SELECT generate_series(1, job.attempt - (status = 'completed')::int))""",
    "an attempt that did not count gave one back": f"""
        SELECT id, type_name, max_attempts, uncounted FROM job, LATERAL
            (SELECT count(*) AS uncounted FROM job_attempt a
             WHERE a.job_id = job.id AND outcome IN ('released', 'snoozed')) AS recorded
        WHERE max_attempts <> uncounted + CASE WHEN type_name = 'aborts' THEN 2 ELSE {ATTEMPTS} END""",
    "what an isolated job does to its process ends its own attempt, and says what it was": """
        SELECT id, input->>'fault', outcome, a.error->>'message' FROM job JOIN job_attempt a ON a.job_id = job.id
        WHERE type_name = 'isolated' AND a.attempt = 1 AND outcome NOT IN ('lost', 'released')
          AND NOT CASE input->>'fault'
              WHEN 'abort' THEN outcome = 'failed' AND a.error->>'message' LIKE '%was killed by SIGABRT%'
              WHEN 'crash' THEN outcome = 'failed' AND a.error->>'message' LIKE '%was killed by SIGSEGV%'
              WHEN 'exit' THEN outcome = 'failed' AND a.error->>'message' LIKE '%ended with status 3%'
              WHEN 'hog' THEN outcome = 'failed' AND a.error->>'message' LIKE '%over its memory limit of 256 MiB%'
              ELSE outcome = 'timed_out' END""",
    "a job whose end cannot be written holds up no other": "SELECT job_id, beside FROM held_up",
    "what a server's clock that was ahead has left is healed": """
        SELECT name, next_fire_at::text FROM schedule WHERE next_fire_at > now() + interval '2 minutes'
        UNION ALL SELECT id, heartbeat_at::text FROM worker WHERE heartbeat_at > now() + interval '1 minute'""",
    "chains are whole": f"""
        SELECT root.id, root.type_name, links, done FROM job root, LATERAL
            (SELECT count(*) AS links, count(*) FILTER (WHERE status = 'completed') AS done,
                    max(chain_index) AS highest FROM job WHERE chain_id = root.id) AS chain
        WHERE root.chain_index = 0
          AND (links <> highest + 1 OR root.chain_completed_at IS NULL
               OR root.type_name = 'link' AND links <> (root.input #>> '{{}}')::int
               OR root.type_name = 'link' AND links > {LINKS}
               OR root.status = 'completed' AND done <> links)""",
    "nothing started before what it waited for had ended": """
        SELECT job.id, blocked_by_chain_id, job.started_at, root.chain_completed_at
        FROM job JOIN job_blocker ON job_id = job.id JOIN job root ON root.id = blocked_by_chain_id
        WHERE root.chain_completed_at IS NULL OR job.started_at < root.chain_completed_at""",
    "what died was meant to, and a dead letter says why": """
        SELECT id, type_name, status::text, reasons, left(job.last_error::text, 600), input::text FROM job, LATERAL
            (SELECT coalesce(array_agg(reason), '{}') AS reasons, count(error->>'worker') AS workers
             FROM dead_letter d WHERE d.job_id = job.id AND d.attempts = job.attempt AND d.error IS NOT NULL) AS letters
        WHERE CASE WHEN type_name = 'aborts' THEN status <> 'dead' OR reasons <> '{lost}' OR workers <> 1
                   WHEN input->>'number' = 'not a number' THEN status <> 'dead' OR reasons <> '{invalid_input}'
                   ELSE status <> 'completed' OR reasons <> '{}' END""",
}
"""By what they promise. A row that comes back is a violation."""

_OVERLAPS: Final = """
SELECT a.job_id, a.kind, a.attempt, a.pid, b.attempt, b.pid,
       least(a.ended, b.ended) - b.began AS seconds
FROM span a JOIN span b ON b.job_id = a.job_id AND b.attempt > a.attempt AND b.began < a.ended
WHERE NOT EXISTS (SELECT FROM span held WHERE held.pid = a.pid AND held.kind IN ('holds_gil', 'blocks_loop')
                  AND held.began <= a.ended AND (held.ended IS NULL OR held.ended >= a.began))
  AND a.pid <> ALL (%(frozen)s::int[])
"""
_ZOMBIES: Final = """
SELECT count(*) FROM span a JOIN span b ON b.job_id = a.job_id AND b.attempt > a.attempt AND b.began < a.ended
"""
_SESSIONS: Final = """
SELECT application_name, state, left(query, 60) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND application_name NOT IN ('chaos judge', 'chaos producer')
"""


@dataclass(frozen=True)
class Violation:
    """One promise that was not kept, with up to five rows that show it."""

    promise: str
    count: int
    rows: list[str]


def judge(world: World, acknowledged: set[UUID]) -> list[Violation]:
    """Return every promise that the database says was broken. Run when all jobs have ended, or should have."""
    violations = [_violation(promise, world.read(query)) for promise, query in CHECKS.items()]
    there = {row[0] for row in world.read("SELECT job_id FROM enqueued")}
    violations.append(_violation("no acknowledged commit is gone", sorted(acknowledged - there)))
    overlaps = world.read(_OVERLAPS, frozen=sorted(world.fleet.frozen_pids))
    violations.append(_violation("a worker that cannot beat stops its attempts before others start them", overlaps))
    return [violation for violation in violations if violation.count]


def judge_remains(world: World, *, stopped: set[int]) -> list[Violation]:
    """Return what workers left behind. Run when all are stopped; `stopped`: those that were asked to, without a fault."""
    world.until(lambda: not world.read(_SESSIONS), 10)
    rows = [row for row in world.read("SELECT pid, name, state FROM worker") if row[0] in stopped]
    pids = [pid for (pid,) in world.read("SELECT DISTINCT ran_in FROM span") if is_running(pid)]
    remains = [
        _violation("no process is left, neither of a worker nor a child", pids),
        _violation("no session is left on the server", world.read(_SESSIONS)),
        _violation("a worker that stopped leaves no row", rows),
    ]
    return [violation for violation in remains if violation.count]


def fenced_zombies(world: World) -> int:
    """Return how often an attempt's code still ran when the next attempt's did: each found itself fenced."""
    count: int = world.read(_ZOMBIES)[0][0]
    return count


def _violation(promise: str, rows: list[Any]) -> Violation:
    return Violation(promise, len(rows), [str(row) for row in rows[:5]])
