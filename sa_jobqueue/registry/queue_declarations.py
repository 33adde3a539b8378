"""What a `JobQueue` has for queues: declared beside the handlers that use them, for `sync_queues` to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import TypeVar

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.policies.retention import NOTHING_SAID, Retention
from sa_jobqueue.policies.retry import Backoff
from sa_jobqueue.registry.selectors import Choose, Selector
from sa_jobqueue.registry.settings import QueueSettings

ChooseT = TypeVar("ChooseT", bound=Choose)


class Queueing:
    """Declares queues. Nothing is written until `sync_queues` is called."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[str, QueueSettings] = {}
        self._selectors: dict[str, Selector] = {}

    @property
    def declared_queues(self) -> tuple[QueueSettings, ...]:
        """What is declared here, for `sync_queues`."""
        return tuple(self._queues.values())

    def queue(
        self,
        name: str,
        *,
        weight: int = 1,
        concurrency_per_key: int | None = None,
        global_concurrency: int | None = None,
        rate_limit: int | None = None,
        rate_period: timedelta | None = None,
        rate_burst: int | None = None,
        rate_algorithm: RateAlgorithm | str | None = None,
        retry: Backoff | None = None,
        retention: Retention = NOTHING_SAID,
    ) -> QueueSettings:
        """Declare a queue's settings; `sa-jobqueue queues sync` and `sync_queues` write them to its row.

        A queue need not be declared: by default it has a weight of 1, and no limits. The options are as of `QueueSettings`.
        Raises: InvalidOptionError naming the field, or a name that is declared already. Nothing is declared then.
        """
        if name in self._queues:
            raise InvalidOptionError("name", f"{name!r} is declared already: a name is one queue")
        declared = QueueSettings(
            name=name,
            weight=weight,
            concurrency_per_key=concurrency_per_key,
            global_concurrency=global_concurrency,
            rate_limit=rate_limit,
            rate_period=rate_period,
            rate_burst=rate_burst,
            rate_algorithm=rate_algorithm,
            retry=retry,
            retention=retention,
        )
        self._queues[name] = declared
        return declared

    @property
    def selectors(self) -> Mapping[str, Selector]:
        """The functions that decide what of a queue starts next, by its name."""
        return MappingProxyType(self._selectors)

    def selector(
        self,
        queue: str,
        *,
        window: int = 100,
        timeout: timedelta = timedelta(seconds=1),
        max_wait: timedelta | None = None,
        inputs: bool = False,
    ) -> Callable[[ChooseT], ChooseT]:
        """Register a function that decides which due jobs of a queue a worker starts next, in place of the ordinary order.

        Called as `choose(candidates, free)` before each claim: a list of `Candidate`, in the ordinary order, and the number
        of slots to fill. Returns those to start, best first; more than `free` are welcome, what it leaves out waits. Sync
        functions run in a thread; the worker claims nothing meanwhile. It may be called by many workers at once, and two may
        choose the same jobs: each job is started once. Limits, pauses and the order of a key hold whatever it says.
        `window`: how many candidates it sees at most, 1 to 1,000. `timeout`: how long it may take, 1 ms to 1 min.
        `max_wait`: a candidate that one worker has offered for so long is started before those it names; without it,
        what it never names never starts. `inputs`: whether it needs payloads, which are read for each candidate then.
        One that raises, takes too long or answers with something else is told of as `SelectorFailed`, and the jobs start in
        the ordinary order until it answers again.
        Raises: InvalidOptionError naming the field, or a queue that has one already.
        """

        def register(choose: ChooseT) -> ChooseT:
            declared = Selector(
                queue=queue,
                choose=choose,
                window=window,
                timeout=timeout,
                max_wait=max_wait,
                inputs=inputs,
            )
            if queue in self._selectors:
                raise InvalidOptionError("queue", f"{queue!r} has a selector already: {self._selectors[queue].name}")
            self._selectors[queue] = declared
            return choose

        return register

    def _check_queues(self, other: Queueing) -> None:
        twice = self._queues.keys() & other._queues.keys()
        if twice:
            raise InvalidOptionError("other", f"declares the queue {min(twice)!r}, which is declared here already")
        twice = self._selectors.keys() & other._selectors.keys()
        if twice:
            raise InvalidOptionError("other", f"has a selector of the queue {min(twice)!r}, which has one here already")
