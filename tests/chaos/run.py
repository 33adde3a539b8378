"""One run, from an empty queue to a verdict."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from random import Random
from typing import Final

from tests.chaos.checks import Violation, fenced_zombies, judge, judge_remains
from tests.chaos.faults import FAULTS, Injection, Scene, Stage, in_order, inject
from tests.chaos.fleet import Timing
from tests.chaos.load import Load
from tests.chaos.world import World, open_world

_START_PATIENCE: Final = 60.0
_END_PATIENCE: Final = 120.0
"""Seconds in which everything must have ended once nothing is broken any more: backoff, leases of 20 s and all."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run."""

    seed: int
    seconds: float
    """How long faults are injected for, at least; each is injected once, which takes about 70 s."""
    workers: int = 3
    rate: float = 20.0
    """Jobs enqueued a second."""
    quiet: float = 5.0
    """Seconds without faults, before and after."""
    faults: tuple[str, ...] = ()
    """Only these, by name; all unless given."""
    timing: Timing = field(default_factory=Timing)
    log_dir: Path | None = None


@dataclass(frozen=True)
class Outcome:
    """What one injection led to."""

    injection: Injection
    recovery: timedelta | None
    """From the end of the fault to the first completion after it; None when there was none."""
    rescued: timedelta | None
    """From the fault to when the last of the victim's jobs was rescued; None where none had to be."""
    survived: bool
    """Whether work went on, and every job the fault concerned ended."""


@dataclass(frozen=True)
class Result:
    """The result of a run."""

    options: Options
    server: str
    outcomes: list[Outcome]
    violations: list[Violation]
    throughput: dict[str, float]
    """Completed jobs a second, before the first fault, during, and after the last."""
    jobs: dict[str, int]
    """How many ended, by status."""
    attempts: dict[str, int]
    """How many attempts ended without success, by outcome."""
    dead_letters: dict[str, int]
    """Dead letters by reason."""
    starts: int
    """Worker processes there were."""
    fenced: int
    """Attempts whose code still ran when the next attempt's did, and which the fence kept from doing anything."""


OnProgress = Callable[[str], None]
"""Called with what happens now."""


def run(options: Options, on_progress: OnProgress) -> Result:
    """Break things for as long as `options` say, and judge."""
    with open_world(workers=options.workers, timing=options.timing, log_dir=options.log_dir) as world:
        load = Load(world.engine, rate=options.rate, seed=options.seed)
        scene = Scene(world=world, load=load, random=Random(options.seed))
        load.start()
        try:
            on_progress("starting workers")
            started = world.until(lambda: _workers(world) == options.workers and _completed(world) > 0, _START_PATIENCE)
            if not started:
                raise SystemExit(f"the workers did not start; their logs are in {world.log_dir}")
            boundaries = [world.now()]
            _quiet(options.quiet)
            boundaries.append(world.now())
            injections = _break_things(scene, options, on_progress)
            on_progress("nothing is broken any more")
            heal(scene)
            boundaries.append(world.now())
            world.until(lambda: _workers(world) == options.workers, _START_PATIENCE)
            boundaries.append(world.now())
            _quiet(options.quiet)
            boundaries.append(world.now())
        finally:
            load.stop()
        on_progress("waiting for every job to end")
        world.until(lambda: _open(world) == 0, _END_PATIENCE)
        last = {slot.process.pid for slot in world.fleet.slots}
        misbehaved = world.fleet.close()
        violations = judge(world, load.acknowledged) + judge_remains(world, stopped=last)
        if misbehaved:
            violations.append(Violation("every worker stops when it is told to", len(misbehaved), misbehaved))
        return Result(
            options=options,
            server=".".join(map(str, world.server.version)),
            outcomes=[_outcome(world, injection) for injection in injections],
            violations=violations,
            throughput={
                "before": _rate(world, boundaries[0], boundaries[1]),
                "during": _rate(world, boundaries[1], boundaries[2]),
                "after": _rate(world, boundaries[3], boundaries[4]),
            },
            jobs=_counted(world, "SELECT status::text, count(*) FROM job GROUP BY 1 ORDER BY 1"),
            attempts=_counted(world, "SELECT outcome, count(*) FROM job_attempt GROUP BY 1 ORDER BY 1"),
            dead_letters=_counted(world, "SELECT reason, count(*) FROM dead_letter GROUP BY 1 ORDER BY 1"),
            starts=len(world.fleet.pids),
            fenced=fenced_zombies(world),
        )


def _break_things(scene: Scene, options: Options, on_progress: OnProgress) -> list[Injection]:
    began = time.monotonic()
    injections: list[Injection] = []
    for number, (fault, chance) in enumerate(in_order(options.seed, FAULTS, options.faults), 1):
        scene.random = chance
        gap = chance.uniform(0.5, 2.0)
        share = (time.monotonic() - began) / options.seconds
        if share >= 1 and number > len(options.faults or FAULTS):
            break
        # Most workers are there and well, so that what follows is of this fault and not of the one before.
        scene.world.until(lambda: _workers(scene.world) >= options.workers - 1, _START_PATIENCE)
        injection = inject(number, fault, scene)
        injections.append(injection)
        on_progress(f"{number:4d}  {injection.fault}: {injection.detail}")
        _quiet(gap)
    return injections


def heal(scene: Stage) -> None:
    """Put right what still is broken when the last fault is over."""
    for release in scene.released:
        release()
    scene.world.proxy.resume()
    scene.world.server.start()


def _quiet(seconds: float) -> None:
    threading.Event().wait(seconds)


def _outcome(world: World, injection: Injection) -> Outcome:
    first = "SELECT min(completed_at) - %(over)s FROM job WHERE status = 'completed' AND completed_at > %(over)s"
    recovery = world.read(first, over=injection.over)[0][0]
    ended = """SELECT count(*) FILTER (WHERE status NOT IN ('completed', 'dead')) FROM job WHERE id = ANY (%(ids)s)"""
    back = """SELECT max(ended_at) - %(began)s FROM job_attempt
              JOIN unnest(%(ids)s::uuid[], %(attempts)s::int[]) AS held (id, number) ON (job_id, attempt) = (id, number)
              WHERE outcome = 'lost'"""
    injected = {"ids": list(injection.attempts), "attempts": list(injection.attempts.values())}
    remaining = world.read(ended, ids=injected["ids"])[0][0]
    rescued = world.read(back, began=injection.began, **injected)[0][0] if injection.kills else None
    return Outcome(injection, recovery, rescued, recovery is not None and remaining == 0)


def _workers(world: World) -> int:
    alive = [slot.process.pid for slot in world.fleet.alive()]
    recent = "SELECT count(*) FROM worker WHERE pid = ANY (%(pids)s) AND heartbeat_at > now() - interval '2 s'"
    count: int = world.read(recent, pids=alive)[0][0]
    return count


def _completed(world: World) -> int:
    count: int = world.read("SELECT count(*) FROM job WHERE status = 'completed'")[0][0]
    return count


def _open(world: World) -> int:
    count: int = world.read("SELECT count(*) FROM job WHERE status NOT IN ('completed', 'dead', 'cancelled')")[0][0]
    return count


def _rate(world: World, begin: datetime, end: datetime) -> float:
    query = "SELECT count(*) FROM job WHERE status = 'completed' AND completed_at BETWEEN %(begin)s AND %(end)s"
    count: int = world.read(query, begin=begin, end=end)[0][0]
    return count / max((end - begin).total_seconds(), 0.001)


def _counted(world: World, query: str) -> dict[str, int]:
    return dict(world.read(query))
