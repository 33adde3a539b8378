"""Payloads of jobs: JSON that is checked before it is written, and validated by a type if one is declared."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Never, Protocol, TypeVar

from sa_jobqueue.errors import AttemptSignal, InvalidOutputError, InvalidPayloadError, PayloadTooLargeError
from sa_jobqueue.payloads.roundtrip import difference, unordered
from sa_jobqueue.payloads.shapes import Shape, has_references, name_of
from sa_jobqueue.types import Json

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a payload's JSON text in UTF-8. Store larger data elsewhere and pass a reference."""
_MAX_DEPTH: Final = 500
"""Maximum nesting of arrays and objects; Python and PostgreSQL support more."""


def _encoder() -> Callable[[object], str]:
    """Return `json.dumps` without NaN and infinity, and without its preparations for each call, which take half its time."""
    encoder = json.JSONEncoder(allow_nan=False)
    make_encoder = json.encoder.c_make_encoder  # type: ignore[attr-defined]
    if make_encoder is None:  # an interpreter without it
        return encoder.encode
    # Without a record of what is being encoded: what contains itself ends in a RecursionError.
    chunks = make_encoder(None, encoder.default, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, False)
    return lambda value: "".join(chunks(value, 0))


_ENCODE: Final = _encoder()
_ENCODE_UTF8: Final = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode


def _refuse(constant: str) -> Never:
    raise ValueError(constant)


_PARSE: Final = json.JSONDecoder(parse_constant=_refuse).decode
"""`json.loads` without NaN and infinity."""

CODEC_MARK: Final = "sa_jobqueue.codec"
"""Key of a stored payload that a codec has encoded; its value is the codec's name. The other key is `data`."""

T = TypeVar("T")


def escaped(document: Any) -> Any:
    """Return a payload as it is stored without a codec: one that looks as if a codec had encoded it names none.

    So data from outside never chooses a codec. `opened` undoes it.
    """
    if isinstance(document, dict) and document.keys() == {CODEC_MARK, "data"}:
        return {CODEC_MARK: None, "data": document}
    return document


