"""Job types: name, function, types of input and output, and retries. No I/O and no database."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from types import MappingProxyType
from typing import Any, Final, NotRequired, Required

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from sa_jobqueue import errors
from sa_jobqueue.context import AttemptContext, BlockerOutcome, Blockers, Continuation
from sa_jobqueue.models.job import NEW
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS
from sa_jobqueue.payloads import Codec, PayloadCodec, Unreadable, opened, sealed
from sa_jobqueue.payloads.shapes import item_name, name_of
from sa_jobqueue.registry.annotations import AnnotationError, signature, type_hints
from sa_jobqueue.registry.batches import BatchRule, payload_of
from sa_jobqueue.registry.dependencies import Provider
from sa_jobqueue.registry.middleware import Middleware, Surrounding
from sa_jobqueue.registry.options import BatchOptions, HandlerOptions, Options
from sa_jobqueue.types import Json

Upcaster = Callable[[Any], Any]
"""Takes the JSON of one version of an input and returns that of the next."""

INJECTED: Final = (AsyncSession, Session, AttemptContext, Blockers)
"""Arguments that the worker gives to handlers by annotation."""


class Registry:
    """Job types by name, and payload codecs by name."""

    def __init__(self) -> None:
        self._types: dict[str, JobType] = {}
        self._codecs: dict[str, PayloadCodec] = {}
        self._included_by: list[Registry] = []
        self._includes: list[Registry] = []
        self._surroundings: list[Surrounding] = []

    def surround(self, surrounding: Surrounding) -> None:
        """Put something around the attempts of these types and of those that are included here."""
        self._surroundings.append(surrounding)

    def surroundings(self) -> list[Surrounding]:
        """Return the surroundings of these types: of this registry and of those that include it, the outermost first."""
        if not self._included_by:
            return self._surroundings
        return [surrounding for registry in reversed(self._around()) for surrounding in registry._surroundings]

    def include(self, registry: Registry) -> None:
        """Let `find` of the other registry search this one too, and share codecs. Obliges: `check_codecs`."""
        registry._included_by.append(self)
        self._includes.append(registry)

    def find(self, name: str) -> JobType | None:
        """Return a type of this registry, or of one that includes it; None if it is unknown."""
        return next((registry._types[name] for registry in self._around() if name in registry._types), None)

    def _around(self, *, within: bool = False) -> list[Registry]:
        """Return this registry and all that include it, the nearest first; with `within` also those included."""
        registries: list[Registry] = [self]
        for registry in registries:  # grows meanwhile: two registries may include each other
            beside = registry._included_by + registry._includes if within else registry._included_by
            registries += [neighbour for neighbour in beside if neighbour not in registries]
        return registries

    def find_codec(self, name: object) -> PayloadCodec | None:
        """Return a codec of this registry, or of one that includes it or that it includes; None if it is unknown."""
        registries = self._around(within=True) if isinstance(name, str) else ()
        return next((registry._codecs[name] for registry in registries if name in registry._codecs), None)

    def add_codec(self, codec: PayloadCodec) -> None:
        """Register a codec. Raises: InvalidOptionError if it is not a codec, or another one has its name."""
        name = getattr(codec, "name", None)
        if not (
            isinstance(name, str) and name and all(callable(getattr(codec, method, None)) for method in ("encode", "decode"))
        ):
            raise errors.InvalidOptionError("codec", f"must be an object with `name`, `encode` and `decode`, got {codec!r}")
        if self.find_codec(name) not in (None, codec):
            raise errors.InvalidOptionError(
                "codec", f"has the name {name!r} of another codec; use one object for all handlers"
            )
        self._codecs[name] = codec

    def check_codecs(self, registry: Registry) -> None:
        """Refuse to share codecs with a registry that has another of the same name. Raises: InvalidOptionError."""
        for name, codec in registry._codecs.items():
            if self.find_codec(name) not in (None, codec):
                raise errors.InvalidOptionError("jobs", f"has another codec of the name {name!r}")

    def add(self, job_type: JobType) -> None:
        """Register a type. Raises: InvalidHandlerError naming both places."""
        present = self._types.get(job_type.name)
        if present is not None:
            where = f"{present.place} and again at {job_type.place}"
            raise errors.InvalidHandlerError(f"job type {job_type.name!r} is declared at {where}; rename one")
        self._types[job_type.name] = job_type

    def get(self, name: str) -> JobType:
        """Return a type. Raises: UnknownJobTypeError naming the known ones."""
        try:
            return self._types[name]
        except KeyError:
            raise errors.UnknownJobTypeError(name, list(self._types)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._types

    def __iter__(self) -> Iterator[JobType]:
        return iter(self._types.values())

    def __len__(self) -> int:
        return len(self._types)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all types, sorted."""
        return tuple(sorted(self._types))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType(HandlerOptions):
    """A job type: everything that a worker needs to run its jobs; the options are those of its handler."""

    func: Callable[..., Any]
    is_async: bool
    takes_input: bool
    session_argument: str | None
    session_class: type[Session] | type[AsyncSession] | None
    """The class of that argument, of which the handler receives an instance."""
    context_argument: str | None
    blockers_argument: str | None
    blockers: Codec[Any] | None
    """Of the outputs of a job's blockers, all together; None when the handler does not ask."""
    input: Codec[Any]
    output: Codec[Any]
    """Of the handler's result when the chain ends with it."""
    chain_output: Codec[Any]
    """Output type of a chain that begins with this type, as far as the handler's annotation determines it."""
    continues: Codec[Any] | None
    """Of what its continuations lead to, as annotated; None when it declares none."""
    returns: str
    """The annotation of its return value."""
    place: str
    """Where it is declared, `module:function`."""
    upcasters: dict[int, Upcaster] = field(default_factory=dict)
    step_upcasters: dict[str, Upcaster] = field(default_factory=dict)
    """By the version they start from."""
    middleware: Sequence[Middleware] = ()
    """Around each attempt, the first outermost: the list of the `JobQueue` that declares it, wherever that is included."""
    registry: Registry = field(default_factory=Registry, repr=False, compare=False)
    """The registry that it is declared in."""
    provided: Mapping[str, Provider[Any]] = field(default_factory=dict)
    """Providers by the name of the argument."""
    batch: BatchRule | None = None
    """Batching, if its function takes many jobs in one call; `input` and `output` then describe one of them."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Annotations of the parameters that are the fields of the payload, by name; empty for one payload as a whole."""
    new: Mapping[str, Any] = field(init=False, repr=False, compare=False)
    """Columns of a new job to which no option is given."""

    def __post_init__(self) -> None:
        declared = {name: getattr(self, JOB_OPTIONS[name].handler) for name in DECLARED}
        object.__setattr__(self, "new", NEW | declared)

    @property
    def name(self) -> str:
        """Its name."""
        return self.type_name

    @property
    def isolated(self) -> bool:
        """Whether attempts run in a child process of the worker."""
        return self.isolation is not None

    def around_attempt(self) -> AbstractContextManager[object]:
        """Return what integrations put around an attempt."""
        surroundings = self.registry.surroundings()
        return _all([surrounding.around_attempt for surrounding in surroundings]) if surroundings else _NOTHING

    def around_call(self, session: Any = None) -> AbstractContextManager[object]:
        """Return what integrations put around the call of the handler; `session`: the one that it is given."""
        surroundings = self.registry.surroundings()
        if not surroundings:
            return _NOTHING
        return _all([functools.partial(surrounding.around_call, self.place, session) for surrounding in surroundings])

    @property
    def wants_async_session(self) -> bool:
        """Whether its handler asks for an `AsyncSession`."""
        return self.session_class is not None and issubclass(self.session_class, AsyncSession)

    def encode_output(self, value: Any) -> Json:
        """Return a handler's return value in its stored form. Raises: InvalidOutputError."""
        document = self.output.encode_output(value)
        try:
            return sealed("output", document, self.codec).value
        except errors.InvalidPayloadError as error:
            raise errors.InvalidOutputError(f"the handler's return value is not usable: {error}") from error

    def open(self, field: str, stored: Json) -> Json:
        """Return a stored payload, decoded by its codec. Raises: InvalidPayloadError."""
        return opened(field, stored, self.registry.find_codec)

    def decode(self, data: Json, version: int) -> Any:
        """Return the typed input of a stored payload, upcast from `version`.

        Raises: UnreadableInputError if its codec fails, its version is newer than the handler's, an upcaster is missing or
        fails, or the result does not match the type.
        """
        if isinstance(data, Unreadable):
            raise errors.UnreadableInputError("input", data.reason)
        if version > self.version:
            raise errors.UnreadableInputError(
                "input_version", f"is {version}, but this {self.name} knows up to {self.version}: deploy the newer handler"
            )
        data = self._open_or_die("input", data)
        for step in range(version, self.version):
            upcast = self.upcasters.get(step)
            if upcast is None:
                raise errors.UnreadableInputError(
                    "input_version", f"is {version} and {self.name} has no upcaster from {step}"
                )
            try:
                data = upcast(data)
            except (LookupError, TypeError, ValueError) as error:
                raise errors.UnreadableInputError("input", f"the upcaster from version {step} failed: {error!r}") from error
        try:
            return self.input.decode("input", data)
        except errors.InvalidPayloadError as error:
            raise errors.UnreadableInputError(error.field, error.reason) from error

    def _open_or_die(self, field: str, stored: Json) -> Json:
        try:
            return self.open(field, stored)
        except errors.InvalidPayloadError as error:
            raise errors.UnreadableInputError(error.field, error.reason) from error

    def blockers_of(self, outcomes: Sequence[BlockerOutcome]) -> Blockers[Any]:
        """Return the `Blockers` argument of a job's handler. Raises: UnreadableInputError, including if a codec fails."""
        opened_outcomes = tuple(
            replace(outcome, output=self._open_or_die(f"blockers[{place}]", outcome.output))
            for place, outcome in enumerate(outcomes)
        )
        return Blockers(self.decode_blockers([outcome.output for outcome in opened_outcomes]), opened_outcomes)

    def decode_blockers(self, outputs: Sequence[Json]) -> Any:
        """Return the typed outputs of the chains that a job waited for, in the order of its blockers.

        Raises: UnreadableInputError if they do not match the annotation. A retry would not help, as the chains have ended.
        """
        codec: Any = self.blockers
        for place, output in enumerate(outputs):
            if isinstance(output, Unreadable):
                raise errors.UnreadableInputError(f"blockers[{place}]", output.reason)
        try:
            return codec.decode("blockers", outputs)
        except errors.InvalidPayloadError as error:
            raise errors.UnreadableInputError(error.field, f"{error.reason}; {self.name!r} takes {codec.name}") from error

    def check_blocker_count(self, count: int) -> None:
        """Check the number of blockers of a new job. Raises: InvalidJobError."""
        if self.blockers is None:
            return
        least, most = self.blockers.shape.bounds
        if least <= count and (most is None or count <= most):
            return
        expected = str(least) if least == most else f"at least {least}" if most is None else f"{least} to {most}"
        expected_blockers = f"{expected}, for Blockers[{self.blockers.name}]"
        raise errors.InvalidJobError("blockers", f"{self.name!r} takes {expected_blockers}, got {count}")

    def check_blocker(self, place: int, chain_type: JobType) -> None:
        """Check the type of a blocker of a new job, which is that of its first job. Raises: InvalidJobError."""
        if self.blockers is None or chain_type.chain_output.shape.can_be(self.blockers.shape.item(place)):
            return
        expected = item_name(self.blockers.annotated, place)
        raise errors.InvalidJobError(
            f"blockers[{place}]",
            f"{self.name!r} takes {expected} here (Blockers[{self.blockers.name}]), "
            f"but a chain of {chain_type.name!r} ends with {chain_type.chain_output.name}",
        )

    def check_continuation(self, next_type_name: str, next_type: JobType | None) -> None:
        """Check a continuation that the handler returned. Raises: UndeclaredContinuationError.

        `next_type`: the type of the next job; None if it is unknown.
        """
        if self.continues is not None and (next_type is None or next_type.chain_output.shape.can_be(self.continues.shape)):
            return
        name = "Any" if next_type is None else next_type.chain_output.name
        raise errors.UndeclaredContinuationError(self.name, next_type_name, expected=self.returns, actual=name)


