"""Checks the columns of a payload against the handler's input type, before Spark computes a row.

The driver validates a sample that it creates from the types of the columns. Only a fault of every row is an error: a missing
field, a column that the type forbids, or a column of which neither a value nor a null is valid for its field.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    NullType,
    StructType,
)

from sa_jobqueue.pipeline.spark.columns import InvalidColumnError
from sa_jobqueue.registry.job_types import JobType

_FORBIDDEN: Final = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_SAMPLES: Final[tuple[tuple[type[DataType], Any], ...]] = (
    (BooleanType, True),
    (IntegralType, 1),
    (DecimalType, 1),
    (FractionalType, 1.0),
    (ArrayType, []),
    (StructType, {}),
    (MapType, {}),
    (NullType, None),
)
"""A JSON value for each type. For others the sample is text, which Pydantic may convert to any type."""


def check_payload(kind: JobType, schema: StructType, column: str | None = None) -> None:
    """Check the columns of a payload against the input type of `kind`.

    Parameters: `schema`: the columns of the payload. `column`: the name of the only column, if the payload is its value and
    not an object.

    Raises: InvalidColumnError for the first column that makes every row invalid.
    """
    full = {field.name: _sample(field.dataType) for field in schema.fields}
    nulls = {field.name: None if field.nullable else full[field.name] for field in schema.fields}
    faults = _faults(kind, full if column is None else full[column])
    other = _faults(kind, nulls if column is None else nulls[column])
    for name, (fault, reason) in faults.items():
        if name not in other:
            continue
        if fault == "missing" and column is None and name not in full:
            raise InvalidColumnError(name, f"is missing: {_takes(kind)}, where it is required{_near(name, schema)}")
        if fault in _FORBIDDEN and column is None:
            raise InvalidColumnError(
                name, f"is no field of what {kind.name!r} takes: {reason}; drop it, or list the columns in payload"
            )
        own = name if column is None else column if not name else None
        if own in full and fault.endswith("_type") and not isinstance(full[own], str):
            is_whole = f"; payload=[{own!r}] makes an object of it" if not name else ""
            raise InvalidColumnError(
                own,
                f"is {schema[own].dataType.simpleString().upper()[:100]}, but {_takes(kind)}: {reason}; cast the column, or "
                f"change the handler's type{is_whole}",
            )


def _sample(kind: DataType) -> Any:
    return next((value for of, value in _SAMPLES if isinstance(kind, of)), "text")


def _faults(kind: JobType, sample: Any) -> dict[str, tuple[str, str]]:
    """Return Pydantic's error types and messages for a sample, by field name; '' is the whole input."""
    try:
        TypeAdapter(kind.input.declared).validate_json(json.dumps(sample))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return {"".join(map(str, one["loc"])): (one["type"], one["msg"]) for one in found if len(one["loc"]) <= 1}
    except Exception:  # the application's validator cannot handle the sample: only the rows are checked
        return {}
    return {}


def _takes(kind: JobType) -> str:
    return f"{kind.name!r} takes {kind.input.name}"


def _near(name: str, schema: StructType) -> str:
    close = get_close_matches(name, schema.names, n=1)
    return f"; rename {close[0]!r}?" if close else f"; the columns are {', '.join(schema.names)[:200]}"
