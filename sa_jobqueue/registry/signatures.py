"""The signature of a handler's function: the payload, the arguments that the worker gives it, and the result."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NotRequired, Required

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from typing_extensions import TypedDict

from sa_jobqueue import errors
from sa_jobqueue.context import AttemptContext, Blockers, Continuation
from sa_jobqueue.payloads import Codec
from sa_jobqueue.payloads.references import LoadOptions, annotated_by_reference
from sa_jobqueue.registry.annotations import AnnotationError, signature, type_hints
from sa_jobqueue.registry.dependencies import Provider

INJECTED: Final = (AsyncSession, Session, AttemptContext, Blockers)
"""Arguments that the worker gives to handlers by annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A handler's function and its arguments, each by the name of its parameter; None for one that it does not take."""

    func: Callable[..., Any]
    """Takes the payload first, and is a coroutine function if its result is awaited."""
    place: str
    """Where it is declared, `module:function`."""
    is_async: bool
    takes_input: bool
    payload_type: Any
    """The annotation of its payload; Any without one."""
    return_type: Any
    """The annotation of its result, without aliases; Any without one."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Annotations of the parameters that are the fields of the payload; empty for one payload as a whole."""
    session_argument: str | None = None
    session_class: type[Session] | type[AsyncSession] | None = None
    """The class of that argument, of which the handler receives an instance."""
    context_argument: str | None = None
    blockers_argument: str | None = None
    blockers: Codec[Any] | None = None
    """Of the outputs of a job's blockers, all together."""
    provided: Mapping[str, Provider[Any]] = field(default_factory=dict)
    """The providers of dependencies."""
    mapped: frozenset[str] = frozenset()
    """The fields of the payload that are mapped objects, which the worker loads; an empty name for the payload itself."""

    @classmethod
    def of(
        cls, func: Callable[..., Any], type_name: str, *, providers: Mapping[type[Any], Provider[Any]], by_fields: bool
    ) -> Signature:
        """Return the signature of a handler.

        The first parameter is the payload, unless it is injected. With `by_fields`, all parameters that are not injected
        are fields of the payload. `Session`, `AsyncSession`, `AttemptContext`, `Blockers` and dependencies of `providers`
        are injected by annotation, at any position.
        Raises: InvalidHandlerError for an unsupported signature.
        """
        if not (inspect.isfunction(func) or inspect.ismethod(func)):
            raise errors.InvalidHandlerError(f"{type_name}: a handler is a function, got {func!r}")
        place = f"{func.__module__}:{func.__qualname__}"
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise errors.InvalidHandlerError(f"{place}: a handler returns its output once, it cannot yield")
        try:
            hints = type_hints(func)
        except AnnotationError as error:
            raise errors.InvalidHandlerError(f"{place}: {error}") from error
        # A plain decorator around a coroutine function hides that it is one.
        is_async = inspect.iscoroutinefunction(inspect.unwrap(func))
        arguments = _Arguments(place, providers, by_fields=by_fields)
        for parameter in signature(func).parameters.values():
            arguments.add(parameter, hints.get(parameter.name, Any))
        if Session in arguments.injected and is_async:
            raise errors.InvalidHandlerError(f"{place}: an asynchronous handler takes an AsyncSession, not a Session")
        if AsyncSession in arguments.injected and not is_async:
            raise errors.InvalidHandlerError(f"{place}: a synchronous handler takes a Session, not an AsyncSession")
        if is_async and not inspect.iscoroutinefunction(func):
            func = _awaiting(func)
        fields = arguments.fields
        if arguments.mapped and not arguments.injected.keys() & {Session, AsyncSession}:
            session_class = "AsyncSession" if is_async else "Session"
            raise errors.InvalidHandlerError(
                f"{place}: takes a mapped object, which its session loads: add an argument annotated {session_class}, or "
                "annotate Ref[...] to receive the reference"
            )
        return cls(
            func=_spread(func, is_async=is_async) if fields else func,
            place=place,
            is_async=is_async,
            takes_input=arguments.takes_payload or bool(fields),
            payload_type=_object_of(func, fields) if fields else arguments.payload_hint,
            return_type=_plain(hints.get("return", Any)),
            fields=fields,
            session_argument=arguments.injected.get(AsyncSession) or arguments.injected.get(Session),
            session_class=arguments.session_class,
            context_argument=arguments.injected.get(AttemptContext),
            blockers_argument=arguments.injected.get(Blockers),
            blockers=arguments.blockers,
            provided=arguments.provided,
            mapped=frozenset(arguments.mapped),
        )


