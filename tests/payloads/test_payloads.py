"""What may go into a job and come out of it, and where a fault is said to be."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field
from typing_extensions import TypedDict

from sa_jobqueue.errors import InvalidJobError, InvalidOutputError, InvalidPayloadError, PayloadTooLargeError
from sa_jobqueue.payloads import MAX_BYTES, Codec, Unreadable, check_json, read_json

pytestmark = pytest.mark.every_python


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Line(BaseModel):
    sku: str
    price: float = 0.0


class Order(BaseModel):
    order_id: int
    lines: list[Line] = []


class StrictOrder(BaseModel):
    model_config = ConfigDict(strict=True)

    order_id: UUID
    paid_at: datetime
    total: Decimal


class CamelOrder(BaseModel):
    order_id: int = Field(alias="orderId")


class ClosedOrder(BaseModel):
    model_config = ConfigDict(extra="forbid")

    order_id: int

    @computed_field
    def label(self) -> str:
        return f"order {self.order_id}"


@dataclass
class Mail:
    to: str
    copies: list[int] = field(default_factory=list)


class Point(TypedDict):
    x: int
    y: int


def typed(declared: Any) -> Codec[Any]:
    return Codec(declared)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        10**300,
        1.5,
        "",
        "ä €",
        "\U0001f600",
        "a literal \\u0000 and \\ud800",
        [],
        {},
        {"": 1},
        (1, 2),
        Colour.RED,
        Level.HIGH,
        {Colour.RED: 1},
        nested(500),
    ],
)
def test_json_values_are_accepted(value: Any) -> None:
    check_json("input", value)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (object(), "input", "is of type object, which is not JSON"),
        ({"items": [1, {"price": Decimal(1)}]}, "input.items[1].price", "is of type Decimal"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "input.at", "is of type datetime"),
        ([b""], "input[0]", "is of type bytes"),
        ([{1}], "input[0]", "is of type set"),
        ({"a": [math.nan]}, "input.a[0]", "is nan, which JSON cannot represent"),
        ([math.inf], "input[0]", "is inf"),
        ({"a": "x\0y"}, "input.a", "contains a NUL character"),
        ({"a": {"k\0": 1}}, "input.a", "contains a NUL character"),
        (["ok", "\ud800"], "input[1]", "contains a lone surrogate"),
        ({"\udfff": 1}, "input", "contains a lone surrogate"),
        ({"a": {1: 2}}, "input.a", "has the key 1; keys must be text"),
        ([{None: 2}], "input[0]", "has the key None; keys must be text"),
        ({"a": [{True: 2}]}, "input.a[0]", "has the key True; keys must be text"),
        ({(1, 2): 2}, "input", "has the key (1, 2); keys must be text"),
        pytest.param(10**5000, "input", "is not JSON", id="huge"),
    ],
)
def test_a_value_that_is_not_json_is_refused_with_its_path_and_reason(value: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        check_json("input", value)
    assert caught.value.field == path
    assert reason in caught.value.reason
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert isinstance(caught.value, InvalidJobError)


@pytest.mark.parametrize("depth", [501, 600, 800, 950, 2000, 100_000])
def test_deep_nesting_is_refused_without_exhausting_the_stack(depth: int) -> None:
    with pytest.raises(InvalidPayloadError, match="nested more than 500 deep") as caught:
        check_json("input", nested(depth))
    assert len(caught.value.field) <= 100


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayloadError, match="or contains itself"):
        check_json("input", loop)


def test_the_size_limit_counts_the_bytes_of_the_json_text() -> None:
    fits = "x" * (MAX_BYTES - 2)
    check_json("input", fits)
    with pytest.raises(PayloadTooLargeError) as caught:
        check_json("input", fits + "x")
    assert (caught.value.size_bytes, caught.value.limit_bytes) == (MAX_BYTES + 1, MAX_BYTES)
    assert caught.value.field == "input"
    assert "1,048,577 bytes" in str(caught.value)
    for text, size in (("é", 4), ("日", 5), ("😀", 6), ("\n", 4), ("\\", 4)):
        check_json("input", text, max_bytes=size)
        with pytest.raises(PayloadTooLargeError) as caught:
            check_json("input", text, max_bytes=size - 1)
        assert caught.value.size_bytes == size
    with pytest.raises(InvalidPayloadError, match="surrogate"):
        check_json("input", "\ud800" * 300_000)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(), st.lists))
def test_json_text_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    for document in (json.dumps(value), f" {json.dumps(value)}\n"):
        assert read_json(document) == read_json(document.encode()) == json.loads(document)


@pytest.mark.parametrize(
    "document",
    [b"", b" ", b"nul", b"1 2", b"[1,", b'"\\ud', b"\xff", b"[" * 100_000, b"1" * 5_000],
    ids=["empty", "blank", "cut off", "two values", "open array", "cut escape", "not UTF-8", "deep", "long number"],
)
def test_json_that_python_cannot_decode_becomes_an_unreadable_value(document: bytes) -> None:
    assert isinstance(read_json(document), Unreadable)


@pytest.mark.parametrize(
    ("declared", "value", "stored", "back"),
    [
        (Any, [1, "a"], [1, "a"], [1, "a"]),
        (object, 7, 7, 7),
        (dict, {"a": 1}, {"a": 1}, {"a": 1}),
        (dict[str, Any], {"a": [1]}, {"a": [1]}, {"a": [1]}),
        (dict[str, int], {"a": "1"}, {"a": 1}, {"a": 1}),
        (int | None, None, None, None),
        (Order, Order(order_id=7), {"order_id": 7, "lines": []}, Order(order_id=7)),
        (Order, {"order_id": 7}, {"order_id": 7, "lines": []}, Order(order_id=7)),
        (CamelOrder, CamelOrder(orderId=7), {"orderId": 7}, CamelOrder(orderId=7)),
        (ClosedOrder, ClosedOrder(order_id=7), {"order_id": 7}, ClosedOrder(order_id=7)),
        (Mail, Mail("a@b", [1]), {"to": "a@b", "copies": [1]}, Mail("a@b", [1])),
        (Mail, {"to": "a@b"}, {"to": "a@b", "copies": []}, Mail("a@b")),
        (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
        (datetime, datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z", datetime(2026, 1, 2, tzinfo=UTC)),
        (set[int], {1}, [1], {1}),
    ],
)
def test_a_typed_payload_is_stored_as_json_and_decoded_to_its_type(
    declared: Any, value: Any, stored: Any, back: Any
) -> None:
    codec = typed(declared)
    assert codec.encode("input", value) == stored
    assert codec.decode("input", stored) == back


def test_a_strict_model_round_trips_through_stored_json() -> None:
    codec = typed(StrictOrder)
    order = StrictOrder(order_id=UUID(int=7), paid_at=datetime(2026, 1, 1, tzinfo=UTC), total=Decimal("1.10"))
    assert codec.decode("input", codec.encode("input", order)) == order


@pytest.mark.parametrize(
    ("declared", "value", "path", "reason"),
    [
        (Order, {"order_id": "seven"}, "input.order_id", "valid integer"),
        (Order, {}, "input.order_id", "required"),
        (Order, 7, "input", "valid dictionary or instance of Order"),
        (Order, {"order_id": 1, "lines": [{"sku": "a"}, {"sku": 2}]}, "input.lines[1].sku", "valid string"),
        (Order, {"order_id": "x", "lines": [{}]}, "input.order_id", "(and 1 more)"),
        (Order, {"order_id": 1, "lines": [{"sku": "\0"}]}, "input.lines[0].sku", "NUL"),
        (Order, {"order_id": 1, "lines": [{"sku": "a", "price": math.nan}]}, "input.lines[0].price", "valid number"),
        (Mail, {"to": 7}, "input.to", "valid string"),
        (Point, {"x": 1}, "input.y", "required"),
        (dict, [1], "input", "must be a dict, got list"),
        (dict[str, Any], "text", "input", "must be a dict, got str"),
        (dict, {"a": object()}, "input.a", "is of type object"),
        (list[int], [1, "x"], "input[1]", "valid integer"),
    ],
)
def test_a_payload_that_does_not_fit_is_refused_with_its_path(declared: Any, value: Any, path: str, reason: str) -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        typed(declared).encode("input", value)
    assert caught.value.field == path
    assert reason in caught.value.reason


def test_an_instance_holding_invalid_values_is_refused() -> None:
    changed = Order(order_id=7)
    changed.order_id = "seven"  # type: ignore[assignment]
    built = Order.model_construct(lines=[])
    for declared, value in ((Order, changed), (Order, built), (Mail, Mail(to=7))):  # type: ignore[arg-type]
        with pytest.raises(InvalidPayloadError):
            typed(declared).encode("input", value)
    with pytest.raises(InvalidPayloadError, match="cannot be written as JSON"):
        typed(Mail).encode("input", Mail(to=object()))  # type: ignore[arg-type]


def test_the_size_limit_applies_to_typed_payloads() -> None:
    with pytest.raises(PayloadTooLargeError):
        typed(Mail).encode("input", Mail("x" * MAX_BYTES))


def test_stored_json_that_no_longer_fits_its_type_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        typed(Order).decode("input", {"order_id": 7, "lines": [{"sku": []}]})
    assert caught.value.field == "input.lines[0].sku"
    with pytest.raises(InvalidPayloadError, match="must be a dict, got NoneType"):
        typed(dict).decode("input", None)


def test_an_output_that_is_not_json_is_refused_with_its_cause() -> None:
    with pytest.raises(InvalidOutputError, match=r"return value is not usable: output\.a: is of type object") as caught:
        typed(Any).encode_output({"a": object()})
    assert isinstance(caught.value.__cause__, InvalidPayloadError)
    with pytest.raises(InvalidOutputError, match=r"output\.order_id"):
        typed(Order).encode_output({"order_id": "x"})
    assert typed(Order).encode_output(Order(order_id=1)).value == {"order_id": 1, "lines": []}
