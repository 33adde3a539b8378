"""Claims from queues whose order is decided by a selector of the application.

**Offer, choose, claim.** A first statement reads up to a window of due jobs and locks nothing; the selector returns which of
them are to start, and in which order; a claim starts those that are still due, by their ids. Nothing is locked while the
selector runs, so two workers may choose the same jobs: each is started once, by the first claim, and the other worker
continues with its next best.

**Jobs that were offered and not started are held**, up to the window. Cursors pass it, so omitted jobs do not make the next
claim scan the dead rows before it. The next offer reads held jobs by id, and as many others as the window has room
for. At each full scan of lanes, held jobs are forgotten and found again: so a window full of jobs that the selector leaves
out hides jobs that go before them for those seconds.

A selector that raises, returns something else or takes too long is reported once and not called for a while; its queue
continues in its ordinary order. A crash leaves nothing behind: the claim is the second statement alone.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.events import EventBus, SelectorFailed
from sa_jobqueue.models import JobClass
from sa_jobqueue.registry.selectors import Candidate, Selector
from sa_jobqueue.statements import claims

_REST: Final = 1.0
"""Seconds for which a function that failed is left alone, then twice as many each time."""
_LONGEST_REST: Final = 60.0


class Selection:
    """The selector of one queue: reads its candidates, and calls it, within its time.

    Candidates that were not chosen stay late arrivals in the cursors, to be offered again. A sync selector runs in a thread,
    which nothing waits for at the end.
    """

    def __init__(self, selector: Selector, model: JobClass, worker_id: str, events: EventBus) -> None:
        self._selector, self._worker_id, self._events = selector, worker_id, events
        self._statement = compiled(claims.candidates, model, inputs=selector.inputs)
        call_method: Any = type(selector.choose).__call__
        self._is_async = inspect.iscoroutinefunction(selector.choose) or inspect.iscoroutinefunction(call_method)
        self._under_way: asyncio.Future[Any] | None = None
        self._not_before = 0.0
        self._rest = _REST
        self._since: dict[str | None, dict[Any, float]] = {}
        """When each job was offered first, for `max_wait`: by type with a separate capacity, as they are offered."""

    @property
    def window(self) -> int:
        """How many candidates are offered at most."""
        return self._selector.window

    async def read(
        self, connection: AsyncConnection, parameters: Mapping[str, Any]
    ) -> tuple[list[tuple[Candidate, str]], datetime]:
        """Read the candidates of a plan, each with the transaction that changed it last; return when that was, too."""
        rows = await self._statement.execute(connection, parameters)
        return [(Candidate._make(row[2:]), row[1]) for row in rows if row[2] is not None], rows[0][0]

    async def choose(
        self, due_jobs: Iterable[Candidate], limit: int, now: float, own_type: str | None = None
    ) -> list[Candidate]:
        """Have the selector choose from candidates of `own_type` or the others, best first; return those to start."""
        candidates = sorted(due_jobs, key=_in_order)
        before = self._since.get(own_type, {})
        since = self._since[own_type] = {candidate.id: before.get(candidate.id, now) for candidate in candidates}
        if not candidates:
            return []
        chosen = await self._call(candidates, limit, now)
        longest = self._selector.max_wait
        if longest is None:
            return list(chosen)
        overdue = [candidate for candidate in candidates if now - since[candidate.id] >= longest.total_seconds()]
        overdue.sort(key=lambda candidate: since[candidate.id])
        return list({candidate.id: candidate for candidate in [*overdue, *chosen]}.values())

    async def _call(self, candidates: Sequence[Candidate], free: int, now: float) -> Sequence[Candidate]:
        """Return what to start, best first; all of it in its ordinary order where the function does not say."""
        if now < self._not_before or (self._under_way is not None and not self._under_way.done()):
            return candidates
        try:
            chosen = _checked(self._selector, await self._answer(candidates, free), candidates)
        except Exception as error:
            if self._rest == _REST:
                self._events.emit(SelectorFailed(self._worker_id, self._selector.queue, self._selector.name, error))
            self._not_before = asyncio.get_running_loop().time() + self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            return candidates
        self._rest = _REST
        return chosen

    async def _answer(self, candidates: Sequence[Candidate], free: int) -> Any:
        choose: Callable[..., Any] = self._selector.choose
        # A list of its own: what the function does to it is its own affair.
        call = self._awaited(choose, candidates, free) if self._is_async else self._in_thread(choose, candidates, free)
        try:
            await asyncio.wait({call}, timeout=self._selector.timeout.total_seconds())
        finally:
            if not call.done():
                self._under_way = call
                if isinstance(call, asyncio.Task):
                    call.cancel()
        if self._under_way is call:
            raise TimeoutError(f"it took longer than its timeout of {self._selector.timeout.total_seconds():g} s")
        answer, error = (None, RuntimeError("it was cancelled")) if call.cancelled() else call.result()
        if error is not None:
            raise error
        return answer

    def _awaited(self, choose: Callable[..., Any], candidates: Sequence[Candidate], free: int) -> asyncio.Task[Any]:
        async def run() -> tuple[Any, Exception | None]:
            try:
                return await choose(list(candidates), free), None
            except Exception as error:
                return None, error

        return asyncio.create_task(run())

    def _in_thread(self, choose: Callable[..., Any], candidates: Sequence[Candidate], free: int) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[Any] = loop.create_future()

        def set_answer(answer: Any, error: Exception | None) -> None:
            if not ended.done():
                ended.set_result((answer, error))

        def run() -> None:
            answer, failed = None, None
            try:
                answer = choose(list(candidates), free)
                if isinstance(answer, Iterator):
                    answer = list(answer)
            except BaseException as error:
                failed = error if isinstance(error, Exception) else RuntimeError(f"it raised {type(error).__name__}")
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(set_answer, answer, failed)

        # A daemon, as handlers' threads: one that never returns does not keep the process from ending.
        threading.Thread(target=run, name=f"sa_jobqueue_selector_{self._selector.queue}", daemon=True).start()
        return ended


def _in_order(candidate: Candidate) -> tuple[int, datetime, Any]:
    return -candidate.priority, candidate.scheduled_at, candidate.id


def _checked(selector: Selector, answer: Any, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the chosen jobs, as they were offered, each once. Raises: InvalidOptionError."""
    offered = {candidate.id: candidate for candidate in candidates}
    try:
        ids = dict.fromkeys(candidate.id for candidate in answer)
    except (TypeError, AttributeError):
        reason = f"must return those of its candidates that are to start, got {type(answer).__name__}"
        raise InvalidOptionError(selector.name, reason) from None
    strange = [job_id for job_id in ids if job_id not in offered]
    if strange:
        raise InvalidOptionError(selector.name, f"returned job {strange[0]}, which it was not offered")
    return [offered[job_id] for job_id in ids]
