"""Payloads as JSON documents: each value of a column reaches the handler as it was, or the column is refused.

Spark's `to_json` writes timestamps in milliseconds and in the session's zone, decimals as numbers that Python reads as
floats, binary values as Base64, NaN as text, and years after 9999, which Python does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import MAXYEAR, MINYEAR
from functools import reduce
from typing import Final, TypeAlias

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.spark.columns import InvalidColumnError
from sa_jobqueue.pipeline.spark.validation import NO_NUMBER, NO_TEXT, NO_YEAR

Ours: TypeAlias = "str | Column"
"""A column's name, or an expression."""

EXACT_DIGITS: Final = 15
"""Digits of a decimal number that a double keeps (IEEE 754)."""
_JSON: Final = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_KEPT: Final = (
    *(StringType, IntegralType, BooleanType, NullType, DateType, TimeType, TimestampType, TimestampNTZType, DoubleType),
    *(FloatType, DecimalType, StructType, ArrayType, MapType),
)
_CURES: Final[tuple[tuple[type[DataType] | tuple[type[DataType], ...], str], ...]] = (
    (BinaryType, "use base64(column) for a field of type Base64Bytes, or cast it to STRING"),
    (YearMonthIntervalType, "use a number of months"),
    ((DayTimeIntervalType, CalendarIntervalType), "use a number of seconds"),
    (VariantType, "cast it to a STRUCT, or pass to_json(column) as the payload"),
)


def document_of(df: DataFrame, payload: Ours | Sequence[str] | None, *, is_typed: bool) -> Column:
    """Return the column of JSON documents that a payload becomes: an object of columns, or one column's values.

    `payload`: as in `enqueue`. `is_typed`: whether a handler's payload type reads the documents; decimals are text then,
    from which it makes exact values.
    Raises: InvalidColumnError for a column whose values JSON, or Python's JSON numbers, would change.
    """
    if payload is None or not isinstance(payload, (str, Column)):
        if not isinstance(payload, Iterable | None):
            raise InvalidOptionError("payload", f"must be a column, its name, or names of columns, got {payload!r}")
        names = df.columns if payload is None else list(payload)
        if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
            raise InvalidColumnError(twice, "is there twice: an object has each name once; leave one out, or rename it")
        columns = [(name, named(df, name)) for name in names]
        rows = df.select(*(column.alias(name) for name, column in columns))
        fields = [
            (_exact(column, field.dataType, field.name, is_typed).alias(field.name), (column, field.dataType))
            for (_, column), field in zip(columns, rows.schema.fields, strict=True)
        ]
        return _refused(F.to_json(F.struct(*(column for column, _ in fields)), _JSON), [parts for _, parts in fields])
    column = named(df, payload) if isinstance(payload, str) else payload
    field = df.select(column).schema[0]
    if isinstance(field.dataType, StringType):
        return column
    # `to_json` does not accept a plain number: wrap it in an array, then remove the brackets.
    listed = F.to_json(F.array(_exact(column, field.dataType, field.name, is_typed)), _JSON)
    return _refused(F.substring(listed, F.lit(2), F.length(listed) - 2), [(column, field.dataType)])


def named(df: DataFrame, name: str) -> Column:
    """Return a column by its name, which may have dots and backticks, or by a path into a struct.

    Raises: InvalidColumnError if another column has the same name but for case, which Spark ignores.
    """
    alike = [column_name for column_name in df.columns if column_name.lower() == name.lower()]
    if len(alike) > 1:
        raise InvalidColumnError(name, f"is the name of {len(alike)} columns, but for their case: rename all but one")
    return F.col("`" + name.replace("`", "``") + "`") if name in df.columns else F.col(name)


def _refused(text: Column, columns: Sequence[tuple[Column, DataType]]) -> Column:
    """Return the JSON text, or for a row with a value that JSON or Python does not have, the reason in its place."""
    for is_odd, reason in ((_is_no_number, NO_NUMBER), (_is_no_year, NO_YEAR), (_is_no_text, NO_TEXT)):
        conditions = [condition for column, kind in columns if (condition := _has(column, kind, is_odd)) is not None]
        if conditions:
            text = F.when(reduce(Column.__or__, conditions), F.lit(reason)).otherwise(text)
    return text


