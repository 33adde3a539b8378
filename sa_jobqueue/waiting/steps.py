"""The steps of waiting for a chain's end, without I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias
from uuid import UUID

import sqlalchemy
from sqlalchemy import Executable, Row
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from sa_jobqueue.errors import (
    ChainFailedError,
    ChainNotFoundError,
    ChainTimeoutError,
    InvalidOptionError,
    NotAChainError,
)
from sa_jobqueue.models import ChainMixin, Job, JobMixin
from sa_jobqueue.payloads import Codec
from sa_jobqueue.registry.codecs import Codecs, opened
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.statements import progress, waiting
from sa_jobqueue.types import LONGEST, ChainResult, JobId, JobStatus, Progress

_HELD_SECONDS: Final = 0.05
"""The first pause before a locked root is marked again; doubled each time. The transaction that held it probably ended the
chain, and sent no notification."""

_LEAST_SECONDS: Final = 0.05
"""The pause between two polls after the first: any role that may connect can send notifications, as often as it likes."""

_log = logging.getLogger("sa_jobqueue.waiting")


ChainOrId: TypeAlias = JobId | JobMixin[Any] | ChainMixin[Any]


@dataclass(frozen=True, slots=True)
class Ask:
    """Run a statement in its own transaction. The result is its row, or the error."""

    statement: Executable
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Listen:
    """Listen for a chain's end, if possible."""

    payload: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Pause for this time, or until the chain's end is notified, but at least for `least` seconds."""

    seconds: float
    least: float = 0.0


Answer: TypeAlias = Row[Any] | DBAPIError | OSError | None


class Wait:
    """One wait and its steps."""

    def __init__(
        self,
        chain: Any,
        *,
        timeout: timedelta,
        poll_interval: timedelta,
        listen: bool,
        output: Any,
        model: type[JobMixin[Any]] | None,
        on_progress: Callable[[Progress], object] | None = None,
    ) -> None:
        for option, given in (("timeout", timeout), ("poll_interval", poll_interval)):
            if not isinstance(given, timedelta) or not timedelta(0) < given <= LONGEST:
                raise InvalidOptionError(
                    option, f"must be a timedelta above zero and at most {LONGEST.days} days, got {given!r}"
                )
        self._model = model or _model_of(chain)
        self._job_id, self._is_chain_id = _identity(chain, self._model)
        self._timeout, self._poll_seconds, self._listen = timeout, poll_interval.total_seconds(), listen
        self._codec: Codec[Any] | None = None
        self._handler: Handler[Any, Any, Any] | None = output if isinstance(output, Handler) else None
        if output is not None and self._handler is None:
            try:
                self._codec = Codec(output)
            except Exception as error:  # any error that Pydantic raises for a type it does not support
                raise InvalidOptionError("output", f"no output can be typed as {output!r}: {error}") from error
        self._on_progress = on_progress
        self._reported: tuple[Any, Progress] | None = None
        self.channel = self._model.__jobqueue__.channel("ended")

    def steps(self) -> Generator[Ask | Listen | Rest, Answer, ChainResult[Any]]:
        """Yield the next step and receive its result; return the result of the wait, or raise as `wait_chain`."""
        deadline = time.monotonic() + self._timeout.total_seconds()
        seen = yield self._ask_state(self._job_id)
        if isinstance(seen, Exception):
            raise seen
        if seen is None:
            reason = "the transaction that enqueues it has not committed yet, or it was deleted"
            raise ChainNotFoundError([self._job_id], field="chain", reason=reason)
        if self._is_chain_id and seen.id != self._job_id:
            raise NotAChainError({self._job_id: seen.id}, field="chain")
        chain = seen
        if chain.completed_at is None and self._listen:
            yield Listen(str(chain.id))
        held_seconds, least = _HELD_SECONDS, 0.0
        while chain.completed_at is None:
            noted: Answer = None
            if not chain.has_waiters:
                noted = yield Ask(waiting.mark_awaited(self._model), {"awaited_id": chain.id})
            seen = yield self._ask_state(chain.id)
            if seen is None:
                raise ChainNotFoundError([chain.id], field="chain", reason="it was deleted while it was waited for")
            failure = next((answer for answer in (noted, seen) if isinstance(answer, Exception)), None)
            if not isinstance(seen, Exception):
                chain = seen
            if failure is not None:
                _pass_over(failure)
            left = deadline - time.monotonic()
            if chain.completed_at is None:
                if left <= 0:
                    raise ChainTimeoutError(chain.id, self._timeout) from failure
                if self._on_progress is not None and failure is None:
                    self._report(chain.last_job_id, (yield self._ask_progress(chain.last_job_id)))
                pause = self._poll_seconds
                if not chain.has_waiters and failure is None:
                    pause = min(pause, held_seconds)
                    held_seconds *= 2
                yield Rest(min(left, pause), min(left, least))
                least = _LEAST_SECONDS
        return self._result(chain)

    def _ask_state(self, job_id: JobId) -> Ask:
        return Ask(waiting.chain_state(self._model), {"job_id": job_id})

    def _ask_progress(self, job_id: JobId) -> Ask:
        return Ask(progress.of_job(self._model), {"job_id": job_id})

    def _report(self, job_id: JobId, seen: Answer) -> None:
        """Call `on_progress` if the chain's running job has reported progress. Outages are logged elsewhere."""
        if self._on_progress is None or seen is None or isinstance(seen, Exception):
            return
        found = progress.read(seen)
        if found is None:
            return
        # Each heartbeat writes the same report again.
        if self._reported is None or (job_id, replace(found, as_of=self._reported[1].as_of)) != self._reported:
            self._reported = job_id, found
            self._on_progress(found)

    def _result(self, row: Row[Any]) -> ChainResult[Any]:
        fields = row._asdict()
        del fields["has_waiters"]
        if row.status is not JobStatus.COMPLETED:
            raise ChainFailedError(ChainResult(**fields))
        if self._handler is not None:
            fields["output"] = self._handler.decode_output(row.id, row.type_name, row.last_type_name, row.output)
        elif self._codec is not None:
            fields["output"] = self._codec.decode("output", opened("output", row.output, Codecs()))
        return ChainResult(**fields)


def _model_of(chain: Any) -> type[JobMixin[Any]]:
    return type(chain) if isinstance(chain, JobMixin) else getattr(chain, "__job__", Job)


def _identity(chain: Any, model: type[JobMixin[Any]]) -> tuple[JobId, bool]:
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
