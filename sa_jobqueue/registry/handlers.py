"""`Handler`: a registered function; and the types of the decorators that register one, for type checkers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    Never,
    Protocol,
    TypeAlias,
    overload,
)

from sqlalchemy import ColumnElement, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from typing_extensions import ParamSpec, TypeVar

from sa_jobqueue.context import AttemptContext, Blockers, Continuation
from sa_jobqueue.errors import InvalidJobError, InvalidOptionError, NoOutputError
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.models import ChainMixin, Job, JobMixin, WaitFor
from sa_jobqueue.payloads import Document, sealed, stored_untyped
from sa_jobqueue.payloads.references import encoded
from sa_jobqueue.policies.fairness import key_of
from sa_jobqueue.registry.batches import BatchItem
from sa_jobqueue.registry.job_types import JobType, Upcaster
from sa_jobqueue.types import JobId, JobStatus, Json

JobT = TypeVar("JobT", bound=JobMixin[Any], default=Job)
ModelT = TypeVar("ModelT", bound=JobMixin[Any], default=Job, covariant=True)
DEFAULT_MODEL: type[Job] = Job
"""The default of an argument `model: type[JobT]`: Pyright takes `JobT` from it, mypy from the default of `JobT`."""
InT = TypeVar("InT", contravariant=True)
OutT = TypeVar("OutT", covariant=True)
PayloadT = TypeVar("PayloadT")
IdT = TypeVar("IdT")
P = ParamSpec("P")
CallP = ParamSpec("CallP", default=...)
JobIdT = TypeVar("JobIdT", covariant=True, default=Any)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Untyped: TypeAlias = JobMixin[Any] | ChainMixin[Any] | JobId | WaitFor[Never]
"""A blocker whose output is unknown to a type checker: it is checked at run time only."""


OPTIONS: Final = frozenset(inspect.signature(JobMixin.__init__).parameters) | {"payload"}
"""Arguments of `Handler.job` that are neither fields of a payload nor columns of the application's."""


_SESSIONS: Final = (Session, Connection, AsyncSession, AsyncConnection, scoped_session, async_scoped_session)


def no_session(value: object) -> InvalidOptionError:
    """Return the error for a first argument that is no session."""
    kind = type(value).__name__
    return InvalidOptionError(
        "session",
        f"the first argument must be a Session or Connection, or an AsyncSession or AsyncConnection, got {kind}: "
        "pass the session of your transaction, then the payload",
    )


class Fields(Protocol):
    """To a type checker, the payload of a handler whose parameters are its fields, given by name or in a mapping."""

    def __getitem__(self, name: str, /) -> Any:
        """Return the value of a field."""


class Chained(Protocol):
    """A chain with an undecoded output: a `Job.Chain`, or a `ChainResult`."""

    @property
    def id(self) -> Any:
        """Its first job's id."""

    @property
    def type_name(self) -> str:
        """The type of its first job."""

    @property
    def status(self) -> JobStatus:
        """Outcome of the chain, or the state of its last job."""

    @property
    def output(self) -> Json:
        """What its last job returned, as JSON."""

    @property
    def last_type_name(self) -> str:
        """The type of its last job."""


