"""Spark and Arrow types of the published columns, and the conversion of COPY's CSV output to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
from pyarrow import csv
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.history import Dataset, Kind

SPARK: Final[dict[Kind, DataType]] = {
    Kind.TEXT: StringType(),
    Kind.JSON: StringType(),
    Kind.INT: IntegerType(),
    Kind.LONG: LongType(),
    Kind.DOUBLE: DoubleType(),
    Kind.BOOLEAN: BooleanType(),
    Kind.TIMESTAMP: TimestampType(),
}


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


class CsvDecoder:
    """Converts the CSV output of a COPY to Arrow batches: a null is an empty field, an empty text is quoted.

    Each batch has exactly the schema that Spark expects, nullability included.
    """

    def __init__(self, schema: StructType) -> None:
        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        self._convert = csv.ConvertOptions(
            column_types={field.name: field.type for field in self.schema},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
            true_values=["t"],
            false_values=["f"],
            timestamp_parsers=[csv.ISO8601],
        )
        # In a single column, a null is an empty line.
        self._parse = csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False)

    def decode(self, block: bytes) -> list[pa.RecordBatch]:
        """Return the batches of a block of complete lines, in order."""
        read = csv.ReadOptions(
            column_names=self.schema.names,
            use_threads=False,  # one task is one core
            block_size=len(block) + 1,  # a single block, because a row may have any length
        )
        parsed = csv.read_csv(pa.BufferReader(block), read, self._parse, self._convert)
        return [pa.RecordBatch.from_arrays(batch.columns, schema=self.schema) for batch in parsed.to_batches()]