_NOTHING: Final = nullcontext()


@contextmanager
def _all(factories: Sequence[Callable[[], AbstractContextManager[object]]]) -> Iterator[None]:
    """Enter context managers, the first outermost."""
    with ExitStack() as stack:
        for factory in factories:
            stack.enter_context(factory())
        yield


def describe(
    func: Callable[..., Any],
    options: Options,
    *,
    middleware: Sequence[Middleware] = (),
    registry: Registry | None = None,
    providers: Mapping[type[Any], Provider[Any]] = MappingProxyType({}),
    by_fields: bool = False,
) -> JobType:
    """Return the job type of a function, from its signature and checked options.

    The first parameter is the payload, unless it is injected. With `by_fields`, all parameters that are not injected are
    fields of the payload. `Session`, `AsyncSession`, `AttemptContext`, `Blockers` and dependencies of `providers` are
    injected by annotation, at any position. With `BatchOptions`, the payload type is that of one item of the list.
    Raises: InvalidHandlerError for an unsupported signature.
    """
    if not (inspect.isfunction(func) or inspect.ismethod(func)):
        raise errors.InvalidHandlerError(f"{options.type_name}: a handler is a function, got {func!r}")
    place = f"{func.__module__}:{func.__qualname__}"
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise errors.InvalidHandlerError(f"{place}: a handler returns its output once, it cannot yield")
    try:
        hints = type_hints(func)
    except AnnotationError as error:
        raise errors.InvalidHandlerError(f"{place}: {error}") from error
    # A plain decorator around a coroutine function hides that it is one.
    is_async = inspect.iscoroutinefunction(inspect.unwrap(func))
    if is_async and not inspect.iscoroutinefunction(func):
        func = _awaiting(func)
    payload: inspect.Parameter | None = None
    blockers: Codec[Any] | None = None
    injected: dict[type, str] = {}
    session_class: Any = None
    provided: dict[str, Provider[Any]] = {}
    fields: dict[str, Any] = {}
    for parameter in signature(func).parameters.values():
        hint = hints.get(parameter.name, Any)
        origin = typing.get_origin(hint) or hint  # Blockers[...] has what it is of in brackets
        injected_class = next((kind for kind in INJECTED if isinstance(origin, type) and issubclass(origin, kind)), None)
        provider = providers.get(origin) if injected_class is None and isinstance(origin, type) else None
        if (by_fields or injected_class or provider) and parameter.kind is parameter.POSITIONAL_ONLY:
            raise errors.InvalidHandlerError(f"{place}: {parameter.name!r} is given by name, it cannot be positional-only")
        if provider is not None:
            provided[parameter.name] = provider
        elif injected_class is not None:
            if injected_class in injected:
                raise errors.InvalidHandlerError(f"{place}: asks for two arguments of type {injected_class.__name__}")
            injected[injected_class] = parameter.name
            if injected_class in {Session, AsyncSession}:
                session_class = origin
            if injected_class is Blockers:
                blockers = _codec(place, "blockers", next(iter(typing.get_args(hint)), Any))
        elif parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise errors.InvalidHandlerError(f"{place}: *{parameter.name} cannot be filled; name the arguments")
        elif by_fields:
            required = parameter.default is parameter.empty
            fields[parameter.name] = Required[hint] if required else NotRequired[hint]
        elif payload is None and not injected and not provided and parameter.kind is not parameter.KEYWORD_ONLY:
            payload = parameter
        elif parameter.default is parameter.empty:
            raise errors.InvalidHandlerError(
                f"{place}: unexpected argument {parameter.name!r}; the payload comes first, then arguments annotated "
                "Session, AsyncSession, AttemptContext, Blockers or the class of a dependency. If they are "
                "the fields of the payload, use @jobs.keyword_handler"
            )
    if Session in injected and is_async:
        raise errors.InvalidHandlerError(f"{place}: an asynchronous handler takes an AsyncSession, not a Session")
    if AsyncSession in injected and not is_async:
        raise errors.InvalidHandlerError(f"{place}: a synchronous handler takes a Session, not an AsyncSession")
    names = [option.name for option in dataclass_fields(HandlerOptions) if hasattr(options, option.name)]
    option_values: dict[str, Any] = {name: getattr(options, name) for name in names}
    if option_values.get("isolation") is not None and (Session in injected or AsyncSession in injected):
        raise errors.InvalidHandlerError(
            f"{place}: an isolated handler is given no session, for it may be killed at any moment: return what it found, "
            "or continue_with a handler that takes a session and writes it"
        )
    takes = hints.get(payload.name, Any) if payload else Any
    if fields:
        takes = _object_of(func, fields)
    returns = _plain(hints.get("return", Any))
    batch = None
    if isinstance(options, BatchOptions):
        if AttemptContext in injected or Blockers in injected:
            raise errors.InvalidHandlerError(
                f"{place}: an AttemptContext or Blockers is of one attempt, a batch has many: take list[BatchItem[...]], "
                "which have a context each"
            )
        takes, takes_items = payload_of(place, takes)
        batch = BatchRule(options.max_size, options.max_wait, takes_items)
        returns = _outcome(returns)
    parts = _parts(returns)
    ends = [part for part in parts if not _is_continuation(part)]
    leads_to = [next(iter(typing.get_args(part)), Any) for part in parts if _is_continuation(part)]
    has_any = Any in parts or object in parts
    return JobType(
        **option_values,
        func=_spread(func, is_async=is_async) if fields else func,
        is_async=is_async,
        takes_input=payload is not None or bool(fields),
        session_argument=injected.get(AsyncSession) or injected.get(Session),
        session_class=session_class,
        context_argument=injected.get(AttemptContext),
        blockers_argument=injected.get(Blockers),
        blockers=blockers,
        input=_codec(place, "payload", takes),
        output=_codec(place, "return value", _union(ends)),
        chain_output=_codec(place, "return value", _union([*ends, *leads_to])),
        continues=_codec(place, "continuation", Any if has_any else _union(leads_to)) if has_any or leads_to else None,
        returns=name_of(returns),
        place=place,
        middleware=middleware,
        registry=Registry() if registry is None else registry,
        provided=provided,
        batch=batch,
        fields=fields,
    )


