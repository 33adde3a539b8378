"""Payloads of some types left out of DataFrames, whatever they were read from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.redaction import REDACTED, VARIABLE, is_redacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)  # the first test to ask for Spark starts it
CARD = "4111 1111"
TYPES = ("charge", "charges", "pay.out", "payXout", "charge\n", "mail", None)


@pytest.mark.parametrize("patterns", ["charge,pay.*", "*", ""])
def test_rows_are_shown_as_the_command_line_shows_them(
    plainly: SparkSession, patterns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sa_jobqueue.spark import redacted

    monkeypatch.setenv(VARIABLE, patterns)
    error = json.dumps({"type": "Declined", "message": CARD, "traceback": CARD, "log": [CARD]})
    rows = [(kind, json.dumps(CARD), None, error) for kind in TYPES]
    frame = plainly.createDataFrame(rows, "type_name string, input string, output string, last_error string")
    found = {row.type_name: row for row in redacted(frame).collect()}
    for kind in TYPES:
        hidden = is_redacted(kind) or (kind is None and patterns != "")
        assert found[kind].input == json.dumps(REDACTED if hidden else CARD), kind
        assert found[kind].output is None
        told = json.loads(found[kind].last_error)
        assert told == ({"type": "Declined", "message": REDACTED} if hidden else json.loads(error))
    with pytest.raises(InvalidOptionError, match="type_name"):
        redacted(frame.drop("type_name"))
    if patterns:
        assert redacted(frame, types=["mail"]).where("input LIKE '%4111%'").count() == len(TYPES) - 2