def _exact(column: Column, kind: DataType, path: str, is_typed: bool) -> Column:
    """Return a column whose JSON keeps its values. Raises: InvalidColumnError."""
    if not isinstance(kind, _KEPT):
        cure = next((cure for refused_class, cure in _CURES if isinstance(kind, refused_class)), "cast it to STRING")
        name = kind.simpleString().upper()
        raise InvalidColumnError(path, f"is {name}, whose values JSON has no form of: {cure}")
    if isinstance(kind, DecimalType):
        if not is_typed and kind.precision > EXACT_DIGITS:
            raise InvalidColumnError(
                path,
                f"is {kind.simpleString().upper()}, with more digits than a JSON number keeps ({EXACT_DIGITS}): cast it "
                "to STRING, or pass the handler instead of its name",
            )
        return column.cast("string") if is_typed else column
    if isinstance(kind, FloatType):
        return column.cast("double")
    if isinstance(kind, StructType):
        if len({name.lower() for name in kind.names}) != len(kind.names):
            raise InvalidColumnError(path, "has several fields of one name, but for their case: rename all but one")
        inner = [
            _exact(column.getField(field.name), field.dataType, f"{path}.{field.name}", is_typed) for field in kind.fields
        ]
        struct = F.struct(*(member.alias(field.name) for member, field in zip(inner, kind.fields, strict=True)))
        return F.when(column.isNotNull(), struct)
    if isinstance(kind, ArrayType):
        return F.transform(column, lambda element: _exact(element, kind.elementType, f"{path}[]", is_typed))
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, (StringType, IntegralType)):
            raise InvalidColumnError(path, f"has keys of type {kind.keyType.simpleString().upper()}: cast them to STRING")
        return F.transform_values(column, lambda _, value: _exact(value, kind.valueType, f"{path}[]", is_typed))
    return column


def _is_no_number(column: Column, kind: DataType) -> Column | None:
    """Return whether a value is NaN or infinite; None if no value of its type is."""
    if not isinstance(kind, (FloatType, DoubleType)):
        return None
    number = F.coalesce(column, F.lit(0.0))
    return F.isnan(number) | (F.abs(number) == F.lit(float("inf")))


def _is_no_year(column: Column, kind: DataType) -> Column | None:
    """Return whether a value is not in the years that Python has; None if no value of its type can be."""
    if not isinstance(kind, (DateType, TimestampType, TimestampNTZType)):
        return None
    in_utc = F.to_utc_timestamp(column, F.current_timezone()) if isinstance(kind, TimestampType) else column
    year = F.coalesce(F.year(in_utc), F.lit(MINYEAR))
    return (year < MINYEAR) | (year > MAXYEAR)


def _is_no_text(column: Column, kind: DataType) -> Column | None:
    """Return whether a text is not UTF-8, whose bytes `to_json` would replace; None if the value is no text."""
    return ~F.is_valid_utf8(F.coalesce(column, F.lit(""))) if isinstance(kind, StringType) else None


def _has(column: Column, kind: DataType, is_odd: Callable[[Column, DataType], Column | None]) -> Column | None:
    """Return whether a value, or one within it, is odd; None if none of its type can be."""
    if isinstance(kind, StructType):
        inner = [_has(column.getField(field.name), field.dataType, is_odd) for field in kind.fields]
        conditions = [condition for condition in inner if condition is not None]
        return reduce(Column.__or__, conditions) if conditions else None
    if isinstance(kind, (ArrayType, MapType)):
        if isinstance(kind, ArrayType):
            return _has_element(column, kind.elementType, is_odd)
        keys = _has_element(F.map_keys(column), kind.keyType, is_odd)
        values = _has_element(F.map_values(column), kind.valueType, is_odd)
        return values if keys is None else keys if values is None else keys | values
    return is_odd(column, kind)


def _has_element(values: Column, element: DataType, is_odd: Callable[[Column, DataType], Column | None]) -> Column | None:
    if _has(F.lit(None), element, is_odd) is None:
        return None

    def is_odd_element(value: Column) -> Column:
        condition = _has(value, element, is_odd)
        return F.lit(False) if condition is None else condition

    return F.coalesce(F.exists(values, is_odd_element), F.lit(False))