def _object_of(func: Callable[..., Any], fields: Mapping[str, Any]) -> Any:
    """Return a payload type with these fields; omitted fields have the defaults of their parameters."""
    functional: Any = TypedDict  # called with what is known at run time only
    return functional(f"{func.__name__}_payload", dict(fields))


def _spread(func: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    """Return the function as a function of a mapping with the fields of its payload."""
    if is_async:

        @functools.wraps(func)
        async def spread_async(payload: Mapping[str, Any], /, **injected: Any) -> Any:
            return await func(**payload, **injected)

        return spread_async

    @functools.wraps(func)
    def spread(payload: Mapping[str, Any], /, **injected: Any) -> Any:
        return func(**payload, **injected)

    return spread


def _awaiting(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a coroutine function that calls a function in the event loop, and awaits the result."""

    @functools.wraps(func)
    async def awaiting(*args: Any, **kwargs: Any) -> Any:
        returned = func(*args, **kwargs)
        return await returned if inspect.isawaitable(returned) else returned

    return awaiting


def _union(hints: Sequence[Any]) -> Any:
    """Return the union of types; Any if it is one of them, or there are none."""
    return Any if Any in hints or not hints else functools.reduce(operator.or_, hints)


def _outcome(hint: Any) -> Any:
    """Return the type of one job's output from a batch's `-> list[Output | Exception]`; Any if it is not annotated so."""
    (listed,) = typing.get_args(hint) if typing.get_origin(hint) is list else (Any,)
    return _union([part for part in _parts(listed) if not (isinstance(part, type) and issubclass(part, BaseException))])


def _parts(hint: Any) -> list[Any]:
    """Return the members of a union, or the one type that it is."""
    if typing.get_origin(hint) not in {typing.Union, types.UnionType}:
        return [hint]
    return [part for member in typing.get_args(hint) for part in _parts(member)]


def _plain(hint: Any) -> Any:
    """Return an annotation without type aliases and without `Annotated` around the whole."""
    while True:
        if typing.get_origin(hint) is typing.Annotated and any(_is_continuation(part) for part in _parts(hint.__origin__)):
            hint = hint.__origin__
        elif hasattr(hint, "__value__") and typing.get_origin(hint) is None:
            hint = hint.__value__
        else:
            return hint


def _is_continuation(hint: Any) -> bool:
    return hint is Continuation or typing.get_origin(hint) is Continuation


def _codec(place: str, role: str, hint: Any) -> Codec[Any]:
    try:
        # A handler annotated `-> None` returns nothing; there is nothing to check but that it is JSON.
        return Codec(Any, annotated=hint) if hint is type(None) else Codec(hint)
    except Exception as error:  # any error that Pydantic raises for a type it does not support
        raise errors.InvalidHandlerError(f"{place}: the {role} cannot be typed as {hint!r}: {error}") from error
