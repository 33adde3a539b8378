"""Which queues are broken beside each other, how each is set up to recover, and which jobs it counts as open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from benchmarks.peers import environments
from benchmarks.peers.catalogue import SYSTEMS as MEASURED
from benchmarks.peers.catalogue import System as Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One queue."""

    name: str
    """As in the benchmarks, which define where it is installed, and in which version."""
    script: str
    """The module under `workers`."""
    open_jobs: str
    """A query for the numbers of the jobs that the queue itself takes for not done."""
    settings: str
    """What its documentation gives for recovery, as it is set here."""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def measured(self) -> Measured:
        """The same in the benchmarks' catalogue."""
        return next(one for one in MEASURED if one.name == self.name)

    @property
    def module(self) -> str:
        """The module that is run with `python -m`."""
        return f"benchmarks.chaos.workers.{self.script}"

    @property
    def version(self) -> str:
        """The version that is run."""
        return environments.release(self.measured)

    def why_not(self) -> str | None:
        """Return why it cannot be run here; None when it can."""
        return environments.why_not(self.measured)


_PGQUEUER: Final = (
    "`pgqueuer.run` as `pgq run`: `heartbeat_timeout` 3 s (30), `dequeue_timeout` 0.5 s (30), "
    "`shutdown_on_listener_failure` as its checklist has it, `restart_on_failure` after 0.5 s (5), "
    "`DatabaseRetryEntrypointExecutor`, `batch_size` 1, `max_concurrent_tasks` 2"
)
_PGQUEUER_OPEN: Final = """SELECT (convert_from(payload, 'UTF8')::json->>'number')::int AS number
                           FROM pgqueuer WHERE status IN ('queued', 'picked')"""

SYSTEMS: Final = (
    System(
        name="sa_jobqueue",
        script="ours",
        open_jobs="""SELECT (input->>'number')::int AS number
                     FROM job WHERE status NOT IN ('completed', 'dead', 'cancelled')""",
        settings="`sa-jobqueue worker`: heartbeat 0.5 s (5), `--heartbeat-timeout` 3 s (15), "
        "`--poll-interval` 0.5 s (5), `--shutdown-timeout` 3 s (30), `--cancel-timeout` 1 s (5), `--concurrency` 2",
    ),
    System(
        name="procrastinate",
        script="procrastinate",
        open_jobs="""SELECT (args->>'number')::int AS number FROM procrastinate_jobs
                     WHERE status IN ('todo', 'doing') AND task_name = 'handle'""",
        settings="the periodic `retry_stalled_jobs` of its production guide, every second (10 minutes), with "
        "`seconds_since_heartbeat` 3 (30); `update_heartbeat_interval` 0.5 s (10), `stalled_worker_timeout` 3 s (30), "
        "`fetch_job_polling_interval` 0.5 s (5), `shutdown_graceful_timeout` 3 s (none), `RetryStrategy`, `concurrency` 2",
    ),
    System(
        name="pgqueuer, asyncpg",
        script="pgqueuer",
        open_jobs=_PGQUEUER_OPEN,
        settings=_PGQUEUER,
        environment={"CHAOS_DRIVER": "asyncpg"},
    ),
    System(
        name="pgqueuer, psycopg",
        script="pgqueuer",
        open_jobs=_PGQUEUER_OPEN,
        settings=_PGQUEUER,
        environment={"CHAOS_DRIVER": "psycopg"},
    ),
    System(
        name="chancy",
        script="chancy",
        open_jobs="""SELECT (kwargs->>'number')::int AS number FROM chancy_jobs
                     WHERE state IN ('pending', 'running', 'retrying')""",
        settings="its default plugins with `Recovery(poll_interval=1)` (60) and `Leadership(poll_interval=1, timeout=3)` "
        "(60, 120); `heartbeat_poll_interval` 1 s (30), `heartbeat_timeout` 3 s (90), `backoff_initial` 0.5 s (1), "
        "`backoff_max` 2 s (60), `shutdown_timeout` 3 s (30), asyncio executor, `eager_polling`, `concurrency` 2",
    ),
)
"""Ours first. In brackets of the settings stand the defaults."""


def named(name: str) -> System:
    """Return the system of a name."""
    return next(system for system in SYSTEMS if system.name == name)
