"""The explorer: runs a scenario's schedules, one after the other, and judges each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from tests.explorer.actors import Actor, Observer, connect
from tests.explorer.scenario import Operation, Outcome, Report, Scenario, Schedule, ScheduleFailed, Step
from tests.explorer.search import Script, Search, Selector

C = TypeVar("C")

POLL = 0.001
"""Seconds between two looks at who waits."""
GRACE = 0.002
"""Seconds a step has before the first look: most steps end in less, and a look costs as much as a step."""
PATIENCE = 60.0
"""Seconds in which a step must end or be seen waiting; only a broken test gets there."""


class Explorer:
    """Runs scenarios on one database, on connections and threads that it keeps for all of them. Close it at the end."""

    def __init__(self, engine: Engine, *, patience: float = PATIENCE) -> None:
        self._url = engine.url
        self._patience = patience
        self._engine = connect(engine.url, {})
        self._connection = self._engine.connect()
        self._observer = Observer(self._engine)
        self._reports: SimpleQueue[Actor] = SimpleQueue()
        self._actors: dict[object, Actor] = {}
        self.schedules = 0
        """How many different orders it ran in all."""

    def explore(self, scenario: Scenario[C], *, limit: int | None = None, sample: tuple[int, int] | None = None) -> Report:
        """Run every order of the scenario's steps that the locks allow, each once and on fresh data.

        `limit`: at most so many, depth first. `sample`: so many different ones, chosen at random by a seed: `(n, seed)`.
        Raises: ScheduleFailed, an AssertionError, at the first that breaks an invariant.
        """
        report = Report(scenario.name)
        search = Search(seed=None if sample is None else sample[1])
        most = min((bound for bound in (limit, sample and sample[0]) if bound is not None), default=None)
        started = time.perf_counter()
        while not search.is_exhausted and (most is None or report.schedules < most):
            search.begin()
            schedule = self._run(scenario, search)
            if search.end():
                report.add(schedule)
                self.schedules += 1
        report.unreached = search.unreached
        report.is_complete = search.is_exhausted and not search.unreached
        report.seconds = time.perf_counter() - started
        return report

    def replay(self, scenario: Scenario[C], schedule: str) -> Schedule:
        """Run one schedule as it was printed, or one written by hand; after its last word the first that can goes on.

        Raises: ScheduleFailed as `explore`; ValueError when a step of it cannot be taken, as its operation waits or has
        ended.
        """
        return self._run(scenario, Script(schedule))

    def close(self) -> None:
        """End the threads and the connections."""
        for actor in self._actors.values():
            actor.close()
        self._actors.clear()
        self._observer.close()
        self._connection.close()
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, scenario: Scenario[C], selector: Selector) -> Schedule:
        with Session(self._connection) as session, session.begin():
            context = scenario.setup(session)
        actors = [self._actor(place, operation) for place, operation in enumerate(scenario.operations)]
        schedule = Schedule()
        try:
            for actor, operation in zip(actors, scenario.operations, strict=True):
                actor.begin(operation, context)
            _Performance(actors, self._observer, self._reports, schedule, self._patience).play(selector)
        except BaseException as error:
            self._discard(actors)
            if isinstance(error, _StuckError):
                raise ScheduleFailed(scenario.name, schedule, str(error)) from None
            raise
        schedule.outcomes = {actor.name: actor.outcome for actor in actors}
        self._judge(scenario, context, schedule)
        return schedule

    def _judge(self, scenario: Scenario[C], context: C, schedule: Schedule) -> None:
        for operation in scenario.operations:
            outcome = schedule.outcomes[operation.name]
            if not _is_acceptable(outcome, operation, scenario):
                violated = f"{operation.name} must not end in {outcome.kind}"
                raise ScheduleFailed(scenario.name, schedule, violated) from outcome.error
        try:
            schedule.ending = scenario.check(self._connection, context, schedule.outcomes)
        except Exception as error:
            raise ScheduleFailed(scenario.name, schedule, f"{type(error).__name__}: {error}") from error
        finally:
            self._connection.rollback()

    def _actor(self, place: int, operation: Operation[Any]) -> Actor:
        key = place, tuple(sorted(operation.settings.items()))
        if key not in self._actors:
            self._actors[key] = Actor(self._url, operation.settings, self._reports)
        return self._actors[key]

    def _discard(self, actors: Sequence[Actor]) -> None:
        """Be rid of all actors: remains of a broken schedule must not leak into the next."""
        self._observer.terminate([actor.pid for actor in actors if actor.is_busy])
        for actor in self._actors.values():
            actor.close()
        self._actors.clear()
        self._reports = SimpleQueue()


def _is_acceptable(outcome: Outcome, operation: Operation[Any], scenario: Scenario[Any]) -> bool:
    if outcome.error is None or outcome.is_one_of(operation.may_raise):
        return True
    return scenario.allow_deadlock and outcome.is_deadlock


class _StuckError(Exception):
    """A step neither ended nor was seen waiting for another operation that can go on."""


class _Performance:
    """One schedule under way."""

    def __init__(
        self,
        actors: Sequence[Actor],
        observer: Observer,
        reports: SimpleQueue[Actor],
        schedule: Schedule,
        patience: float,
    ) -> None:
        self._actors = {actor.name: actor for actor in actors}
        self._names = {actor.pid: actor.name for actor in actors}
        self._observer = observer
        self._reports = reports
        self._schedule = schedule
        self._patience = patience
        self._current: dict[str, Step] = {}

    def play(self, selector: Selector) -> None:
        while True:
            enabled = [name for name, actor in self._actors.items() if not (actor.is_busy or actor.has_ended)]
            if not enabled:
                return
            states = tuple((actor.is_busy, actor.has_ended) for actor in self._actors.values())
            self._take(selector.choose(enabled, states))

    def _take(self, name: str) -> None:
        steps = self._schedule.steps
        step = Step(name, 1 + sum(earlier_step.operation == name for earlier_step in steps))
        steps.append(step)
        self._current[name] = step
        self._actors[name].go()
        self._settle(name)

    def _settle(self, started: str) -> None:
        """Wait until every step under way has ended or waits for an operation that can still go on."""
        deadline = time.monotonic() + self._patience
        self._collect(GRACE)
        before: Mapping[str, frozenset[str]] | None = None
        while busy := [actor for actor in self._actors.values() if actor.is_busy]:
            found = self._observer.waits([actor.pid for actor in busy])
            waits = {
                self._names[pid]: frozenset(self._names[blocker] for blocker in blockers if blocker in self._names)
                for pid, blockers in found.items()
            }
            if all(waits.values()) and started in waits:
                self._current[started].waited_for = tuple(sorted(waits[started]))
            if self._is_settled(waits, before):
                return
            before = waits
            if time.monotonic() > deadline:
                waiting_text = "; ".join(
                    f"{name} waits for {sorted(blockers) or 'none of them'}" for name, blockers in waits.items()
                )
                raise _StuckError(
                    f"no step ended in {self._patience:g} s, nor is it known what all wait for: {waiting_text}"
                )
            self._collect(POLL)

    def _is_settled(self, waits: Mapping[str, frozenset[str]], before: Mapping[str, frozenset[str]] | None) -> bool:
        idle = {name for name, actor in self._actors.items() if not (actor.is_busy or actor.has_ended)}
        if not idle:
            return False  # PostgreSQL will find the deadlock
        if not all(waits.values()) or any(_is_deadlocked(name, waits) for name in waits):
            return False
        # Who waits for one that does nothing goes on waiting. Who waits for another waiter may have been released between
        # two lines of the same look, so that is believed when it is seen twice.
        return waits == before or all(blockers & idle for blockers in waits.values())

    def _collect(self, seconds: float) -> None:
        try:
            actor = self._reports.get(timeout=seconds)
            while True:
                actor.is_busy = False
                step = self._current[actor.name]
                step.label = actor.label
                if step.waited_for:
                    step.ended_after = len(self._schedule.steps)
                actor = self._reports.get_nowait()
        except Empty:
            return


def _is_deadlocked(name: str, waits: Mapping[str, frozenset[str]]) -> bool:
    reached: set[str] = set()
    ahead = set(waits[name])
    while ahead:
        step = ahead.pop()
        if step in reached:
            continue
        reached.add(step)
        ahead |= waits.get(step, frozenset())
    return name in reached
