"""Exceptions of the library, and the signals that a handler raises to end its attempt.

There is a class wherever a caller could act on the error. The first line of its docstring is its default message, and its
fields hold the details. Nothing was changed unless the class states otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from sa_jobqueue.errors.base import InvalidOptionError, JobQueueError
from sa_jobqueue.errors.signals import AttemptSignal, Cancel, Discard, Retry, Snooze
from sa_jobqueue.types import ChainResult, JobId, JobStatus

__all__ = [
    "AttemptSignal",
    "AttemptTimeoutError",
    "Cancel",
    "ChainBusyError",
    "ChainFailedError",
    "ChainNotFoundError",
    "ChainReferencedError",
    "ChainTimeoutError",
    "ConflictError",
    "DatabaseUnavailableError",
    "Discard",
    "DuplicateJobTypeError",
    "DuplicateStepError",
    "EventTimeoutError",
    "HandlerCommitError",
    "IllegalTransitionError",
    "InvalidBlockersError",
    "InvalidHandlerError",
    "InvalidJobError",
    "InvalidMiddlewareError",
    "InvalidOptionError",
    "InvalidOutputError",
    "InvalidPayloadError",
    "InvalidSelectionError",
    "IsolatedHandlerError",
    "IsolationError",
    "JobEndedError",
    "JobNotFoundError",
    "JobQueueError",
    "JobTypeNotFoundError",
    "LostAttemptError",
    "MemoryLimitError",
    "MiddlewareError",
    "NoOutputError",
    "NotAChainError",
    "NotReschedulableError",
    "PayloadTooLargeError",
    "PipelineMissingError",
    "ProcessDiedError",
    "QueueNotFoundError",
    "ReadOnlyError",
    "Retry",
    "ScheduleNotFoundError",
    "SchemaBusyError",
    "SchemaError",
    "SchemaMissingError",
    "SchemaOutdatedError",
    "SchemaTooNewError",
    "SessionSettingError",
    "Snooze",
    "StaleSnapshotError",
    "StepOutputError",
    "TransactionRequiredError",
    "UncommittedWritesError",
    "UndeclaredContinuationError",
    "UnknownJobTypeError",
    "UnreadableInputError",
    "UnsupportedServerError",
    "WorkerRunningError",
    "WrongJobTypeError",
]


class InvalidJobError(JobQueueError, ValueError):
    """A job cannot be enqueued as described; nothing was written.

    `field` is the invalid argument, `reason` states the accepted values.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class SessionSettingError(JobQueueError):
    """A setting of the application's session is not supported; nothing was written.

    `setting` names it, `value` is the supported value, `reason` what could not be written or read. Set it for the engine's
    sessions: `create_engine(url, connect_args={"options": "-c intervalstyle=postgres"})`, or
    `connect_args={"client_encoding": "utf8"}`.
    """

    def __init__(self, setting: str, value: str, reason: str) -> None:
        self.setting = setting
        super().__init__(
            f"{setting} of this session is not {value}: {reason}. Set it with the engine: "
            f'create_engine(url, connect_args={{"options": "-c {setting}={value}"}})'
        )


class InvalidPayloadError(InvalidJobError):
    """A payload does not fit its type or is not JSON; nothing was written."""


class InvalidBlockersError(InvalidJobError):
    """A job's blockers do not match its handler's annotation; nothing was written.

    `position` is the index of the blocker; None if their number is wrong. `expected` and `given` are the types of the
    outputs, or the numbers.
    """

    def __init__(self, position: int | None, expected: str, given: str, reason: str) -> None:
        self.position = position
        self.expected = expected
        self.given = given
        super().__init__("blockers" if position is None else f"blockers[{position}]", reason)


class UnreadableInputError(InvalidPayloadError):
    """A job's stored input, or the outputs of its blockers, do not match its handler's annotation.

    Retrying cannot help, so the job is dead even if it had attempts left.
    """


class PayloadTooLargeError(InvalidPayloadError):
    """A payload is over the limit; nothing was written. Store it elsewhere and enqueue a reference to it.

    `field` names it. `size_bytes` and `limit_bytes` are of its JSON text in UTF-8.
    """

    def __init__(self, field: str, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            field,
            f"is {size_bytes:,} bytes of JSON, over the limit of {limit_bytes:,}; store it elsewhere and pass a reference",
        )


class InvalidHandlerError(JobQueueError, TypeError):
    """The function's signature is not supported for a handler; nothing was registered."""


class InvalidMiddlewareError(JobQueueError, TypeError):
    """The function's signature is not supported for middleware; nothing was registered."""


