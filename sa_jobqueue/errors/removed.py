"""Options that people look for and that do not exist, each with its replacement. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sa_jobqueue.errors.base import InvalidOptionError
from sa_jobqueue.errors.bounds import Refuse

REMOVED: Final[Mapping[str, str]] = {
    "skip_while_retrying": "is no option: a job that waits for a retry holds its ordering key. Set max_attempts, or a retry"
    " policy that gives up: a dead job releases its key",
    "rate_algorithm": "is no option: every rate is a token bucket, which starts at most rate_limit and rate_burst"
    " together in any rate_period. For at most N in any period, set rate_limit to N - 1 and rate_burst to 1",
}
"""What replaces each of them, as the reason of an error."""


def refuse_removed(names: Iterable[str], *, refuse: Refuse = InvalidOptionError) -> None:
    """Refuse the first of the options `names` that was removed, with its replacement."""
    for name in names:
        if name in REMOVED:
            raise refuse(name, REMOVED[name])
