"""Spark types of the published columns, and the check of a schema that a user gives."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.arrow import TYPES
from sa_jobqueue.pipeline.history import Dataset

SPARK: Final = {kind: from_arrow_type(of) for kind, of in TYPES.items()}


def spark_schema(dataset: Dataset, names: Sequence[str]) -> StructType:
    """Return columns of a dataset as a Spark schema, each nullable and with its doc as comment."""
    found = [dataset.column(name) for name in names]
    return StructType([StructField(one.name, SPARK[one.kind], metadata={"comment": one.doc}) for one in found])


def check_names(dataset: Dataset, names: Sequence[str], *, option: str) -> None:
    """Check that a dataset has these columns, each named once. Raises: InvalidOptionError naming `option`."""
    for position, name in enumerate(names):
        if name not in dataset.names:
            close = get_close_matches(name.lower(), dataset.names, n=1)
            hint = f"; did you mean {close[0]}?" if close else f"; it has {', '.join(dataset.names)}"
            raise InvalidOptionError(option, f"{dataset.name} has no column {name!r}{hint}")
        if name in names[:position]:
            raise InvalidOptionError(option, f"names column {name!r} twice")
    if not names:
        raise InvalidOptionError(option, f"names no column of {dataset.name}")


def check_types(dataset: Dataset, schema: StructType) -> None:
    """Check a user's schema: some of the dataset's columns, each of its published type. Raises: InvalidOptionError."""
    check_names(dataset, schema.names, option="schema()")
    for field in schema.fields:
        published = SPARK[dataset.column(field.name).kind]
        if field.dataType != published:
            raise InvalidOptionError(
                "schema()",
                f"column {field.name!r} of {dataset.name} is {published.simpleString().upper()}, "
                f"not {field.dataType.simpleString().upper()}: cast it after reading",
            )
