"""Assertions about the jobs that a test has enqueued, on the session that enqueued it."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, overload

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.testing._dispatch import on_session
from sa_jobqueue.types import INITIAL, Json

JobT = TypeVar("JobT", bound=JobMixin[Any])
Jobs = Handler[Any, Any, JobT] | type[JobT]
Matching = Any | Callable[[Any], bool]

_MOST_JOBS: Final = 5


@overload
def enqueued(session: Session, jobs: Jobs[JobT], matching: Matching = None, **columns: Any) -> list[JobT]: ...
@overload
def enqueued(
    session: AsyncSession, jobs: Jobs[JobT], matching: Matching = None, **columns: Any
) -> Coroutine[Any, Any, list[JobT]]: ...
def enqueued(session: Any, jobs: Any, matching: Matching = None, **columns: Any) -> Any:
    """Return the jobs that wait to be run, pending or blocked, oldest first; with an `AsyncSession`, await it.

    `session`: the one that enqueued them, or any after the commit; it is flushed. `jobs`: a handler, or the `Job` class for
    all types. `matching`: a mapping that the payload must contain, in nested objects too; a payload that must be equal; or
    a function of the job. `columns`: attributes of the job that must be equal, such as `queue`; and `delay`, the time from
    the enqueueing until it is due.
    Raises: InvalidOptionError for an attribute that the class does not have.
    """
    return on_session(session, lambda opened: _Criteria(jobs, matching, columns).split(opened)[0])


@overload
def assert_enqueued(
    session: Session, jobs: Jobs[JobT], matching: Matching = None, *, count: int | None = None, **columns: Any
) -> JobT: ...
@overload
def assert_enqueued(
    session: AsyncSession, jobs: Jobs[JobT], matching: Matching = None, *, count: int | None = None, **columns: Any
) -> Coroutine[Any, Any, JobT]: ...
def assert_enqueued(session: Any, jobs: Any, matching: Matching = None, *, count: int | None = None, **columns: Any) -> Any:
    """Return the first job that `enqueued` finds; fail if it finds no job, or a number other than `count`.

    It takes the other arguments as in `enqueued`.
    Raises: AssertionError.
    """

    def check(opened: Session) -> Any:
        criteria = _Criteria(jobs, matching, columns)
        matches, other_jobs = criteria.split(opened)
        if (count is None and not matches) or (count is not None and len(matches) != count):
            raise AssertionError(criteria.failure(count, matches, other_jobs))
        return matches[0] if matches else None

    return on_session(session, check)


@overload
def assert_not_enqueued(session: Session, jobs: Jobs[JobT], matching: Matching = None, **columns: Any) -> None: ...
@overload
def assert_not_enqueued(
    session: AsyncSession, jobs: Jobs[JobT], matching: Matching = None, **columns: Any
) -> Coroutine[Any, Any, None]: ...
def assert_not_enqueued(session: Any, jobs: Any, matching: Matching = None, **columns: Any) -> Any:
    """Fail if `enqueued` finds a job. Returns None; with an `AsyncSession`, a coroutine to be awaited.

    `session`, `jobs`, `matching`, `columns`: as in `enqueued`.
    Raises: AssertionError that shows the jobs; InvalidOptionError as `enqueued`.
    """
    return assert_enqueued(session, jobs, matching, count=0, **columns)


class _Criteria:
    """Which jobs a test asks for."""

    def __init__(self, jobs: Any, matching: Any, columns: Mapping[str, Any]) -> None:
        self._handler = jobs if isinstance(jobs, Handler) else None
        self._model: Any = jobs.model if isinstance(jobs, Handler) else jobs
        if not (isinstance(self._model, type) and issubclass(self._model, JobMixin)):
            raise InvalidOptionError("jobs", f"must be a handler or a class such as Job, got {jobs!r}")
        for name in columns:
            if name != "delay" and not hasattr(self._model, name):
                raise InvalidOptionError(name, f"is not an attribute of {self._model.__name__}")
        self._columns = dict(columns)
        self._test: Callable[[Any], bool] | None = None
        self._part: Mapping[str, Any] | None = None
        if callable(matching) and not isinstance(matching, Mapping):
            self._test = matching
        elif isinstance(matching, Mapping):
            self._part = matching
        elif matching is not None:
            if self._handler is None:
                raise InvalidOptionError("matching", "needs a handler instead of a class, to encode the payload")
            self._columns["input"] = self._handler.job_type.input.encode("matching", matching)

    def __str__(self) -> str:
        name = "any type" if self._handler is None else f"type {self._handler.name!r}"
        criteria = {**({} if self._part is None else {"input": self._part}), **self._columns}
        suffix = "" if self._test is None else f" for which {self._test!r} holds"
        return f"jobs of {name}{' with ' + _one_line(criteria) if criteria else ''}{suffix}"

    def split(self, session: Session) -> tuple[list[Any], list[Any]]:
        """Return the jobs that match, and the others of the type."""
        session.flush()
        model = self._model
        statement = select(model).where(model.status.in_(INITIAL)).order_by(model.created_at, model.id)
        if self._handler is not None:
            statement = statement.where(model.type_name == self._handler.name)
        listed = session.scalars(statement.execution_options(populate_existing=True)).all()
        matches = [job for job in listed if self._matches(job)]
        return matches, [job for job in listed if job not in matches]

    def _input(self, job: Any) -> Any:
        return job.input if self._handler is None else self._handler.job_type.open("input", job.input)

    def _matches(self, job: Any) -> bool:
        if self._part is not None and not _contains(self._input(job), self._part):
            return False
        if any(
            (self._input(job) if name == "input" else _value(job, name)) != value for name, value in self._columns.items()
        ):
            return False
        return self._test is None or self._test(job)

    def failure(self, count: int | None, matches: Sequence[Any], other_jobs: Sequence[Any]) -> str:
        """Return the message for too few or too many matches."""
        expected = "at least 1" if count is None else count or "none"
        message = f"{self}: {len(matches)} enqueued, expected {expected}"
        if matches:
            return message + _listed(matches)
        if not other_jobs:
            return f"{message}; none of any payload waits"
        return message + _listed(other_jobs)


def _value(job: Any, name: str) -> Any:
    return job.scheduled_at - job.created_at if name == "delay" else getattr(job, name)


def _contains(document: Json, part: Any) -> bool:
    """Return whether a document has the values of a part, in objects at the keys that it names."""
    if isinstance(part, Mapping):
        return isinstance(document, Mapping) and all(
            key in document and _contains(document[key], value) for key, value in part.items()
        )
    return bool(document == part)


def _one_line(value: Any) -> str:
    return ", ".join(f"{key}={_text(item)}" for key, item in value.items())


def _text(value: Any) -> str:
    return str(value) if isinstance(value, timedelta) else json.dumps(value, sort_keys=True, default=str, ensure_ascii=False)


def _listed(jobs: Sequence[Any]) -> str:
    lines = [
        f"\n  {job.type_name} {_text(job.input)} queue={job.queue} delay={_value(job, 'delay')}" for job in jobs[:_MOST_JOBS]
    ]
    more = f"\n  and {len(jobs) - _MOST_JOBS} more" if len(jobs) > _MOST_JOBS else ""
    return "; enqueued are:" + "".join(lines) + more
