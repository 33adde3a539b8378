"""Exceptions of the library, and the signals that a handler raises to end its attempt.

There is a class wherever a caller could act on the error. The first line of its docstring is its default message, and its
fields hold the details. Nothing was changed unless the class states otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from sa_jobqueue.ddl import Stamp
from sa_jobqueue.display.durations import shown_duration
from sa_jobqueue.errors.base import InvalidOptionError, JobQueueError
from sa_jobqueue.errors.extras import install_command
from sa_jobqueue.errors.signals import AttemptSignal, Cancel, Discard, Retry, Snooze
from sa_jobqueue.types import ChainResult, JobId, JobStatus

__all__ = [
    "AttemptSignal",
    "AttemptTimeoutError",
    "Cancel",
    "ChainFailedError",
    "ChainReferencedError",
    "ChainTimeoutError",
    "ChildFailedError",
    "CompletionRefusedError",
    "ConflictError",
    "DatabaseUnavailableError",
    "DeadlinePassedError",
    "Discard",
    "DuplicateStepError",
    "EventTimeoutError",
    "HandlerCommitError",
    "IllegalTransitionError",
    "InvalidHandlerError",
    "InvalidJobError",
    "InvalidOptionError",
    "InvalidOutputError",
    "InvalidPayloadError",
    "IsolatedHandlerError",
    "IsolationError",
    "JobEndedError",
    "JobQueueError",
    "LostAttemptError",
    "MemoryLimitError",
    "MiddlewareError",
    "MissingExtraError",
    "NoOutputError",
    "NotFoundError",
    "ObjectNotFoundError",
    "OpenJobsError",
    "PayloadTooLargeError",
    "PipelineMissingError",
    "ProcessDiedError",
    "ReadOnlyError",
    "Retry",
    "RowSecurityError",
    "SchemaBuildError",
    "SchemaBusyError",
    "SchemaError",
    "SchemaMissingError",
    "SchemaOutdatedError",
    "SchemaTooNewError",
    "Snooze",
    "StepBlockedError",
    "StepOutputError",
    "StepRefusedError",
    "UncommittedWritesError",
    "UndeclaredContinuationError",
    "UnknownJobTypeError",
    "UnreadableInputError",
    "UnrecordedAttemptError",
    "UnstorableOutputError",
    "UnsupportedServerError",
]


class InvalidJobError(JobQueueError, ValueError):
    """A job cannot be enqueued as described; nothing was written.

    `field` is the invalid argument, `reason` states the accepted values.
    """

    def __init__(self, field: str, reason: str) -> None:
        self.field = field
        self.reason = reason
        super().__init__(f"{field}: {reason}")


class InvalidPayloadError(InvalidJobError):
    """A payload does not fit its type or is not JSON; nothing was written."""


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
    """The function cannot be a handler or a middleware, or its job type has a handler already; nothing was registered."""


class UnknownJobTypeError(JobQueueError, LookupError):
    """No handler of that name is registered; nothing was written.

    `type_name` is the missing name, `type_names` has the registered ones.
    """

    def __init__(self, type_name: str, type_names: Sequence[str]) -> None:
        self.type_name = type_name
        self.type_names = tuple(sorted(type_names))
        super().__init__(
            f"no handler is registered for {type_name!r}; known job types: {', '.join(self.type_names) or 'none'}"
        )


class NotFoundError(JobQueueError, LookupError):
    """No such job, chain, queue, job type or schedule; an operation that writes has changed nothing.

    `noun` is the kind; `ids` has the ids or names of all that are missing; `field` is the argument that contains them, where
    it is not obvious. The id of a continuation is not that of a chain: the message names the chain.
    """

    def __init__(
        self, noun: str, ids: Sequence[JobId], *, field: str | None = None, reason: str = "nothing was changed"
    ) -> None:
        self.noun = noun
        self.ids = tuple(ids)
        self.field = field
        where, why = f"{field}: " if field else "", f"; {reason}" if reason else ""
        missing = ", ".join(repr(row_id) if isinstance(row_id, str) else str(row_id) for row_id in self.ids)
        super().__init__(f"{where}no such {noun}: {missing}{why}")

    def add_reason(self, sentence: str) -> None:
        """Add `sentence` to the message: why the row may not have been seen; an empty one adds nothing."""
        if sentence:
            self.args = (f"{self.args[0]}. {sentence}: it may exist",)


class ObjectNotFoundError(JobQueueError, LookupError):
    """A mapped object that is an argument of a handler was not found; the attempt fails, and is retried.

    The row may exist: row-level security, loader criteria, a replica or the search path may hide it. `class_name` and
    `identity` are those of the object, `database` and `role` those of the session.
    """

    def __init__(self, class_name: str, identity: Sequence[Any], database: str, role: str) -> None:
        self.class_name = class_name
        self.identity = tuple(identity)
        self.database = database
        self.role = role
        key = ", ".join(map(str, self.identity))
        super().__init__(f"found no {class_name} {key} (database {database}, role {role})")


def not_chains(chains: Mapping[JobId, JobId], *, field: str = "chain_ids") -> NotFoundError:
    """Return the error for ids of continuations, each with that of its chain, which were passed as ids of chains."""
    owners = ", ".join(f"{job_id} belongs to chain {chain_id}" for job_id, chain_id in chains.items())
    reason = f"a chain's id is the id of its first job: {owners}; nothing was changed"
    return NotFoundError("chain", tuple(chains), field=field, reason=reason)


class ChainReferencedError(JobQueueError):
    """A chain cannot be deleted because a job of another chain waits for it or has waited for it.

    `references` lists the first 1,000 pairs of the chain and the id of the job that refers to it. Nothing was changed.
    Delete that job's chain first, or in the same call.
    """

    def __init__(self, references: Sequence[tuple[JobId, JobId]]) -> None:
        self.references = list(references)
        references_text = ", ".join(f"job {job_id} refers to chain {chain_id}" for chain_id, job_id in self.references[:3])
        more = f" and {len(self.references) - 3:,} more" if len(self.references) > 3 else ""
        super().__init__(
            f"{references_text}{more}; delete the referring jobs' chains first, or in the same call; nothing was changed"
        )


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


class ChainTimeoutError(JobQueueError, TimeoutError):
    """A chain did not end within the timeout; it continues, and can be waited for again.

    `timeout` is the time waited, `more_chains` the number of other chains that have not ended.
    """

    def __init__(self, chain_id: JobId, timeout: timedelta, *, more_chains: int = 0) -> None:
        self.chain_id = chain_id
        self.timeout = timeout
        self.more_chains = more_chains
        more = f", nor have {more_chains:,} others" if more_chains else ""
        within = f"{shown_duration(timeout)}{more}"
        super().__init__(f"chain {chain_id} has not ended within {within}; it continues, and can be waited for again")


class RowSecurityError(JobQueueError):
    """Row-level security hides every job from the role of a worker, which could run none; nothing was changed.

    `table` is the name of the job table, `role` that of the role.
    """

    def __init__(self, table: str, role: str) -> None:
        self.table = table
        self.role = role
        super().__init__(
            f"row-level security on {table} hides all rows from role {role}, so this worker could run no job: "
            f'ALTER ROLE "{role}" BYPASSRLS, or create a policy for the role with USING (true) WITH CHECK (true)'
        )


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
    """A job's status does not allow the change. Roll back the transaction if the database refused it."""


