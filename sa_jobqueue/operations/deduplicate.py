"""Enqueueing at most once: a key finds the chain that has it, or makes it, whatever others do at the same time.

Why not `session.add`: a second job with an open chain's key violates a unique index, and that error poisons the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeVar

from sqlalchemy.orm import Session, object_session

from sa_jobqueue.errors import ConflictError, InvalidJobError, InvalidOptionError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.statements import deduplication
from sa_jobqueue.types import JobId

JobT = TypeVar("JobT", bound=JobMixin[Any])

_TRIES: Final = 10


@dataclass(frozen=True, slots=True)
class Deduplicate:
    """What counts as the same job.

    `key`: any text but the empty one; it counts within the job's type. `scope`: "open" finds chains that have not ended,
    "any" finds ended ones too. `window`: only chains enqueued within it, by the database's clock; above zero.
    `exclude`: chains that do not count; an open one among them hands its key over, so that a recurring job can enqueue
    its own successor. An open chain always counts, however old: at most one has a key.
    Raises: InvalidOptionError naming the field.
    """

    key: str
    scope: Literal["open", "any"] = "open"
    window: timedelta | None = None
    exclude: Sequence[JobId] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.key, str) or not self.key or "\x00" in self.key:
            raise InvalidOptionError("key", f"must be text that is not empty, got {self.key!r}")
        if self.scope not in {"open", "any"}:
            raise InvalidOptionError("scope", f"must be 'open' or 'any', got {self.scope!r}")
        if self.window is not None and not isinstance(self.window, timedelta):
            raise InvalidOptionError("window", f"must be a timedelta, got {self.window!r}")
        if self.window is not None and self.window <= timedelta(0):
            raise InvalidOptionError("window", f"must be above zero, got {self.window}")
        if self.window is not None and self.scope == "open":
            raise InvalidOptionError("window", "needs scope='any': an open chain counts however old it is")
        if isinstance(self.exclude, (str, bytes)):
            raise InvalidOptionError("exclude", "must be a list of ids, not one id")


def enqueue(session: Session, job: JobT, *, deduplicate: Deduplicate) -> tuple[JobT, bool]:
    """Enqueue a job unless its key is taken; return the job that has it, and whether it was made now.

    `job`: as `Job(...)` or `handler.job(...)` make it, in no session. Found or made, the job returned is in the session.
    Inputs are not compared.
    Changes: one row, or none; a job among `exclude` may lose its key.
    Locks: the key, until the transaction ends: another transaction that enqueues with it waits for the end of this one.
    Raises: InvalidJobError when the job is in a session already. Nothing is written then.
    """
    (result,) = enqueue_unique(session, [(job, deduplicate)])
    return result


def enqueue_unique(session: Session, new: Iterable[tuple[JobT, Deduplicate]]) -> list[tuple[JobT, bool]]:
    """Enqueue many jobs, each unless its key is taken; return for each what `enqueue` returns, in the order given.

    Later ones find earlier ones of the same call. Keys are locked in one order, so two such calls never deadlock.
    Otherwise as `enqueue`.
    """
    listed = list(new)
    for index, (job, _) in enumerate(listed):
        if object_session(job) is not None:
            raise InvalidJobError(f"new[{index}]", "is already in a session; pass a fresh job")
    session.flush()
    keys = sorted({(type(job).__module__, type(job).__qualname__, job.type_name, given.key) for job, given in listed})
    models = {(type(job).__module__, type(job).__qualname__): type(job) for job, _ in listed}
    for module, name, type_name, key in keys:
        session.execute(deduplication.lock_key(models[module, name], type_name, key))
    return [_find_or_make(session, job, given) for job, given in listed]


def _find_or_make(session: Session, job: JobT, given: Deduplicate) -> tuple[JobT, bool]:
    if given.exclude:
        session.execute(deduplication.give_up_key(type(job), job.type_name, given.key, given.exclude))
    for _ in range(_TRIES):
        found = _find(session, job, given)
        if found is not None:
            return found, False
        job.deduplication_key = given.key
        try:
            # A savepoint, because the lock does not bind those who bypass this function: a plain insert with the key,
            # a redrive that opens an old chain again. Their chain is found in the next round.
            with translated(), session.begin_nested():
                session.add(job)
                session.flush()
        except ConflictError as error:
            if "uq_job_deduplication" not in error.constraint:
                raise
            continue
        return job, True
    raise ConflictError(f"the key {given.key!r} is taken and given up again too fast to follow", "uq_job_deduplication")


def _find(session: Session, job: JobT, given: Deduplicate) -> JobT | None:
    scopes = [True, False] if given.scope == "any" else [True]
    for open_only in scopes:
        statement = deduplication.find(
            type(job),
            job.type_name,
            given.key,
            open_only=open_only,
            window=None if open_only else given.window,
            exclude=given.exclude,
        )
        found: JobT | None = session.scalars(statement).first()
        if found is not None:
            return found
    return None