class _Arguments:
    """Divides the parameters of a handler into payload, fields of it, and injected arguments."""

    def __init__(self, place: str, providers: Mapping[type[Any], Provider[Any]], *, by_fields: bool) -> None:
        self._place, self._providers, self._by_fields = place, providers, by_fields
        self.takes_payload = False
        self.payload_hint: Any = Any
        self.fields: dict[str, Any] = {}
        self.injected: dict[type, str] = {}
        self.session_class: Any = None
        self.blockers: Codec[Any] | None = None
        self.provided: dict[str, Provider[Any]] = {}
        self.mapped: set[str] = set()

    def add(self, parameter: inspect.Parameter, hint: Any) -> None:
        """Add a parameter with its annotation. Raises: InvalidHandlerError."""
        kind = typing.get_origin(hint) or hint  # Blockers[...] has what it is of in brackets
        injected_class = provider = None
        if isinstance(kind, type):
            injected_class = next((injected for injected in INJECTED if issubclass(kind, injected)), None)
            provider = None if injected_class else self._providers.get(kind)
        if (self._by_fields or injected_class or provider) and parameter.kind is parameter.POSITIONAL_ONLY:
            raise self._refusal(f"{parameter.name!r} is given by name, it cannot be positional-only")
        if provider is not None:
            self.provided[parameter.name] = provider
        elif injected_class is not None:
            self._inject(injected_class, parameter.name, hint)
        elif parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}:
            raise self._refusal(f"*{parameter.name} cannot be filled; name the arguments")
        elif self._by_fields:
            is_required = parameter.default is parameter.empty
            hint = self._by_reference(parameter.name, hint)
            self.fields[parameter.name] = Required[hint] if is_required else NotRequired[hint]
        elif not (self.takes_payload or self.injected or self.provided or parameter.kind is parameter.KEYWORD_ONLY):
            self.takes_payload, self.payload_hint = True, self._by_reference("", hint)
        elif parameter.default is parameter.empty:
            raise self._refusal(
                f"unexpected argument {parameter.name!r}; the payload comes first, then arguments annotated "
                "Session, AsyncSession, AttemptContext, Blockers or the class of a dependency. If they are "
                "the fields of the payload, use @jobs.keyword_handler"
            )

    def _by_reference(self, name: str, hint: Any) -> Any:
        """Return the annotation of a payload or a field as it is stored; note whether the worker loads objects for it."""
        referring = annotated_by_reference(hint)
        if referring != hint:
            self.mapped.add(name)
            options = [part for part in typing.get_args(referring) if isinstance(part, LoadOptions)]
            if any(each.missing == "none" for each in options):
                raise self._refusal('LoadOptions(missing="none") needs an annotation with `| None`')
        return referring

    def _inject(self, injected_class: type, name: str, hint: Any) -> None:
        if injected_class in self.injected:
            raise self._refusal(f"asks for two arguments of type {injected_class.__name__}")
        self.injected[injected_class] = name
        if injected_class in {Session, AsyncSession}:
            self.session_class = typing.get_origin(hint) or hint
        if injected_class is Blockers:
            self.blockers = codec_of(self._place, "blockers", next(iter(typing.get_args(hint)), Any))

    def _refusal(self, reason: str) -> errors.InvalidHandlerError:
        return errors.InvalidHandlerError(f"{self._place}: {reason}")


def outputs_and_continuations(returns: Any) -> tuple[list[Any], list[Any], bool]:
    """Return the types of a result that end a chain, those that its continuations lead to, and whether it may be any."""
    parts = _parts(returns)
    ends = [part for part in parts if not _is_continuation(part)]
    leads_to = [next(iter(typing.get_args(part)), Any) for part in parts if _is_continuation(part)]
    return ends, leads_to, Any in parts or object in parts


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


def union_of(hints: Sequence[Any]) -> Any:
    """Return the union of types; Any if it is one of them, or there are none."""
    return Any if Any in hints or not hints else functools.reduce(operator.or_, hints)


def returns_of_items(hint: Any) -> Any:
    """Return the type of one job's output from a batch's `-> list[Output | Exception]`; Any if it is not annotated so."""
    (listed,) = typing.get_args(hint) if typing.get_origin(hint) is list else (Any,)
    return union_of([part for part in _parts(listed) if not (isinstance(part, type) and issubclass(part, BaseException))])


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


def codec_of(place: str, role: str, hint: Any) -> Codec[Any]:
    """Return the codec of an annotation. `role`: the thing that it annotates. Raises: InvalidHandlerError."""
    try:
        # A handler annotated `-> None` returns nothing; there is nothing to check but that it is JSON.
        return Codec(Any, annotated=hint) if hint is type(None) else Codec(hint)
    except Exception as error:  # any error that Pydantic raises for a type it does not support
        raise errors.InvalidHandlerError(f"{place}: the {role} cannot be typed as {hint!r}: {error}") from error