class InvalidSelectionError(JobQueueError, ValueError):
    """A selector returned an invalid answer; its queue continues in the default order.

    `selector` is where it is declared; `reason` states the accepted values.
    """

    def __init__(self, selector: str, reason: str) -> None:
        self.selector = selector
        self.reason = reason
        super().__init__(f"{selector} {reason}")


class UnknownJobTypeError(JobQueueError, LookupError):
    """No handler of that name is registered; nothing was written.

    `type_name` is the missing name, `known` has the registered ones.
    """

    def __init__(self, type_name: str, known: Sequence[str]) -> None:
        self.type_name = type_name
        self.known = tuple(sorted(known))
        super().__init__(f"no handler is registered for {type_name!r}; known job types: {', '.join(self.known) or 'none'}")


class DuplicateJobTypeError(JobQueueError):
    """Two handlers have the same job type; the second was not registered.

    `first` and `second` are where the two functions are declared.
    """

    def __init__(self, type_name: str, first: str, second: str) -> None:
        self.type_name = type_name
        self.places = (first, second)
        super().__init__(f"job type {type_name!r} is declared at {first} and again at {second}; rename one")


def _because(reason: str) -> str:
    return f"; {reason}" if reason else ""


class JobNotFoundError(JobQueueError, LookupError):
    """No such job; an operation that writes has changed nothing.

    `job_ids` has all that are missing.
    """

    def __init__(self, job_ids: Sequence[JobId], *, reason: str = "nothing was changed") -> None:
        self.job_ids = tuple(job_ids)
        super().__init__(f"no such job: {', '.join(map(str, self.job_ids))}{_because(reason)}")


class ChainNotFoundError(JobQueueError, LookupError):
    """No such chain; an operation that writes has changed nothing.

    `chain_ids` names all that are missing.
    """

    def __init__(self, chain_ids: Sequence[JobId], *, field: str = "chain_ids", reason: str = "nothing was changed") -> None:
        self.chain_ids = tuple(chain_ids)
        self.field = field
        super().__init__(f"{field}: no such chain: {', '.join(map(str, self.chain_ids))}{_because(reason)}")


class NotAChainError(JobQueueError, LookupError):
    """The id of a continuation was passed instead of its chain's id; nothing was changed.

    `chains` maps each id to the chain it belongs to.
    """

    def __init__(self, chains: Mapping[JobId, JobId], *, field: str = "chain_ids") -> None:
        self.chains = dict(chains)
        self.field = field
        owners = ", ".join(f"{job_id} belongs to chain {chain_id}" for job_id, chain_id in self.chains.items())
        super().__init__(f"{field}: a chain's id is the id of its first job: {owners}; nothing was changed")


class ScheduleNotFoundError(JobQueueError, LookupError):
    """No such schedule; an operation that writes has changed nothing.

    `names` has all that are missing.
    """

    def __init__(self, names: Sequence[str], *, reason: str = "nothing was changed") -> None:
        self.names = tuple(names)
        super().__init__(f"no such schedule: {', '.join(map(repr, self.names))}{_because(reason)}")


class QueueNotFoundError(JobQueueError, LookupError):
    """The queue has no settings and no active worker, or its fairness key no settings; nothing was changed.

    `name` is the queue; `fairness_key` the key in it, empty for the queue itself.
    """

    def __init__(self, name: str, fairness_key: str = "") -> None:
        self.name = name
        self.fairness_key = fairness_key
        what, why = f"queue {name!r}", "it has no settings and no active worker"
        if fairness_key:
            what, why = f"fairness key {fairness_key!r} of {what}", "it has no settings"
        super().__init__(f"{what} not found: {why}")


class JobTypeNotFoundError(JobQueueError, LookupError):
    """The job type has no settings, and no active worker has a handler for it; nothing was changed.

    `type_name` is the job type.
    """

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name
        super().__init__(f"job type {type_name!r} not found: it has no settings and no active worker has a handler for it")


class ChainReferencedError(JobQueueError):
    """A chain cannot be deleted because a job of another chain waits for it or has waited for it.

    `references` lists the first 1,000 pairs of the chain and the id of the job that refers to it. Nothing was changed.
    Delete that job's chain first, or in the same call.
    """

    def __init__(self, references: Sequence[tuple[JobId, JobId]]) -> None:
        self.references = list(references)
        shown = ", ".join(f"job {job_id} refers to chain {chain_id}" for chain_id, job_id in self.references[:3])
        more = f" and {len(self.references) - 3:,} more" if len(self.references) > 3 else ""
        super().__init__(f"{shown}{more}; delete the referring jobs' chains first, or in the same call; nothing was changed")