class Document(NamedTuple):
    """A checked payload: its JSON value, and that as text in ASCII, which is written as it is."""

    value: Json
    text: str
    template: Any = None
    """The `references.Template` of an input that refers to mapped objects."""


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Placeholder for JSON that Python cannot parse: numbers of thousands of digits, or a thousand levels."""

    reason: str


def read_json(data: bytes | str) -> Any:
    """Return the value of JSON text, or `Unreadable`: a row written by hand must not make reading fail."""
    try:
        # The server sends UTF-8; `json.loads` would detect the encoding of bytes first.
        return json.loads(data if isinstance(data, str) else data.decode())
    except (ValueError, RecursionError) as error:
        return Unreadable(f"cannot be read by Python: {error}")


def check_json(field: str, value: object, *, max_bytes: int = MAX_BYTES) -> str:
    """Check that PostgreSQL's jsonb can hold `value` and that its text is at most `max_bytes` of UTF-8; return it in ASCII.

    Raises: InvalidPayloadError with the path of the first value that is not JSON (`input.items[3].price`), or
    PayloadTooLargeError.
    """
    try:
        document = _ENCODE(value)
    except (TypeError, ValueError, RecursionError) as error:
        path, reason = _first_fault(field, value) or (field, f"is not JSON: {error}")
        raise InvalidPayloadError(path, reason) from None
    _check_document(field, value, document, max_bytes)
    return document


def _check_document(field: str, value: object, document: str, max_bytes: int = MAX_BYTES) -> None:
    if len(document) > max_bytes and (size := len(in_utf8(value, document))) > max_bytes:
        raise PayloadTooLargeError(field, size, max_bytes)
    # json.dumps silently turns other keys into text; and jsonb has neither the NUL character nor lone surrogates.
    if "\\u0000" in document or "\\ud" in document or not (_is_flat(value, document) or _has_plain_shape(value)):
        fault = _first_fault(field, value)
        if fault is not None:
            raise InvalidPayloadError(*fault)


def in_utf8(value: object, document: str) -> bytes:
    """Return the JSON text of a value in UTF-8. `document`: the same in ASCII, where other characters are six bytes."""
    # A lone surrogate is refused by name, later.
    return document.encode() if "\\u" not in document else _ENCODE_UTF8(value).encode("utf-8", "surrogatepass")


def encode_any(field: str, value: object) -> Json:
    """Return a value without a declared type as JSON; a dataclass or Pydantic model is encoded by its class.

    Raises: as `check_json`.
    """
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind) or hasattr(kind, "__pydantic_validator__"):
        codec: Codec[Any] = Codec(kind)
        return codec.encode(field, value)
    check_json(field, value)
    return value


def _is_flat(value: object, document: str) -> bool:
    """Return whether this is an object of text keys with nothing in it, as most payloads are; `document` is its text."""
    return type(value) is dict and document.count("{") == 1 and "[" not in document and set(map(type, value)) == {str}


def _has_plain_shape(value: object) -> bool:
    """Return whether every key is text and nothing is nested too deep; without recursion, which deep nesting would
    exhaust."""
    level = [value]
    for _ in range(_MAX_DEPTH + 1):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                if not all(isinstance(key, str) for key in item):
                    return False
                below.extend(item.values())
            elif isinstance(item, (list, tuple)):
                below.extend(item)
        if not below:
            return True
        level = below
    return False


def _first_fault(path: str, value: object, depth: int = 0) -> tuple[str, str] | None:
    if depth > _MAX_DEPTH:
        return path[:100], f"is nested more than {_MAX_DEPTH} deep, or contains itself"
    match value:
        case None | bool() | int():
            return None
        case str():
            if "\x00" in value:
                return path, "contains a NUL character, which PostgreSQL cannot store"
            try:
                value.encode()
            except UnicodeEncodeError:
                return path, "contains a lone surrogate, which PostgreSQL cannot store"
            return None
        case float():
            return None if math.isfinite(value) else (path, f"is {value}, which JSON cannot represent")
        case dict():
            for key, item in value.items():
                if not isinstance(key, str):
                    return path, f"has the key {key!r}; keys must be text"
                fault = _first_fault(path, key, depth + 1) or _first_fault(f"{path}.{key}", item, depth + 1)
                if fault:
                    return fault
            return None
        case list() | tuple():
            for index, item in enumerate(value):
                fault = _first_fault(f"{path}[{index}]", item, depth + 1)
                if fault:
                    return fault
            return None
    return path, f"is of type {type(value).__name__}, which is not JSON; declare a typed payload or convert it"


class PayloadCodec(Protocol):
    """Encodes the inputs and outputs of a job type: an object with a name and two functions, each other's inverse.

    It must be quick and thread-safe.
    """

    @property
    def name(self) -> str:
        """Name stored with each payload. Keep it as long as there are jobs that this codec encoded."""

    def encode(self, data: bytes, /) -> Json:
        """Return the JSON value to store for a payload. `data`: its JSON text in UTF-8."""

    def decode(self, stored: Json, /) -> bytes:
        """Return the JSON text of a `stored` value that `encode` returned, in this or an earlier release.

        If it raises, the job dies.
        """


def sealed(field: str, document: Document, codec: PayloadCodec | None) -> Document:
    """Return a payload as it is stored, encoded by its codec. Null is not encoded.

    Raises: InvalidPayloadError if the codec fails or returns something else than JSON; PayloadTooLargeError.
    """
    if codec is None or document.value is None:
        if CODEC_MARK not in document.text:
            return document
        escaped_value = escaped(document.value)
        return Document(escaped_value, json.dumps(escaped_value))
    try:
        data = codec.encode(in_utf8(document.value, document.text))
    except Exception as error:  # of the application's own code
        reason = f"cannot be encoded by the codec {codec.name!r}: {type(error).__name__}: {error}"
        raise InvalidPayloadError(field, reason) from error
    stored: dict[str, Any] = {CODEC_MARK: codec.name, "data": data}
    return Document(stored, check_json(field, stored))


def stored_untyped(field: str, value: Json, codec: PayloadCodec | None = None) -> Document:
    """Return any JSON as it is stored. Raises: as `check_json` and `sealed`."""
    return sealed(field, Document(value, check_json(field, value)), codec)


def opened(field: str, stored: Json, find: Callable[[object], PayloadCodec | None]) -> Json:
    """Return a stored payload, decoded by the codec that encoded it, if any. `find`: returns a codec by its name.

    Raises: InvalidPayloadError if its codec fails or is not registered.
    """
    if not isinstance(stored, dict) or stored.keys() != {CODEC_MARK, "data"}:
        return stored
    if stored[CODEC_MARK] is None:
        return stored["data"]
    codec = find(stored[CODEC_MARK])
    if codec is None:
        raise InvalidPayloadError(
            field,
            f"is encoded by the codec {stored[CODEC_MARK]!r}, which is not known here: read it with a handler of a JobQueue "
            "in which a handler has it",
        )
    try:
        text = codec.decode(stored["data"])
        if len(text) > MAX_BYTES:
            raise ValueError(f"{len(text):,} bytes, more than the {MAX_BYTES:,} of a payload")
        return json.loads(text)
    except Exception as error:  # of the application's own code, or invalid JSON
        reason = f"cannot be decoded by the codec {codec.name!r}: {type(error).__name__}: {error}"
        raise InvalidPayloadError(field, reason) from error


class Codec(Generic[T]):
    """Encodes values of one declared type as JSON, and decodes them.

    The type can be a Pydantic model, a dataclass, a TypedDict, any type that Pydantic supports, or `dict`, `Any` or no
    type, which accept any JSON. Pydantic is imported when the first typed payload is declared.
    """

    __slots__ = ("_adapter", "_is_object", "_shape", "annotated", "declared", "has_references")

    def __init__(self, declared: Any, *, annotated: Any = None) -> None:
        self.declared = declared
        self.annotated = declared if annotated is None else annotated
        """The handler's annotation, if it differs from the declared type."""
        self._shape: Shape | None = None
        self._adapter: TypeAdapter[T] | None = None
        self._is_object = declared in (dict, dict[str, Any])
        self.has_references = False
        """Whether values may refer to mapped objects."""
        if declared is not Any and declared is not object and not self._is_object:
            # Imported here so that importing the library does not need it.
            from pydantic import TypeAdapter

            self._adapter = TypeAdapter(declared)
            if not getattr(self._adapter, "pydantic_complete", True):  # exists since Pydantic 2.10
                self._adapter.rebuild(raise_errors=True)  # now, not at the first use: a name in the type cannot be found
            self.has_references = has_references(self._adapter.core_schema)

    @property
    def name(self) -> str:
        """The type as annotated."""
        return name_of(self.annotated)

    @property
    def shape(self) -> Shape:
        """The shape of its JSON, computed on first access."""
        if self._shape is None:
            self._shape = self._found_shape()
        return self._shape

    def _found_shape(self) -> Shape:
        if self.annotated is type(None):
            return Shape.of_nothing()
        if self._is_object:
            return Shape({"type": "object", "additionalProperties": True})
        if self._adapter is None:
            return Shape.of_anything()
        from pydantic.errors import PydanticInvalidForJsonSchema, PydanticUserError

        try:
            # The validation schema, because written JSON was validated by the same type and has no computed fields.
            return Shape(self._adapter.json_schema(mode="validation"))
        except (PydanticInvalidForJsonSchema, PydanticUserError):
            return Shape.of_anything()

    def encode(self, field: str, value: T) -> Json:
        """Return `value` as JSON, checked against its type.

        Raises: InvalidPayloadError with the path and the reason; PayloadTooLargeError.
        """
        return self.document(field, value).value

    def document(self, field: str, value: T) -> Document:
        """Return `value` as JSON with its text, checked against its type. Raises: as `encode`."""
        if self._adapter is None:
            self._check_object(field, value)
            return Document(value, check_json(field, value))
        from pydantic import ValidationError
        from pydantic_core import PydanticSerializationError

        try:
            # A round trip: an instance with wrong values passes validation, but its JSON does not. By alias and without
            # computed fields, as decoding expects.
            validated = self._adapter.validate_python(value)
            json_bytes = self._dump(validated)
            decoded = self._adapter.validate_json(json_bytes)
        except ValidationError as error:
            raise InvalidPayloadError(*_describe(field, error)) from error
        except PydanticSerializationError as error:
            raise InvalidPayloadError(field, f"cannot be written as JSON: {error}") from error
        try:
            is_equal = bool(decoded == validated)
        except Exception:  # an application's own `__eq__`
            is_equal = False
        text = json_bytes.decode()
        try:
            data = _PARSE(text)
        except (ValueError, RecursionError):  # has a number that is not finite, or is nested too deep: named below
            data, text = json.loads(text), ""
        lost = None if is_equal else difference(validated, decoded)
        if lost is not None and (lost.is_certain or unordered(json.loads(self._dump(decoded))) != unordered(data)):
            reason = (
                f"would change: its JSON is read as a value that is not the {type(lost.value).__name__} given. Use a type "
                "or a serializer that keeps it, without `exclude` (for a secret: text and a codec), or declare the class "
                "with the field"
            )
            if any(
                hasattr(part, "_sa_instance_state") for part in (validated, *getattr(validated, "__dict__", {}).values())
            ):
                reason += ". To store which row a mapped object is, annotate it with Ref or with LoadOptions()"
            raise InvalidPayloadError(field + lost.path, reason)
        if not text.isascii() or not text:
            return Document(data, check_json(field, data))
        _check_document(field, data, text)
        return Document(data, text)

    def _dump(self, value: T) -> bytes:
        adapter: Any = self._adapter
        document: bytes = adapter.dump_json(value, by_alias=True, round_trip=True, warnings=False)
        return document

    def encode_output(self, value: T) -> Document:
        """Return a handler's return value as JSON with its text. Raises: InvalidOutputError with the path and the reason."""
        if isinstance(value, AttemptSignal):
            name = type(value).__name__
            raise InvalidOutputError(f"the handler returned {name}(...): raise it, as in `raise {name}(...)`")
        if isinstance(value, Awaitable):
            if isinstance(value, Coroutine):
                value.close()  # it never runs: no warning of Python's as well
            raise InvalidOutputError(
                "the handler is declared with `def` and returned an awaitable: declare it with `async def`"
            )
        try:
            return self.document("output", value)
        except InvalidPayloadError as error:
            raise InvalidOutputError(f"the handler's return value is not usable: {error}") from error

    def decode(self, field: str, data: Json) -> T:
        """Return the typed value of stored JSON. Raises: InvalidPayloadError with the path and the reason."""
        if self._adapter is None:
            self._check_object(field, data)
            return data  # type: ignore[no-any-return]
        from pydantic import ValidationError

        try:
            # As JSON, not as Python: in strict mode, a datetime is only accepted as text from JSON.
            return self._adapter.validate_json(json.dumps(data))
        except ValidationError as error:
            raise InvalidPayloadError(*_describe(field, error)) from error

    def is_written_as(self, text: str) -> bool:
        """Return whether JSON text is valid, and its value is written as the same text: it can be stored unchanged.

        False may also mean that it was not tried.
        """
        if self._adapter is None:
            return False
        # Not by the adapter's methods, which take as long as what they call: Spark checks each row so.
        read, write = self._adapter.validator.validate_json, self._adapter.serializer.to_json
        try:
            return write(read(text), by_alias=True, round_trip=True, warnings=False) == text.encode()
        except Exception:  # invalid, or an error of the application's own validator: `decode` raises it
            return False

    def _check_object(self, field: str, value: object) -> None:
        if self._is_object and not isinstance(value, dict):
            raise InvalidPayloadError(field, f"must be a dict, got {type(value).__name__}")


def _describe(field: str, error: Any) -> tuple[str, str]:
    """Return the path and message of the first error, and count the others."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    first = faults[0]
    path = field + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return path, first["msg"].removeprefix("Value error, ") + more
