"""Payloads of some job types left out of DataFrames: of the queue's tables, of an archive, of whatever has their columns."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.redaction import ERRORS, PAYLOADS, REDACTED, VARIABLE, patterns_in


def redacted(frame: DataFrame, *, types: Sequence[str] | None = None) -> DataFrame:
    """Return rows as the command line shows them: of some job types without payloads, and of their errors the class alone.

    `frame`: with a column `type_name`; attempts get theirs by a join with jobs. A row whose type is null may be of any.
    `types`: names of job types, `*` and `?` stand for others; those that SA_JOBQUEUE_REDACT names here unless given.
    Shape: the same rows and columns. `input` and `output` become the JSON text `"(redacted)"`, `error` and `last_error` a
    document of `type` and `message`; null stays null. Files and tables are as they were.
    Raises: InvalidOptionError when there is no `type_name`.
    """
    patterns = patterns_in(os.environ.get(VARIABLE, "")) if types is None else list(types)
    if "type_name" not in frame.columns:
        raise InvalidOptionError("frame", "must have the column 'type_name', which says whose payloads these are")
    if not patterns:
        return frame
    whole = "|".join(re.sub(r"\\[zZ]$", "", translate(pattern)) for pattern in patterns)
    hidden = sf.coalesce(sf.col("type_name").rlike(rf"^(?:{whole})\z"), sf.lit(True))
    shown: dict[str, Column] = dict.fromkeys(PAYLOADS & set(frame.columns), sf.lit(f'"{REDACTED}"'))
    for name in ERRORS & set(frame.columns):
        kind = sf.get_json_object(sf.col(name), "$.type")
        shown[name] = sf.to_json(sf.struct(kind.alias("type"), sf.lit(REDACTED).alias("message")))
    return frame.withColumns(
        {name: sf.when(sf.col(name).isNotNull() & hidden, stands).otherwise(sf.col(name)) for name, stands in shown.items()}
    )
