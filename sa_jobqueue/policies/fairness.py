"""Fairness keys: tenants that share a queue, so that the backlog of one does not delay the others. Pure.

Each fairness key has its own lanes, limits and pauses. `job` and `queue` store the key in a column next to the queue's
name. In a worker's memory and in notifications, both are one text, the **queue key**: see `queue_key_of`. A worker that
serves a queue serves all its fairness keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError

SEPARATOR: Final = "\x1f"
"""Between queue and fairness key in a queue key: no queue that is served has it in its name."""
ANY_QUEUE: Final = ""
"""The queue key of a notification about a job whose queue the database decides: no queue has this name."""
LONGEST_KEY: Final = 100
"""Characters of a fairness key."""

FairnessBy: TypeAlias = "str | Callable[[Any], str | int | None]"
"""How to get the fairness key of a payload: the path of a field, or a function of the payload; None for no key."""


def queue_key_of(queue: str, fairness_key: str) -> str:
    """Return the queue and the fairness key as one text; without a key, the queue."""
    return f"{queue}{SEPARATOR}{fairness_key}" if fairness_key else queue


def split(queue_key: str) -> tuple[str, str]:
    """Return the queue and the fairness key of a queue key; the fairness key is empty for a queue."""
    queue, _, key = queue_key.partition(SEPARATOR)
    return queue, key


def queue_of(queue_key: str) -> str:
    """Return the queue of a queue key."""
    return queue_key.partition(SEPARATOR)[0]


def label_of(queue_key: str) -> str:
    """Return the name of a queue key for display."""
    queue, key = split(queue_key)
    return f"{queue} (fairness key {key!r})" if key else queue


def named(queue_key: str) -> str:
    """Return the kind and name of a queue key for a sentence."""
    queue, key = split(queue_key)
    return f"fairness key {key!r} of queue {queue!r}" if key else f"queue {queue!r}"


def as_arguments(queue_key: str) -> str:
    """Return a queue key as arguments of `sa-jobqueue queues`."""
    queue, key = split(queue_key)
    return f"{queue} --fairness-key {shlex.quote(key)}" if key else queue


def byte_length(text: str) -> int:
    """Return the bytes of a text in the database, 0 for one with a lone surrogate, which it cannot store."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def is_fairness_key(key: object) -> bool:
    """Return whether a text can be a fairness key: at most 100 characters; empty means no key."""
    return isinstance(key, str) and len(key) <= LONGEST_KEY and "\0" not in key and byte_length(key) >= len(key)


def check_fairness_key(key: object) -> str:
    """Return a key as it is stored; None is stored as the empty text. Raises: InvalidJobError."""
    if key is None:
        return ""
    text = str(key) if isinstance(key, int) and not isinstance(key, bool) else key
    if not isinstance(text, str) or not is_fairness_key(text):
        raise InvalidJobError(
            "fairness_key",
            f"must be text of at most {LONGEST_KEY} characters without NUL and lone surrogates, or a whole number, such as a"
            f" customer's id, got {key!r}",
        )
    return text


def key_of(fairness_by: FairnessBy, payload: Any, document: Any) -> str | int | None:
    """Return the fairness key of a payload, given also as JSON. Raises: InvalidJobError for a missing field."""
    if not isinstance(fairness_by, str):
        return fairness_by(payload)
    found = document
    for name in fairness_by.split("."):
        if not isinstance(found, dict) or name not in found:
            raise InvalidJobError(
                "fairness_key", f"the payload has no field {fairness_by!r}, which fairness_by names; give fairness_key"
            )
        found = found[name]
    if found is not None and (isinstance(found, bool) or not isinstance(found, (str, int))):
        raise InvalidJobError("fairness_key", f"the payload's {fairness_by!r} must be text or a whole number, got {found!r}")
    return found


def check_fairness_by(fairness_by: Any) -> None:
    """Check the `fairness_by` option of a handler. Raises: InvalidOptionError."""
    if (
        fairness_by is not None
        and not callable(fairness_by)
        and not (isinstance(fairness_by, str) and all(fairness_by.split(".")))
    ):
        raise InvalidOptionError(
            "fairness_by",
            f"must be the path of a field such as 'tenant_id', or a function of the payload, got {fairness_by!r}",
        )
