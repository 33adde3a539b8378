"""What a `JobQueue` has for queues: declared beside the handlers that use them, for `sync_queues` to write."""

from __future__ import annotations

from datetime import timedelta

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.queues import QueueSettings
from sa_jobqueue.rates import RateAlgorithm
from sa_jobqueue.retention import NOTHING_SAID, Retention


class Queueing:
    """Declares queues. Nothing is written before somebody synchronises them."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, QueueSettings] = {}

    @property
    def declared_queues(self) -> tuple[QueueSettings, ...]:
        """What is declared here, for `sync_queues`."""
        return tuple(self._queues.values())

    def queue(
        self,
        name: str,
        *,
        weight: int = 1,
        key_max_running: int | None = None,
        max_running: int | None = None,
        rate_limit: int | None = None,
        rate_period: timedelta | None = None,
        rate_burst: int | None = None,
        rate_algorithm: RateAlgorithm | str | None = None,
        retention: Retention = NOTHING_SAID,
    ) -> QueueSettings:
        """Declare what a queue's row is to say; `sa-jobqueue queues sync` and `sync_queues` make it say so.

        A queue that nobody declares is as good: it has a weight of 1, and no limits. The options are as of `QueueSettings`.
        Raises: InvalidOptionError naming the field, or a name that is declared already. Nothing is declared then.
        """
        if name in self._queues:
            raise InvalidOptionError("name", f"{name!r} is declared already: a name is one queue")
        declared = QueueSettings(
            name=name,
            weight=weight,
            key_max_running=key_max_running,
            max_running=max_running,
            rate_limit=rate_limit,
            rate_period=rate_period,
            rate_burst=rate_burst,
            rate_algorithm=rate_algorithm,
            retention=retention,
        )
        self._queues[name] = declared
        return declared

    def _check_queues(self, other: Queueing) -> None:
        twice = self._queues.keys() & other._queues.keys()
        if twice:
            raise InvalidOptionError("other", f"declares the queue {min(twice)!r}, which is declared here already")
