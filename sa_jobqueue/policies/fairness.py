"""Fairness keys: customers that share a queue, so that one customer's backlog does not delay the others. Pure.

A job of the queue `mail` with the fairness key `42` is in `mail/42`, a **part** of that queue: the value of `job.queue`, and
the name for limits and pauses of that customer alone. A worker that serves a queue serves its parts. A queue without keys
has none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from sa_jobqueue.errors import InvalidJobError, InvalidOptionError

SEPARATOR: Final = "/"
_KEY: Final = re.compile(r"[A-Za-z0-9_.:/-]+")
_LONGEST: Final = 100
"""Characters of a queue's name, its key among them."""

FairnessBy: TypeAlias = "str | Callable[[Any], str | int | None]"
"""How to get the fairness key of a payload: the path of a field, or a function of the payload; None for no key."""


def whole(queue: str) -> str:
    """Return the queue that a part is of; a queue that is no part is its own."""
    return queue.partition(SEPARATOR)[0]


def fairness_key_of(queue: str) -> str | None:
    """Return the fairness key of a part; None for a whole queue."""
    _, is_part, key = queue.partition(SEPARATOR)
    return key if is_part else None


def part(queue: str, key: str | int) -> str:
    """Return where the jobs of a key lie. Raises: InvalidJobError."""
    if SEPARATOR in queue:
        raise InvalidJobError("fairness_key", f"{queue!r} is a part with a key already; give the queue {whole(queue)!r}")
    text = str(key) if isinstance(key, (str, int)) and not isinstance(key, bool) else ""
    if not _KEY.fullmatch(text) or len(queue) + 1 + len(text) > _LONGEST:
        raise InvalidJobError(
            "fairness_key",
            f"must be 1 to {_LONGEST - 1 - len(queue)} letters, digits and _.:/-, such as an id of the customer or a hash"
            f" of it, got {key!r}",
        )
    return f"{queue}{SEPARATOR}{text}"


def key_of(fairness_by: FairnessBy, payload: Any, document: Any) -> str | int | None:
    """Return the key of a payload, which as JSON is `document`. Raises: InvalidJobError for a field that is not there."""
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
    """Check where a handler finds the key. Raises: InvalidOptionError."""
    if (
        fairness_by is not None
        and not callable(fairness_by)
        and not (isinstance(fairness_by, str) and all(fairness_by.split(".")))
    ):
        raise InvalidOptionError(
            "fairness_by",
            f"must be the path of a field such as 'tenant_id', or a function of the payload, got {fairness_by!r}",
        )


def check_whole(field: str, queue: object) -> None:
    """Refuse a part where a queue is meant. Raises: InvalidOptionError."""
    if isinstance(queue, str) and SEPARATOR in queue:
        raise InvalidOptionError(
            field,
            f"{queue!r} is a part of {whole(queue)!r}: what follows '/' is a fairness_key; name {whole(queue)!r}",
        )
