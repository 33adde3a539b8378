"""A stored payload decodes to an equal value, or is refused with its field."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PrivateAttr, SecretStr, field_serializer

from sa_jobqueue.errors import InvalidOutputError, InvalidPayloadError
from sa_jobqueue.payloads import Codec
from sa_jobqueue.payloads.roundtrip import difference

T = TypeVar("T")


class Colour(Enum):
    RED = 1


class Login(BaseModel):
    user: str
    password: SecretStr


class Hidden(BaseModel):
    shown: int = 1
    hidden: int = Field(default=2, exclude=True)


class Short(BaseModel):
    text: str

    @field_serializer("text")
    def shorten(self, text: str) -> str:
        return text[:3]


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tricks: int


class Puppy(Animal):
    """Without further fields."""


class Owner(BaseModel):
    animals: list[Animal]


@dataclass
class Point:
    x: float
    tags: set[str] = field(default_factory=set)


@dataclass
class Point3(Point):
    z: float = 0.0


class Box(BaseModel, Generic[T]):
    content: T


class Plain:
    """Compares by identity, and Pydantic knows how to write and read it."""

    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        read = core_schema.no_info_after_validator_function(cls, core_schema.int_schema())
        return core_schema.json_or_python_schema(
            json_schema=read,
            python_schema=core_schema.union_schema([core_schema.is_instance_schema(cls), read]),
            serialization=core_schema.plain_serializer_function_ser_schema(lambda instance: instance.number),
        )


class Everything(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    number: float
    at: datetime
    lasts: timedelta
    total: Decimal
    id: UUID
    path: Path
    colour: Colour
    names: frozenset[str]
    pair: tuple[int, str]
    either: int | str | None
    plain: Plain
    inner: Box[Point]
    data: bytes
    _private: int = PrivateAttr(default=0)


class Lazy(BaseModel):
    items: Iterable[int]


@pytest.mark.parametrize(
    ("declared", "value", "path"),
    [
        (Login, Login(user="me", password=SecretStr("hunter2")), "input.password"),
        (list[Login], [Login(user="me", password=SecretStr("hunter2"))], "input[0].password"),
        (SecretStr, SecretStr("hunter2"), "input"),
        (Hidden, Hidden(hidden=3), "input.hidden"),
        (Short, Short(text="long"), "input.text"),
        (Owner, Owner(animals=[Animal(name="a"), Dog(name="b", tricks=3)]), "input.animals[1].tricks"),
        (Point, Point3(1.0, z=2.0), "input.z"),
        (Box[Any], Box[Any](content=UUID(int=1)), "input.content"),
        (Annotated[int, PlainSerializer(lambda number: number // 2)], 7, "input"),
        (dict[str, Any], {"a": 1}, None),
        (Box[Any], Box[Any](content=(1, 2)), None),
        (Hidden, Hidden(), None),
        (Short, Short(text="abc"), None),
        (Animal, Puppy(name="a"), None),
        (Point, Point(math.inf), "input.x"),
        (Plain, Plain(3), None),
        (list[Plain], [Plain(3), Plain(4)], None),
        (Lazy, {"items": [1, 2]}, None),
        (datetime, datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1), None),
    ],
)
def test_a_value_that_its_json_does_not_give_back_is_refused_with_its_path(
    declared: Any, value: Any, path: str | None
) -> None:
    codec: Codec[Any] = Codec(declared)
    if path is None:
        codec.encode("input", value)
        return
    with pytest.raises(InvalidPayloadError) as refused:
        codec.encode("input", value)
    assert refused.value.field == path
    assert "hunter2" not in str(refused.value)


def test_an_output_that_its_json_does_not_give_back_is_refused() -> None:
    codec: Codec[Any] = Codec(Login)
    with pytest.raises(InvalidOutputError, match=r"output.password"):
        codec.encode_output(Login(user="me", password=SecretStr("hunter2")))


@given(
    st.builds(
        Everything,
        number=st.floats(allow_nan=False, allow_infinity=False),
        at=st.datetimes(min_value=datetime(1980, 1, 1), timezones=st.timezones() | st.just(UTC)),
        lasts=st.timedeltas(min_value=timedelta(days=-10_000), max_value=timedelta(days=10_000)),
        total=st.decimals(allow_nan=False, allow_infinity=False),
        id=st.builds(uuid4),
        path=st.just(Path("/a/b")),
        colour=st.sampled_from(Colour),
        names=st.frozensets(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"))),
        pair=st.tuples(st.integers(-(2**60), 2**60), st.just("b")),
        either=st.integers(-(2**60), 2**60) | st.just("c") | st.none(),
        plain=st.builds(Plain, st.integers(-(2**60), 2**60)),
        inner=st.builds(Box[Point], content=st.builds(Point, st.floats(allow_nan=False, allow_infinity=False))),
        data=st.just(b"abc"),
    )
)
def test_an_ordinary_value_is_not_refused(value: Everything) -> None:
    codec: Any = Codec(Everything)
    codec.encode("input", value)


@pytest.mark.parametrize(
    ("value", "decoded", "place"),
    [
        (float("nan"), float("nan"), None),
        (float("nan"), 1.0, ("", True)),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, (".a.b", True)),
        ({"a": 1}, {"a": 1, "b": 2}, ("", True)),
        ([1, 2], (1, 2), None),
        ([1, [2]], [1, [3]], ("[1][0]", True)),
        ([1, 2], [1], ("", True)),
        ({1, 2}, {1, 3}, ("", True)),
        ({Plain(1)}, {Plain(1)}, ("", False)),
        ({Plain(1)}, {Plain(1), Plain(2)}, ("", True)),
        (Plain(1), Plain(1), ("", False)),
        ([Plain(1), 2], [Plain(1), 3], ("[1]", True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_the_first_place_that_certainly_differs_is_named(value: Any, decoded: Any, place: tuple[str, bool] | None) -> None:
    named = difference(value, decoded)
    assert (named and (named.path, named.is_certain)) == place


class Incomparable:
    """As an array, or an object of an application whose comparison fails."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError


def test_values_that_cannot_be_compared_differ() -> None:
    named = difference([1, Incomparable()], [1, Incomparable()])
    assert named is not None
    assert (named.path, named.is_certain) == ("[1]", True)
