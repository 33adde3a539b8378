"""`JobQueue`: the declarations of an application: handlers, queues, selectors and schedules of one `Job` class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Annotated, Any, Final, Generic, Protocol, overload
from uuid import UUID

from typing_extensions import TypeVar

from sa_jobqueue.context import AttemptContext
from sa_jobqueue.errors import Discard, EventTimeoutError, InvalidHandlerError, InvalidOptionError, NoOutputError
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.models import ChainMixin, Job, JobMixin
from sa_jobqueue.models.event import check_event
from sa_jobqueue.models.options import DEFAULT_QUEUE, OF_SCHEDULES
from sa_jobqueue.payloads.references import unflushed
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.policies.retention import NO_RETENTION, Retention, RetentionRules
from sa_jobqueue.registry.dependencies import Provider, provider_of
from sa_jobqueue.registry.handlers import OPTIONS, BatchDecorator, Chained, FieldsDecorator, Handler, HandlerDecorator, JobT
from sa_jobqueue.registry.job_types import IS_EVENT, JobType, Registry, describe
from sa_jobqueue.registry.middleware import Middleware, check_middleware
from sa_jobqueue.registry.options import BatchOptions, HandlerOptions, Options, taking
from sa_jobqueue.registry.schedules import MisfirePolicy, Schedule
from sa_jobqueue.registry.selectors import Choose, Selector, SelectorOptions
from sa_jobqueue.registry.settings import QueueSettings
from sa_jobqueue.registry.signatures import INJECTED
from sa_jobqueue.types import EVENT_STEP, JobStatus

_SAMPLE: Final = datetime(2000, 1, 1, tzinfo=UTC)
T = TypeVar("T")
ChooseT = TypeVar("ChooseT", bound=Choose)
HandlerT = TypeVar("HandlerT", bound="Schedulable")
MiddlewareT = TypeVar("MiddlewareT", bound=Middleware)


class Schedulable(Protocol):
    """A registered handler, as far as its schedules go."""

    @property
    def job_type(self) -> JobType:
        """The declaration of its type."""


class JobQueue(Generic[JobT]):
    """A registry of handlers. Create one at import time for each `Job` class.

    `model`: the mapped class whose table is the queue. `retention`: how long its workers keep ended chains; forever by
    default.
    """

    @overload
    def __init__(self: JobQueue[Job], *, retention: Retention = NO_RETENTION) -> None: ...
    @overload
    def __init__(self, model: type[JobT], *, retention: Retention = NO_RETENTION) -> None: ...
    def __init__(self, model: Any = Job, *, retention: Retention = NO_RETENTION) -> None:
        if not (isinstance(model, type) and issubclass(model, JobMixin) and hasattr(model, "__jobqueue__")):
            raise InvalidOptionError("model", f"must be a class such as `class Job(JobMixin, Base)`, got {model!r}")
        if not isinstance(retention, Retention):
            raise InvalidOptionError("retention", f"must be a Retention, got {retention!r}")
        self.model: type[JobT] = model  # type: ignore[assignment]  # the overloads bind it
        self.retention = retention
        self.registry = Registry()
        self._handlers: dict[str, Handler[Any, Any, JobT]] = {}
        self._middleware: list[Middleware] = []
        self._providers: dict[type[Any], Provider[Any]] = {}
        self._queues: dict[tuple[str, str], QueueSettings] = {}
        self._selectors: dict[str, Selector] = {}
        self._schedules: dict[str, Schedule] = {}

    @taking(HandlerOptions)
    def handler(self, type_name: str, **options: Any) -> HandlerDecorator[JobT]:
        """Register a function as the handler of `type_name`. Its first parameter is the payload.

        `type_name`, `options`: those of `HandlerOptions`.
        Raises: InvalidJobError, InvalidOptionError, InvalidHandlerError.
        """
        return HandlerDecorator(self._declare(HandlerOptions, type_name, options))

    @taking(HandlerOptions)
    def keyword_handler(self, type_name: str, **options: Any) -> FieldsDecorator[JobT]:
        """Register a function whose parameters are the fields of the payload: `send.job(order_id=7)`.

        Fields with a default are optional. `options`: those of
        `handler`.
        Raises: as `handler`; InvalidHandlerError for a field with the name of an option of `job`, or of a column.
        """
        return FieldsDecorator(self._declare(HandlerOptions, type_name, options, by_fields=True))

    @taking(BatchOptions)
    def batch_handler(self, type_name: str, **options: Any) -> BatchDecorator:
        """Register a function that is called with up to `max_size` jobs of `type_name` together.

        Its first parameter is annotated `list[Payload]` or `list[BatchItem[Payload]]`; a session and dependencies may
        follow. It returns None, or a list with the outcome of each job: its output, a continuation, or an exception. An
        exception that it raises fails all jobs; `BatchFailed` fails some of them. Each job is a separate attempt and
        uses a slot of its worker.
        `type_name`, `options`: those of `BatchOptions`.
        Raises: as `handler`; InvalidHandlerError for a function without a list, or with an AttemptContext or Blockers.
        """
        return BatchDecorator(self._declare(BatchOptions, type_name, options))

    def event(
        self, type_name: str, *, timeout: timedelta, output: type[T] | None = None, queue: str = DEFAULT_QUEUE
    ) -> Handler[str, T, JobT]:
        """Register a job type whose jobs wait for an event, and return its handler, for `blockers` of other jobs.

        `approval.blocker("approved:7")` makes a job wait for the event `approved:7`, 1 to 200 printable characters; its
        `Blockers` have the payload. After the timeout the waiting job dies by `Discard`, and `on_failure` of the blocker
        decides about the other one.
        `type_name`: name of the job type. `timeout`: as in `AttemptContext.wait_for`. `output`: type of the event's
        payload; any JSON by default. `queue`: of its jobs.
        Raises: as `handler`; InvalidOptionError for the timeout.
        """
        from pydantic import AfterValidator

        check_duration("timeout", timeout, or_zero=True)

        async def wait(event: str, ctx: AttemptContext) -> Any:
            try:
                return await ctx.wait_for(EVENT_STEP, event=event, timeout=timeout, output=output)
            except EventTimeoutError as error:
                raise Discard(str(error)) from error

        types = {"event": Annotated[str, AfterValidator(check_event)], "return": Any if output is None else output}
        wait.__annotations__ |= types
        wait.__qualname__ = f"event({type_name!r})"
        setattr(wait, IS_EVENT, True)
        decorate: Any = self.handler(type_name, queue=queue)
        handler: Handler[str, T, JobT] = decorate(wait)
        return handler

    def _declare(
        self, options_class: type[Options], type_name: str, values: dict[str, Any], *, by_fields: bool = False
    ) -> Callable[[Callable[..., Any]], Any]:
        if callable(type_name):  # the decorator without its parentheses
            name = getattr(type_name, "__name__", "name")
            words = f'give the job type its name: @jobs.handler("{name}"), not @jobs.handler without parentheses'
            raise InvalidHandlerError(words)
        option_names = [field.name for field in fields(options_class)]
        for name in values.keys() - option_names:
            refuse_removed([name])
            raise InvalidOptionError(
                name, f"is not an option of this handler; the options are {', '.join(option_names[1:])}"
            )
        options = options_class(type_name, **values)
        options.check()
        if options.codec is not None:
            self.registry.add_codec(options.codec)

        def register(func: Callable[..., Any]) -> Handler[Any, Any, JobT]:
            shared_state: dict[str, Any] = {"providers": self._providers, "registry": self.registry}
            kind = describe(func, options, by_fields=by_fields, middleware=self._middleware, **shared_state)
            for name in [name for name in kind.signature.fields if name in OPTIONS or hasattr(self.model, name)]:
                raise InvalidHandlerError(
                    f"{kind.place}: the field {name!r} has the name of an option of `job`, or of an attribute of "
                    f"{self.model.__name__}: rename it, or take one payload that has it"
                )
            self.registry.add(kind)
            handler: Handler[Any, Any, JobT] = Handler(kind, self.model)
            self._handlers[type_name] = handler
            self.model.__handlers__.add(type_name, handler)  # what `Job(type_name, ...)` takes its options from
            return handler

        return register

    def middleware(self, func: MiddlewareT) -> MiddlewareT:
        """Register a coroutine function to run around every attempt of this registry's own handlers; return it unchanged.

        `func`: called as `func(attempt, proceed)`; it awaits `proceed()` exactly once, which decodes the payload, calls
        the handler and, if that takes a session, commits. The first one registered is outermost. It may raise to end
        the attempt. The handler sees context variables that it sets.
        Raises: InvalidHandlerError.
        """
        check_middleware(func)
        self._middleware.append(func)
        return func

    def dependency(
        self, kind: type[T], provider: Provider[T] | Callable[[AttemptContext], AbstractContextManager[T]]
    ) -> None:
        """Register a dependency: handlers declared after this call receive it by a parameter annotated with `kind`.

        `provider`: a function of the attempt that returns a context manager, entered around the handler, or an object
        with `open` and `close`; see `Provider`.
        Raises: InvalidOptionError if the class has a provider already, or earlier handlers have its default.
        """
        if not isinstance(kind, type):
            raise InvalidOptionError("kind", f"must be a class that parameters are annotated with, got {kind!r}")
        if kind in INJECTED:
            raise InvalidOptionError("kind", f"{kind.__name__} is what the worker itself gives")
        if kind in self._providers:
            raise InvalidOptionError("kind", f"{kind.__name__} is provided already")
        self._providers[kind] = provider_of(provider)

    @property
    def declared_queues(self) -> tuple[QueueSettings, ...]:
        """The declared settings of queues, for `sync_queues`."""
        return tuple(self._queues.values())

    @taking(QueueSettings)
    def queue(self, name: str, **settings: Any) -> QueueSettings:
        """Declare a queue's settings; a worker that starts writes them to the queue's row if there is none. Return them.

        An existing row keeps its settings until `sync_queues` writes these; the worker warns of each difference.
        `name`, `settings`: those of `QueueSettings`.
        Raises: InvalidOptionError naming the field, or a name that is declared already.
        """
        declared = QueueSettings(name, **settings)
        key = declared.name, declared.fairness_key
        if key in self._queues:
            raise InvalidOptionError("name", f"{QueueKey(*key).named} is declared already")
        self._queues[key] = declared
        return declared

    @property
    def selectors(self) -> Mapping[str, Selector]:
        """The selectors, by queue."""
        return MappingProxyType(self._selectors)

    @taking(SelectorOptions)
    def selector(self, queue: str, **options: Any) -> Callable[[ChooseT], ChooseT]:
        """Register a function that chooses which due jobs of a queue a worker starts next, instead of the usual order.

        Called as `choose(candidates, free)` before each claim, with a list of `Candidate` in the usual order and the
        number of free slots, it returns candidates, best first. The worker does not claim until it returns. Limits,
        pauses and ordering keys still apply. If it fails, `SelectorFailed` is emitted, and the usual order applies
        until a call succeeds.

        `queue`, `options`: those of `SelectorOptions`.
        Raises: InvalidOptionError, including for a queue that already has a selector.
        """

        def register(choose: ChooseT) -> ChooseT:
            declared = Selector(queue, choose=choose, **options)
            if queue in self._selectors:
                raise InvalidOptionError("queue", f"{queue!r} has a selector already: {self._selectors[queue].name}")
            self._selectors[queue] = declared
            return choose

        return register

    @property
    def schedules(self) -> tuple[Schedule, ...]:
        """The declared schedules, for `sync_schedules`."""
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
        """Declare a schedule that enqueues a job at the times of a cron expression, once for all workers. Return it.

        `name`: name of its row, which stays until it is deleted.
        `cron`: when it fires, such as "0 3 * * *"; see `Cron`.
        `time_zone`: an IANA name.
        `handler`: the handler, or the name of its job type.
        `payload`: as in `Handler.job`.
        `fire_time_field`: field of the payload that receives the scheduled time; `payload` is then a mapping of the others.
        `misfire_policy`: times at which no worker ran: "skip" drops those later than `grace` (at most 3,650 days), "one"
        fires the latest, "all" the latest `catch_up` of them (1 to 10,000).
        `overlap`: False skips a time while the chain of the previous job is open.
        `options`: `queue`, `fairness_key`, `priority`, `max_attempts`, `timeout` and `rate_cost` of its jobs; the handler's
        by default.
        Raises: InvalidOptionError, UnknownJobTypeError, InvalidPayloadError, InvalidJobError.
        """
        registered = self[handler if isinstance(handler, str) else handler.job_type.name]
        kind: JobType = registered.job_type
        if unknown := options.keys() - set(OF_SCHEDULES):
            raise InvalidOptionError(min(unknown), "is not an option of a schedule's jobs")
        if name in self._schedules:
            raise InvalidOptionError("name", f"a schedule {name!r} is already declared; choose another name")
        if fire_time_field is not None:
            fixed_fields = (
                payload if isinstance(payload, Mapping) else {} if payload is None else kind.input.encode("payload", payload)
            )
            if not isinstance(fixed_fields, Mapping):
                raise InvalidOptionError("fire_time_field", "needs a payload that is an object")
            payload = kind.input.decode("payload", {**fixed_fields, fire_time_field: _SAMPLE.isoformat()})
        # A throw-away job checks all of it as any other; the application's factory is asked for jobs alone.
        never_written: Any = "-" if self.model.__jobqueue__.id_type == "text" else UUID(int=0)
        job = registered.job(payload, id=never_written, **options)
        if (error := unflushed("payload", job.input)) is not None:
            raise error
        # Stored as it is: a constant of the source, and compared with the row at each start.
        document = kind.open("input", job.input)
        declared = Schedule(
            name=name,
            cron=cron,
            time_zone=time_zone,
            type_name=kind.name,
            **{option: getattr(job, option) for option in OF_SCHEDULES},
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
        """Declare a schedule of the handler below it; return a decorator.

        `expression`: as `cron` of `schedule`. `name`: by default the job type's. `options`: those of `schedule`.
        Raises: as `schedule`; InvalidOptionError if it is written below `handler`.
        """

        def declare(handler: HandlerT) -> HandlerT:
            if not hasattr(handler, "job_type"):
                raise InvalidOptionError("cron", "must be written above @jobs.handler(...): it takes the handler")
            self.schedule(name or handler.job_type.name, cron=expression, handler=handler, **options)
            return handler

        return declare

    def __getitem__(self, type_name: str) -> Handler[Any, Any, JobT]:
        """Return the handler of the job type `type_name`. Raises: UnknownJobTypeError."""
        self.registry.get(type_name)
        return self._handlers[type_name]

    def output(self, chain: Chained | ChainMixin[Any]) -> Any:
        """Return a chain's output as the type that its last job's handler declares.

        `chain`: a `Job.Chain`, or a `ChainResult` of `wait_chain` without `output`.
        Raises: NoOutputError unless it has completed; UnknownJobTypeError if its last job's type has no handler here;
        InvalidPayloadError if the output does not fit the type.
        """
        if chain.status is not JobStatus.COMPLETED:
            raise NoOutputError(chain.id, chain.status)
        kind = self.registry.get(chain.last_type_name)
        return kind.output.decode("output", kind.open("output", chain.output))

    def job(self, type_name: str, payload: Any = None, **options: Any) -> JobT:
        """Return a job of a type known only by name; otherwise as `Handler.job`.

        `type_name`: the job type. `options`: those of `Handler.job`.
        Raises: as `Handler.job`; UnknownJobTypeError.
        """
        job: JobT = self[type_name].job(payload, **options)
        return job

    def include(self, jobs: JobQueue[JobT]) -> None:
        """Add every handler, schedule, queue and selector of another registry, such as a feature's.

        `jobs`: a registry for the same `Job` class. Later registrations there are not included.
        Raises: InvalidHandlerError naming both places; InvalidOptionError if its jobs are rows of another class, or it is
        this registry, or was included before.
        """
        if jobs is self:
            raise InvalidOptionError("jobs", "is this registry itself")
        if jobs.model is not self.model:
            raise InvalidOptionError(
                "other", f"makes jobs of {jobs.model.__qualname__}, this registry those of {self.model.__qualname__}"
            )
        if twice := self._schedules.keys() & jobs._schedules.keys():
            raise InvalidOptionError("jobs", f"declares the schedule {min(twice)!r}, which is declared here already")
        if keys := self._queues.keys() & jobs._queues.keys():
            raise InvalidOptionError("jobs", f"declares the {QueueKey(*min(keys)).named}, which is declared here already")
        if twice := self._selectors.keys() & jobs._selectors.keys():
            raise InvalidOptionError("jobs", f"has a selector of the queue {min(twice)!r}, which has one here already")
        for name in [name for name in jobs._handlers if name in self._handlers]:
            if jobs._handlers[name] is self._handlers[name]:
                place = self.registry.get(name).place
                raise InvalidOptionError("jobs", f"brings {name!r} ({place}), which is here already: include it once")
            self.registry.add(jobs.registry.get(name))  # raises, with both places
        self.registry.check_codecs(jobs.registry)
        for name, handler in jobs._handlers.items():
            self.registry.add(handler.job_type)
            self._handlers[name] = handler
        self.registry.include(jobs.registry)
        self._schedules |= jobs._schedules
        self._queues |= jobs._queues
        self._selectors |= jobs._selectors

    @property
    def retention_rules(self) -> RetentionRules:
        """The retention rules of the registry, its queues and its job types."""
        types = {kind.name: kind.retention for kind in self.registry if kind.retention is not None}
        return RetentionRules(default=self.retention, types=types)

    @property
    def queues(self) -> tuple[str, ...]:
        """The default queues of its handlers, sorted."""
        return tuple(sorted({kind.queue for kind in self.registry}))

    def __iter__(self) -> Iterator[Handler[Any, Any, JobT]]:
        return iter(self._handlers.values())
