"""Names and types of the columns that a DataFrame written to the queue may have, checked before a row is computed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.errors.removed import refuse_removed
from sa_jobqueue.models.checks import check_name
from sa_jobqueue.models.options import JOB_OPTIONS
from sa_jobqueue.models.waits import WaitFor
from sa_jobqueue.pipeline.spark.options import suggestion

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
_SECONDS: Final = (*_WHOLE, FloatType, DoubleType, DecimalType, DayTimeIntervalType)

COLUMNS: Final[dict[str, tuple[str, tuple[type[DataType], ...]]]] = {
    "type_name": ("STRING", (StringType,)),
    "input": ("STRING, the text of a JSON document", (StringType,)),
    "queue": ("STRING", (StringType,)),
    "fairness_key": ("STRING", (StringType,)),
    "priority": ("INT", _WHOLE),
    "scheduled_at": ("TIMESTAMP", (TimestampType,)),
    "delay": ("DOUBLE, in seconds, or INTERVAL DAY TO SECOND", _SECONDS),
    "max_attempts": ("INT", _WHOLE),
    "timeout": ("DOUBLE, in seconds, or INTERVAL DAY TO SECOND", _SECONDS),
    "deduplication_key": ("STRING", (StringType,)),
    "id": ("STRING", (StringType,)),
    "blockers": ("ARRAY<STRING>, the ids of chains", (ArrayType,)),
    "on_failure": ("STRING", (StringType,)),
    "input_version": ("INT", _WHOLE),
    "trace_context": ("STRING", (StringType,)),
    "rate_cost": ("INT", _WHOLE),
    "expires_at": ("TIMESTAMP", (TimestampType,)),
    "ordering_key": ("STRING", (StringType,)),
    "deadline": ("TIMESTAMP", (TimestampType,)),
}
"""Type of each column, as text and as Spark classes. A column of type VOID contains only nulls and is accepted for any
type."""

CHECKS: Final[dict[str, Callable[[Any], object]]] = {
    **{option.staged: partial(option.check, name) for name, option in JOB_OPTIONS.items()},
    "type_name": partial(check_name, "type_name"),
    "on_failure": lambda value: WaitFor(None, on_failure=value),
}
"""Checks of one value of a column, as `Job(...)` has them."""


class InvalidColumnError(InvalidJobError):
    """A DataFrame has a column that cannot be part of a job, or lacks one; nothing was written.

    `field` names the column, `reason` states the accepted values.
    """


def check_columns(schema: StructType, *, has_type: bool) -> None:
    """Check the schema of a DataFrame to be written. `has_type`: whether the option `type` is set, for rows without a type.

    Raises: InvalidColumnError for the first column that is unknown, duplicated, of the wrong type or missing.
    """
    names: set[str] = set()
    for field in schema.fields:
        if field.name not in COLUMNS:
            refuse_removed([field.name], refuse=InvalidColumnError)
            raise InvalidColumnError(
                field.name, f"is no column of a job{suggestion(field.name, [*COLUMNS])}; drop it, or put it into the input"
            )
        if field.name in names:
            raise InvalidColumnError(field.name, "is there twice")
        names.add(field.name)
        _check_type(field.name, field.dataType)
    if "type_name" not in names and not has_type:
        raise InvalidColumnError("type_name", "is missing: every job has a type; add the column, or give the option type")


def _check_type(name: str, kind: DataType) -> None:
    sql_type, classes = COLUMNS[name]
    if isinstance(kind, NullType):
        return
    if isinstance(kind, classes) and (not isinstance(kind, ArrayType) or isinstance(kind.elementType, StringType)):
        return
    advice = ""
    if name == "input" and isinstance(kind, (StructType, MapType, ArrayType, VariantType)):
        advice = ": write sa_jobqueue.pipeline.spark.document(df, handler), or use enqueue, which does"
    elif sql_type == "TIMESTAMP" and isinstance(kind, TimestampNTZType):
        advice = ": a time without a zone is no instant; cast it to timestamp"
    raise InvalidColumnError(name, f"must be {sql_type}, not {kind.simpleString().upper()[:100]}{advice}")