@dataclass(eq=False)  # neither frozen nor slotted: test suites replace `enqueue` with a mock
class Handler(Generic[InT, OutT, ModelT, CallP, JobIdT]):
    """A registered function. Calling it runs the function; `job` creates a job for it.

    To type checkers it has the types of the payload, of the chain's output and of the jobs, the parameters of the function,
    and the type of the jobs' ids. The first two or three are enough in annotations.
    """

    job_type: JobType
    """The declaration: its name, options, payload and output types."""
    model: type[ModelT]
    """The mapped class of its jobs."""
    _write: ClassVar[Callable[[Any, JobMixin[Any]], Any]]
    _copy: ClassVar[Callable[..., Any]]
    """Write the jobs of `enqueue` and `enqueue_many`: set by `sa_jobqueue.operations`, a layer above."""

    @property
    def name(self) -> str:
        """The job type's name."""
        return self.job_type.name

    def __call__(self, *args: CallP.args, **kwargs: CallP.kwargs) -> Any:
        """Call the function directly, for tests or to do the work now."""
        func: Any = self.job_type.func
        return (func.__wrapped__ if self.job_type.signature.fields else func)(*args, **kwargs)

    if not TYPE_CHECKING:

        def __class_getitem__(cls, types: tuple[Any, ...]) -> Any:
            # Python 3.13.0 cannot fill in the default of a ParamSpec.
            return super().__class_getitem__((*types, *(Job, ..., Any)[len(types) - 2 :]))

    if not TYPE_CHECKING:  # to a type checker, what is missing stays missing

        def __getattr__(self, name: str) -> Any:
            # Names that other libraries have: Celery, Dramatiq, Procrastinate, RQ.
            hint = ""
            if name in {"delay", "apply_async", "send", "send_with_options", "defer", "kiq", "s", "si"}:
                hint = ": enqueue with `.enqueue(session, payload, ...)`, or add `.job(payload, ...)` to a session yourself"
            raise AttributeError(f"a handler has no {name!r}{hint}")

    @overload
    def job(
        self: Handler[Blockers[list[A]], Any, ModelT],
        payload: None = None,
        *,
        blockers: Iterable[WaitFor[A]],
        # job options: unblocked
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self: Handler[Blockers[tuple[A, B]], Any, ModelT],
        payload: None = None,
        *,
        blockers: tuple[WaitFor[A], WaitFor[B]],
        # job options: unblocked
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self: Handler[Blockers[tuple[A, B, C]], Any, ModelT],
        payload: None = None,
        *,
        blockers: tuple[WaitFor[A], WaitFor[B], WaitFor[C]],
        # job options: unblocked
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self: Handler[Blockers[Any], Any, ModelT],
        payload: None = None,
        *,
        blockers: Iterable[Untyped] = (),
        # job options: unblocked
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self: _WithoutArguments[OutT, ModelT],
        payload: None = None,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self: Handler[Fields, Any, ModelT],
        payload: Fields | None = None,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    @overload
    def job(
        self,
        payload: InT,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> ModelT: ...
    def job(self, payload: Any = None, **options: Any) -> ModelT:
        """Return a job of this type, its payload checked; add it to a session to enqueue it.

        A `keyword_handler` takes the fields of its payload by name: `send.job(order_id=7)`. Options that are not given are
        the handler's.
        `payload`: of the type of the handler's first parameter.
        `options`: those of `JobMixin.__init__`, from `queue` on: `delay`, `priority`, `blockers` and others.
        Raises: InvalidPayloadError with the path of the invalid value; InvalidJobError if the number or the types of
        `blockers` are not those of the handler's `Blockers[...]`; InvalidJobError naming any other field. The types of
        chains that are given by id are checked when the job is written.
        """
        kind = self.job_type
        if options and kind.signature.fields and options.keys() & kind.signature.fields:
            if payload is not None:
                raise InvalidJobError("payload", "is given twice: pass the fields by name, or a mapping of them")
            payload = {name: options.pop(name) for name in kind.signature.fields if name in options}
        for name in options:
            if name not in OPTIONS and not hasattr(self.model, name):
                refuse_removed([name], refuse=InvalidJobError)
                fields = (
                    f"the fields of the payload are {', '.join(kind.signature.fields)}"
                    if kind.signature.fields
                    else f"the payload is the first argument: {kind.func.__name__}.job({{{name!r}: ...}}), or an object of "
                    "its type. Fields by name are for @jobs.keyword_handler"
                )
                raise InvalidJobError(name, f"is neither an option nor a column of {self.model.__name__}; {fields}")
        return self.model(type_name=kind.type_name, input=payload, _handler=self, **options)

    def encode(
        self, payload: Any, input_version: int | None, fairness_key: str | int | None
    ) -> tuple[Document, str | int | None]:
        """Return a payload as it is stored, and the fairness key: the given one, or what `fairness_by` reads.

        `payload`: of the handler's type. `input_version`: another one than the handler's is of another shape, upcast and
        checked when the job runs. `fairness_key`: as of a job, or None.
        Raises: InvalidPayloadError, InvalidJobError.
        """
        kind = self.job_type
        if input_version is not None and input_version != kind.version:
            return stored_untyped("input", payload, kind.codec), fairness_key
        if kind.signature.fields and payload is None:
            payload = {}
        if kind.input.has_references:
            document, plain = encoded(kind.input, payload, kind.codec)
            if fairness_key is None and kind.fairness_by is not None:
                fairness_key = key_of(kind.fairness_by, payload, plain)
            return document, fairness_key
        document = kind.input.document("input", payload)
        if fairness_key is None and kind.fairness_by is not None:
            fairness_key = key_of(kind.fairness_by, payload, document.value)
        return sealed("input", document, kind.codec), fairness_key

    def check_blockers(self, blockers: Sequence[WaitFor[Any]]) -> None:
        """Check the number of a job's `blockers`, and the types of those that are known. Raises: InvalidJobError."""
        self.job_type.check_blocker_count(len(blockers))
        for place, blocker in enumerate(blockers):
            self.check_blocker(place, blocker.chain)

    @overload
    def blocker(
        self: _WithoutPayload[OutT, JobT],
        payload: None = None,
        /,
        *,
        on_failure: Literal["wait", "fail"] = "wait",
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> WaitFor[OutT]: ...
    @overload
    def blocker(
        self: _WithoutPayload[OutT, JobT],
        payload: None = None,
        /,
        *,
        on_failure: Literal["continue"],
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> WaitFor[OutT | None]: ...
    @overload
    def blocker(
        self,
        payload: InT,
        /,
        *,
        on_failure: Literal["wait", "fail"] = "wait",
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> WaitFor[OutT]: ...
    @overload
    def blocker(
        self,
        payload: InT,
        /,
        *,
        on_failure: Literal["continue"],
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> WaitFor[OutT | None]: ...
    def blocker(
        self, payload: Any = None, /, *, on_failure: Literal["wait", "fail", "continue"] = "wait", **options: Any
    ) -> WaitFor[Any]:
        """Return a job that another job waits for, typed with its output, which type checkers compare with `Blockers[...]`.

        `on_failure`: as in `WaitFor`; with "continue" the output may be None. `options`: those of `job`.
        Raises: as `job`; InvalidJobError for `on_failure`.
        """
        return WaitFor(self.job(payload, **options), on_failure)

    @overload
    def enqueue(
        self: _WithoutPayload[OutT, ModelT],
        session: Session | Connection,
        payload: None = None,
        /,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> JobIdT: ...
    @overload
    def enqueue(
        self: _WithoutPayload[OutT, ModelT],
        session: AsyncSession | AsyncConnection,
        payload: None = None,
        /,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> Coroutine[Any, Any, JobIdT]: ...
    @overload
    def enqueue(
        self,
        session: Session | Connection,
        payload: InT,
        /,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> JobIdT: ...
    @overload
    def enqueue(
        self,
        session: AsyncSession | AsyncConnection,
        payload: InT,
        /,
        *,
        # job options: all
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> Coroutine[Any, Any, JobIdT]: ...
    def enqueue(self, session: Any, payload: Any = None, /, **options: Any) -> Any:
        """Insert a job of this type in the transaction of a session or connection; return its id.

        `session`: a `Session` or `Connection`, or an `AsyncSession` or `AsyncConnection`, and then await the result.
        The cheapest way to enqueue one job, without an ORM object or mapper events. `options`: those of `job`.
        Changes: one row. Locks: only the new row.
        Raises: as `job`; ConflictError if the id or deduplication key is taken. Roll the transaction back then.
        """
        if not isinstance(session, _SESSIONS):
            raise no_session(session)
        return Handler._write(session, self.job(payload, **options))

    @overload
    def enqueue_many(
        self,
        session: Session | Connection,
        payloads: Iterable[InT],
        /,
        *,
        deduplicate_by: Callable[[Any], str] | None = None,
        # job options: shared
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> int: ...
    @overload
    def enqueue_many(
        self,
        session: AsyncSession | AsyncConnection,
        payloads: Iterable[InT],
        /,
        *,
        deduplicate_by: Callable[[Any], str] | None = None,
        # job options: shared
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> Coroutine[Any, Any, int]: ...
    def enqueue_many(
        self,
        session: Any,
        payloads: Iterable[Any],
        /,
        *,
        deduplicate_by: Callable[[Any], str] | None = None,
        **options: Any,
    ) -> Any:
        """Enqueue one job a payload by COPY, in the transaction of a session or connection; return how many were made.

        It costs less than the function `enqueue_many`, which makes objects. All jobs have the same options, and no blockers.
        `session`: as in `enqueue`.
        `payloads`: read once; each is checked and sent before the next is read, so that millions need no memory. The
        iterator must not use this session, whose connection is busy.
        `deduplicate_by`: returns the deduplication key of a payload. Payloads are skipped if an open chain has their
        key, or an earlier payload. This uses a temporary table.
        `options`: those of `job`, the same for all jobs.
        Changes: one row a job. Locks: the new rows; with keys, in the order of the keys, and it waits for open transactions
        that insert an equal key.
        Raises: InvalidJobError naming the option, with nothing written. Once rows are on their way:
        InvalidPayloadError, PayloadTooLargeError and InvalidJobError naming the payload (`payloads[17].order_id`),
        ConflictError, and errors of the iterator or `deduplicate_by`; roll back then.
        """
        if not isinstance(session, _SESSIONS):
            raise no_session(session)
        return Handler._copy(session, self, payloads, deduplicate_by, options)

    def check_blocker(self, place: int, chain: Any) -> None:
        """Check the type of a chain that a job of this handler will wait for, if the type is known.

        `chain`: one of its jobs, the chain, its root's row, or its id. Raises: InvalidJobError.
        """
        chain_type = self._type_of(chain)
        if chain_type is not None:
            self.job_type.check_blocker(place, chain_type)

    def _type_of(self, chain: Any) -> JobType | None:
        """Return the type of a chain's first job; None if it is not loaded, or has no handler in this registry."""
        if not isinstance(chain, (JobMixin, ChainMixin)):
            return self.job_type.registry.find(getattr(chain, "type_name", ""))
        loaded = chain.__dict__
        made_by: Handler[Any, Any, Any] | None = loaded.get("_handler")
        if made_by is not None and loaded.get("chain_index") == 0:
            return made_by.job_type
        return self.job_type.registry.find(loaded.get("chain_type_name" if isinstance(chain, JobMixin) else "type_name", ""))

    @overload
    def continuation(
        self: _WithoutPayload[OutT, JobT],
        payload: None = None,
        /,
        *,
        # job options: continuations
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> Continuation[OutT]: ...
    @overload
    def continuation(
        self,
        payload: InT,
        /,
        *,
        # job options: continuations
        queue: str | None = None,
        fairness_key: str | int | None = None,
        priority: int | None = None,
        delay: timedelta | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        blockers: Iterable[Any] = (),
        rate_cost: int | None = None,
        input_version: int | None = None,
        expires_at: datetime | ColumnElement[datetime] | None = None,
        ordering_key: str | None = None,
        deadline: datetime | ColumnElement[datetime] | None = None,
        # end of job options
        **columns: Any,
    ) -> Continuation[OutT]: ...
    def continuation(self, payload: Any = None, /, **options: Any) -> Continuation[OutT]:
        """Return the next job of a chain. Return it from a handler, or pass it to `complete_job`.

        `options`: those of `job`, except the deduplication key, which belongs to the chain's first job.
        Raises: as `job`.
        """
        return Continuation(self.job(payload, **options))

    def payload(self: Handler[PayloadT, Any, Any], job: JobMixin[Any]) -> PayloadT:
        """Return the payload of a job of this handler, decoded as for an attempt: by its codec, upcasters and type.

        `job`: of this type. A handler without a payload has None, a `keyword_handler` a mapping of its fields.
        Raises: InvalidOptionError if the job is of another type; InvalidPayloadError if the input does not match the type.
        """
        if job.type_name != self.name:
            raise InvalidOptionError(
                "handler",
                f"job {job.id} is of type {job.type_name!r}, not {self.name!r}: ask the handler of that type",
            )
        kind = self.job_type
        decoded: Any = kind.decode(job.input, job.input_version) if kind.signature.takes_input else None
        return decoded  # type: ignore[no-any-return]

    def output(self, chain: Chained | ChainMixin[Any]) -> OutT:
        """Return the output of a chain that starts or ends with this handler, decoded to the annotated type.

        `chain`: as in `JobQueue.output`.
        Raises: NoOutputError unless the chain has completed; InvalidOptionError if it neither starts nor ends with this
        handler; InvalidPayloadError if the output does not match the type.
        """
        if chain.status is not JobStatus.COMPLETED:
            raise NoOutputError(chain.id, chain.status)
        decoded: OutT = self.decode_output(chain.id, chain.type_name, chain.last_type_name, chain.output)
        return decoded

    def decode_output(self, chain_id: JobId, type_name: str, last_type_name: str, output: Json) -> Any:
        """Return the decoded output of a chain with these attributes. Raises: InvalidOptionError, InvalidPayloadError."""
        if self.name in {type_name, last_type_name}:
            kind = self.job_type
            codec = kind.chain_output if type_name == self.name else kind.output
            return codec.decode("output", kind.open("output", output))
        ended = "" if last_type_name == type_name else f" and ended with {last_type_name!r}"
        raise InvalidOptionError(
            "handler",
            f"chain {chain_id} began with {type_name!r}{ended}, not with {self.name!r}: "
            "read its output by a handler of these, or by `JobQueue.output`",
        )

    def encode_result(self, job_id: JobId, type_name: str, result: Any) -> Json:
        """Return a result for a job of this handler as JSON, checked like a return value; None for a continuation.

        Raises: InvalidOptionError if the job has another type; InvalidPayloadError naming the field that does not match.
        """
        if type_name != self.name:
            raise InvalidOptionError(
                "handler",
                f"job {job_id} is of type {type_name!r}, not {self.name!r}; nothing was changed",
            )
        if isinstance(result, Continuation):
            return None
        return sealed("result", self.job_type.output.document("result", result), self.job_type.codec).value

    def upcast(self, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Return a decorator for a function that turns the JSON of a `from_version` input into that of the next version.

        Raises: InvalidOptionError if that version is not below the handler's `version`, or already has an upcaster.
        """

        def register(upcaster: Upcaster) -> Upcaster:
            if not 1 <= from_version < self.job_type.version:
                raise InvalidOptionError(
                    "from_version", f"must be from 1 to {self.job_type.version - 1}, below the handler's version"
                )
            if from_version in self.job_type.upcasters:
                raise InvalidOptionError("from_version", f"{self.name} already has an upcaster from {from_version}")
            self.job_type.upcasters[from_version] = upcaster
            return upcaster

        return register

    def upcast_step(self, name: str) -> Callable[[Upcaster], Upcaster]:
        """Return a decorator for a function that converts the recorded result of a step, if it is not of the type any more.

        `name`: of a step, cursor or wait. The function gets the recorded JSON and returns that of the type.
        Raises: InvalidOptionError if the step already has one.
        """

        def register(upcaster: Upcaster) -> Upcaster:
            if self.job_type.step_upcasters.setdefault(name, upcaster) is not upcaster:
                raise InvalidOptionError("name", f"{self.name} already has an upcaster of step {name!r}")
            return upcaster

        return register


_WithoutArguments: TypeAlias = (
    Handler[None, OutT, JobT]
    | Handler[Session, OutT, JobT]
    | Handler[AsyncSession, OutT, JobT]
    | Handler[AttemptContext, OutT, JobT]
)
_WithoutPayload: TypeAlias = _WithoutArguments[OutT, JobT] | Handler[Blockers[Any], OutT, JobT] | Handler[Fields, OutT, JobT]
"""A function that takes nothing, or only injected arguments: to a type checker its first parameter is the payload."""


class Value(Protocol):
    """To a type checker, anything but a `Continuation`: a value that a handler may return as its chain's output."""

    def __reduce__(self) -> str | tuple[Any, ...]: ...


EndT = TypeVar("EndT", bound=Value | None, default=Any)
NextT = TypeVar("NextT", default=Never)


@dataclass(frozen=True)
class Decorator:
    """A decorator of a registry; its subclasses have the types of the decorated function.

    They are classes, not protocols: mypy compares the overloads of two protocols without end where code chooses one.
    """

    register: Callable[[Callable[..., Any]], Any]


class HandlerDecorator(Decorator, Generic[ModelT]):
    """What `JobQueue.handler(...)` returns: keeps the payload's and the output's types.

    The output is what comes out at the end of the chain: of `-> Report | Continuation[Page]` it is `Report | Page`.
    Four shapes of functions, each with three of returns: without continuations, with nothing else, with both.
    """

    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], Coroutine[Any, Any, EndT]], /
    ) -> Handler[None, EndT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], Coroutine[Any, Any, Continuation[NextT]]], /
    ) -> Handler[None, NextT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], Coroutine[Any, Any, EndT | Continuation[NextT]]], /
    ) -> Handler[None, EndT | NextT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], EndT], /
    ) -> Handler[None, EndT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], Continuation[NextT]], /
    ) -> Handler[None, NextT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[[], EndT | Continuation[NextT]], /
    ) -> Handler[None, EndT | NextT, ModelT, [], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[Concatenate[InT, P], Coroutine[Any, Any, EndT]], /
    ) -> Handler[InT, EndT, ModelT, Concatenate[InT, P], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]],
        func: Callable[Concatenate[InT, P], Coroutine[Any, Any, Continuation[NextT]]],
        /,
    ) -> Handler[InT, NextT, ModelT, Concatenate[InT, P], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]],
        func: Callable[Concatenate[InT, P], Coroutine[Any, Any, EndT | Continuation[NextT]]],
        /,
    ) -> Handler[InT, EndT | NextT, ModelT, Concatenate[InT, P], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[Concatenate[InT, P], EndT], /
    ) -> Handler[InT, EndT, ModelT, Concatenate[InT, P], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[Concatenate[InT, P], Continuation[NextT]], /
    ) -> Handler[InT, NextT, ModelT, Concatenate[InT, P], IdT]: ...
    @overload
    def __call__(
        self: HandlerDecorator[JobMixin[IdT]], func: Callable[Concatenate[InT, P], EndT | Continuation[NextT]], /
    ) -> Handler[InT, EndT | NextT, ModelT, Concatenate[InT, P], IdT]: ...
    def __call__(self, func: Callable[..., Any], /) -> Any:
        """Register a function, and return its handler."""
        return self.register(func)