class ConflictError(JobQueueError):
    """Another row has the same unique key, or another transaction was faster; roll back the transaction.

    `constraint` is the name of the unique index or constraint, empty without one. `message` is PostgreSQL's message.
    """

    def __init__(self, message: str, constraint: str = "") -> None:
        self.constraint = constraint
        super().__init__(message)


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
            "class Job(JobMixin, Base, queue_pipeline=True), or import sa_jobqueue.pipeline for the ready-made class, and "
            "migrate the database (alembic revision --autogenerate and alembic upgrade head, or sa-jobqueue migrate upgrade "
            "--pipeline)"
        )


class SchemaOutdatedError(SchemaError):
    """The job tables are of an older version: run `alembic revision --autogenerate`, then `alembic upgrade head`."""


class SchemaTooNewError(SchemaError):
    """The job tables are of a newer version than this library supports: upgrade the library."""


class SchemaBuildError(SchemaError):
    """The job tables were made by another build of their version: drop them and create them again.

    Until a version is released, its tables change from build to build, and no migration leads from one to another. `table`
    is the table with the comment, `version` its version, `build` the build that made it, empty if it recorded none, and
    `expected` this library's build.
    """

    def __init__(self, table: str, version: int, build: str, expected: str) -> None:
        self.table, self.version, self.build, self.expected = table, version, build, expected
        super().__init__(
            f"table {table} was made by another build of version {version} ({build or 'not recorded'}; this library's is "
            f"{expected}): save the jobs that you need, drop the tables with sa-jobqueue migrate downgrade --to 0, and "
            "create them again with sa-jobqueue migrate upgrade; UPGRADING.md has the steps under 'From a development build'"
        )

    @classmethod
    def from_stamps(cls, table: str, stamp: Stamp, expected: Stamp) -> SchemaBuildError:
        """Return the error for the `stamp` of a `table`, and the `expected` stamp of this library's build."""
        return cls(table, stamp.version, stamp.build, expected.build)


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
            f"table {table} and its dependent objects could not be locked within {shown_duration(patience)}; they are held "
            f"by {holding}. Nothing was changed: wait for those transactions to end, or terminate them, and try again"
        )


