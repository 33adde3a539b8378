"""The statements of a health report, in the shape of `cases`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sa_jobqueue import Job
from sa_jobqueue.statements import fairness_keys, health, horizon, minutes, progress, recent, storage
from tests.statements.shapes import PK, Case

_WINDOW = {"window": timedelta(minutes=1), "transactions": 10, "limit": 100}
_TTL = {"ttl": timedelta(seconds=15)}
_LANES = 2 * 3

_SPAN = {"since": datetime.now(UTC) - timedelta(minutes=1), "until": datetime.now(UTC)}
_SERIES = {"since": _SPAN["since"], "queue": "", "type_name": ""}

HEALTH_CASES = [
    Case(
        "fairness_keys_waiting",
        lambda: fairness_keys.waiting(Job, in_queue=True),
        frozenset({"ix_job_claim", "ix_job_running"}),
        lambda world: {"queue": "default", "prefix": "", "scan": 500, "limit": 50},
        examines=1000,
        guarded=False,
    ),
    Case("minutes_unrecorded", lambda: minutes.unrecorded(Job), frozenset(), lambda world: {}, guarded=False),
    Case(
        "minutes_record",
        lambda: minutes.record(Job),
        frozenset(),
        lambda world: _SPAN | {"transactions": 10, "limit": 100, "most": 10},
        guarded=False,
    ),
    Case("minutes_prune", lambda: minutes.prune(Job), frozenset(), lambda world: {}, guarded=False),
    Case(
        "minutes_series",
        lambda: minutes.series(Job),
        frozenset(),
        lambda world: _SERIES | {"step": timedelta(minutes=1)},
        guarded=False,
    ),
    Case("minutes_totals", lambda: minutes.series(Job, by="type_name"), frozenset(), lambda world: _SERIES, guarded=False),
    Case(
        "health_due_groups",
        lambda: health.due_groups(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"queue": "default", "scan": 500, "limit": 5},
        examines=1000,
    ),
    Case(
        "health_depths",
        lambda: health.depths(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"limit": 100},
        examines=_LANES * 2 * 100,
    ),
    Case("health_lately", lambda: health.lately(Job), frozenset(), lambda world: _WINDOW, guarded=False),
    Case("health_started_lately", lambda: health.recently_started(Job), frozenset(), lambda world: _WINDOW, guarded=False),
    Case(
        "health_due_lanes",
        lambda: health.due_lanes(Job),
        frozenset({"ix_job_claim"}),
        lambda world: {"limit": 100},
        examines=_LANES * 2 * 100,
    ),
    Case("health_attempts_lately", lambda: health.recent_attempts(Job), frozenset(), lambda world: _WINDOW, guarded=False),
    Case(
        "health_running",
        lambda: health.running(Job),
        frozenset({"ix_job_running"}),
        lambda world: _TTL,
        examines=2000,  # every running job
    ),
    Case("health_unresolved", lambda: health.unresolved(Job), frozenset(), lambda world: {"limit": 100}, examines=100),
    Case(
        "health_dead_groups",
        lambda: health.dead_groups(Job),
        frozenset(),
        lambda world: {"scan": 100, "limit": 10},
        examines=200,
    ),
    Case(
        "health_behind_dead",
        lambda: health.behind_dead(Job),
        PK,
        lambda world: {"limit": 100},
        examines=200,
    ),
    Case(
        "health_behind_cancelled",
        lambda: health.behind_cancelled(Job),
        PK | {"ix_job_blocked_or_dead"},
        lambda world: {"limit": 100},
        examines=400,
    ),
    Case(
        "health_chains_to_unblock",
        lambda: health.chains_to_unblock(Job),
        frozenset({"ix_job_has_waiters"}),
        lambda world: {"limit": 100},
    ),
    Case(
        "health_unfinished_writes",
        lambda: health.unfinished_writes(Job),
        frozenset(),
        lambda world: {"limit": 100},
        guarded=False,
    ),
    Case(
        "health_rejected_rows", lambda: health.rejected_rows(Job), frozenset(), lambda world: {"limit": 100}, guarded=False
    ),
    Case(
        "lately_longest",
        lambda: recent.longest(Job),
        frozenset({"ix_job_running"}),
        lambda world: {"limit": 20},
        guarded=False,  # it sorts what runs
    ),
    Case("progress_of_job", lambda: progress.of_job(Job), PK, lambda world: {"job_id": world.running[0]}, guarded=False),
    Case("lately_failures", lambda: recent.failures(Job), PK, lambda world: {"limit": 20, "scan": 500}, guarded=False),
    Case("horizon_holders", horizon.holders, frozenset(), lambda world: {"limit": 10}, guarded=False),
    Case(
        "horizon_jobs_held",
        lambda: horizon.jobs_held(Job),
        PK,
        lambda world: {"ids": world.running[:10]},
    ),
    Case("storage_tables", lambda: storage.tables(Job), frozenset(), guarded=False),
    Case("storage_indexes", lambda: storage.indexes(Job), frozenset(), guarded=False),
    Case("storage_lock_holders", lambda: storage.lock_holders(Job), frozenset(), guarded=False),
    Case("storage_locks", lambda: storage.exclusive_locks(Job), frozenset(), guarded=False),
    Case("storage_server", storage.server, frozenset(), guarded=False),
]
