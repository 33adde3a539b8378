"""The pages; see the package's docstring for how to add one."""

from typing import Final

from sa_jobqueue.dashboard.screens import (
    audit,
    chains,
    dead_letters,
    events,
    fairness_keys,
    job,
    job_types,
    jobs,
    limits,
    overview,
    queues,
    schedules,
    search,
    storage,
    workers,
)
from sa_jobqueue.dashboard.screens.base import Act, Screen

SCREENS: Final[tuple[Screen, ...]] = (
    overview.SCREEN,
    search.SCREEN,
    jobs.SCREEN,
    job.SCREEN,
    chains.SCREEN,
    chains.ONE,
    dead_letters.SCREEN,
    queues.SCREEN,
    queues.ONE,
    fairness_keys.SCREEN,
    job_types.SCREEN,
    job_types.ONE,
    limits.SCREEN,
    schedules.SCREEN,
    events.SCREEN,
    workers.SCREEN,
    storage.SCREEN,
    audit.SCREEN,
)
"""In the order of the navigation."""

ACTS: Final[dict[str, Act]] = {act.name: act for screen in SCREENS for act in screen.acts}

__all__ = ["ACTS", "SCREENS"]
