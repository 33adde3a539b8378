"""Messages between a worker and its children: frames of JSON on a socket, and values that JSON cannot represent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

from sa_jobqueue.context import ClaimedJob

Message = dict[str, Any]
"""One frame. Its `is` names its kind."""

HEAD: Final = 4
"""Bytes before each frame: its length, big end first."""
MAX_FRAME: Final = 16 * 2**20
"""Bytes that a child may send in one message. The text of an output of 1 MiB has twice that at most."""


def frame(message: Message) -> bytes:
    """Return a message as it is sent."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(HEAD, "big") + body


def length(head: bytes) -> int:
    """Return how many bytes follow."""
    return int.from_bytes(head, "big")


def parsed(body: bytes) -> Message:
    """Return a frame's message. Raises: ValueError if it is invalid."""
    message = json.loads(body)
    if not isinstance(message, dict) or not isinstance(message.get("is"), str):
        raise ValueError("the frame is not a message")
    return message


def packed(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return columns as JSON, each with its kind beside it. Raises: TypeError naming the one that is of no kind we know."""
    return {name: _pack(name, value) for name, value in values.items()}


def unpacked(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return columns as they were. Raises: KeyError, TypeError, ValueError when these were not made by `packed`."""
    return {name: _UNPACK[kind](value) for name, (kind, value) in values.items()}


def packed_job(job: ClaimedJob) -> dict[str, list[Any]]:
    """Return a claimed job as JSON."""
    return packed(job._asdict())


def unpacked_job(values: Mapping[str, Any]) -> ClaimedJob:
    """Return a claimed job as it was."""
    return ClaimedJob(**unpacked(values))


_UNPACK: Final[dict[str, Any]] = {
    "json": lambda value: value,
    "uuid": UUID,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "seconds": lambda value: timedelta(days=value[0], seconds=value[1], microseconds=value[2]),
    "decimal": Decimal,
}


def _pack(name: str, value: Any) -> list[Any]:
    match value:
        case UUID():
            return ["uuid", str(value)]
        case datetime():
            return ["datetime", value.isoformat()]
        case date():
            return ["date", value.isoformat()]
        case timedelta():
            return ["seconds", [value.days, value.seconds, value.microseconds]]
        case Decimal():
            return ["decimal", str(value)]
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} cannot be carried between processes: {error}") from None
    return ["json", value]
