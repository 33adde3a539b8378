"""Waiting for the ends of chains: what to ask, and when, for synchronous and asynchronous callers."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy
from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from sa_jobqueue.errors import (
    ChainFailedError,
    ChainTimeoutError,
    InvalidOptionError,
    JobQueueError,
    NotFoundError,
    not_chains,
)
from sa_jobqueue.errors.bounds import check_duration
from sa_jobqueue.models import ChainMixin, Job, JobClass, JobMixin
from sa_jobqueue.payloads import Codec, opened
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_types import Registry
from sa_jobqueue.statements import jobs, progress, waiting
from sa_jobqueue.types import ChainResult, JobId, JobStatus, Progress

_LOCKED_SECONDS: Final = 0.05
"""The first pause before a locked root is marked again; doubled each time. The transaction that locked it probably ended the
chain, and sent no notification."""

_LEAST_SECONDS: Final = 0.05
"""The pause between two polls after the first: any role that may connect can send notifications, as often as it likes."""

_BATCH: Final = 1000
"""Chains that one statement reads or marks."""

_CHAIN: Final = ("id", "chain_id", "chain_completed_at", "has_waiters")

_NOT_THERE: Final = "the transaction that enqueues it has not committed yet, or it was deleted"

_log = logging.getLogger("sa_jobqueue.waiting")


ChainOrId: TypeAlias = JobId | JobMixin[Any] | ChainMixin[Any]


Answer: TypeAlias = Sequence[Row[Any]] | DBAPIError | OSError


class Access(ABC):
    """How a wait reaches the database: from a thread, which it blocks, or on an event loop."""

    @abstractmethod
    async def ask(self, statement: Executable, parameters: dict[str, Any]) -> Answer:
        """Run a statement in its own transaction; return its rows, or the error of an outage."""

    @abstractmethod
    async def listen(self, payloads: frozenset[str]) -> None:
        """Listen for the ends of chains, if possible."""

    @abstractmethod
    async def rest(self, seconds: float, least: float) -> None:
        """Pause for a time, or until an end that is listened for is notified, but at least for `least` seconds."""


@dataclass(slots=True)
class _Look:
    """What one look at the chains that are waited for returned."""

    ended_ids: list[JobId] = field(default_factory=list)
    lost_ids: set[JobId] = field(default_factory=set)
    """Chains that have no row any more."""
    marked_ids: set[JobId] = field(default_factory=set)
    is_locked: bool = False
    """Another transaction has locked the root of an open chain, so that it could not be marked."""
    outage: Exception | None = None
    """The last error of an outage: chains that it hides are looked at again."""

    def rows_of(self, answer: Answer) -> Sequence[Row[Any]] | None:
        """Return the rows of an answer, or None after an outage. Raises: any other error."""
        if isinstance(answer, Exception):
            _pass_over(answer)
            self.outage = answer
            return None
        return answer


class Wait:
    """One wait for chains, which yields their results.

    `field`: what errors call the chains. `on_progress`: called with the progress of the chain, if there is only one.
    """

    def __init__(
        self,
        chains: Iterable[Any],
        *,
        timeout: timedelta,
        poll_interval: timedelta,
        listen: bool,
        output: Any,
        model: JobClass | None,
        field: str = "chains",
        on_progress: Callable[[Progress], object] | None = None,
    ) -> None:
        check_duration("timeout", timeout)
        check_duration("poll_interval", poll_interval)
        chain_list = list(chains)
        self._field, self._on_progress = field, on_progress
        self._reported: tuple[Any, Progress] | None = None
        self._model = model or (_model_of(chain_list[0]) if chain_list else Job)
        self._is_chain_by_id = dict(_identity(chain, self._model) for chain in chain_list)
        self._timeout, self._poll_seconds, self._listen = timeout, poll_interval.total_seconds(), listen
        self._output = _Output(output)
        self.channel = self._model.__jobqueue__.channel("ended")

    async def results(self, access: Access) -> AsyncGenerator[ChainResult[Any], None]:
        """Yield each result, and raise, as `wait_chains`. `access`: an open one."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        open_ids, unmarked_ids = await self._chain_ids(access)
        errors: list[Exception] = []
        if unmarked_ids and self._listen:
            await access.listen(frozenset(map(str, unmarked_ids)))
        locked_seconds, least = _LOCKED_SECONDS, 0.0
        while open_ids:
            began = time.monotonic()
            look = await self._look(access, open_ids, unmarked_ids)
            unmarked_ids -= look.marked_ids
            if look.lost_ids:
                lost = sorted(look.lost_ids, key=str)
                errors.append(NotFoundError("chain", lost, field=self._field, reason="deleted while waited for"))
            open_ids -= look.lost_ids
            for ids in _batches(look.ended_ids):
                rows = look.rows_of(await access.ask(waiting.chain_results(self._model), {"chain_ids": ids}))
                for row in rows or ():
                    open_ids -= {row.id}
                    try:
                        result = self._output.of(row)
                    except JobQueueError as error:
                        errors.append(error)
                    else:
                        yield result
            if not open_ids:
                break
            seconds_left = deadline - time.monotonic()
            if seconds_left <= 0:
                more_chains = len(open_ids) - 1
                raise ChainTimeoutError(min(open_ids, key=str), self._timeout, more_chains=more_chains) from look.outage
            if look.outage is None:
                await self._report(access, open_ids)
            pause = self._poll_seconds
            if look.is_locked and look.outage is None:
                pause, locked_seconds = min(pause, locked_seconds), locked_seconds * 2
            await access.rest(min(seconds_left, pause), min(seconds_left, least))
            # Many chains are not looked at for more than a fifth of the time, however often one of them ends.
            least = max(_LEAST_SECONDS, min(4 * (time.monotonic() - began), self._poll_seconds))
        if errors:
            raise errors[0]

    async def _look(self, access: Access, open_ids: Iterable[JobId], unmarked_ids: frozenset[JobId]) -> _Look:
        """Mark the chains as waited for, and read which of them have ended."""
        look = _Look()
        for ids in _batches(open_ids):
            if to_mark := [chain_id for chain_id in ids if chain_id in unmarked_ids]:
                look.rows_of(await access.ask(waiting.mark_awaited(self._model), {"awaited_ids": to_mark}))
            chain_rows = look.rows_of(await access.ask(jobs.named(self._model, _CHAIN), {"ids": ids}))
            if chain_rows is None:
                continue
            look.lost_ids |= set(ids) - {row.id for row in chain_rows}
            for row in chain_rows:
                if row.chain_completed_at is not None:
                    look.ended_ids.append(row.id)
                elif row.has_waiters:
                    look.marked_ids.add(row.id)
                else:
                    look.is_locked = True
        return look

    async def _report(self, access: Access, chain_ids: Iterable[JobId]) -> None:
        """Call `on_progress` if the running job of a chain has reported progress. Outages are logged elsewhere."""
        if self._on_progress is None:
            return
        chains = await access.ask(waiting.chain_results(self._model), {"chain_ids": list(chain_ids)})
        if not chains or isinstance(chains, Exception):
            return
        job_id = chains[0].last_job_id
        rows = await access.ask(progress.of_job(self._model), {"job_id": job_id})
        report = None if not rows or isinstance(rows, Exception) else progress.read(rows[0])
        if report is None:
            return
        # Each heartbeat writes the same report again.
        if self._reported is None or (job_id, replace(report, as_of=self._reported[1].as_of)) != self._reported:
            self._reported = job_id, report
            self._on_progress(report)

    async def _chain_ids(self, access: Access) -> tuple[frozenset[JobId], frozenset[JobId]]:
        """Return the ids of the chains, and of those that may be open.

        Raises: NotFoundError that name all that are wrong.
        """
        chain_of: dict[JobId, JobId] = {}
        ended: set[JobId] = set()
        for ids in _batches(self._is_chain_by_id):
            chain_rows = await access.ask(jobs.named(self._model, _CHAIN), {"ids": ids})
            if isinstance(chain_rows, Exception):
                raise chain_rows
            chain_of |= {row.id: row.chain_id for row in chain_rows}
            ended |= {row.id for row in chain_rows if row.chain_completed_at is not None}
        if missing := [job_id for job_id in self._is_chain_by_id if job_id not in chain_of]:
            raise NotFoundError("chain", missing, field=self._field, reason=_NOT_THERE)
        wrong = {
            job_id: chain_of[job_id]
            for job_id, is_chain in self._is_chain_by_id.items()
            if is_chain and chain_of[job_id] != job_id
        }
        if wrong:
            raise not_chains(wrong, field=self._field)
        chain_ids = frozenset(chain_of.values())
        return chain_ids, chain_ids - ended


