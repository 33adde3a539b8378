"""Claims from queues whose order is decided by a selector of the application.

**Offer, choose, claim.** A first statement reads up to a window of due jobs and locks nothing; the selector returns which of
them are to start, and in which order; a second statement starts those that are still due, as any claim does. Nothing is
locked while the selector runs, so two workers may choose the same jobs: each is started once, by the first claim,
and the other worker continues with its next best.

**What was offered and not started is remembered**, up to the window. To floors (`worker.floors`) what is remembered counts
as claimed: they pass it, so what was left out does not make the next claim walk what lies dead behind it. The next offer
reads what is remembered by its id, and so much beside it as the window has room for. Whenever floors are dropped, what is
remembered is forgotten and found again: so a window full of what is left out hides what goes before it for those seconds.

A selector that raises, returns something else or takes too long is reported once and not called for a while; its queue
continues in its ordinary order. A crash leaves nothing behind: the claim is the second statement alone.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.db.compiled import compiled
from sa_jobqueue.errors import InvalidSelectionError
from sa_jobqueue.events import EventBus, SelectorFailed
from sa_jobqueue.models import JobMixin
from sa_jobqueue.registry.selectors import Candidate, Selector
from sa_jobqueue.statements import choosing
from sa_jobqueue.worker.claim.floors import Lane, most_behind
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.readings import Reading

AGAIN: Final = 0.5
"""Seconds until a function that left jobs out is asked again, though nothing happens: what it goes by may have changed."""
_REST: Final = 1.0
"""Seconds for which a function that failed is left alone, then twice as many each time."""
_LONGEST_REST: Final = 60.0


class Caller:
    """Calls the function of one queue, within its time. A sync one runs in a thread, which nothing waits for at the end."""

    def __init__(self, selector: Selector, worker_id: str, events: EventBus) -> None:
        self.selector = selector
        self._worker_id = worker_id
        self._events = events
        self._loop = asyncio.get_running_loop()
        named: Any = type(selector.choose).__call__
        self._is_async = inspect.iscoroutinefunction(selector.choose) or inspect.iscoroutinefunction(named)
        self._under_way: asyncio.Future[Any] | None = None
        self._not_before = 0.0
        self._rest = _REST

    async def choose(self, candidates: Sequence[Candidate], free: int) -> Sequence[Candidate]:
        """Return what to start, best first; all of it in its ordinary order where the function does not say."""
        if self._loop.time() < self._not_before or (self._under_way is not None and not self._under_way.done()):
            return candidates
        try:
            chosen = _checked(self.selector, await self._answer(candidates, free), candidates)
        except Exception as error:
            if self._rest == _REST:
                self._events.emit(SelectorFailed(self._worker_id, self.selector.queue, self.selector.name, error))
            self._not_before = self._loop.time() + self._rest
            self._rest = min(2 * self._rest, _LONGEST_REST)
            return candidates
        self._rest = _REST
        return chosen

    async def _answer(self, candidates: Sequence[Candidate], free: int) -> Any:
        choose: Callable[..., Any] = self.selector.choose
        # A list of its own: what the function does to it is its own affair.
        call = self._awaited(choose, candidates, free) if self._is_async else self._in_thread(choose, candidates, free)
        try:
            await asyncio.wait({call}, timeout=self.selector.timeout.total_seconds())
        finally:
            if not call.done():
                self._under_way = call
                if isinstance(call, asyncio.Task):
                    call.cancel()
        if self._under_way is call:
            raise TimeoutError(f"it took longer than its timeout of {self.selector.timeout.total_seconds():g} s")
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

        return self._loop.create_task(run())

    def _in_thread(self, choose: Callable[..., Any], candidates: Sequence[Candidate], free: int) -> asyncio.Future[Any]:
        ended: asyncio.Future[Any] = self._loop.create_future()

        def tell(answer: Any, error: Exception | None) -> None:
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
                self._loop.call_soon_threadsafe(tell, answer, failed)

        # A daemon, as handlers' threads: one that never returns does not keep the process from ending.
        threading.Thread(target=run, name=f"sa_jobqueue_selector_{self.selector.queue}", daemon=True).start()
        return ended


class ChosenGroup(Group):
    """A queue, and the jobs of it that were offered and have not been started."""

    def __init__(self, *given: Any, caller: Caller, statements: Statements, **more: Any) -> None:
        super().__init__(*given, **more)
        self.caller = caller
        self._statements = statements
        self._left: dict[Any, Candidate] = {}
        self._since: dict[Any, float] = {}
        """When each was offered first, for `max_wait`."""
        self._wanted: Sequence[Candidate] = ()
        self._rooms: Mapping[str, int] = {}
        self._is_held_up = False

    @property
    def is_ready(self) -> bool:
        """Whether a part has a job that is due, and the window has room for it."""
        return super().is_ready and len(self._left) < self.caller.selector.window

    @property
    def is_plain(self) -> bool:
        """Never: what it starts is asked for first."""
        return False

    @property
    def again_in(self) -> float:
        """Seconds until the function is to be asked again, though nothing happens; infinite where it left nothing out."""
        return AGAIN if self._left else math.inf

    async def offer(
        self, connection: AsyncConnection, limit: int, clock: Callable[[], float], excluded: Collection[Any]
    ) -> datetime:
        """Read what is due, but not excluded, and have it chosen from; return when that was, by the database's clock."""
        candidates, read_at = await self._read(connection, clock)
        candidates = [one for one in candidates if one.id not in excluded] if excluded else candidates
        self._wanted = await self._chosen(candidates, limit, clock()) if candidates else ()
        self._is_held_up = bool(self._wanted)  # until some are started
        return read_at

    async def claim(self, connection: AsyncConnection, given: Mapping[str, Any]) -> list[ClaimedJob]:
        """Start what was chosen and is still there, best first, up to the limit given; return it in that order."""
        left = Counter(self._rooms)
        ids: list[Any] = []
        for one in self._wanted:
            if one.part not in self._rooms or left[one.part] > 0:
                left[one.part] -= 1
                ids.append(one.id)
        if not ids:
            return []
        rows = await self._statements.claim.execute(connection, {**given, "of_queue": self.queues[0], "ids": ids})
        jobs = {row[3]: ClaimedJob._make(row[3:]) for row in rows if row[3] is not None}
        if self.limits is not None:
            await self.limits.rates.spend(connection, list(jobs.values()))
        return [jobs[job_id] for job_id in ids if job_id in jobs]

    def plan(
        self, limit: int, rooms: Mapping[str, int] | None = None, *, now: float | None = None
    ) -> tuple[list[Share], Reading | None]:
        """Return nothing: what is read was planned with the offer."""
        return [], None

    def names(self) -> list[str]:
        """Return the parts of what was chosen."""
        return sorted({one.part for one in self._wanted if one.fairness_key})

    def put_off(self, rooms: Mapping[str, int], now: float) -> None:
        """Start no more of parts than they have room for; what is passed over stays on offer."""
        self._rooms = rooms

    def follow(self, name: str, now: float) -> bool:
        """Return whether it waits for room."""
        return self._is_held_up

    @property
    def has_put_off(self) -> bool:
        """Whether it named jobs of which none could be started."""
        return self._is_held_up

    def take(self, shares: Sequence[Share], jobs: Sequence[ClaimedJob], limit: int) -> None:
        """Take in what was started."""
        for job in jobs:
            self._left.pop(job.id, None)
        self._is_held_up = self._is_held_up and not jobs
        self.may_have_more = bool(jobs and self._left)

    async def _read(self, connection: AsyncConnection, clock: Callable[[], float]) -> tuple[list[Candidate], datetime]:
        selector, floors, now = self.caller.selector, self.floors, clock()
        floors.prepare(now, idle=True)
        if floors.is_cold:
            self._forget(now)
        room = max(selector.window - len(self._left), 0)
        reading = (super().plan(room)[1] if room else None) or floors.blocks([Share(self.queues[0], room)])
        given = floors.parameters(changed=True, reading=reading) | {
            "types": self.types,
            "limit": room,
            "most_behind": most_behind(room),
            "of_queue": self.queues[0],
            "held": list(self._left),
        }
        rows = await self._statements.candidates.execute(connection, given)
        found = [(row[3], Candidate._make(row[4:])) for row in rows if row[4] is not None]
        new = [one for is_new, one in found if is_new]
        floors.advance(
            [(one.part, one.priority, one.scheduled_at, one.id) for one in new],
            limit=room,
            changed=True,
            database_now=rows[0][0],
            snapshot=(rows[0][1], rows[0][2]),
            started=now,
            now=clock(),
            reading=reading,
        )
        if room:
            self.parts.take(Counter(one.part for one in new))
        self._left = {one.id: one for _, one in found}
        self._since = {job_id: self._since.get(job_id, now) for job_id in self._left}
        return sorted(self._left.values(), key=_in_order), rows[0][0]

    def _forget(self, now: float) -> None:
        for one in self._left.values():
            if one.fairness_key:  # the floors of parts are not dropped with the others
                self.floors.track(Lane(one.part, one.priority), one.scheduled_at)
                self.parts.learn(Lane(one.part, one.priority), now)
        self.parts.wake(now)
        self._left = {}

    async def _chosen(self, candidates: Sequence[Candidate], limit: int, now: float) -> Sequence[Candidate]:
        chosen = await self.caller.choose(candidates, limit)
        longest = self.caller.selector.max_wait
        if longest is None:
            return chosen
        overdue = [one for one in candidates if now - self._since[one.id] >= longest.total_seconds()]
        overdue.sort(key=lambda one: self._since[one.id])
        return list({one.id: one for one in [*overdue, *chosen]}.values())


