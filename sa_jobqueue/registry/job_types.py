"""Job types: name, function, types of input and output, and retries. No I/O and no database."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from dataclasses import fields as dataclass_fields
from types import MappingProxyType
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncSession

from sa_jobqueue import errors
from sa_jobqueue.context import BlockerOutcome, Blockers
from sa_jobqueue.models.job import NEW
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS
from sa_jobqueue.payloads import Codec, PayloadCodec, Unreadable, opened, sealed
from sa_jobqueue.payloads.shapes import item_name, name_of
from sa_jobqueue.registry.batches import BatchRule, payload_of
from sa_jobqueue.registry.dependencies import Provider
from sa_jobqueue.registry.middleware import Middleware, Surrounding
from sa_jobqueue.registry.options import BatchOptions, HandlerOptions, Options
from sa_jobqueue.registry.signatures import Signature, codec_of, outputs_and_continuations, returns_of_items, union_of
from sa_jobqueue.types import Json

Upcaster = Callable[[Any], Any]
"""Takes the JSON of one version of an input and returns that of the next."""


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


IS_EVENT: Final = "__sa_jobqueue_is_event__"
"""Attribute of the function of a job type whose jobs wait for the event that is their payload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobType(HandlerOptions):
    """A job type: everything that a worker needs to run its jobs; the options are those of its handler."""

    signature: Signature
    """Of its function."""
    input: Codec[Any]
    output: Codec[Any]
    """Of the handler's result when the chain ends with it."""
    chain_output: Codec[Any]
    """Output type of a chain that begins with this type, as far as the handler's annotation determines it."""
    continues: Codec[Any] | None
    """Of what its continuations lead to, as annotated; None when it declares none."""
    returns: str
    """The annotation of its return value."""
    upcasters: dict[int, Upcaster] = field(default_factory=dict)
    """By the version they start from."""
    step_upcasters: dict[str, Upcaster] = field(default_factory=dict)
    """By the name of the step."""
    middleware: Sequence[Middleware] = ()
    """Around each attempt, the first outermost: the list of the `JobQueue` that declares it, wherever that is included."""
    registry: Registry = field(default_factory=Registry, repr=False, compare=False)
    """The registry that it is declared in."""
    batch: BatchRule | None = None
    """Batching, if its function takes many jobs in one call; `input` and `output` then describe one of them."""
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

    @property
    def is_event(self) -> bool:
        """Whether its jobs wait for the event that is their payload (`JobQueue.event`)."""
        return getattr(self.func, IS_EVENT, False)

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
    def func(self) -> Callable[..., Any]:
        """Its function, which takes the payload first."""
        return self.signature.func

    @property
    def place(self) -> str:
        """Where it is declared, `module:function`."""
        return self.signature.place

    @property
    def is_async(self) -> bool:
        """Whether its handler runs on the event loop."""
        return self.signature.is_async

    @property
    def blockers(self) -> Codec[Any] | None:
        """Of the outputs of a job's blockers, all together; None when the handler does not ask."""
        return self.signature.blockers

    @property
    def wants_async_session(self) -> bool:
        """Whether its handler asks for an `AsyncSession`."""
        session_class = self.signature.session_class
        return session_class is not None and issubclass(session_class, AsyncSession)

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
        try:
            data = self.open("input", data)
            for step in range(version, self.version):
                data = self._upcast(data, version, step)
            return self.input.decode("input", data)
        except errors.UnreadableInputError:
            raise
        except errors.InvalidPayloadError as error:
            raise errors.UnreadableInputError(error.field, error.reason) from error

    def _upcast(self, data: Json, version: int, step: int) -> Json:
        upcast = self.upcasters.get(step)
        if upcast is None:
            raise errors.UnreadableInputError("input_version", f"is {version} and {self.name} has no upcaster from {step}")
        try:
            return upcast(data)
        except (LookupError, TypeError, ValueError) as error:
            raise errors.UnreadableInputError("input", f"the upcaster from version {step} failed: {error!r}") from error

    def blockers_of(self, outcomes: Sequence[BlockerOutcome]) -> Blockers[Any]:
        """Return the `Blockers` argument of a job's handler. Raises: UnreadableInputError, including if a codec fails."""
        try:
            opened_outcomes = tuple(
                replace(outcome, output=self.open(f"blockers[{place}]", outcome.output))
                for place, outcome in enumerate(outcomes)
            )
        except errors.InvalidPayloadError as error:
            raise errors.UnreadableInputError(error.field, error.reason) from error
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

    `by_fields`: as in `Signature.of`. With `BatchOptions`, the payload type is that of one item of the list.
    Raises: InvalidHandlerError for an unsupported signature.
    """
    signature = Signature.of(func, options.type_name, providers=providers, by_fields=by_fields)
    names = [option.name for option in dataclass_fields(HandlerOptions) if hasattr(options, option.name)]
    option_values: dict[str, Any] = {name: getattr(options, name) for name in names}
    if option_values.get("isolation") is not None and signature.session_argument is not None:
        raise errors.InvalidHandlerError(
            f"{signature.place}: an isolated handler is given no session, for it may be killed at any moment: return what "
            "it found, or continue_with a handler that takes a session and writes it"
        )
    if option_values.get("rehearsable") and signature.session_argument is None:
        raise errors.InvalidHandlerError(
            f"{signature.place}: a rehearsal can roll back a session only: give a rehearsable handler a session argument"
        )
    takes, returns, batch = signature.payload_type, signature.return_type, None
    if isinstance(options, BatchOptions):
        if signature.context_argument is not None or signature.blockers_argument is not None:
            raise errors.InvalidHandlerError(
                f"{signature.place}: an AttemptContext or Blockers is of one attempt, a batch has many: take "
                "list[BatchItem[...]], which have a context each"
            )
        takes, takes_items = payload_of(signature.place, takes)
        batch = BatchRule(options.max_size, options.max_wait, takes_items)
        returns = returns_of_items(returns)
    ends, leads_to, is_any = outputs_and_continuations(returns)
    codec = functools.partial(codec_of, signature.place)
    return JobType(
        **option_values,
        signature=signature,
        input=codec("payload", takes),
        output=codec("return value", union_of(ends)),
        chain_output=codec("return value", union_of([*ends, *leads_to])),
        continues=codec("continuation", Any if is_any else union_of(leads_to)) if is_any or leads_to else None,
        returns=name_of(returns),
        middleware=middleware,
        registry=Registry() if registry is None else registry,
        batch=batch,
    )