class FieldsDecorator(Decorator, Generic[ModelT]):
    """What `JobQueue.keyword_handler(...)` returns: keeps the output's type."""

    @overload
    def __call__(
        self: FieldsDecorator[JobMixin[IdT]], func: Callable[P, Coroutine[Any, Any, EndT]], /
    ) -> Handler[Fields, EndT, ModelT, P, IdT]: ...
    @overload
    def __call__(
        self: FieldsDecorator[JobMixin[IdT]], func: Callable[P, EndT], /
    ) -> Handler[Fields, EndT, ModelT, P, IdT]: ...
    def __call__(self, func: Callable[..., Any], /) -> Any:
        """Register a function, and return its handler."""
        return self.register(func)


class BatchDecorator(Decorator):
    """What `JobQueue.batch_handler(...)` returns: keeps the type of one job's payload."""

    @overload
    def __call__(
        self, func: Callable[Concatenate[list[BatchItem[PayloadT]], P], Coroutine[Any, Any, Any]], /
    ) -> Handler[PayloadT, Any, Any, Concatenate[list[BatchItem[PayloadT]], P]]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[list[BatchItem[PayloadT]], P], EndT], /
    ) -> Handler[PayloadT, Any, Any, Concatenate[list[BatchItem[PayloadT]], P]]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[list[PayloadT], P], Coroutine[Any, Any, Any]], /
    ) -> Handler[PayloadT, Any, Any, Concatenate[list[PayloadT], P]]: ...
    @overload
    def __call__(
        self, func: Callable[Concatenate[list[PayloadT], P], EndT], /
    ) -> Handler[PayloadT, Any, Any, Concatenate[list[PayloadT], P]]: ...
    def __call__(self, func: Callable[..., Any], /) -> Any:
        """Register a function, and return its handler."""
        return self.register(func)