class Statements:
    """What is executed for such a group."""

    def __init__(self, model: type[JobMixin[Any]], selector: Selector) -> None:
        self.candidates = compiled(choosing.candidates, model, inputs=selector.inputs)
        self.claim = compiled(choosing.claim, model)


class Selectors:
    """The functions of one worker, by queue, and what they know beyond a change of its plan."""

    def __init__(
        self,
        selectors: Mapping[str, Selector],
        model: type[JobMixin[Any]],
        *,
        worker_id: str,
        events: EventBus,
    ) -> None:
        self._callers = {queue: Caller(selector, worker_id, events) for queue, selector in selectors.items()}
        self._model = model

    @property
    def queues(self) -> frozenset[str]:
        """The queues that have one."""
        return frozenset(self._callers)

    def group(self, queues: Sequence[str], *given: Any, **more: Any) -> Group:
        """Return the group of some queues: one that has a function is alone."""
        if len(queues) == 1 and (caller := self._callers.get(queues[0])) is not None:
            # Made here: a worker without a selector compiles none of it.
            statements = Statements(self._model, caller.selector)
            return ChosenGroup(queues, *given, caller=caller, statements=statements, **more)
        return Group(queues, *given, **more)


def _in_order(one: Candidate) -> tuple[int, datetime, Any]:
    return -one.priority, one.scheduled_at, one.id


def _checked(selector: Selector, answer: Any, candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return what was chosen, as it was offered, each once. Raises: InvalidSelectionError."""
    offered = {one.id: one for one in candidates}
    try:
        ids = dict.fromkeys(one.id for one in answer)
    except (TypeError, AttributeError):
        reason = f"must return those of its candidates that are to start, got {type(answer).__name__}"
        raise InvalidSelectionError(selector.name, reason) from None
    strange = [job_id for job_id in ids if job_id not in offered]
    if strange:
        raise InvalidSelectionError(selector.name, f"returned job {strange[0]}, which it was not offered")
    return [offered[job_id] for job_id in ids]