class ChainFailedError(JobQueueError):
    """A chain that was waited for died or was cancelled.

    `result` is its result, with `chain_id`, `status` and `error` of the last job, as JSON.
    """

    def __init__(self, result: ChainResult[Any]) -> None:
        self.result = result
        self.chain_id = result.id
        self.status = result.status
        self.error = result.error
        ended = f"chain {result.id} ({result.type_name}) "
        if result.status is JobStatus.CANCELLED:
            super().__init__(f"{ended}was cancelled")
            return
        error = result.error if isinstance(result.error, dict) else {}
        first = next(iter(str(error.get("message") or "").splitlines()), "")[:200]
        why = ": ".join(filter(None, [str(error.get("type") or ""), first])) or "no error was recorded"
        super().__init__(f"{ended}is dead: {why}; after a redrive it can be waited for again")


class NoOutputError(JobQueueError, LookupError):
    """A chain has no output: it is still open, or it died or was cancelled.

    `chain_id` names it, `status` is that of its last job.
    """

    def __init__(self, chain_id: JobId, status: JobStatus) -> None:
        self.chain_id = chain_id
        self.status = status
        super().__init__(f"chain {chain_id} has no output: it is {status}")


class WrongJobTypeError(JobQueueError, TypeError):
    """The job or chain is of another type than the handler; nothing was changed.

    `id` is that of the job or chain, `expected` the handler's type, `given` the actual type.
    """

    def __init__(self, id: JobId, expected: str, given: str, reason: str) -> None:
        self.id = id
        self.expected = expected
        self.given = given
        super().__init__(reason)


class ChainTimeoutError(JobQueueError, TimeoutError):
    """A chain did not end within the timeout; it continues, and can be waited for again.

    `timeout` is the time waited, `others` how many more of the chains have not ended.
    """

    def __init__(self, chain_id: JobId, timeout: timedelta, *, others: int = 0) -> None:
        self.chain_id = chain_id
        self.timeout = timeout
        self.others = others
        more = f", nor have {others:,} others" if others else ""
        super().__init__(f"chain {chain_id} has not ended within {timeout}{more}; it continues, and can be waited for again")


class ChainBusyError(JobQueueError):
    """Concurrent transactions kept changing the chain's dependencies. Nothing was changed; try again."""


class ReadOnlyError(JobQueueError, TypeError):
    """Rows of a read-only view cannot be written; roll back the transaction."""


class JobEndedError(JobQueueError):
    """The job has already ended; nothing was changed.

    `job_id` is its id, `status` how it ended.
    """

    def __init__(self, job_id: JobId, status: JobStatus) -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(f"job {job_id} has already ended: it is {status}; nothing was changed")


class IllegalTransitionError(JobQueueError):
    """The database refused a change of status; roll back the transaction."""


class NotReschedulableError(IllegalTransitionError):
    """Only pending and blocked jobs can be rescheduled; nothing was changed.

    `job_ids` lists the jobs that are neither, `statuses` their statuses in the same order.
    """

    def __init__(self, statuses: Mapping[JobId, JobStatus]) -> None:
        self.job_ids = tuple(statuses)
        self.statuses = tuple(statuses.values())
        first = ", ".join(f"{job_id} is {status}" for job_id, status in islice(statuses.items(), 10))
        more = f" and {len(statuses) - 10} more" if len(statuses) > 10 else ""
        super().__init__(f"only pending and blocked jobs can be rescheduled: {first}{more}; nothing was changed")


class ConflictError(JobQueueError):
    """Another row has the same unique key; roll back the transaction.

    `constraint` is the name of the unique index or constraint. `message` is PostgreSQL's message.
    """

    def __init__(self, message: str, constraint: str) -> None:
        self.constraint = constraint
        super().__init__(message)


class StaleSnapshotError(ConflictError):
    """The transaction's snapshot is too old to show the chain that has the deduplication key; nothing was written.

    `key` is the deduplication key, None if it is one of several; `isolation_level` is the transaction's. Retry the
    whole transaction, or use READ COMMITTED.
    """

    def __init__(self, key: str | None, isolation_level: str) -> None:
        self.key = key
        self.isolation_level = isolation_level
        super().__init__(
            f"deduplication key {'' if key is None else f'{key!r} '}was taken by another transaction after this one, "
            f"{isolation_level}, took its snapshot; retry the transaction, or use READ COMMITTED",
            "uq_job_deduplication",
        )


