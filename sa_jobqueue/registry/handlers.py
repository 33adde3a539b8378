"""`JobQueue`: the registry of an application's handlers, bound to the `Job` class that their jobs are rows of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Protocol, TypeAlias, overload

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypeVar

from sa_jobqueue.context import AttemptContext, Blockers, Continuation
from sa_jobqueue.errors import InvalidHandlerError, InvalidJobError, InvalidOptionError, NoOutputError, WrongJobTypeError
from sa_jobqueue.models import ChainMixin, Job, JobMixin, WaitFor
from sa_jobqueue.models.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, check_defaults
from sa_jobqueue.policies.fairness import SEPARATOR, FairnessBy, check_fairness_by, check_whole, key_of
from sa_jobqueue.policies.retention import NOTHING_SAID, Retention, RetentionRules
from sa_jobqueue.policies.retry import RetryPolicy
from sa_jobqueue.registry.batch_handlers import Batching
from sa_jobqueue.registry.decorators import HandlerDecorator, InT, JobT
from sa_jobqueue.registry.dependencies import Provider, Providers
from sa_jobqueue.registry.job_types import INJECTED, JobType, Registry, Upcaster, describe
from sa_jobqueue.registry.middleware import Middleware, check_middleware
from sa_jobqueue.registry.queue_declarations import Queueing
from sa_jobqueue.registry.schedule_declarations import Scheduling
from sa_jobqueue.types import JobId, JobStatus, Json

T = TypeVar("T")
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)
OutT = TypeVar("OutT", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
Untyped: TypeAlias = JobMixin[Any] | ChainMixin[Any] | JobId | WaitFor[Never]
"""A blocker whose output is unknown to a type checker: it is checked at run time only."""


class Chained(Protocol):
    """A chain as far as its output goes: a `Job.Chain`, or a `ChainResult` whose output is JSON still."""

    @property
    def id(self) -> Any:
        """Its first job's id."""

    @property
    def type_name(self) -> str:
        """The type of its first job."""

    @property
    def status(self) -> JobStatus:
        """How it ended, or where its last job stands."""

    @property
    def output(self) -> Json:
        """What its last job returned, as JSON."""

    @property
    def last_type_name(self) -> str:
        """The type of its last job."""


