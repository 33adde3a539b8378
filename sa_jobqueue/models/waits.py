"""The chains that a new job waits for, as declared by the code that creates the job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Generic, Literal, Never

from sqlalchemy.orm import object_session
from typing_extensions import TypeVar

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.types import OnFailure

OutT = TypeVar("OutT", covariant=True, default=Never)


@dataclass(frozen=True, slots=True)
class WaitFor(Generic[OutT]):
    """A chain that a new job waits for, and the effect on the job if that chain dies or is cancelled.

    `chain`: a job of it, in whatever session or in none; the chain itself; or its id.
    `on_failure`: "wait" keeps waiting for a redrive or an operator's decision; "fail" ends the job as dead;
    "continue" runs it anyway: its `Blockers` show what failed.
    `Handler.blocker` makes one with a known type of output.
    Raises: InvalidJobError naming the field.
    """

    chain: Any
    on_failure: Literal["wait", "fail", "continue"] = "wait"

    def __post_init__(self) -> None:
        if self.on_failure not in set(OnFailure):
            raise InvalidJobError("on_failure", f"must be one of {', '.join(OnFailure)}, got {self.on_failure!r}")

    @property
    def chain_id(self) -> Any:
        """The chain's id."""
        kind = type(self.chain)
        if not hasattr(kind, "__jobqueue__"):
            return self.chain
        return self.chain.chain_id if hasattr(kind, "chain_id") else self.chain.id


def waits(blockers: Iterable[Any], id_type: type) -> tuple[WaitFor[Any], ...]:
    """Return the meaning of a job's `blockers` argument, each chain once.

    Raises: InvalidJobError naming the place in the list.
    """
    if isinstance(blockers, (str, bytes)) or not isinstance(blockers, Iterable):
        raise InvalidJobError("blockers", f"must be a list of jobs, chains, ids or WaitFor, got {blockers!r}")
    wait_for_chains = tuple(blocker if isinstance(blocker, WaitFor) else WaitFor(blocker) for blocker in blockers)
    places: dict[Any, int] = {}
    for index, wait_for in enumerate(wait_for_chains):
        if not isinstance(wait_for.chain_id, id_type):
            raise InvalidJobError(
                f"blockers[{index}]",
                f"must be a job, a chain, the {id_type.__name__} of one, or WaitFor, got {wait_for.chain!r}",
            )
        first = places.setdefault(wait_for.chain_id, index)
        if first != index:
            raise InvalidJobError(f"blockers[{index}]", f"is the chain of blockers[{first}] again; name each chain once")
    return wait_for_chains


def sequence(*jobs: Any) -> Any:
    """Make each job wait for the one before it, and return the last: adding that to a session enqueues them all.

    Each job is a separate chain, which starts when the chain before it has completed; if that dies, the rest stays blocked
    until it is redriven. A step that takes the output of another needs `blockers=[...]` instead. `jobs`: at least one, new
    ones.
    Raises: InvalidJobError naming the place.
    """
    if not jobs:
        raise InvalidJobError("jobs", "must be at least one job")
    for index, job in enumerate(jobs):
        if not hasattr(type(job), "__jobqueue__") or not hasattr(job, "_blockers"):
            raise InvalidJobError(f"jobs[{index}]", f"must be a job, as handler.job(...) makes it, got {job!r}")
        if object_session(job) is not None or job in jobs[:index]:
            raise InvalidJobError(f"jobs[{index}]", "is in a session already, or in the sequence twice; pass a new job")
    for before, job in pairwise(jobs):
        job._blockers = waits([*job._blockers, before], type(job.id))
    return jobs[-1]