class TransactionRequiredError(JobQueueError):
    """The operation holds locks until its transaction ends, but the connection is in AUTOCOMMIT; nothing was written.

    `operation` names it. Use an engine, or `execution_options(isolation_level=...)`, with another isolation level.
    """

    def __init__(self, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"{operation} needs a transaction, and the session's connection is in AUTOCOMMIT: use an engine with another "
            "isolation_level, such as READ COMMITTED; nothing was written"
        )


class SchemaError(JobQueueError):
    """The database's job queue schema does not match this library; nothing was changed."""


class SchemaMissingError(SchemaError):
    """The job tables are missing: run their migration (`alembic upgrade head`)."""


class PipelineMissingError(SchemaError, AttributeError):
    """The queue has no tables for Spark's writes and the archive. `queue` is its class or its `job` table."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(
            f"{queue} has no tables for Spark's writes and the archive: declare it with queue_pipeline=True, as in "
            "class Job(JobMixin, Base, queue_pipeline=True), and migrate the database (alembic revision --autogenerate and "
            "alembic upgrade head, or sa-jobqueue migrate upgrade)"
        )


class SchemaOutdatedError(SchemaError):
    """The job tables are of an older version: run `alembic revision --autogenerate`, then `alembic upgrade head`."""


class SchemaTooNewError(SchemaError):
    """The job tables are of a newer version than this library supports: upgrade the library."""


class SchemaBusyError(SchemaError):
    """A migration could not lock the job tables in time; nothing was changed.

    `patience` is how long the migration tried. `holders` describes each session that holds the tables.
    """

    def __init__(self, table: str, patience: timedelta, holders: Sequence[str]) -> None:
        self.table = table
        self.patience = patience
        self.holders = tuple(holders)
        holding = "; ".join(self.holders) or "sessions that have ended since"
        super().__init__(
            f"table {table} and its dependent objects could not be locked within {patience}; they are held by {holding}. "
            "Nothing was changed: wait for those transactions to end, or terminate them, and try again"
        )


class UnsupportedServerError(JobQueueError):
    """The server or the database is not supported: PostgreSQL 15 or newer and the encoding UTF8 are required."""

    @classmethod
    def of_encoding(cls, name: str) -> UnsupportedServerError:
        """Return the error for a database whose encoding is `name`."""
        return cls(f"the encoding of this database is {name}, a job queue needs UTF8: CREATE DATABASE ... ENCODING 'UTF8'")


def require_postgresql(dialect: str) -> None:
    """Check that a connection is one to PostgreSQL.

    `dialect`: the name of its dialect. Raises: UnsupportedServerError unless it is `postgresql`.
    """
    if dialect != "postgresql":
        raise UnsupportedServerError(
            f"sa_jobqueue needs PostgreSQL, and this database is {dialect}: change the URL to a PostgreSQL one; in tests, "
            "the pytest plugin sa_jobqueue.testing.plugin gives each a database"
        )


class DatabaseUnavailableError(JobQueueError):
    """The database is not reachable; see the cause."""


class WorkerRunningError(JobQueueError):
    """The worker is already running: create another `Worker`, or call `run` again after the first call has returned.

    `worker_id` names it. The current run continues.
    """

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        super().__init__(
            f"worker {worker_id} is already running: create another Worker, or call run again after the first call returns"
        )


class LostAttemptError(JobQueueError):
    """The attempt is no longer this worker's: its job was rescued, cancelled or completed elsewhere. Nothing was written."""

    def __init__(self, job_id: JobId, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(f"attempt {attempt} of job {job_id} is no longer this worker's; its writes were rolled back")


class DuplicateStepError(JobQueueError, ValueError):
    """A handler used the name of a step twice in one attempt; the second was not run.

    `name` and `key` are those of the step. Give each step its own name; in a loop, pass `key=`.
    """

    def __init__(self, name: str, key: str = "") -> None:
        self.name = name
        self.key = key
        which, rule = (f" with key {key!r}", "give each round its own key") if key else ("", "in a loop, pass key=")
        super().__init__(f"step {name!r}{which} was used already in this attempt: names are unique in a job; {rule}")

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.key)


class StepOutputError(JobQueueError):
    """The record of a step does not match the handler: its kind or the type of its result has changed.

    `name` and `key` are those of the step, `reason` is the difference. Convert the record with `handler.upcast_step`,
    or give the step a new name: it then runs again.
    """

    def __init__(self, name: str, key: str, reason: str) -> None:
        self.name = name
        self.key = key
        self.reason = reason
        which = f" with key {key!r}" if key else ""
        advice = "Change the handler back, convert the record with upcast_step, or give the step a new name to run it again"
        super().__init__(f"step {name!r}{which} {reason}. {advice}")

    def __reduce__(self) -> Any:
        return type(self), (self.name, self.key, self.reason)