@dataclass(frozen=True, slots=True)
class Handler(Generic[InT, OutT, JobT]):
    """A registered function. Calling it runs the function itself; `job` makes a job of it."""

    job_type: JobType
    _model: type[JobT]
    _registry: Registry

    @property
    def name(self) -> str:
        """The job type's name."""
        return self.job_type.name

    @property
    def model(self) -> type[JobT]:
        """The class whose table is the queue: its jobs are rows of it."""
        return self._model

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function as if it had never been registered: for tests, and for doing the work at once."""
        return self.job_type.func(*args, **kwargs)

    if not TYPE_CHECKING:  # to a type checker, what is missing stays missing

        def __getattr__(self, name: str) -> Any:
            # Names that other libraries have: Celery, Dramatiq, Procrastinate, RQ.
            hint = ""
            if name in {"delay", "apply_async", "send", "send_with_options", "defer", "enqueue", "kiq", "s", "si"}:
                hint = (
                    ": describe a job with `.job(payload, ...)` and add it to a session, `session.add(handler.job(payload))`"
                )
            raise AttributeError(f"a handler has no {name!r}{hint}")

    @overload
    def job(
        self: Handler[Blockers[list[A]], Any, JobT], payload: None = None, *, blockers: Iterable[WaitFor[A]], **options: Any
    ) -> JobT: ...
    @overload
    def job(
        self: Handler[Blockers[tuple[A, B]], Any, JobT],
        payload: None = None,
        *,
        blockers: tuple[WaitFor[A], WaitFor[B]],
        **options: Any,
    ) -> JobT: ...
    @overload
    def job(
        self: Handler[Blockers[tuple[A, B, C]], Any, JobT],
        payload: None = None,
        *,
        blockers: tuple[WaitFor[A], WaitFor[B], WaitFor[C]],
        **options: Any,
    ) -> JobT: ...
    @overload
    def job(
        self: Handler[Blockers[Any], Any, JobT], payload: None = None, *, blockers: Iterable[Untyped] = (), **options: Any
    ) -> JobT: ...
    @overload
    def job(self: _WithoutArguments[OutT, JobT], payload: None = None, **options: Any) -> JobT: ...
    @overload
    def job(
        self,
        payload: InT,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        fairness_key: str | int | None = None,
        rate_cost: int | None = None,
        expires_at: datetime | None = None,
        ordering_key: str | None = None,
        skip_while_retrying: bool | None = None,
        **columns: Any,
    ) -> JobT: ...
    def job(
        self,
        payload: Any = None,
        *,
        delay: timedelta | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        max_attempts: int | None = None,
        timeout: timedelta | None = None,
        id: Any = None,
        deduplication_key: str | None = None,
        blockers: Iterable[Any] = (),
        fairness_key: str | int | None = None,
        rate_cost: int | None = None,
        **columns: Any,
    ) -> JobT:
        """Describe a job of this type, its payload checked now; add it to a session to enqueue it.

        What is not given is the handler's own setting; `JobMixin.__init__` says what each means and its bounds.
        Raises: InvalidPayloadError with the path of what does not fit; InvalidBlockersError when `blockers` are not as many
        as the handler's `Blockers[...]` declares, or not of its types; InvalidJobError naming any other field. The types of
        chains that are given by their ids are checked when the job is written.
        """
        kind = self.job_type
        for name in columns:
            if not hasattr(self._model, name):
                raise InvalidJobError(
                    name,
                    f"is neither an option nor a column of {self._model.__name__}; the payload is the first argument: "
                    f"{kind.func.__name__}.job({{{name!r}: ...}}), or an object of its type",
                )
        document = kind.input.encode("input", payload)
        queue = kind.queue if queue is None else queue
        if fairness_key is None and kind.fairness_by is not None and SEPARATOR not in queue:
            fairness_key = key_of(kind.fairness_by, payload, document)
        made = self._model(
            type_name=kind.name,
            input=document,
            input_version=kind.version,
            queue=queue,
            fairness_key=fairness_key,
            priority=kind.priority if priority is None else priority,
            delay=delay,
            at=at,
            max_attempts=kind.max_attempts if max_attempts is None else max_attempts,
            timeout=kind.timeout if timeout is None else timeout,
            id=id,
            deduplication_key=deduplication_key,
            blockers=blockers,
            rate_cost=kind.rate_cost if rate_cost is None else rate_cost,
            **columns,
        )
        made._handler = self
        if kind.blockers is not None:
            kind.check_blocker_count(len(made._blockers))
            for place, one in enumerate(made._blockers):
                self.check_blocker(place, one.chain)
        return made

    @overload
    def blocker(
        self: _WithoutPayload[OutT, JobT],
        payload: None = None,
        /,
        *,
        on_failure: Literal["wait", "fail"] = "wait",
        **options: Any,
    ) -> WaitFor[OutT]: ...
    @overload
    def blocker(
        self: _WithoutPayload[OutT, JobT], payload: None = None, /, *, on_failure: Literal["continue"], **options: Any
    ) -> WaitFor[OutT | None]: ...
    @overload
    def blocker(self, payload: InT, /, *, on_failure: Literal["wait", "fail"] = "wait", **options: Any) -> WaitFor[OutT]: ...
    @overload
    def blocker(self, payload: InT, /, *, on_failure: Literal["continue"], **options: Any) -> WaitFor[OutT | None]: ...
    def blocker(
        self, payload: Any = None, /, *, on_failure: Literal["wait", "fail", "continue"] = "wait", **options: Any
    ) -> WaitFor[Any]:
        """Describe a job for another to wait for, with its output's type: a type checker compares that with `Blockers[...]`.

        That is, with the annotation of that handler's first parameter; after a payload it is checked at run time only.
        `on_failure`: as in `WaitFor`; with "continue" the output may be None. `options`: as `job` takes them. The job is
        the `chain` of what this returns. Raises: as `job`, and InvalidJobError for `on_failure`.
        """
        return WaitFor(self.job(payload, **options), on_failure)

    def check_blocker(self, place: int, chain: Any) -> None:
        """Check the type of a chain that a job of this handler is to wait for, as far as it is known here.

        `chain`: a job of it, the chain, its root's row, or its id. Raises: InvalidBlockersError.
        """
        given = self._type_of(chain)
        if given is not None:
            self.job_type.check_blocker(place, given)

    def _type_of(self, chain: Any) -> JobType | None:
        """Return the type that a chain began with; None where it is not loaded, or no handler of it is known here."""
        if not isinstance(chain, (JobMixin, ChainMixin)):
            return self._registry.find(getattr(chain, "type_name", ""))
        loaded = chain.__dict__
        made_by: Handler[Any, Any, Any] | None = loaded.get("_handler")
        if made_by is not None and loaded.get("chain_index") == 0:
            return made_by.job_type
        return self._registry.find(loaded.get("chain_type_name" if isinstance(chain, JobMixin) else "type_name", ""))

    @overload
    def continuation(self: _WithoutPayload[OutT, JobT], payload: None = None, /, **options: Any) -> Continuation[OutT]: ...
    @overload
    def continuation(self, payload: InT, /, **options: Any) -> Continuation[OutT]: ...
    def continuation(self, payload: Any = None, /, **options: Any) -> Continuation[OutT]:
        """Describe the next job of a chain: for a handler to return, and for `complete_job`.

        `options`: as `job` takes them; an id too, but no deduplication key, which a chain has from its first job.
        Raises: as `job`.
        """
        return Continuation(self.job(payload, **options))

    def output(self, chain: Chained) -> OutT:
        """Return the output of a chain that began with this handler, or ended with it, as the type its annotation tells.

        `chain`: a `Job.Chain`, or a `ChainResult` of `wait_chain` without `output`.
        Raises: NoOutputError unless it has completed; WrongJobTypeError when it neither began nor ended with this handler;
        InvalidPayloadError when the output does not fit the type.
        """
        if chain.status is not JobStatus.COMPLETED:
            raise NoOutputError(chain.id, chain.status)
        decoded: OutT = self.decode_output(chain.id, chain.type_name, chain.last_type_name, chain.output)
        return decoded

    def decode_output(self, chain_id: JobId, type_name: str, last_type_name: str, output: Json) -> Any:
        """Return the typed output of a chain of which this is known. Raises: WrongJobTypeError, InvalidPayloadError."""
        if type_name == self.name:
            return self.job_type.chain_output.decode("output", output)
        if last_type_name == self.name:
            return self.job_type.output.decode("output", output)
        ended = "" if last_type_name == type_name else f" and ended with {last_type_name!r}"
        raise WrongJobTypeError(
            chain_id,
            expected=self.name,
            given=last_type_name,
            reason=f"chain {chain_id} began with {type_name!r}{ended}, not with {self.name!r}: "
            "read its output by a handler of these, or by `JobQueue.output`",
        )

    def encode_result(self, job_id: JobId, type_name: str, result: Any) -> Json:
        """Return what a job of this handler is completed with as JSON, checked as what the handler returns; no continuation.

        Raises: WrongJobTypeError when the job is of another type; InvalidPayloadError naming what does not fit.
        """
        if type_name != self.name:
            raise WrongJobTypeError(
                job_id,
                expected=self.name,
                given=type_name,
                reason=f"job {job_id} is of type {type_name!r}, not {self.name!r}; nothing was changed",
            )
        if isinstance(result, Continuation):
            return None
        return self.job_type.output.encode("result", result)

    def upcast(self, from_version: int) -> Callable[[Upcaster], Upcaster]:
        """Register a function that turns the JSON of a `from_version` input into that of the next version.

        So jobs enqueued before a change of shape are still run after it.
        Raises: InvalidOptionError when that version is not below the handler's `version`, or is taken.
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


