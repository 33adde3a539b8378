"""Every exception of the library, and the signals a handler raises to end its attempt its own way.

A class exists where a caller could act on it. Its docstring's first line is its default message; what it knows is in
fields, and each says what was left changed (nothing, unless it says otherwise).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any

from sa_jobqueue.errors.base import InvalidOptionError as InvalidOptionError
from sa_jobqueue.errors.base import JobQueueError as JobQueueError
from sa_jobqueue.errors.signals import AttemptSignal as AttemptSignal
from sa_jobqueue.errors.signals import Cancel as Cancel
from sa_jobqueue.errors.signals import Discard as Discard
from sa_jobqueue.errors.signals import Retry as Retry
from sa_jobqueue.errors.signals import Snooze as Snooze
from sa_jobqueue.types import ChainResult, JobId, JobStatus


class InvalidJobError(JobQueueError, ValueError):
    """A job cannot be enqueued as described; nothing was written.

    `field` is the argument at fault, with the path inside it where it has one; `reason` says what would be right.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class SessionSettingError(JobQueueError):
    """The application's session has a setting with which this cannot work; nothing was written.

    `setting` names it. The engine can set it for its own sessions: `create_engine(url, connect_args={"options": "-c
    intervalstyle=postgres"})`, or `connect_args={"client_encoding": "utf8"}`.
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
    """A job's blockers are not those that its handler's annotation declares; nothing was written.

    `position` is that of the blocker at fault, from 0; None when their number is wrong. `expected` and `given` are the types
    of their outputs, as they are annotated, or the numbers.
    """

    def __init__(self, position: int | None, expected: str, given: str, reason: str) -> None:
        self.position = position
        self.expected = expected
        self.given = given
        super().__init__("blockers" if position is None else f"blockers[{position}]", reason)


class UnreadableInputError(InvalidPayloadError):
    """What a job's handler is given does not fit its annotation, and never will: its stored input, or its blockers' outputs.

    The job is dead, whatever attempts it had left.
    """


class PayloadTooLargeError(InvalidPayloadError):
    """A payload is over the limit; nothing was written. Store it elsewhere and enqueue a reference to it.

    `size_bytes` and `limit_bytes` are of its JSON text.
    """

    def __init__(self, field: str, size_bytes: int, limit_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.limit_bytes = limit_bytes
        super().__init__(
            field,
            f"is {size_bytes:,} bytes of JSON, over the limit of {limit_bytes:,}; store it elsewhere and pass a reference",
        )


class InvalidHandlerError(JobQueueError, TypeError):
    """A function cannot be a handler as it is declared; nothing was registered."""


class InvalidMiddlewareError(JobQueueError, TypeError):
    """A function cannot be middleware as it is declared; nothing was registered."""


class InvalidSelectionError(JobQueueError, ValueError):
    """A selector's answer is none; its queue goes on in its ordinary order.

    `selector`: where it is declared; `reason` says what would be right.
    """

    def __init__(self, selector: str, reason: str) -> None:
        self.selector = selector
        self.reason = reason
        super().__init__(f"{selector} {reason}")


class UnknownJobTypeError(JobQueueError, LookupError):
    """No handler of that name is registered; nothing was written."""

    def __init__(self, type_name: str, known: Sequence[str]) -> None:
        self.type_name = type_name
        self.known = tuple(sorted(known))
        super().__init__(f"no handler is registered for {type_name!r}; known job types: {', '.join(self.known) or 'none'}")


class DuplicateJobTypeError(JobQueueError):
    """Two handlers claim one job type; the second was not registered."""

    def __init__(self, type_name: str, first: str, second: str) -> None:
        self.type_name = type_name
        self.places = (first, second)
        super().__init__(f"job type {type_name!r} is declared at {first} and again at {second}; rename one")


def _because(reason: str) -> str:
    return f"; {reason}" if reason else ""


class JobNotFoundError(JobQueueError, LookupError):
    """No such job; an operation that writes has changed nothing."""

    def __init__(self, job_ids: Sequence[JobId], *, reason: str = "nothing was changed") -> None:
        self.job_ids = tuple(job_ids)
        super().__init__(f"no such job: {', '.join(map(str, self.job_ids))}{_because(reason)}")


class ChainNotFoundError(JobQueueError, LookupError):
    """No such chain; an operation that writes has changed nothing.

    `chain_ids` names all that are missing; `field` is the argument they were given in.
    """

    def __init__(self, chain_ids: Sequence[JobId], *, field: str = "chain_ids", reason: str = "nothing was changed") -> None:
        self.chain_ids = tuple(chain_ids)
        self.field = field
        super().__init__(f"{field}: no such chain: {', '.join(map(str, self.chain_ids))}{_because(reason)}")


class NotAChainError(JobQueueError, LookupError):
    """The id of a continuation was given where a chain's is needed, that of its root job; nothing was changed.

    `chains` has for each of them the chain it belongs to; `field` is the argument they were given in.
    """

    def __init__(self, chains: Mapping[JobId, JobId], *, field: str = "chain_ids") -> None:
        self.chains = dict(chains)
        self.field = field
        told = ", ".join(f"{job_id} belongs to chain {chain_id}" for job_id, chain_id in self.chains.items())
        super().__init__(f"{field}: a chain is named by its first job: {told}; nothing was changed")


class ScheduleNotFoundError(JobQueueError, LookupError):
    """No such schedule; an operation that writes has changed nothing. `names` has all that are missing."""

    def __init__(self, names: Sequence[str], *, reason: str = "nothing was changed") -> None:
        self.names = tuple(names)
        super().__init__(f"no such schedule: {', '.join(map(repr, self.names))}{_because(reason)}")


class ChainReferencedError(JobQueueError):
    """A chain cannot be deleted while a job of another chain waits for it, or has waited and is still there.

    `references` lists `(chain_id, job_id)`: the chain, and the job that refers to it; the first 1,000. Nothing was
    changed. Delete that job's chain first, or together with it.
    """

    def __init__(self, references: Sequence[tuple[JobId, JobId]]) -> None:
        self.references = list(references)
        told = ", ".join(f"job {job_id} refers to chain {chain_id}" for chain_id, job_id in self.references[:3])
        more = f" and {len(self.references) - 3:,} more" if len(self.references) > 3 else ""
        super().__init__(f"{told}{more}; delete what refers to a chain first, or with it; nothing was changed")


class ChainFailedError(JobQueueError):
    """A chain that was waited for died or was cancelled.

    `result` tells how, `chain_id`, `status` and `error` (the last job's, as JSON) are its parts. A dead chain may be
    redriven later; wait for it again then.
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
        told = result.error if isinstance(result.error, dict) else {}
        first = next(iter(str(told.get("message") or "").splitlines()), "")[:200]
        why = ": ".join(filter(None, [str(told.get("type") or ""), first])) or "no error was kept"
        super().__init__(f"{ended}is dead: {why}; if it is redriven, it can be waited for again")


class NoOutputError(JobQueueError, LookupError):
    """A chain has no output: it is still open, or it died or was cancelled.

    `chain_id` names it, `status` is that of its last job.
    """

    def __init__(self, chain_id: JobId, status: JobStatus) -> None:
        self.chain_id = chain_id
        self.status = status
        super().__init__(f"chain {chain_id} has no output: it is {status}")


class WrongJobTypeError(JobQueueError, TypeError):
    """A job or a chain is not of the handler's type that it was read or completed by; nothing was changed.

    `id` is the job's or the chain's, `expected` the handler's type, `given` its own.
    """

    def __init__(self, id: JobId, expected: str, given: str, reason: str) -> None:
        self.id = id
        self.expected = expected
        self.given = given
        super().__init__(reason)


class ChainTimeoutError(JobQueueError, TimeoutError):
    """A chain that was waited for did not end in time; it goes on, and can be waited for again.

    `chain_id` is the chain's, `timeout` how long it was waited for.
    """

    def __init__(self, chain_id: JobId, timeout: timedelta) -> None:
        self.chain_id = chain_id
        self.timeout = timeout
        super().__init__(f"chain {chain_id} has not ended within {timeout}; it goes on, and can be waited for again")


class ChainBusyError(JobQueueError):
    """Others changed what the chain is connected with again and again; nothing was changed: try again later."""


class ReadOnlyError(JobQueueError, TypeError):
    """What is read from a view cannot be written; the transaction it was tried in must be rolled back."""


class JobEndedError(JobQueueError):
    """A job has ended already; nothing was changed.

    `job_id` names it, `status` tells how it ended.
    """

    def __init__(self, job_id: JobId, status: JobStatus) -> None:
        self.job_id = job_id
        self.status = status
        super().__init__(f"job {job_id} has ended already: it is {status}; nothing was changed")


class IllegalTransitionError(JobQueueError):
    """The database refused a change of status; the transaction it was tried in must be rolled back."""


class NotReschedulableError(IllegalTransitionError):
    """Some of the jobs are neither pending nor blocked, so none was moved to another time; nothing was changed.

    `job_ids` names every one of them, `statuses` tells in the same order where each stands.
    """

    def __init__(self, statuses: Mapping[JobId, JobStatus]) -> None:
        self.job_ids = tuple(statuses)
        self.statuses = tuple(statuses.values())
        first = ", ".join(f"{job_id} is {status}" for job_id, status in islice(statuses.items(), 10))
        more = f" and {len(statuses) - 10} more" if len(statuses) > 10 else ""
        super().__init__(f"only pending and blocked jobs can be moved to another time: {first}{more}; nothing was changed")


class ConflictError(JobQueueError):
    """Another row holds a key this one needs; the transaction it was tried in must be rolled back.

    `constraint` is the database's name for the rule.
    """

    def __init__(self, message: str, constraint: str) -> None:
        self.constraint = constraint
        super().__init__(message)


class StaleSnapshotError(ConflictError):
    """A transaction's snapshot does not show the chain that has a deduplication key: another transaction made it since.

    The snapshot of a REPEATABLE READ or SERIALIZABLE transaction is as old as its first statement. `key` is the
    deduplication key, None if it is one of several; `isolation_level` is the transaction's. Nothing was written. Retry the
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
    """The connection is in AUTOCOMMIT, and what was asked for holds locks until its transaction ends; nothing was written.

    `operation` names it. Use an engine, or `execution_options(isolation_level=...)`, with an isolation level of PostgreSQL.
    """

    def __init__(self, operation: str) -> None:
        self.operation = operation
        super().__init__(
            f"{operation} needs a transaction, and the session's connection is in AUTOCOMMIT: use an engine with another "
            "isolation_level, such as READ COMMITTED; nothing was written"
        )


class SchemaError(JobQueueError):
    """The database's job-queue schema is not the one this library needs; nothing was changed."""


class SchemaMissingError(SchemaError):
    """The job queue's tables are not there: run its migration (`alembic upgrade head`)."""


class SchemaOutdatedError(SchemaError):
    """The job queue's tables are of an older version: `alembic revision --autogenerate`, then `alembic upgrade head`."""


class SchemaTooNewError(SchemaError):
    """The job queue's tables are of a newer version than this library knows: upgrade the library."""


class SchemaBusyError(SchemaError):
    """Others held the queue's tables for as long as a migration was willing to try; nothing was changed.

    `holders` says of each who it was: its process id, its application's name, and for how long its transaction was open.
    """

    def __init__(self, table: str, patience: timedelta, holders: Sequence[str]) -> None:
        self.table = table
        self.patience = patience
        self.holders = tuple(holders)
        told = "; ".join(self.holders) or "nobody who is still there"
        super().__init__(
            f"table {table} and what belongs to it could not be locked within {patience}; they are held by {told}. "
            "Nothing was changed: let those transactions end, or end them, and try again"
        )


class ServerTooOldError(JobQueueError):
    """PostgreSQL 15 or newer is needed."""


class DatabaseUnavailableError(JobQueueError):
    """The database does not answer; the cause says why."""


class WorkerRunningError(JobQueueError):
    """A worker runs once at a time: make another `Worker`, or call `run` again when the first call has returned.

    `worker_id` names it. The run under way goes on.
    """

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        super().__init__(
            f"worker {worker_id} is running already: make another Worker, or call run again when the first call has returned"
        )


class LostAttemptError(JobQueueError):
    """This attempt is no longer this worker's: it was taken back, cancelled or completed elsewhere. Nothing was written."""

    def __init__(self, job_id: JobId, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(f"attempt {attempt} of job {job_id} is no longer ours; nothing it did through its session was kept")


class HandlerCommitError(JobQueueError):
    """A handler must not commit the session it was given: its writes and its completion are one commit, made by the worker.

    Open another session for what must be kept even if the attempt fails. The attempt fails; nothing of it is kept.
    """


class InvalidOutputError(JobQueueError, TypeError):
    """A handler returned what is not JSON or does not fit its declared type; the attempt failed."""


class UndeclaredContinuationError(InvalidOutputError):
    """A handler returned a continuation that its annotation does not declare; the attempt failed.

    `type_name` is its job type, `next_type_name` that of the continuation; `expected` is what is declared of the chain's
    output, `given` what the continuation leads to.
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
    """A middleware did not proceed exactly once, so the attempt failed.

    `middleware` names it, `reason` says what it did.
    """

    def __init__(self, middleware: str, reason: str) -> None:
        self.middleware = middleware
        self.reason = reason
        super().__init__(f"{middleware} {reason}")


class AttemptTimeoutError(JobQueueError, TimeoutError):
    """An attempt ran past its timeout."""

    def __init__(self, timeout: timedelta) -> None:
        self.timeout = timeout
        super().__init__(f"ran past its timeout of {timeout}")


class IsolationError(JobQueueError):
    """No child process could run the attempt of an isolated handler.

    Raised when a worker starts, before it claims anything; later on, that attempt failed. `reason` says what went wrong.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"a child process for isolated handlers is of no use: {reason}")


class ProcessDiedError(JobQueueError):
    """The child process that ran an attempt died; that attempt failed, and no other.

    `how` says it in words, `signal` names what killed it, `status` is its exit status where it ended by itself. `stack` is
    Python's, where the crash left the time to write it.
    """

    def __init__(self, how: str, *, signal: str | None = None, status: int | None = None, stack: str = "") -> None:
        self.how = how
        self.signal = signal
        self.status = status
        self.stack = stack
        super().__init__(f"the process of the attempt {how}")


class MemoryLimitError(ProcessDiedError):
    """The child process that ran an attempt held more memory than its handler's `memory_limit`, and was killed.

    `limit_bytes` and `resident_bytes` are of what it held in memory.
    """

    def __init__(self, limit_bytes: int, resident_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.resident_bytes = resident_bytes
        held, limit = resident_bytes / 2**20, limit_bytes / 2**20
        super().__init__(f"was killed: it held {held:,.0f} MiB, over its memory limit of {limit:,.0f} MiB", signal="SIGKILL")


class IsolatedHandlerError(JobQueueError):
    """An isolated handler raised an exception, which stays in its process.

    `kind`, `reason` and `traceback` are what is left of it, as text: its class, its message and where it was raised.
    """

    def __init__(self, kind: str, reason: str, traceback: str) -> None:
        self.kind = kind
        self.reason = reason
        self.traceback = traceback
        super().__init__(f"{kind}: {reason}")
