"""Payload codecs: how the inputs and outputs of a job type are stored, for encryption and compression."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from sa_jobqueue.errors import InvalidPayloadError
from sa_jobqueue.payloads import CODEC_MARK as MARK
from sa_jobqueue.payloads import MAX_BYTES, Document, check_json, escaped, in_utf8
from sa_jobqueue.types import Json


class PayloadCodec(Protocol):
    """Encodes the inputs and outputs of a job type: an object with a name and two functions, each other's inverse.

    It must be quick and thread-safe.
    """

    @property
    def name(self) -> str:
        """Name stored with each payload. Keep it as long as there are jobs that this codec encoded."""

    def encode(self, data: bytes, /) -> Json:
        """Return the JSON value to store for a payload. `data`: its JSON text in UTF-8."""

    def decode(self, stored: Json, /) -> bytes:
        """Return the JSON text of a `stored` value that `encode` returned, in this or an earlier release.

        If it raises, the job dies.
        """


def sealed(field: str, document: Document, codec: PayloadCodec | None) -> Document:
    """Return a payload as it is stored, encoded by its codec. Null is not encoded.

    Raises: InvalidPayloadError if the codec fails or returns something else than JSON; PayloadTooLargeError.
    """
    if codec is None or document.value is None:
        if MARK not in document.text:
            return document
        kept = escaped(document.value)
        return Document(kept, json.dumps(kept))
    try:
        data = codec.encode(in_utf8(document.value, document.text))
    except Exception as error:  # of the application's own code
        reason = f"cannot be encoded by the codec {codec.name!r}: {type(error).__name__}: {error}"
        raise InvalidPayloadError(field, reason) from error
    stored: dict[str, Any] = {MARK: codec.name, "data": data}
    return Document(stored, check_json(field, stored))


def opened(field: str, stored: Json, find: Callable[[object], PayloadCodec | None]) -> Json:
    """Return a stored payload, decoded by the codec that encoded it, if any. `find`: returns a codec by its name.

    Raises: InvalidPayloadError if its codec fails or is not registered.
    """
    if not isinstance(stored, dict) or stored.keys() != {MARK, "data"}:
        return stored
    if stored[MARK] is None:
        return stored["data"]
    codec = find(stored[MARK])
    if codec is None:
        raise InvalidPayloadError(
            field,
            f"is encoded by the codec {stored[MARK]!r}, which is not known here: read it with a handler of a JobQueue "
            "in which a handler has it",
        )
    try:
        text = codec.decode(stored["data"])
        if len(text) > MAX_BYTES:
            raise ValueError(f"{len(text):,} bytes, more than the {MAX_BYTES:,} of a payload")
        return json.loads(text)
    except Exception as error:  # of the application's own code, or invalid JSON
        reason = f"cannot be decoded by the codec {codec.name!r}: {type(error).__name__}: {error}"
        raise InvalidPayloadError(field, reason) from error