_WithoutArguments: TypeAlias = (
    Handler[None, OutT, JobT]
    | Handler[Session, OutT, JobT]
    | Handler[AsyncSession, OutT, JobT]
    | Handler[AttemptContext, OutT, JobT]
)
_WithoutPayload: TypeAlias = _WithoutArguments[OutT, JobT] | Handler[Blockers[Any], OutT, JobT]
"""A function that takes nothing, or only what is injected: to a type checker its first parameter is the payload."""


class JobQueue(Scheduling, Queueing, Batching, Generic[JobT]):
    """A registry of handlers. Holds no connection and no global state: make one at import time, per `Job` class.

    `model`: the mapped class whose table is the queue; the ready-made `Job` unless given. `retention`: how long its workers
    keep chains that have ended; forever by default.
    """

    @overload
    def __init__(self: JobQueue[Job], *, retention: Retention = NOTHING_SAID) -> None: ...
    @overload
    def __init__(self, model: type[JobT], *, retention: Retention = NOTHING_SAID) -> None: ...
    def __init__(self, model: Any = Job, *, retention: Retention = NOTHING_SAID) -> None:
        if not (isinstance(model, type) and issubclass(model, JobMixin) and hasattr(model, "__jobqueue__")):
            raise InvalidOptionError("model", f"must be a class such as `class Job(JobMixin, Base)`, got {model!r}")
        if not isinstance(retention, Retention):
            raise InvalidOptionError("retention", f"must be a Retention, got {retention!r}")
        super().__init__()
        self.model: type[JobT] = model  # type: ignore[assignment]  # which the overloads tell
        self.retention = retention
        self.registry = Registry()
        self._handlers: dict[str, Handler[Any, Any, JobT]] = {}
        self._middleware: list[Middleware] = []
        self._providers = Providers()

    def handler(
        self,
        type_name: str,
        *,
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        retry: RetryPolicy | None = None,
        version: int = 1,
        isolation: Literal["process"] | None = None,
        memory_limit: int | None = None,
        retention: Retention | None = None,
        concurrency: int | None = None,
        fairness_by: FairnessBy | None = None,
        rate_cost: int | None = None,
    ) -> HandlerDecorator[JobT]:
        """Register a function as the handler of `type_name`.

        `queue`, `priority`, `max_attempts`, `timeout`, `rate_cost`: defaults of its jobs, as in `JobMixin.__init__`.
        `retry`: a `Backoff`, or a function of (attempt, error) that returns a wait, or None to give up; unless given, what
        is said of the job's queue, or `Backoff()`.
        `version`: of the payload's shape; raise it with an upcaster when the shape changes while jobs are in flight.
        `isolation`: "process" runs attempts in a child process of the worker, which a crash, a timeout or `memory_limit`
        ends alone. `memory_limit`: bytes that it may hold, at least 128 MiB; watched on Linux.
        `retention`: how long chains that begin with it are kept; what it does not say is the queue's or the registry's.
        `concurrency`: how many of its jobs one worker runs at once, 1 to 10,000; as many as it has slots unless given.
        `fairness_by`: where a payload says whose it is, for `fairness_key`: the path of a field, such as
        "order.customer_id", or a function of the payload; jobs that are made without `job` or `continuation` say it
        themselves, as `rate_cost`.
        Raises: InvalidJobError, InvalidOptionError, InvalidHandlerError, DuplicateJobTypeError.
        """
        return self._declare(
            type_name,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
            retry=retry,
            version=version,
            isolation=isolation,
            memory_limit=memory_limit,
            retention=retention,
            concurrency=concurrency,
            fairness_by=fairness_by,
            rate_cost=rate_cost,
        )

    def _declare(self, type_name: str, **options: Any) -> Callable[[Callable[..., Any]], Handler[Any, Any, JobT]]:
        if callable(type_name):  # the decorator without its parentheses
            name = getattr(type_name, "__name__", "name")
            words = f'give the job type its name: @jobs.handler("{name}"), not @jobs.handler without parentheses'
            raise InvalidHandlerError(words)
        check_whole("queue", options["queue"])
        check_fairness_by(options.get("fairness_by"))
        of_jobs: dict[str, Any] = {
            name: options.get(name) for name in ("queue", "priority", "max_attempts", "timeout", "rate_cost")
        }
        check_defaults(type_name, **of_jobs)

        def register(func: Callable[..., Any]) -> Handler[Any, Any, JobT]:
            kind = describe(func, name=type_name, middleware=self._middleware, providers=self._providers, **options)
            self.registry.add(kind)
            handler: Handler[Any, Any, JobT] = Handler(kind, self.model, self.registry)
            self._handlers[type_name] = handler
            return handler

        return register

    def middleware(self, func: MiddlewareT) -> MiddlewareT:
        """Register a coroutine function to run around every attempt of this registry's own handlers.

        Called as `func(attempt, proceed)`; it awaits `proceed()` exactly once: that decodes the payload, calls the handler
        and, where the handler takes a session, commits. The first one registered is outermost. It may raise to end the
        attempt, a signal such as `Snooze` too; what the handler raises comes out of `proceed()`, and fails the attempt even
        if it is kept. Context variables that it sets are seen by the handler, also in a thread.
        Handlers that are included elsewhere keep the middleware of their own registry, and get no other.
        Raises: InvalidMiddlewareError.
        """
        check_middleware(func)
        self._middleware.append(func)
        return func

    def dependency(
        self, kind: type[T], provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]
    ) -> None:
        """Let the handlers declared from here on ask for a `kind`: by a parameter annotated so, beside the payload.

        `provider`: an object with `open` and `close`, or a function of the attempt that returns a context manager,
        entered around the handler; see `Provider`. Handlers that are included elsewhere keep their own.
        Raises: InvalidOptionError when the class is provided already, or handlers above have its default.
        """
        if kind in INJECTED:
            raise InvalidOptionError("kind", f"{kind.__name__} is what the worker itself gives")
        self._providers.add(kind, provider)

    def __getitem__(self, type_name: str) -> Handler[Any, Any, JobT]:
        """Return a handler by its type's name. Raises: UnknownJobTypeError."""
        self.registry.get(type_name)
        return self._handlers[type_name]

    def output(self, chain: Chained) -> Any:
        """Return a chain's output as the type that its last job's handler declares.

        `chain`: a `Job.Chain`, or a `ChainResult` of `wait_chain` without `output`. Where it is known which handler a
        chain began with, `handler.output(chain)` is the same with a static type.
        Raises: NoOutputError unless it has completed; UnknownJobTypeError when nobody here handles its last job's type;
        InvalidPayloadError when the output does not fit the type.
        """
        if chain.status is not JobStatus.COMPLETED:
            raise NoOutputError(chain.id, chain.status)
        return self.registry.get(chain.last_type_name).output.decode("output", chain.output)

    def job(self, type_name: str, payload: Any = None, **options: Any) -> JobT:
        """Describe a job of a type known only by name; otherwise as `Handler.job`. Raises: UnknownJobTypeError."""
        return self[type_name].job(payload, **options)

    def include(self, other: JobQueue[JobT]) -> None:
        """Take over every handler, schedule, queue and selector of another registry, such as a feature's own.

        What is registered there afterwards is not.
        Raises: DuplicateJobTypeError naming both places; InvalidOptionError when its jobs are rows of another class, or it
        is this registry, or has been included before. Nothing is taken over then.
        """
        if other is self:
            raise InvalidOptionError("other", "is this registry itself")
        if other.model is not self.model:
            raise InvalidOptionError(
                "other", f"makes jobs of {other.model.__qualname__}, this registry those of {self.model.__qualname__}"
            )
        self._check_schedules(other)
        self._check_queues(other)
        for name in [name for name in other._handlers if name in self._handlers]:
            if other._handlers[name] is self._handlers[name]:
                place = self.registry.get(name).place
                raise InvalidOptionError("other", f"brings {name!r} ({place}), which is here already: include it once")
            self.registry.add(other.registry.get(name))  # raises, with both places
        for name, handler in other._handlers.items():
            self.registry.add(handler.job_type)
            self._handlers[name] = handler
        other.registry.included_by(self.registry)
        self._schedules |= other._schedules
        self._queues |= other._queues
        self._selectors |= other._selectors

    @property
    def retention_rules(self) -> RetentionRules:
        """All that is said here of how long chains are kept."""
        types = {kind.name: kind.retention for kind in self.registry if kind.retention is not None}
        return RetentionRules(default=self.retention, types=types)

    @property
    def queues(self) -> tuple[str, ...]:
        """The queues its handlers use by default, sorted."""
        return tuple(sorted({kind.queue for kind in self.registry}))

    def __iter__(self) -> Iterator[Handler[Any, Any, JobT]]:
        return iter(self._handlers.values())
