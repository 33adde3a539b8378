"""The protocol of claims and leases as a small model: one job, three workers, every order of what they and the world may do.

A worker may die, or fall silent for so long that others give it up, and wake again in the belief that it still holds the
job that it held. The model has no clock: silence comes whenever it likes, which is more than any clock allows. What keeps
all this in order is the fence alone: a write of an attempt counts if the job runs that attempt for that worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from sa_jobqueue import JobStatus

T = TypeVar("T")

WORKERS = 3
MOST = 4
"""Attempts after which nothing is redriven any more: it bounds the states."""


class Held(NamedTuple):
    """The row of the job."""

    status: JobStatus = JobStatus.PENDING
    attempt: int = 0
    most: int = 2
    owner: int | None = None


@dataclass(frozen=True)
class State:
    """The job's row, and of each worker: whether it lives, whether others think so, which attempt it believes it holds."""

    job: Held
    alive: tuple[bool, ...] = (True,) * WORKERS
    fresh: tuple[bool, ...] = (True,) * WORKERS
    holds: tuple[int | None, ...] = (None,) * WORKERS


class Step(NamedTuple):
    """One thing that happened, by a worker, and what became of it; `accepted` for a write that met its fence."""

    action: str
    worker: int
    after: State
    accepted: bool = True


def steps(state: State, *, fenced: bool = True) -> Iterator[Step]:
    """Return everything that may happen next. `fenced`: whether ends of attempts are; without it the model is wrong."""
    job = state.job
    if job.status is JobStatus.DEAD and job.attempt < MOST:
        # One more at the least: how many it really is depends on a history that the model does not keep.
        again = Held(JobStatus.PENDING, job.attempt, job.attempt + 1)
        yield Step("redrive", 0, replace(state, job=again))
    for worker in range(WORKERS):
        if not state.alive[worker]:
            continue
        if state.fresh[worker]:
            yield Step("fall silent", worker, replace(state, fresh=_with(state.fresh, worker, False)))
        else:
            yield Step("heartbeat", worker, replace(state, fresh=_with(state.fresh, worker, True)))
        if sum(state.alive) > 1:
            dead = replace(state, alive=_with(state.alive, worker, False), fresh=_with(state.fresh, worker, False))
            yield Step("die", worker, replace(dead, holds=_with(state.holds, worker, None)))
        if job.status is JobStatus.PENDING and state.fresh[worker] and state.holds[worker] is None:
            attempt = job.attempt + 1
            claimed = Held(JobStatus.RUNNING, attempt, job.most, worker)
            yield Step("claim", worker, replace(state, job=claimed, holds=_with(state.holds, worker, attempt)))
            # Its answer is lost on the way: by the database it holds a job that it does not know of.
            yield Step("claim", worker, replace(state, job=claimed))
        if job.status is JobStatus.RUNNING and job.owner is not None and not state.fresh[job.owner]:
            yield Step("rescue", worker, replace(state, job=to_pending(job)))
        if job.owner == worker and state.holds[worker] is None:
            yield Step("give back", worker, replace(state, job=Held(JobStatus.PENDING, job.attempt, job.most + 1)))
        if (held := state.holds[worker]) is not None:
            counts = job.status is JobStatus.RUNNING and (not fenced or (job.owner, job.attempt) == (worker, held))
            free = replace(state, holds=_with(state.holds, worker, None))
            for action, outcome in (
                ("complete", Held(JobStatus.COMPLETED, job.attempt, job.most)),
                ("fail", to_pending(job)),
            ):
                yield Step(action, worker, replace(free, job=outcome) if counts else free, counts)


def to_pending(job: Held) -> Held:
    """Return a job whose attempt ended without success."""
    ended = JobStatus.DEAD if job.attempt >= job.most else JobStatus.PENDING
    return Held(ended, job.attempt, job.most)


def explore(*, fenced: bool = True) -> dict[State, list[Step]]:
    """Return every state that can be reached, with all that may happen in it."""
    steps_by_state: dict[State, list[Step]] = {}
    ahead = deque([State(Held())])
    while ahead:
        state = ahead.popleft()
        if state in steps_by_state or state.job.attempt > MOST:
            continue
        steps_by_state[state] = list(steps(state, fenced=fenced))
        ahead.extend(step.after for step in steps_by_state[state])
    return steps_by_state


def _with(values: tuple[T, ...], place: int, value: T) -> tuple[T, ...]:
    return (*values[:place], value, *values[place + 1 :])
