"""Redaction of payloads in DataFrames: of the job tables, of an archive, or of anything with the same columns."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import translate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from sa_jobqueue.display.redaction import ERRORS, PAYLOADS, REDACTED, VARIABLE, patterns_in
from sa_jobqueue.errors import InvalidOptionError


def redacted(frame: DataFrame, *, types: Sequence[str] | None = None) -> DataFrame:
    """Return rows with redacted payloads and errors of some job types, as the command line shows them.

    `frame`: has a column `type_name`; for attempts, join jobs. Rows without a type are redacted. `types`: job types, with
    wildcards `*` and `?`; by default those in SA_JOBQUEUE_REDACT.
    Shape: the same rows and columns. `input` and `output` become the JSON text `"(redacted)"`, `error` and `last_error` a
    JSON object with the error's class as `type` and a redacted `message`; null stays null.
    Raises: InvalidOptionError if there is no `type_name`.
    """
    patterns = patterns_in(os.environ.get(VARIABLE, "")) if types is None else list(types)
    if "type_name" not in frame.columns:
        raise InvalidOptionError("frame", "must have the column 'type_name', the job type of each payload")
    if not patterns:
        return frame
    whole = "|".join(re.sub(r"\\[zZ]$", "", translate(pattern)) for pattern in patterns)
    hidden = sf.coalesce(sf.col("type_name").rlike(rf"^(?:{whole})\z"), sf.lit(True))
    replacements: dict[str, Column] = dict.fromkeys(PAYLOADS & set(frame.columns), sf.lit(f'"{REDACTED}"'))
    for name in ERRORS & set(frame.columns):
        kind = sf.get_json_object(sf.col(name), "$.type")
        replacements[name] = sf.to_json(sf.struct(kind.alias("type"), sf.lit(REDACTED).alias("message")))
    return frame.withColumns(
        {
            name: sf.when(sf.col(name).isNotNull() & hidden, stands).otherwise(sf.col(name))
            for name, stands in replacements.items()
        }
    )