def completed(result: ChainResult[Any]) -> ChainResult[Any]:
    """Return a result. Raises: ChainFailedError if the chain has not completed."""
    if result.status is not JobStatus.COMPLETED:
        raise ChainFailedError(result)
    return result


def check_engine(engine: object, kind: type[object], function: str) -> None:
    """Check an engine. `other`: the function for engines of the other kind."""
    if not isinstance(engine, kind):
        raise InvalidOptionError(
            "engine", f"must be an {kind.__name__}, got a {type(engine).__name__}: use sa_jobqueue.{function}"
        )


class _Output:
    """Makes results of rows, with the output as the type that the caller gave, or that of a handler."""

    def __init__(self, output: Any) -> None:
        self._codec: Codec[Any] | None = None
        self._handler: Handler[Any, Any, Any] | None = output if isinstance(output, Handler) else None
        if output is not None and self._handler is None:
            try:
                self._codec = Codec(output)
            except Exception as error:  # any error that Pydantic raises for a type it does not support
                raise InvalidOptionError("output", f"no output can be typed as {output!r}: {error}") from error

    def of(self, row: Row[Any]) -> ChainResult[Any]:
        fields = row._asdict()
        del fields["has_waiters"]
        if row.status is JobStatus.COMPLETED and self._handler is not None:
            fields["output"] = self._handler.decode_output(row.id, row.type_name, row.last_type_name, row.output)
        elif row.status is JobStatus.COMPLETED and self._codec is not None:
            fields["output"] = self._codec.decode("output", opened("output", row.output, Registry().find_codec))
        return ChainResult(**fields)


