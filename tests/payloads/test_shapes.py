"""What can be read of what: by the JSON schemas of declared types."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pydantic
import pytest
from typing_extensions import TypedDict

from sa_jobqueue.payloads import Codec
from sa_jobqueue.payloads.shapes import item_name, name_of


@dataclass
class Page:
    number: int


@dataclass
class Receipt:
    cents: int
    page: Page | None = None


class Model(pydantic.BaseModel):
    number: int
    note: str = ""


class Keys(TypedDict):
    number: int


@dataclass
class Tree:
    name: str
    children: list[Tree] = field(default_factory=list)


class Pair(NamedTuple):
    number: int
    name: str


FITS: list[tuple[Any, Any]] = [
    (int, int),
    (int, float),
    (int | str, int),
    (Page | None, Page),
    (Any, Page),
    (Page, Any),
    (Page, object),
    (Page, dict),
    (dict[str, Any], Page),
    (Page, Model),
    (Model, Keys),
    (Page, dict[str, int]),
    (str, datetime),
    (UUID, str),
    (Decimal, float),
    (Tree, Tree),
    (list[int], tuple[int, ...]),
    (tuple[int, str], Pair),
    (Literal["a", "b"], Literal["b", "c"]),
    (Literal["a"], str),
    (None, int | None),
]
MISFITS: list[tuple[Any, Any]] = [
    (int, str),
    (str, int),
    (Page, int),
    (Page, Receipt),
    (Receipt, Model),
    (list[int], list[str]),
    (list[Page], list[Receipt]),
    (tuple[int, str], tuple[str, int]),
    (tuple[int], Pair),
    (dict[str, str], Page),
    (Literal["a"], Literal["b"]),
    (None, int),
    (int | Page, str | None),
]


def codec(declared: Any) -> Codec[Any]:
    return Codec(Any, annotated=type(None)) if declared is None else Codec(declared)


@pytest.mark.parametrize(("given", "wanted"), FITS)
def test_shapes_that_may_match_are_accepted(given: Any, wanted: Any) -> None:
    assert codec(given).shape.can_be(codec(wanted).shape)


@pytest.mark.parametrize(("given", "wanted"), MISFITS)
def test_shapes_that_can_never_match_are_refused(given: Any, wanted: Any) -> None:
    assert not codec(given).shape.can_be(codec(wanted).shape)


def test_an_array_shape_has_length_bounds_and_item_shapes() -> None:
    assert Codec(list[int]).shape.bounds == (0, None)
    assert Codec(tuple[int, str]).shape.bounds == (2, 2)
    assert Codec(Pair).shape.bounds == (2, 2)
    assert Codec(Annotated[list[int], pydantic.Field(min_length=1, max_length=3)]).shape.bounds == (1, 3)
    assert Codec(int).shape.bounds == (0, None)
    assert Codec(tuple[int, str]).shape.item(1).can_be(Codec(str).shape)
    assert not Codec(tuple[int, str]).shape.item(0).can_be(Codec(str).shape)


def test_a_type_without_a_schema_matches_every_shape() -> None:
    class Opaque:
        pass

    assert Codec(pydantic.InstanceOf[Opaque]).shape.can_be(Codec(int).shape)


def test_types_are_named_as_in_source_code() -> None:
    assert [name_of(hint) for hint in (int, type(None), Page, list[Page], Page | None, Literal["a"], Any)] == [
        "int",
        "None",
        "Page",
        "list[Page]",
        "Page | None",
        "Literal['a']",
        "Any",
    ]
    assert [item_name(tuple[int, str], 1), item_name(list[int], 7), item_name(Any, 0)] == ["str", "int", "Any"]
