"""Array parameters as one text each: psycopg dumps a list element by element, at a microsecond or two apiece."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import repeat
from operator import add
from typing import Any, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, TIMESTAMP
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.errors.bounds import shown
from sa_jobqueue.models.base import StoredEnum

Write = Callable[[Any], str]
WriteAll = Callable[[Sequence[Any]], Iterable[str]]


def _uuid(value: UUID | str) -> str:
    return value.hex if isinstance(value, UUID) else _text(value)


def _text(value: str) -> str:
    if "\\" in value or '"' in value:
        value = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{value}"'


def _number(value: float) -> str:
    return str(value + 0)  # raises of a null, as the others do


def _instant(value: datetime) -> str:
    return value.isoformat()  # has nothing that an array would have quoted


def _interval(value: timedelta) -> str:
    return f'"{str(value + timedelta(0)).replace(",", "")}"'


def _flag(value: bool) -> str:
    return _FLAGS[value]


def _uuids(values: Sequence[UUID]) -> Iterable[str]:
    return _each_once(values, lambda some: ["%032x" % value.int for value in some])  # noqa: UP031 - half of its `hex`


def _texts(values: Sequence[str]) -> Iterable[str]:
    joined = _BETWEEN.join(values)
    if values and joined.count(_BETWEEN) == len(values) - 1:
        return [_text(joined).replace(_BETWEEN, '","')]
    return map(_text, values)  # with that character in one of them


def _numbers(values: Sequence[float]) -> Iterable[str]:
    text = str([*values])[1:-1]
    # Nothing but digits and what stands between them: no null, no sign, and nothing that is no number.
    if text.replace(", ", "").isdigit():
        return [text]
    return _each_once(values, lambda some: map(str, map(add, some, repeat(0))))


def _instants(values: Sequence[datetime]) -> Iterable[str]:
    return _each_once(values, lambda some: map(datetime.isoformat, some))


def _each_once(values: Sequence[Any], write_all: WriteAll) -> Iterable[str]:
    """Write an object once that is there many times, as cursors of lanes are that were read at the same time."""
    if len(values) > _SOME and len(some := {id(value): value for value in values}) < len(values) // 2:
        return map(dict(zip(some, write_all(list(some.values())), strict=True)).__getitem__, map(id, values))
    return write_all(values)


_SOME: Final = 64
_BETWEEN: Final = "\x1f"
"""The unit separator of ASCII, which texts seldom have and JSON never: all are escaped together."""
_FLAGS: Final = {True: "t", False: "f"}
_ALL: Final[Mapping[Write, WriteAll]] = {_uuid: _uuids, _text: _texts, _number: _numbers, _instant: _instants}
"""Functions that write all values of an array in one call, for arrays without nulls."""
_WRITERS: Final[tuple[tuple[type[TypeEngine[Any]], Write], ...]] = (
    (sa.Uuid, _uuid),
    (sa.Text, _text),
    (sa.Integer, _number),
    (sa.Double, _number),
    (TIMESTAMP, _instant),
    (INTERVAL, _interval),
    (sa.Boolean, _flag),
    (StoredEnum, _text),
)


class UnwritableElementError(ValueError):
    """An element of an array parameter is not of its type."""

    def __init__(self, element: object) -> None:
        self.element = element
        super().__init__(f"is not of the column's type, got {shown(element)}")


def _written(write: Write, element: Any) -> str:
    try:
        return write(element)
    except (TypeError, AttributeError, KeyError):
        raise UnwritableElementError(element) from None


class ArrayParameter(TypeDecorator[Sequence[Any]]):
    """A one-dimensional array as a parameter; its elements may be null.

    To psycopg it is written as the text of the array, which the statement's own cast reads; to other drivers it is the
    list, and so it is where the element's type has no writer here. Syntax: "Array Input and Output", PostgreSQL's manual.
    """

    impl = ARRAY
    cache_ok = True

    def __init__(self, item_type: TypeEngine[Any]) -> None:
        super().__init__(item_type)
        self.element = item_type

    def bind_processor(self, dialect: sa.Dialect) -> Callable[[Any], Any] | None:
        """Return what makes the driver's parameter of a list."""
        write = next((write for kind, write in _WRITERS if isinstance(self.element, kind)), None)
        if dialect.driver != "psycopg" or write is None:
            return super().bind_processor(dialect)

        write_all: WriteAll = _ALL.get(write) or partial(map, write)

        def process(values: Sequence[Any] | None) -> str | None:
            if values is None:
                return None
            try:
                return "{" + ",".join(write_all(values)) + "}"
            except (TypeError, AttributeError, KeyError):  # some are null, or ids that are text
                return "{" + ",".join(["NULL" if value is None else _written(write, value) for value in values]) + "}"

        return process
