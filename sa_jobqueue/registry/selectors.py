"""Selectors: functions of an application that choose which jobs of a queue start next."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeAlias

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.errors.bounds import check_duration, check_number
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.annotations import signature
from sa_jobqueue.registry.middleware import name_of
from sa_jobqueue.registry.settings import check_names
from sa_jobqueue.types import JobId, Json

MOST_CANDIDATES: Final = 1_000
_LONGEST_CALL: Final = timedelta(minutes=1)
_SHORTEST: Final = timedelta(milliseconds=1)


class Candidate(NamedTuple):
    """A due job that a selector may choose."""

    id: JobId
    """Id of the job."""
    type_name: str
    """The job type."""
    queue: str
    """Its queue."""
    fairness_key: str
    """Its fairness key, such as a customer's id; empty for none."""
    priority: int
    """Its priority, -9 to 9; larger first."""
    chain_id: JobId
    """Id of its chain, which is the root job's."""
    chain_index: int
    """Its position in the chain; 0 for the root."""
    created_at: datetime
    """When it was enqueued."""
    scheduled_at: datetime
    """When it was due."""
    attempt: int
    """How many attempts it has had."""
    deduplication_key: str | None
    """Its deduplication key; None for none."""
    ordering_key: str | None
    """Its ordering key; None for none."""
    input: Json
    """Its payload as JSON; None unless the selector was declared with `inputs`."""

    @property
    def queue_key(self) -> QueueKey:
        """The queue and the fairness key as one text, for use inside the worker."""
        return QueueKey(self.queue, self.fairness_key)


Choice: TypeAlias = "Iterable[Candidate] | Awaitable[Iterable[Candidate]]"
Choose: TypeAlias = Callable[[Sequence[Candidate], int], Choice]
"""Called as `choose(candidates, free)` with due jobs in their usual order and the number of free slots. Returns the jobs to
start, best first; it may return more than `free`, because some may be taken by then. The others wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectorOptions:
    """Options of a selector.

    `queue`: name of the queue. `window`: maximum number of candidates, 1 to 1,000. `timeout`: how long a call may take, 1 ms
    to 1 min. `max_wait`: a candidate offered for this long is started first; without it, a job that is never chosen never
    starts. `inputs`: whether candidates have their payloads, which are read for each of them.
    """

    queue: str = field(kw_only=False)
    window: int = 100
    timeout: timedelta = timedelta(seconds=1)
    max_wait: timedelta | None = None
    inputs: bool = False

    def __post_init__(self) -> None:
        check_names("queue", [self.queue])
        check_number("window", self.window, 1, MOST_CANDIDATES)
        if not isinstance(self.timeout, timedelta) or not _SHORTEST <= self.timeout <= _LONGEST_CALL:
            raise InvalidOptionError("timeout", f"must be a timedelta from 1 ms to {_LONGEST_CALL}, got {self.timeout!r}")
        if self.max_wait is not None:
            check_duration("max_wait", self.max_wait, or_zero=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector(SelectorOptions):
    """A selector function with its options. `choose`: the function."""

    choose: Choose

    def __post_init__(self) -> None:
        SelectorOptions.__post_init__(self)  # `super()` fails in a dataclass with slots
        if not callable(self.choose):
            raise InvalidOptionError(
                "choose", f"must be a function of the candidates and the free slots, got {self.choose!r}"
            )
        try:
            signature(self.choose).bind((), 1)
        except TypeError as error:
            reason = f"{self.name} must take two arguments, the candidates and the free slots ({error})"
            raise InvalidOptionError("choose", reason) from None

    @property
    def name(self) -> str:
        """Where the function is declared, `module:function`."""
        return name_of(self.choose)

    @property
    def settings(self) -> dict[str, Any]:
        """Return the selector's settings for the row of a worker: function, window, and `max_wait` in seconds."""
        longest = None if self.max_wait is None else self.max_wait.total_seconds()
        return {"function": self.name, "window": self.window, "max_wait": longest}