class EventTimeoutError(JobQueueError, TimeoutError):
    """The event that a job waited for was not sent in time. Catch it in the handler, or the attempt fails.

    `name` and `key` are those of the step. Later attempts raise it immediately, even if the event is sent later.
    """

    def __init__(self, event: str, name: str, key: str = "") -> None:
        self.event = event
        self.name = name
        self.key = key
        which = f" with key {key!r}" if key else ""
        super().__init__(f"event {event!r} was not sent before the timeout of step {name!r}{which}")

    def __reduce__(self) -> Any:
        return type(self), (self.event, self.name, self.key)


class HandlerCommitError(JobQueueError):
    """A handler must not commit a session of the worker, which commits its writes with the completion or the step.

    The attempt fails and its writes are rolled back. Open another session for writes that must survive a failed attempt.
    """


class UncommittedWritesError(JobQueueError):
    """A handler without a session argument left writes in the framework's session that it did not commit.

    The attempt fails, because those writes are rolled back.
    """

    def __init__(self, place: str, name: str) -> None:
        self.place = place
        self.name = name
        super().__init__(
            f"the handler {place} takes no session and left writes in {name} uncommitted, which are rolled back: annotate a "
            f"session argument (session: Session), so that {name} is the session that completes the job, or commit {name}; "
            "a handler in a child process must commit"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.place, self.name)


class InvalidOutputError(JobQueueError, TypeError):
    """A handler's return value is not JSON or does not match its declared type; the attempt failed."""


class UndeclaredContinuationError(InvalidOutputError):
    """A handler returned a continuation that its annotation does not declare; the attempt failed.

    `next_type_name` is the type of the continuation; `expected` is the declared output of the chain, `given` the one
    that it leads to.
    """

    def __init__(self, type_name: str, next_type_name: str, expected: str, given: str) -> None:
        self.type_name = type_name
        self.next_type_name = next_type_name
        self.expected = expected
        self.given = given
        super().__init__(
            f"{type_name!r} returned a continuation with {next_type_name!r}, whose chain ends with {given}; it is annotated"
            f" `-> {expected}`: declare `Continuation[{given}]` there, or continue with another handler"
        )


class MiddlewareError(JobQueueError):
    """A middleware did not call `proceed` exactly once; the attempt failed.

    `middleware` names it, `reason` describes the violation.
    """

    def __init__(self, middleware: str, reason: str) -> None:
        self.middleware = middleware
        self.reason = reason
        super().__init__(f"{middleware} {reason}")


class AttemptTimeoutError(JobQueueError, TimeoutError):
    """An attempt ran past its timeout.

    `timeout` is the timeout that it exceeded.
    """

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        super().__init__(f"ran past its timeout of {timeout}")


class IsolationError(JobQueueError):
    """The child process for an isolated handler could not be used.

    Raised when a worker starts, before it claims jobs; later, it fails the attempt. `reason` states what went wrong.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"the child process for isolated handlers cannot be used: {reason}")


class ProcessDiedError(JobQueueError):
    """The child process that ran an attempt died; only that attempt failed.

    `signal` is the signal that killed it, `status` its exit status if it exited, `stack` Python's stack, if there was
    time to write it.
    """

    def __init__(self, how: str, *, signal: str | None = None, status: int | None = None, stack: str = "") -> None:
        self.how = how
        self.signal = signal
        self.status = status
        self.stack = stack
        super().__init__(f"the process of the attempt {how}")


class MemoryLimitError(ProcessDiedError):
    """The child process that ran an attempt exceeded its handler's `memory_limit` and was killed.

    `limit_bytes` is the limit, `resident_bytes` the memory it used.
    """

    def __init__(self, limit_bytes: int, resident_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.resident_bytes = resident_bytes
        held, limit = resident_bytes / 2**20, limit_bytes / 2**20
        super().__init__(f"was killed: it used {held:,.0f} MiB, over its memory limit of {limit:,.0f} MiB", signal="SIGKILL")


class IsolatedHandlerError(JobQueueError):
    """An isolated handler raised an exception in its child process.

    `kind`, `reason` and `traceback` are its class, message and traceback, as text.
    """

    def __init__(self, kind: str, reason: str, traceback: str) -> None:
        self.kind = kind
        self.reason = reason
        self.traceback = traceback
        super().__init__(f"{kind}: {reason}")