def _batches(ids: Iterable[JobId]) -> Iterator[list[JobId]]:
    every = list(ids)
    for start in range(0, len(every), _BATCH):
        yield every[start : start + _BATCH]


def _model_of(chain: Any) -> JobClass:
    return type(chain) if isinstance(chain, JobMixin) else getattr(chain, "__job__", Job)


def _identity(chain: Any, model: JobClass) -> tuple[JobId, bool]:
    """Return an id, and whether it is the chain's or only a job's. Loads nothing, because the session may be closed."""
    layout = model.__jobqueue__
    if isinstance(chain, (JobMixin, ChainMixin)):
        if chain.__jobqueue__ != layout:
            raise InvalidOptionError("model", f"is {model.__name__}, but the chain given is of another queue")
        state: Any = sqlalchemy.inspect(chain)
        key = "chain_id" if isinstance(chain, JobMixin) else "id"
        if key in state.dict:
            return state.dict[key], True
        return state.identity[0], isinstance(chain, ChainMixin)
    kind = str if layout.id_type == "text" else UUID
    if not isinstance(chain, kind):
        raise InvalidOptionError("chain", f"must be a chain, a job or an id of type {kind.__name__}, got {chain!r}")
    return chain, True


def _pass_over(failure: Exception) -> None:
    """Ignore an outage of the database, to poll again later. Raises: any other error."""
    if not isinstance(failure, (OperationalError, InterfaceError, OSError)):
        raise failure
    reason = str(getattr(failure, "orig", None) or failure).partition("\n")[0]
    _log.warning("cannot look at a chain that is waited for, for now: %s", reason)
