"""`JobQueue`: what an application declares: handlers, queues, selectors and schedules of one `Job` class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, Protocol, overload
from uuid import UUID

from typing_extensions import TypeVar

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError, NoOutputError
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.models.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_QUEUE, check_defaults
from sa_jobqueue.policies.fairness import FairnessBy, check_fairness_by, named, part_of
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.policies.retention import NOTHING_SAID, Retention, RetentionRules
from sa_jobqueue.policies.retry import Backoff, RetryPolicy
from sa_jobqueue.registry.batches import BatchRule
from sa_jobqueue.registry.codecs import Codecs, PayloadCodec
from sa_jobqueue.registry.dependencies import Provider, Providers
from sa_jobqueue.registry.handlers import BatchDecorator, Chained, FieldsDecorator, Handler, HandlerDecorator, JobT
from sa_jobqueue.registry.job_types import INJECTED, JobType, Registry, describe
from sa_jobqueue.registry.middleware import Middleware, check_middleware
from sa_jobqueue.registry.schedules import MisfirePolicy, Schedule
from sa_jobqueue.registry.selectors import Choose, Selector
from sa_jobqueue.registry.settings import QueueSettings
from sa_jobqueue.types import JobStatus

_OPTIONS: Final = frozenset(inspect.signature(Handler.job).parameters)
"""What `Handler.job` takes by name."""
_SAMPLE: Final = datetime(2000, 1, 1, tzinfo=UTC)
T = TypeVar("T")
ChooseT = TypeVar("ChooseT", bound=Choose)
HandlerT = TypeVar("HandlerT", bound="Schedulable")
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)


class Schedulable(Protocol):
    """A registered handler, as far as its schedules go."""

    @property
    def job_type(self) -> JobType:
        """What is known of its type."""


class JobQueue(Generic[JobT]):
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
        self.model: type[JobT] = model  # type: ignore[assignment]  # which the overloads tell
        self.retention = retention
        self.registry = Registry()
        self._handlers: dict[str, Handler[Any, Any, JobT]] = {}
        self._middleware: list[Middleware] = []
        self._providers = Providers()
        self._codecs = Codecs()
        self._queues: dict[tuple[str, str], QueueSettings] = {}
        self._selectors: dict[str, Selector] = {}
        self._schedules: dict[str, Schedule] = {}

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
        codec: PayloadCodec | None = None,
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
        `fairness_by`: how to get the `fairness_key` from a payload: the path of a field, such as "order.customer_id", or a
        function of the payload; jobs that are created without `job` or `continuation` set it explicitly, as `rate_cost`.
        `codec`: encodes its inputs and outputs for storage, to encrypt or compress them; see `PayloadCodec`.
        The first parameter is the payload; `keyword_handler` takes its fields as parameters instead.
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
            codec=codec,
        )

    def keyword_handler(self, type_name: str, **options: Any) -> FieldsDecorator[JobT]:
        """Register a function whose parameters are the fields of the payload: `send.job(order_id=7)`.

        The payload is an object whose model is made from the signature; a field with a default may be left out. Sessions and
        whatever else is injected are no fields. `options`: as of `handler`.
        Raises: as `handler`; InvalidHandlerError for a field with the name of an option of `job`, or of a column.
        """
        known = inspect.signature(self.handler).parameters
        for name in options.keys() - known:
            raise InvalidOptionError(name, f"is no option of a handler; known are {', '.join(known)}")
        defaults = {name: known[name].default for name in known if name != "type_name"}
        return self._declare(type_name, by_fields=True, **defaults | options)

    def batch_handler(
        self,
        type_name: str,
        *,
        max_size: int,
        max_wait: timedelta = timedelta(milliseconds=100),
        queue: str = DEFAULT_QUEUE,
        priority: int = 0,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        timeout: timedelta | None = None,
        retry: RetryPolicy | None = None,
        version: int = 1,
        retention: Retention | None = None,
        concurrency: int | None = None,
        fairness_by: FairnessBy | None = None,
        rate_cost: int | None = None,
        codec: PayloadCodec | None = None,
    ) -> BatchDecorator:
        """Register a function that is called with up to `max_size` jobs of `type_name` at once.

        Its first argument is annotated `list[Payload]` or `list[BatchItem[Payload]]`; a session and what is provided may
        follow. It returns None, or a list with each job's outcome: its output, a continuation, or an exception. What it
        raises fails all of them, `BatchFailed` some.
        `max_size`: 2 to 1,000. Each job is an attempt of its own, fenced, retried and timed separately, and holds a slot
        of its worker: give workers a concurrency of a batch or more. `max_wait`: how long the first job waits for others, at
        most a minute and below `timeout`; a batch goes at once when it is full, and when its worker has no slot free for
        another job.
        The rest: as of `handler`; `timeout` is that of a job, whose time goes on while it waits.
        Raises: as `handler`; InvalidHandlerError for a function that takes no list, an AttemptContext or Blockers.
        """
        rule = BatchRule(max_size=max_size, max_wait=max_wait)
        if timeout is not None and timeout <= max_wait:
            raise InvalidOptionError("max_wait", f"must be below the timeout ({timeout}), which goes on meanwhile")
        return self._declare(
            type_name,
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            timeout=timeout,
            retry=retry,
            version=version,
            retention=retention,
            concurrency=concurrency,
            fairness_by=fairness_by,
            rate_cost=rate_cost,
            codec=codec,
            batch=rule,
        )

    def _declare(self, type_name: str, **options: Any) -> Callable[[Callable[..., Any]], Handler[Any, Any, JobT]]:
        if callable(type_name):  # the decorator without its parentheses
            name = getattr(type_name, "__name__", "name")
            words = f'give the job type its name: @jobs.handler("{name}"), not @jobs.handler without parentheses'
            raise InvalidHandlerError(words)
        check_fairness_by(options.get("fairness_by"))
        if (codec := options.get("codec")) is not None:
            self._codecs.add(codec)
        of_jobs: dict[str, Any] = {
            name: options.get(name) for name in ("queue", "priority", "max_attempts", "timeout", "rate_cost")
        }
        check_defaults(type_name, **of_jobs)

        def register(func: Callable[..., Any]) -> Handler[Any, Any, JobT]:
            own: dict[str, Any] = {"middleware": self._middleware, "providers": self._providers, "codecs": self._codecs}
            kind = describe(func, name=type_name, **own, **options)
            for name in [name for name in kind.fields if name in _OPTIONS or hasattr(self.model, name)]:
                raise InvalidHandlerError(
                    f"{kind.place}: the field {name!r} has the name of an option of `job`, or of an attribute of "
                    f"{self.model.__name__}: rename it, or take one payload that has it"
                )
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

    @property
    def declared_queues(self) -> tuple[QueueSettings, ...]:
        """What is declared here, for `sync_queues`."""
        return tuple(self._queues.values())

    def queue(
        self,
        name: str,
        *,
        fairness_key: str = "",
        weight: int = 1,
        concurrency_per_key: int | None = None,
        global_concurrency: int | None = None,
        rate_limit: int | None = None,
        rate_period: timedelta | None = None,
        rate_burst: int | None = None,
        rate_algorithm: RateAlgorithm | str | None = None,
        retry: Backoff | None = None,
        retention: Retention = NOTHING_SAID,
    ) -> QueueSettings:
        """Declare a queue's settings: a worker that starts writes them to the queue's row, unless it has one.

        A row that exists keeps its settings until `sa-jobqueue queues sync` or `sync_queues` writes these; the worker warns
        of each difference. A queue need not be declared: by default it has a weight of 1, and no limits. The options are as
        of `QueueSettings`.
        Raises: InvalidOptionError naming the field, or a name that is declared already. Nothing is declared then.
        """
        if (name, fairness_key) in self._queues:
            raise InvalidOptionError("name", f"{named(part_of(name, fairness_key))} is declared already")
        declared = QueueSettings(
            name=name,
            fairness_key=fairness_key,
            weight=weight,
            concurrency_per_key=concurrency_per_key,
            global_concurrency=global_concurrency,
            rate_limit=rate_limit,
            rate_period=rate_period,
            rate_burst=rate_burst,
            rate_algorithm=rate_algorithm,
            retry=retry,
            retention=retention,
        )
        self._queues[name, fairness_key] = declared
        return declared

    @property
    def selectors(self) -> Mapping[str, Selector]:
        """The functions that decide what of a queue starts next, by its name."""
        return MappingProxyType(self._selectors)

    def selector(
        self,
        queue: str,
        *,
        window: int = 100,
        timeout: timedelta = timedelta(seconds=1),
        max_wait: timedelta | None = None,
        inputs: bool = False,
    ) -> Callable[[ChooseT], ChooseT]:
        """Register a function that decides which due jobs of a queue a worker starts next, in place of the ordinary order.

        Called as `choose(candidates, free)` before each claim: a list of `Candidate`, in the ordinary order, and the number
        of slots to fill. Returns those to start, best first; more than `free` are welcome, what it leaves out waits. Sync
        functions run in a thread; the worker claims nothing meanwhile. It may be called by many workers at once, and two may
        choose the same jobs: each job is started once. Limits, pauses and the order of a key hold whatever it says.
        `window`: how many candidates it sees at most, 1 to 1,000. `timeout`: how long it may take, 1 ms to 1 min.
        `max_wait`: a candidate that one worker has offered for so long is started before those it names; without it,
        what it never names never starts. `inputs`: whether it needs payloads, which are read for each candidate then.
        One that raises, takes too long or returns something else is reported by `SelectorFailed`; jobs start in the
        ordinary order until it succeeds again.
        Raises: InvalidOptionError naming the field, or a queue that has one already.
        """

        def register(choose: ChooseT) -> ChooseT:
            declared = Selector(
                queue=queue,
                choose=choose,
                window=window,
                timeout=timeout,
                max_wait=max_wait,
                inputs=inputs,
            )
            if queue in self._selectors:
                raise InvalidOptionError("queue", f"{queue!r} has a selector already: {self._selectors[queue].name}")
            self._selectors[queue] = declared
            return choose

        return register

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """What is declared here, for `sync_schedules`."""
        return tuple(self._schedules.values())

    def schedule(
        self,
        name: str,
        *,
        cron: str,
        handler: Schedulable | str,
        payload: Any = None,
        time_zone: str = "UTC",
        fire_time_field: str | None = None,
        misfire_policy: MisfirePolicy | str = MisfirePolicy.ONE,
        catch_up: int = 100,
        grace: timedelta = timedelta(minutes=1),
        overlap: bool = True,
        **options: Any,
    ) -> Schedule:
        """Declare that a handler's job is enqueued again and again; any number of workers do it once.

        `name`: of the row that workers create; it stays when the declaration is removed, until it is deleted.
        `cron`, `time_zone`, and the rest: as of `Schedule`. `payload`: as for `handler.job`; with `fire_time_field`, which
        is the payload's field for the time it is fired for, a mapping of the other fields will do.
        `options`: `queue`, `fairness_key`, `priority`, `max_attempts`, `timeout`, `rate_cost` of its jobs, the handler's own
        unless given.
        Raises: InvalidOptionError, UnknownJobTypeError, InvalidPayloadError, InvalidJobError. Nothing is declared then.
        """
        registered = self[handler if isinstance(handler, str) else handler.job_type.name]
        kind: JobType = registered.job_type
        unknown = options.keys() - {"queue", "fairness_key", "priority", "max_attempts", "timeout", "rate_cost"}
        if unknown:
            raise InvalidOptionError(min(unknown), "is no option of a schedule's jobs")
        if name in self._schedules:
            raise InvalidOptionError("name", f"{name!r} is declared already: a name is one schedule")
        if fire_time_field is not None:
            given = (
                payload if isinstance(payload, Mapping) else {} if payload is None else kind.input.encode("payload", payload)
            )
            if not isinstance(given, Mapping):
                raise InvalidOptionError("fire_time_field", "needs a payload that is an object")
            payload = kind.input.decode("payload", {**given, fire_time_field: _SAMPLE.isoformat()})
        # A throw-away job checks all of it as any other; the application's factory is asked for jobs alone.
        never_written: Any = "-" if self.model.__jobqueue__.id_type == "text" else UUID(int=0)
        job = registered.job(payload, id=never_written, **options)
        # Stored as it is: a constant of the source, and compared with the row at each start.
        document = kind.open("input", job.input)
        declared = Schedule(
            name=name,
            cron=cron,
            time_zone=time_zone,
            type_name=kind.name,
            queue=job.queue,
            fairness_key=job.fairness_key,
            priority=job.priority,
            max_attempts=job.max_attempts,
            timeout=job.timeout,
            rate_cost=job.rate_cost,
            input=document
            if fire_time_field is None
            else {key: value for key, value in document.items() if key != fire_time_field},
            input_version=kind.version,
            fire_time_field=fire_time_field,
            misfire_policy=misfire_policy,
            catch_up=catch_up,
            grace=grace,
            overlap=overlap,
        )
        self._schedules[name] = declared
        return declared

    def cron(self, expression: str, *, name: str | None = None, **options: Any) -> Callable[[HandlerT], HandlerT]:
        """Declare a schedule of the handler it is written above; `name` is the handler's own unless given.

        `expression`, `options`: as `cron` and the rest of `schedule`. Raises: as `schedule`.
        """

        def declare(handler: HandlerT) -> HandlerT:
            self.schedule(name or handler.job_type.name, cron=expression, handler=handler, **options)
            return handler

        return declare

    def __getitem__(self, type_name: str) -> Handler[Any, Any, JobT]:
        """Return a handler by its type's name. Raises: UnknownJobTypeError."""
        self.registry.get(type_name)
        return self._handlers[type_name]

    def output(self, chain: Chained) -> Any:
        """Return a chain's output as the type that its last job's handler declares.

        `chain`: a `Job.Chain`, or a `ChainResult` of `wait_chain` without `output`. Where it is known which handler a
        chain began with, `handler.output(chain)` is the same with a static type.
        Raises: NoOutputError unless it has completed; UnknownJobTypeError when its last job's type has no handler here;
        InvalidPayloadError when the output does not fit the type.
        """
        if chain.status is not JobStatus.COMPLETED:
            raise NoOutputError(chain.id, chain.status)
        kind = self.registry.get(chain.last_type_name)
        return kind.output.decode("output", kind.open("output", chain.output))

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
        self._codecs.include(other._codecs)
        for name, handler in other._handlers.items():
            self.registry.add(handler.job_type)
            self._handlers[name] = handler
        other.registry.included_by(self.registry)
        self._schedules |= other._schedules
        self._queues |= other._queues
        self._selectors |= other._selectors

    def _check_schedules(self, other: JobQueue[JobT]) -> None:
        twice = self._schedules.keys() & other._schedules.keys()
        if twice:
            raise InvalidOptionError("other", f"declares the schedule {min(twice)!r}, which is declared here already")

    def _check_queues(self, other: JobQueue[JobT]) -> None:
        twice = self._queues.keys() & other._queues.keys()
        if twice:
            what = named(part_of(*min(twice)))
            raise InvalidOptionError("other", f"declares the {what}, which is declared here already")
        selected = self._selectors.keys() & other._selectors.keys()
        if selected:
            raise InvalidOptionError("other", f"has a selector of the queue {min(selected)!r}, which has one here already")

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
