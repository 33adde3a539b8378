"""Fairness keys: tenants that share a queue, so that the backlog of one does not delay the others. Pure.

Each fairness key has its own lanes, limits and pauses. `job` and `queue` store the key in a column next to the queue's
name; together they are a `QueueKey`. A worker that serves a queue serves all its fairness keys.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError
from sa_jobqueue.errors.bounds import shown

SEPARATOR: Final = "\x1f"
"""Between queue and fairness key in a notification: no queue that is served has it in its name."""
ANY_QUEUE: Final = ""
"""The payload of a notification about a job whose queue the database decides: no queue has this name."""
LONGEST_KEY: Final = 100
"""Characters of a fairness key."""

FairnessBy: TypeAlias = "str | Callable[[Any], str | int | None]"
"""How to get the fairness key of a payload: the path of a field, or a function of the payload; None for no key."""


class QueueKey(NamedTuple):
    """A queue, or a fairness key of one. A job type has settings too: its name takes the place of the queue's."""

    queue: str
    fairness_key: str = ""

    @property
    def label(self) -> str:
        """Its name for display."""
        return f"{self.queue} (fairness key {self.fairness_key!r})" if self.fairness_key else self.queue

    @property
    def named(self) -> str:
        """Its kind and name for a sentence."""
        return (
            f"fairness key {self.fairness_key!r} of queue {self.queue!r}" if self.fairness_key else f"queue {self.queue!r}"
        )

    @property
    def arguments(self) -> str:
        """Its name as arguments of `sa-jobqueue queues`."""
        return f"{self.queue} --fairness-key {shlex.quote(self.fairness_key)}" if self.fairness_key else self.queue

    @property
    def text(self) -> str:
        """The payload of a notification that it may have due jobs. A queue's name may have no `SEPARATOR`."""
        return f"{self.queue}{SEPARATOR}{self.fairness_key}" if self.fairness_key else self.queue

    @classmethod
    def of_text(cls, text: str) -> QueueKey:
        """Return the queue key of such a payload."""
        queue, _, fairness_key = text.partition(SEPARATOR)
        return cls(queue, fairness_key)


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
            f" customer's id, got {shown(key)}",
        )
    return text


def key_of(fairness_by: FairnessBy, payload: Any, document: Any) -> str | int | None:
    """Return the fairness key of a payload, given also as JSON. Raises: InvalidJobError for a missing field."""
    if not isinstance(fairness_by, str):
        return fairness_by(payload)
    field_value = document
    for name in fairness_by.split("."):
        if not isinstance(field_value, dict) or name not in field_value:
            raise InvalidJobError(
                "fairness_key", f"the payload has no field {fairness_by!r}, which fairness_by names; give fairness_key"
            )
        field_value = field_value[name]
    if field_value is not None and (isinstance(field_value, bool) or not isinstance(field_value, (str, int))):
        raise InvalidJobError(
            "fairness_key", f"the payload's {fairness_by!r} must be text or a whole number, got {field_value!r}"
        )
    return field_value


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
