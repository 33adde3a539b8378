"""Batches: the arguments of a handler that runs many jobs in one call, and how it reports which of them failed. Pure."""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypeVar

from sa_jobqueue.context import AttemptContext, ClaimedJob
from sa_jobqueue.errors import AttemptSignal, InvalidHandlerError, InvalidOutputError
from sa_jobqueue.types import JobId

InT = TypeVar("InT")


@dataclass(frozen=True, slots=True)
class BatchRule:
    """How jobs of a type are collected into batches."""

    max_size: int
    max_wait: timedelta
    takes_items: bool
    """Whether the handler is given `BatchItem`s, not bare payloads."""


def payload_of(place: str, hint: Any) -> tuple[Any, bool]:
    """Return the payload type of one job, from the annotation of a handler's first parameter, and whether it takes items.

    `place`: where the function is declared, for messages. `hint`: the annotation.
    Raises: InvalidHandlerError if it is not a list.
    """
    if typing.get_origin(hint) is not list:
        raise InvalidHandlerError(f"{place}: a batch handler's first argument is annotated list[Payload], got {hint!r}")
    (element,) = typing.get_args(hint)
    if element is BatchItem or typing.get_origin(element) is BatchItem:
        return next(iter(typing.get_args(element)), Any), True
    return element, False


@dataclass(frozen=True, slots=True)
class BatchItem(Generic[InT]):
    """One job of a batch."""

    payload: InT
    """The job's decoded payload."""
    context: AttemptContext
    """The context of this job's own attempt."""

    @property
    def job(self) -> ClaimedJob:
        """The job as it was claimed."""
        return self.context.job

    @property
    def id(self) -> JobId:
        """The job's id."""
        return self.context.job.id


class BatchFailed(AttemptSignal):
    """Raise this to fail some jobs of a batch. `errors`: exceptions, or signals such as `Snooze`, by index in the list.

    The other jobs are completed. In a handler with a session, roll the writes for failed jobs back to a savepoint.
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        self.errors = dict(errors)
        places = ", ".join(sorted(map(str, self.errors), key=lambda place: (len(place), place))[:10])
        super().__init__(f"{len(self.errors)} of the batch failed, at {places}{', ...' if len(self.errors) > 10 else ''}")


def outcomes_of(returned: Any, count: int) -> list[Any]:
    """Return a handler's return value as one outcome a job: an output, a continuation, or an exception.

    Raises: InvalidOutputError when it is neither None nor a list of as many.
    """
    if returned is None:
        return [None] * count
    if isinstance(returned, (str, bytes, Mapping)) or not isinstance(returned, Sequence):
        raise InvalidOutputError(f"a batch handler returns a list of outcomes, or None, got a {type(returned).__name__}")
    if len(returned) != count:
        raise InvalidOutputError(f"a batch handler returns an outcome for each of its {count} jobs, got {len(returned)}")
    return list(returned)


def outcomes_without(failed: BatchFailed, count: int) -> list[Any]:
    """Return the outcomes of a batch some of which failed.

    Raises: InvalidOutputError for a place that is not there, or a value that is no exception: nothing is taken for
    completed then.
    """
    for place, error in failed.errors.items():
        if not isinstance(place, int) or not 0 <= place < count:
            raise InvalidOutputError(f"BatchFailed names place {place}, and the batch has {count}, from 0")
        if not isinstance(error, BaseException):
            raise InvalidOutputError(f"BatchFailed has {error!r} at place {place}, which is no exception")
    return [failed.errors.get(place) for place in range(count)]