class OpenJobsError(JobQueueError):
    """A migration that needs jobs to have ended was refused: some are open, or it is not known; nothing was changed.

    `jobs` has the number of open jobs by queue and status, as committed at `checked_at`, which is None if that could not be
    read; it is empty if transactions that may have enqueued some have not ended. `dead_letters` is the number of unresolved
    ones.
    """

    def __init__(
        self,
        reason: str,
        *,
        checked_at: datetime | None = None,
        jobs: Mapping[tuple[str, str], int] = MappingProxyType({}),
        dead_letters: int = 0,
    ) -> None:
        self.checked_at = checked_at
        self.jobs = dict(jobs)
        self.dead_letters = dead_letters
        super().__init__(reason)


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


class MissingExtraError(JobQueueError, ImportError):
    """A library that a feature needs is not installed; nothing was started.

    `library` is the missing library, `extra` the extra that has it; the message has the command that installs it.
    """

    def __init__(self, library: str, extra: str) -> None:
        self.library = library
        self.extra = extra
        super().__init__(f"{library} is not installed: {install_command(extra)}")


class LostAttemptError(JobQueueError):
    """The attempt is no longer this worker's: its job was rescued, cancelled or completed elsewhere. Nothing was written."""

    def __init__(self, job_id: JobId, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(f"attempt {attempt} of job {job_id} is no longer this worker's; its writes were rolled back")


class UnrecordedAttemptError(JobQueueError):
    """An attempt has ended in its worker, and its job's row still shows it as running: its end was not recorded.

    The attempt is counted as failed. Its commit was answered but not kept, for instance by a server that failed over; or the
    row could not be seen for a while. Writes of the handler's session are in the database only if its commit is.
    """

    def __init__(self, job_id: JobId, attempt: int) -> None:
        self.job_id = job_id
        self.attempt = attempt
        super().__init__(
            f"attempt {attempt} of job {job_id} has ended in its worker, and the job's row still shows it as running: its "
            "end was not recorded"
        )


class DuplicateStepError(JobQueueError, ValueError):
    """A handler used the name of a step twice in one attempt; the second was not run.

    `name` and `key` are those of the step. Give each step its own name; in a loop, pass `key=`.
    """

    def __init__(self, name: str, key: str = "") -> None:
        self.name = name
        self.key = key
        key_text, rule = (f" with key {key!r}", "give each round its own key") if key else ("", "in a loop, pass key=")
        super().__init__(f"step {name!r}{key_text} was used already in this attempt: names are unique in a job; {rule}")


class StepOutputError(JobQueueError):
    """The record of a step does not match the handler: its kind or the type of its result has changed.

    `name` and `key` are those of the step, `reason` is the difference, `advice` replaces what to do about it. Convert the
    record with `handler.upcast_step`, or give the step a new name: it then runs again. A wrong payload of an event has no
    record yet: replace the event.
    """

    def __init__(self, name: str, key: str, reason: str, *, advice: str | None = None) -> None:
        self.name = name
        self.key = key
        self.reason = reason
        key_text = f" with key {key!r}" if key else ""
        if advice is None:
            advice = (
                "Change the handler back, convert the record with upcast_step, or give the step a new name to run it again"
            )
        super().__init__(f"step {name!r}{key_text} {reason}. {advice}")


class StepRefusedError(JobQueueError):
    """A step was not begun, because another step of the attempt has raised an error that its call does not declare.

    `name` is that of the refused step, `failed_name` that of the other; `error_type` and `message` are of the other's error,
    which is the cause of this one, and with which the attempt fails. Declare by `catch` an error that is a result: it is
    recorded, and the handler may go on after it.
    """

    def __init__(self, name: str, failed_name: str, error_type: str, message: str) -> None:
        self.name = name
        self.failed_name = failed_name
        self.error_type = error_type
        self.message = message
        super().__init__(
            f"step {name} does not begin, because step {failed_name} raised {error_type} ({message}): a later attempt calls "
            f"that step again and may get a result. If the error is a result, declare it: catch={error_type}"
        )


class StepBlockedError(JobQueueError):
    """A step waited for a lock that its own handler's session holds, which ends after the step; its statement was cancelled.

    `step` is the step; `session` is the name of the session in `pg_stat_activity`. Change such rows through one session: in
    `ctx.transaction`, or in the handler's own session without a step after it. The row of the job itself is locked by each
    step.
    """

    def __init__(self, step: str, session: str) -> None:
        self.step = step
        self.session = session
        super().__init__(
            f"step {step} waited for a lock that the handler's own session {session!r} holds until the handler returns: "
            "change a row that a step needs, or the job's own row, in `ctx.transaction` only"
        )


class EventTimeoutError(JobQueueError, TimeoutError):
    """The event that a job waited for was not sent in time. Catch it in the handler, or the attempt fails.

    `name` and `key` are those of the step. Later attempts raise it immediately, even if the event is sent later.
    """

    def __init__(self, event: str, name: str, key: str = "") -> None:
        self.event = event
        self.name = name
        self.key = key
        key_text = f" with key {key!r}" if key else ""
        super().__init__(f"event {event!r} was not sent before the timeout of step {name!r}{key_text}")


class ChildFailedError(JobQueueError):
    """The job whose result a handler waited for by `ctx.run` died or was cancelled, or was not found.

    `name` is that of the step, `job_id` is the job; `status` is how it ended, None if the worker's connection found no job
    of that id, which was deleted or is not visible to it; `error_type` and `message` are of its error. Later attempts raise
    it immediately, even if the job is redriven.
    """

    def __init__(
        self, name: str, job_id: object, status: str | None, *, error_type: str | None = None, message: str | None = None
    ) -> None:
        self.name = name
        self.job_id = job_id
        self.status = status
        self.error_type = error_type
        self.message = message
        end = {None: "was not found", "dead": "died", "cancelled": "was cancelled"}.get(status, f"ended as {status}")
        error = ": ".join(["", *filter(None, (error_type, message))])
        super().__init__(f"job {job_id}, whose result step {name} waits for, {end}{error}")


class HandlerCommitError(JobQueueError):
    """A handler must not commit a session of the worker, which commits its writes with the completion or the step.

    The attempt fails and its writes are rolled back. Open another session for writes that must survive a failed attempt.
    """


class CompletionRefusedError(JobQueueError):
    """A handler's session could not write the row of its job, so the attempt failed and its writes were rolled back.

    `job_id` is the job; `reason` describes the session. The completion of a handler with a session, and
    the record of a `ctx.transaction`, run in the handler's own transaction: with the search path, role and settings that it
    has set, and with its temporary tables.
    """

    def __init__(self, job_id: JobId, reason: str) -> None:
        self.job_id = job_id
        self.reason = reason
        super().__init__(f"job {job_id}: {reason}")


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


class InvalidOutputError(JobQueueError, TypeError):
    """A handler's return value is not JSON or does not match its declared type; the attempt failed."""


class UnstorableOutputError(InvalidOutputError):
    """The result of a step is not JSON, is too large, or does not match its type; the job becomes a dead letter.

    The step has run, and would run again in each attempt. Return JSON or a type of data, or pass `output`; store a
    large result elsewhere, and return its place.
    """


class UndeclaredContinuationError(InvalidOutputError):
    """A handler returned a continuation that its annotation does not declare; the attempt failed.

    `next_type_name` is the type of the continuation; `expected` is the declared output of the chain, `actual` the
    output that it leads to.
    """

    def __init__(self, type_name: str, next_type_name: str, expected: str, actual: str) -> None:
        self.type_name = type_name
        self.next_type_name = next_type_name
        self.expected = expected
        self.actual = actual
        super().__init__(
            f"{type_name!r} returned a continuation with {next_type_name!r}, whose chain ends with {actual}; it is annotated"
            f" `-> {expected}`: declare `Continuation[{actual}]` there, or continue with another handler"
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
        super().__init__(f"ran past its timeout of {shown_duration(timeout)}")


class DeadlinePassedError(JobQueueError, TimeoutError):
    """A job did not end by its deadline, so it was cancelled.

    `deadline` is the job's.
    """

    def __init__(self, deadline: datetime) -> None:
        self.deadline = deadline
        super().__init__(f"did not end by its deadline, {deadline}")


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
        resident_mib, limit = resident_bytes / 2**20, limit_bytes / 2**20
        super().__init__(
            f"was killed: it used {resident_mib:,.0f} MiB, over its memory limit of {limit:,.0f} MiB", signal="SIGKILL"
        )


class IsolatedHandlerError(JobQueueError):
    """An isolated handler raised an exception in its child process.

    `kind`, `reason` and `traceback` are its class, message and traceback, as text.
    """

    def __init__(self, kind: str, reason: str, traceback: str) -> None:
        self.kind = kind
        self.reason = reason
        self.traceback = traceback
        super().__init__(f"{kind}: {reason}")
