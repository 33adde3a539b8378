"""Mapped objects in payloads: `Ref`, the reference that is stored instead of an object, and how its key is written as JSON.

A reference is stored as `{"$class": "Order", "id": 7}`: the name of the annotated class, and the attributes of the primary
key. While a payload is encoded for a job, references to objects are collected and marked in its JSON: the key of a pending
object is known at the flush alone, where `operations/references.py` completes the input.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeVar, Union, overload
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstanceState, Mapper, Session
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.display.objects import CLASS
from sa_jobqueue.errors import InvalidOptionError, InvalidPayloadError
from sa_jobqueue.payloads import Codec, Document, PayloadCodec, check_json, sealed
from sa_jobqueue.payloads.shapes import REFERENCE
from sa_jobqueue.types import Json

T_co = TypeVar("T_co", covariant=True)

_MARK: Final = f"$ref:{uuid4()}"
"""Key of a marked reference: no payload of the application has it, because it differs between processes."""
_LONGEST_TEXT: Final = 2_700
"""Characters of a key whose column has no length: the bytes that an entry of a B-tree has."""
_DIALECT: Final = postgresql.dialect()  # type: ignore[no-untyped-call]
_collecting: ContextVar[list[Ref[Any]] | None] = ContextVar("sa_jobqueue_collecting", default=None)


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a mapped object that is an argument of a handler is loaded: `Annotated[Order, LoadOptions(for_update=True)]`.

    `for_update`: lock its row until the handler's commit; several rows of a class are locked in the order of their keys.
    `options`: loader options, such as `selectinload(Order.lines)`.
    `former_names`: earlier names of the class, which waiting jobs have.
    `missing`: what happens if no row is found: "fail" fails the attempt, which is retried; "discard" and "cancel" end the
    job; "none" gives None to the handler, whose annotation is `Order | None` then.
    Raises: InvalidOptionError.
    """

    for_update: bool = False
    options: Sequence[Any] = ()
    former_names: Sequence[str] = ()
    missing: Literal["fail", "discard", "cancel", "none"] = "fail"

    def __post_init__(self) -> None:
        if self.missing not in {"fail", "discard", "cancel", "none"}:
            raise InvalidOptionError("missing", f"must be 'fail', 'discard', 'cancel' or 'none', got {self.missing!r}")
        for name in ("options", "former_names"):
            if isinstance(getattr(self, name), str) or not isinstance(getattr(self, name), Sequence):
                raise InvalidOptionError(name, f"must be a list, got {getattr(self, name)!r}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        return _schema(source, self)


DEFAULT: Final = LoadOptions()


class Ref(Generic[T_co]):
    """A reference to a mapped object, for fields of payloads and for handlers that load objects themselves: `Ref[Order]`.

    Only the identity is stored. `target`: the object; it may be pending.
    Raises: InvalidOptionError if it is not an instance of a mapped class.
    """

    __slots__ = ("_key", "_mapped", "_options", "_target")
    _load: ClassVar[Callable[..., Any]]
    """Set by `sa_jobqueue.operations`, a layer above."""

    def __init__(self, target: T_co, /) -> None:
        if not isinstance(sa.inspect(target, raiseerr=False), InstanceState):
            raise InvalidOptionError("target", f"must be an instance of a mapped class, got {type(target).__name__}")
        self._set(type(target), target, None, DEFAULT)

    def _set(self, mapped: type[Any], target: Any, key: tuple[Any, ...] | None, options: LoadOptions) -> Ref[T_co]:
        self._mapped, self._target, self._key, self._options = mapped, target, key, options
        return self

    @property
    def identity(self) -> tuple[Any, ...] | None:
        """The primary key as a tuple, as `inspect(order).identity`; None while the object has none."""
        key: tuple[Any, ...] | None = self._key if self._target is None else sa.inspect(self._target).identity
        return key

    @overload
    def load(self, session: Session, /) -> T_co: ...
    @overload
    def load(self, session: AsyncSession, /) -> Coroutine[Any, Any, T_co]: ...
    def load(self, session: Any, /) -> Any:
        """Return the object, loaded by a session; await it with an `AsyncSession`.

        Locks: none, unless the field is annotated with `LoadOptions(for_update=True)`.
        Raises: ObjectNotFoundError, or what `LoadOptions` set for a missing row.
        """
        return Ref._load(session, self)

    def __eq__(self, value: object) -> bool:
        if not isinstance(value, Ref) or self.identity is None:
            return self is value
        bases = [sa.inspect(ref._mapped).base_mapper for ref in (self, value)]
        return self.identity == value.identity and bases[0] is bases[1]

    def __hash__(self) -> int:
        return id(self) if self.identity is None else hash(self.identity)

    def __repr__(self) -> str:
        return f"<Ref {name_of_object(self._mapped, self.identity)}>"

    def __reduce__(self) -> Any:
        return _of_key, (self._mapped, self.identity)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return _schema(source, DEFAULT)


def _of_key(mapped: type[Any], key: tuple[Any, ...] | None, options: LoadOptions = DEFAULT) -> Ref[Any]:
    return Ref.__new__(Ref)._set(mapped, None, key, options)


def name_of_object(mapped: type[Any], key: tuple[Any, ...] | None) -> str:
    """Return an object's class and key as messages have them: `Order 7`."""
    return f"{mapped.__name__} {'without a key' if key is None else ', '.join(map(str, key))}"


def annotated_by_reference(hint: Any) -> Any:
    """Return an annotation with `Ref[Order]` in place of a mapped class; an equal one if it has none.

    A class that Pydantic takes by value, such as a SQLModel, stays, unless it has `LoadOptions`.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated and any(isinstance(part, LoadOptions) for part in arguments[1:]):
        classes = [part for part in typing.get_args(arguments[0]) or arguments[:1] if part is not type(None)]
        if len(classes) != 1 or not _is_mapped(classes[0]):
            return hint
        generic: Any = Ref
        ref: Any = Annotated[(generic[classes[0]], *arguments[1:])]
        return ref if classes[0] is arguments[0] else ref | None
    if origin in {Union, UnionType}:
        parts = [part for part in arguments if part is not type(None)]
        referring = annotated_by_reference(parts[0])
        return hint if len(parts) > 1 or referring == parts[0] else Union[referring, None]  # noqa: UP007
    if origin is not None and len(arguments) == 1 and (origin is list or origin.__name__ == "BatchItem"):
        referring = annotated_by_reference(arguments[0])
        return hint if referring == arguments[0] else origin[referring]
    return Ref[hint] if _is_mapped(hint) and not _is_by_value(hint) else hint


def _is_by_value(mapped: Any) -> bool:
    """Return whether Pydantic takes a mapped class by value: such payloads keep their meaning."""
    # SQLAlchemy marks classes that it makes dataclasses of: Pydantic cannot read their `Mapped[...]`.
    is_dataclass = dataclasses.is_dataclass(mapped) and not hasattr(mapped, "_sa_apply_dc_transforms")
    return is_dataclass or hasattr(mapped, "__pydantic_validator__")


def _is_mapped(hint: Any) -> bool:
    return isinstance(hint, type) and isinstance(sa.inspect(hint, raiseerr=False), Mapper)


class _KeyColumn(NamedTuple):
    name: str
    type: TypeEngine[Any]
    adapter: Any

    def to_json(self, key: Any) -> Any:
        for decorator in self.decorators():
            if type(decorator).process_bind_param is not TypeDecorator.process_bind_param:
                key = decorator.process_bind_param(key, _DIALECT)
        # As the database reads it: an application may set the text of a number or a UUID.
        return self.adapter.dump_python(self.adapter.validate_python(key), mode="json")

    def of_json(self, stored: Any) -> Any:
        from pydantic import ValidationError

        try:
            key = self.adapter.validate_json(json.dumps(stored), strict=True)
            for decorator in reversed(self.decorators()):
                if type(decorator).process_result_value is not TypeDecorator.process_result_value:
                    key = decorator.process_result_value(key, _DIALECT)
        except ValidationError as error:
            reason = error.errors(include_url=False, include_context=False, include_input=False)[0]["msg"]
            raise ValueError(f"{self.name}: {reason}") from None
        except Exception as error:  # of the application's type
            raise ValueError(f"{self.name}: its type raised {type(error).__name__}") from error
        return key

    def decorators(self) -> list[TypeDecorator[Any]]:
        decorators, column_type = [], self.type
        while isinstance(column_type, TypeDecorator):
            decorators.append(column_type)
            column_type = column_type.impl_instance
        return decorators


@functools.cache
def _key_columns(mapped: Any) -> tuple[_KeyColumn, ...]:
    """Return how the columns of a class's primary key are written as JSON."""
    from pydantic import Field, TypeAdapter

    mapper: Mapper[Any] = sa.inspect(mapped)
    columns = []
    for column in mapper.primary_key:
        plain = column.type
        while isinstance(plain, TypeDecorator):
            plain = plain.impl_instance
        limits: Any = None
        if isinstance(plain, sa.Integer):
            bits = 15 if isinstance(plain, sa.SmallInteger) else 63 if isinstance(plain, sa.BigInteger) else 31
            limits = Field(ge=-(2**bits), lt=2**bits)
        elif isinstance(plain, sa.String) and not isinstance(plain, sa.Enum):
            limits = Field(max_length=plain.length or _LONGEST_TEXT)
        try:
            python_type: Any = plain.python_type
        except NotImplementedError:
            raise TypeError(f"{mapped.__name__} has a primary key of the type {plain!r}, which JSON cannot hold") from None
        adapter: Any = TypeAdapter(python_type if limits is None else Annotated[python_type, limits])
        columns.append(_KeyColumn(mapper.get_property_by_column(column).key, column.type, adapter))
    return tuple(columns)


def stored_form(mapped: Any, key: Sequence[Any]) -> dict[str, Any]:
    """Return the JSON that refers to the object of a class with this primary key."""
    columns = zip(_key_columns(mapped), key, strict=True)
    return {CLASS: mapped.__name__} | {column.name: column.to_json(part) for column, part in columns}


def _schema(source: Any, options: LoadOptions) -> Any:
    """Return Pydantic's schema of a reference to objects of a class."""
    from pydantic_core import core_schema

    (mapped,) = typing.get_args(source) or (None,)
    if typing.get_origin(source) is not Ref or not _is_mapped(mapped):
        raise TypeError(f"{source!r} is not a reference to a mapped class: annotate Ref[Order] with the class itself")
    columns = _key_columns(mapped)
    keys = {CLASS, *(column.name for column in columns)}
    form = json.dumps({CLASS: mapped.__name__, **dict.fromkeys((column.name for column in columns), "...")})

    def of_json(stored: Any) -> Ref[Any]:
        collected = _collecting.get()
        if collected is not None and isinstance(stored, dict) and _MARK in stored:
            return collected[stored[_MARK]]
        if not isinstance(stored, dict) or stored.keys() != keys:
            raise ValueError(f"must be {form}")
        names = {mapper.class_.__name__ for mapper in sa.inspect(mapped).self_and_descendants} | {*options.former_names}
        if not isinstance(stored[CLASS], str) or stored[CLASS] not in names:
            raise ValueError(f"refers to {str(stored[CLASS])[:50]!r}, must be {form}")
        return _of_key(mapped, tuple(column.of_json(stored[column.name]) for column in columns), options)

    def of_python(argument: Any) -> Ref[Any]:
        if isinstance(argument, dict):
            return of_json(argument)
        target = argument._target if isinstance(argument, Ref) else argument
        if not issubclass(argument._mapped if isinstance(argument, Ref) else type(argument), mapped):
            name = f"Ref[{argument._mapped.__name__}]" if isinstance(argument, Ref) else type(argument).__name__
            raise ValueError(f"must be of the class {mapped.__name__}, got {name}")
        return Ref.__new__(Ref)._set(mapped, target, argument._key if isinstance(argument, Ref) else None, options)

    def to_json(ref: Any) -> dict[str, Any]:
        if not isinstance(ref, Ref):
            raise ValueError(f"must be Ref({mapped.__name__.lower()}), got {type(ref).__name__}")
        collected = _collecting.get()
        if collected is not None and ref._target is not None:
            collected.append(ref)
            return {CLASS: mapped.__name__, _MARK: len(collected) - 1}
        if ref.identity is None:
            raise ValueError(f"the {mapped.__name__} has no primary key yet: flush its session first")
        return stored_form(mapped, ref.identity)

    return core_schema.json_or_python_schema(
        json_schema=core_schema.no_info_after_validator_function(of_json, core_schema.dict_schema()),
        python_schema=core_schema.no_info_plain_validator_function(of_python),
        serialization=core_schema.plain_serializer_function_ser_schema(to_json),
        metadata={REFERENCE: True},
    )


class Template(NamedTuple):
    """An input with a `Ref` in place of each reference to an object, from which its JSON is made at each INSERT."""

    value: Json
    refs: tuple[Ref[Any], ...]
    codec: PayloadCodec | None

    def filled(self, key_of: Callable[[Ref[Any]], Sequence[Any] | None]) -> Document:
        """Return the input as it is stored. References whose `key_of` is None stay `Ref`s, which no writer can write."""
        keys = {id(ref): key_of(ref) for ref in self.refs}

        def form(node: Any) -> Any:
            return node if (key := keys.get(id(node))) is None else stored_form(node._mapped, key)

        filled = replaced(self.value, form)
        if None in keys.values():
            return Document(filled, "", self)
        return sealed("input", Document(filled, check_json("input", filled)), self.codec)._replace(template=self)


def unflushed(field: str, document: Any, ref: Ref[Any] | None = None) -> InvalidPayloadError | None:
    """Return the error for a reference in a document to an object without a row, the first one by default; None without."""
    level = [(field, document)]
    for path, node in level:  # which grows
        if isinstance(node, Ref) and (ref is None or node is ref):
            name = node._mapped.__name__
            return InvalidPayloadError(
                path, f"refers to an object of {name} that has not been flushed: flush its session first"
            )
        if isinstance(node, dict):
            level += [(f"{path}.{name}", part) for name, part in node.items()]
        elif isinstance(node, list):
            level += [(f"{path}[{index}]", part) for index, part in enumerate(node)]
    return None


def encoded(
    codec: Codec[Any], payload: Any, payload_codec: PayloadCodec | None, *, field: str = "input"
) -> tuple[Document, Json]:
    """Return a payload that may refer to objects as it is stored, and its JSON before a codec encodes it.

    Raises: as `Codec.document`.
    """
    collected: list[Ref[Any]] = []
    token = _collecting.set(collected)
    try:
        document = codec.document(field, payload)
    finally:
        _collecting.reset(token)
    if not collected:
        return sealed(field, document, payload_codec), document.value

    def unmarked(node: Any) -> Any:
        return collected[node[_MARK]] if isinstance(node, dict) and _MARK in node else node

    template = Template(replaced(document.value, unmarked), tuple(collected), payload_codec)
    return template.filled(lambda ref: ref.identity), template._replace(codec=None).filled(lambda ref: ref.identity).value


def replaced(node: Any, replace: Callable[[Any], Any]) -> Any:
    """Return JSON with its parts replaced, the outer ones first."""
    replacement = replace(node)
    if replacement is not node:
        return replacement
    if type(node) is dict:
        return {name: replaced(part, replace) for name, part in node.items()}
    return [replaced(part, replace) for part in node] if type(node) is list else node
