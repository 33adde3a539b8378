"""The check of a payload's columns before Spark computes a row: its findings, and that it refuses no valid row."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from sa_jobqueue import JobQueue
from sa_jobqueue.pipeline.spark.columns import InvalidColumnError
from sa_jobqueue.pipeline.spark.sampling import check_payload
from sa_jobqueue.registry.job_types import JobType

TEXT, INT = StringType(), IntegerType()


@dataclass
class Bill:
    """A typed payload."""

    customer: str
    amount: int
    note: str | None = None
    tags: tuple[str, ...] = ()


class Strict(BaseModel):
    """One that takes no other field, and one by another name."""

    model_config = ConfigDict(extra="forbid")
    amount: int = Field(alias="amountCents")


class Color(enum.Enum):
    """One of several texts."""

    RED = "red"


class Odd(BaseModel):
    """One whose validator raises what Pydantic lets pass."""

    amount: int

    @field_validator("amount", mode="before")
    @classmethod
    def _look(cls, value: Any) -> int:
        return {"a": 1}[value]


def kind_of(declared: Any) -> JobType:
    jobs: JobQueue[Any] = JobQueue()

    def bill(payload: Any) -> None: ...

    bill.__annotations__["payload"] = declared
    return jobs.handler("bill")(bill).job_type


def columns(*fields: tuple[str, DataType], nullable: bool = True) -> StructType:
    return StructType([StructField(name, kind, nullable) for name, kind in fields])


@pytest.mark.parametrize(
    ("declared", "schema", "column", "message"),
    [
        (Bill, columns(("customer", TEXT)), None, "^amount: is missing: 'bill' takes Bill, .*; the columns are customer"),
        (Bill, columns(("customer", TEXT), ("amuont", INT)), None, "^amount: is missing.*rename 'amuont'"),
        (Bill, columns(("customer", INT), ("amount", INT)), None, "^customer: is INT, but 'bill' takes.*valid string; cast"),
        (Bill, columns(("customer", TEXT), ("amount", ArrayType(INT))), None, "^amount: is ARRAY<INT>, but.*valid integer"),
        (Bill, columns(("customer", TEXT), ("amount", NullType())), None, "^amount: is VOID, but"),
        (Bill, columns(("customer", TEXT), ("amount", INT), ("note", INT), nullable=False), None, "^note: is INT, but"),
        (Strict, columns(("amount", INT)), None, "^amountCents: is missing.*rename 'amount'"),
        (Strict, columns(("amountCents", INT), ("day", TEXT)), None, "^day: is no field of what 'bill' takes.*drop it"),
        (Bill, columns(("amount", INT)), "amount", r"^amount: is INT.*payload=\['amount'\] makes an object of it"),
        (dict[str, Any], columns(("amount", INT)), "amount", "^amount: is INT, but.*should be an object"),
    ],
)
def test_columns_that_can_fit_no_row_are_refused_with_a_hint(
    declared: Any, schema: StructType, column: str | None, message: str
) -> None:
    with pytest.raises(InvalidColumnError, match=message):
        check_payload(kind_of(declared), schema, column)


VALUES: list[tuple[DataType, list[Any]]] = [
    (TEXT, ["", "7", "true", "red", "2026-01-31", "2026-01-31T12:00:00Z", "P1D", "[1]", "{}"]),
    (INT, [0, 1, 7, -1, 2**31 - 1]),
    (LongType(), [0, 1, 2**53, 1_700_000_000_000]),
    (DoubleType(), [0.0, 1.0, 1.5, 1e300]),
    (DecimalType(10, 2), [0, 1, 1.25]),
    (BooleanType(), [True, False]),
    (DateType(), ["2026-01-31"]),
    (TimestampType(), ["2026-01-31T12:00:00.000Z"]),
    (BinaryType(), ["cmVk"]),
    (ArrayType(INT), [[], [1], [1, 2]]),
    (StructType([StructField("a", INT)]), [{"a": 1}, {"a": None}]),
    (MapType(TEXT, INT), [{}, {"a": 1}, {"amount": 1, "customer": 2}]),
    (VariantType(), [1, "red", [], {}, True]),
    (NullType(), [None]),
]
"""JSON of values that a column of each type can have."""
DECLARED: list[Any] = [
    *(str, int, float, bool, Decimal, datetime, date, timedelta, UUID, bytes, Color, None, Bill, Any),
    *(list[int], set[int], tuple[int, int], dict[str, int], int | None, int | str, list[int] | int, Literal["red", 7]),
    *(Annotated[int, Field(gt=5)], Annotated[str, BeforeValidator(str)], Annotated[int, Field(strict=True)]),
]


@pytest.mark.parametrize("nullable", [True, False])
def test_no_column_is_refused_that_has_a_valid_value(nullable: bool) -> None:
    refused = 0
    for declared in DECLARED:
        adapter: TypeAdapter[Any] = TypeAdapter(declared)
        for kind, values in VALUES:
            given = [*values, None] if nullable else values
            if any(is_valid(adapter, value) for value in given):
                check_payload(kind_of(declared), columns(("value", kind), nullable=nullable), "value")
                continue
            try:
                check_payload(kind_of(declared), columns(("value", kind), nullable=nullable), "value")
            except InvalidColumnError:
                refused += 1
    assert refused > 50


def is_valid(adapter: TypeAdapter[Any], value: Any) -> bool:
    try:
        adapter.validate_json(json.dumps(value))
    except ValidationError:
        return False
    return True
