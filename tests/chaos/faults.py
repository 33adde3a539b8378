"""The faults: each breaks one thing, for as long as it lasts, and reports when it was over."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import psycopg
from sqlalchemy import make_url

from sa_jobqueue import Job
from tests.chaos import application as app
from tests.chaos.fleet import Slot
from tests.chaos.load import Load, large, poison
from tests.chaos.world import MAX_CONNECTIONS, World

_TERMINATE: Final = """
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend'
AND application_name NOT LIKE 'chaos%%' AND query LIKE ANY (%(queries)s)
"""

LISTENING: Final = ("LISTEN%", "SELECT 1", "SELECT bool_and%", "SELECT pg_advisory_unlock_all()")
"""The last statement of a session that listens: now and then ours asks whether the server is still there."""


@dataclass
class Injection:
    """One fault that was injected."""

    number: int
    fault: str
    detail: str
    began: datetime
    over: datetime
    attempts: dict[UUID, int] = field(default_factory=dict)
    """The jobs that the victim held, or that are the fault themselves, each with its attempt."""
    kills: bool = False
    """Whether the process that held those jobs died of it."""


@dataclass(kw_only=True)
class Stage:
    """The tools of a fault that breaks things from outside, for any queue."""

    world: World
    random: Random
    released: list[Callable[[], None]] = field(default_factory=list)
    """What still has to be put right when the last fault is over."""

    @property
    def patience(self) -> float:
        """Seconds of silence after which a worker counts as dead."""
        return self.world.fleet.timing.heartbeat_timeout

    def victim(self, number: int) -> Slot:
        """Return a worker that runs: the `number`th, or the next one after it that does."""
        self.world.until(lambda: bool(self.world.fleet.alive()), 30)
        alive = self.world.fleet.alive()
        return next((slot for slot in alive if slot.number >= number), alive[0])

    def held_by(self, pid: int) -> dict[UUID, int]:
        """Return the attempts a process holds, if known."""
        return {}


@dataclass(kw_only=True)
class Scene(Stage):
    """The tools of a fault of this queue."""

    load: Load

    def held_by(self, pid: int) -> dict[UUID, int]:
        """Return the attempts a process holds by the database's account."""
        query = """SELECT j.id, j.attempt FROM job j JOIN worker w ON w.id = j.leased_by
                   WHERE w.pid = %(pid)s AND j.status = 'running'"""
        return dict(self.world.read(query, pid=pid))


S = TypeVar("S", bound=Stage)


@dataclass(frozen=True)
class Fault(Generic[S]):
    """A kind of fault: its name, and what injects it; that returns a word on how, and the jobs it concerns."""

    name: str
    inject: Callable[[S], tuple[str, dict[UUID, int]]]
    kills: bool = False


def kill_worker(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Kill a worker with SIGKILL, wherever it stands."""
    slot = scene.victim(scene.random.randrange(8))
    # Frozen first, so that what it holds now is what it holds when it dies.
    pid = scene.world.fleet.signal(slot, signal.SIGSTOP)
    attempts = scene.held_by(pid)
    scene.world.fleet.signal(slot, signal.SIGKILL)
    return f"worker {slot.number}{_in_hand(attempts)}", attempts


def _in_hand(attempts: dict[UUID, int]) -> str:
    return f", {len(attempts)} jobs in hand" if attempts else ""


def kill_at(point: str) -> Callable[[Scene], tuple[str, dict[UUID, int]]]:
    """Return a fault that kills the worker that takes a certain job, at this point of its life."""

    def inject(scene: Scene) -> tuple[str, dict[UUID, int]]:
        in_session = point in {"before the handler's commit", "after the handler's commit"}
        kind = app.dies_in_session if in_session else app.dies
        ids = scene.load.insist(lambda: [kind.job({"point": point}, priority=9)])
        before = len(scene.world.fleet.statuses)
        scene.world.until(lambda: len(scene.world.fleet.statuses) > before, 10)
        return "the worker that took the job", dict.fromkeys(ids, 1)

    return inject


def terminate(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Ask a worker to stop, as a deployment does."""
    slot = scene.victim(scene.random.randrange(8))
    scene.world.fleet.signal(slot, signal.SIGTERM)
    return f"worker {slot.number}", {}


def terminate_twice(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Ask a worker to stop, and lose patience."""
    slot, wait = scene.victim(scene.random.randrange(8)), round(scene.random.uniform(0.05, 0.5), 2)
    scene.world.fleet.signal(slot, signal.SIGTERM)
    time.sleep(wait)
    scene.world.fleet.signal(slot, signal.SIGTERM)
    return f"worker {slot.number}, again after {wait} s", {}


def freeze(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Stop a worker's process for longer than its lease, and let it wake up: a zombie."""
    slot, extra = scene.victim(scene.random.randrange(8)), round(scene.random.uniform(1.0, 3.0), 1)
    pid = scene.world.fleet.signal(slot, signal.SIGSTOP)
    attempts = scene.held_by(pid)

    def wake() -> None:
        if slot.frozen and slot.process.pid == pid:
            scene.world.fleet.signal(slot, signal.SIGCONT)

    # The next faults meet it while it sleeps.
    timer = threading.Timer(scene.patience + extra, wake)
    timer.daemon = True
    timer.start()
    scene.released.append(timer.cancel)
    scene.released.append(wake)
    return f"worker {slot.number} for {scene.patience + extra:.1f} s{_in_hand(attempts)}", attempts


def crash_server(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Kill PostgreSQL with SIGKILL, and start it again."""
    down = round(scene.random.uniform(0.2, 1.5 * scene.patience), 1)
    scene.world.server.crash()
    time.sleep(down)
    scene.world.server.start()
    return f"down for {down} s", {}


def fill_disk(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Leave the server's disk no room: its tables cannot grow; at times it cannot write its log either, and ends."""
    disk, seconds = scene.world.disk, round(scene.random.uniform(1.0, 4.0), 1)
    if disk is None:
        return "not here: no disk could be mounted", {}
    disk.fill()
    if scene.random.random() < 0.5:
        scene.world.write_log()
    time.sleep(seconds)
    disk.free()
    ended = not scene.world.server.is_running
    scene.world.until(scene.world.revive, 30)
    return f"for {seconds} s" + (", of which the server died" if ended else ""), {}


def end_sessions(*queries: str) -> Callable[[Stage], tuple[str, dict[UUID, int]]]:
    """Return a fault that ends the workers' sessions whose last statement was like this, three times in a row."""

    def inject(scene: Stage) -> tuple[str, dict[UUID, int]]:
        ended = 0
        for _ in range(3):
            ended += scene.world.read(_TERMINATE, queries=list(queries))[0][0]
            time.sleep(round(scene.random.uniform(0.05, 0.4), 2))
        return f"{ended} sessions", {}

    return inject


def cut_network(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Break every connection, again and again for a moment."""
    times = scene.random.randint(1, 4)
    for _ in range(times):
        scene.world.proxy.cut()
        time.sleep(0.15)
    return f"{times} times", {}


def stall_network(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Let nothing through for longer than the lease; packets under way arrive late."""
    seconds = round(scene.patience + scene.random.uniform(0.5, 2.0), 1)
    scene.world.proxy.stall()
    time.sleep(seconds)
    scene.world.proxy.resume()
    return f"for {seconds} s", {}


def half_open(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Lose every connection without a word to the workers. What they hold of it is never answered."""
    scene.world.proxy.half_open()
    time.sleep(scene.patience)
    return "no answer ever, on any connection", {}


def slow_network(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Delay everything."""
    delay, seconds = round(scene.random.uniform(0.02, 0.15), 2), round(scene.random.uniform(2.0, 4.0), 1)
    scene.world.proxy.delay(delay)
    time.sleep(seconds)
    scene.world.proxy.resume()
    return f"{delay * 1000:.0f} ms each way for {seconds} s", {}


def use_up_slots(scene: Stage) -> tuple[str, dict[UUID, int]]:
    """Take every connection slot of the server, and then end the workers' sessions, so that they need new ones."""
    seconds = round(scene.random.uniform(1.0, 3.0), 1)
    connections: list[psycopg.Connection[Any]] = []
    conninfo = make_url(scene.world.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with suppress(psycopg.OperationalError):
        while len(connections) < MAX_CONNECTIONS:
            connections.append(psycopg.connect(conninfo, autocommit=True, application_name="chaos hog"))
    ended = 0
    with suppress(IndexError, psycopg.OperationalError):
        ended = connections[0].execute(_TERMINATE, {"queries": ["%"]}).fetchall()[0][0]
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(psycopg.OperationalError):
                connections.append(psycopg.connect(conninfo, autocommit=True, application_name="chaos hog"))
            time.sleep(0.05)
    for connection in connections:
        connection.close()
    return f"{len(connections)} taken, {ended} sessions ended, for {seconds} s", {}


def enqueue(make: Callable[[Scene], list[Job]], detail: str) -> Callable[[Scene], tuple[str, dict[UUID, int]]]:
    """Return a fault that is a job."""

    def inject(scene: Scene) -> tuple[str, dict[UUID, int]]:
        return detail, dict.fromkeys(scene.load.insist(lambda: make(scene)), 1)

    return inject


def _beyond_lease(scene: Scene, more: float = 1) -> dict[str, float]:
    return {"seconds": scene.patience + more}


def step_clocks(scene: Scene) -> tuple[str, dict[UUID, int]]:
    """Set workers' wall clocks forth and back by up to a month, while they hold leases and wait for later jobs."""
    steps = [round(scene.random.uniform(-30, 30) * 86_400) for _ in range(4)]

    def make() -> list[Job]:
        late = [app.plain.job({}, delay=timedelta(seconds=1), priority=5) for _ in steps]
        return [*(app.steps_clock.job({"seconds": seconds}, priority=9) for seconds in steps), *late]

    ids = scene.load.insist(make)
    return ", ".join(f"{seconds / 86_400:+.1f} d" for seconds in steps), dict.fromkeys(ids, 1)


def write_bad_row(scene: Scene) -> tuple[str, dict[UUID, int]]:
    """Let the application's own trigger refuse the end of one job, beside others that end at the same time."""

    (bad,) = scene.load.insist(lambda: [app.refused.job({}, priority=9)], refused=True)
    started = "SELECT FROM job WHERE id = %(bad)s AND status = 'running'"
    scene.world.until(lambda: bool(scene.world.read(started, bad=bad)), 4 * scene.patience)
    jobs = scene.load.insist(lambda: [app.plain.job({}, priority=9) for _ in range(20)])
    still_open = "SELECT id, %(bad)s::uuid FROM job WHERE id = ANY (%(ids)s) AND completed_at IS NULL"
    began = time.monotonic()
    ended = scene.world.until(lambda: not scene.world.read(still_open, bad=bad, ids=jobs), 4 * scene.patience)
    seconds = time.monotonic() - began
    if not ended:
        scene.world.write(f"INSERT INTO held_up {still_open}", bad=bad, ids=jobs)
    scene.world.write("DELETE FROM refused WHERE job_id = %(bad)s", bad=bad)
    summary = f"its {len(jobs)} neighbours ended after {seconds:.1f} s" if ended else "its neighbours did not end beside it"
    return summary, dict.fromkeys([bad, *jobs], 1)


def correct_clock(scene: Scene) -> tuple[str, dict[UUID, int]]:
    """Leave the rows of a server's clock that was ahead and was set back: instants to come, one of a worker that is dead."""
    slot, ahead = scene.victim(scene.random.randrange(8)), round(scene.random.uniform(1, 48), 1)
    pid = scene.world.fleet.signal(slot, signal.SIGSTOP)
    attempts = scene.held_by(pid)
    step = {"step": timedelta(hours=ahead), "pid": pid}
    scene.world.write("UPDATE worker SET heartbeat_at = heartbeat_at + %(step)s WHERE pid = %(pid)s", **step)
    scene.world.write("UPDATE rate_state SET spent_at = spent_at + %(step)s, tokens = 0", **step)
    scene.world.write("UPDATE schedule SET next_fire_at = next_fire_at + %(step)s, last_fire_at = now() + %(step)s", **step)
    scene.world.fleet.signal(slot, signal.SIGKILL)
    return f"{ahead} h ahead{_in_hand(attempts)}", attempts


def restore_elsewhere(scene: Scene) -> tuple[str, dict[UUID, int]]:
    """Restore a dump in a new cluster, whose transaction counter is far behind, and go on there."""
    before, after = scene.world.restore()
    return f"transaction {before} to {after}", {}


def _isolated(kind: str) -> Callable[[Scene], list[Job]]:
    return lambda _: [app.isolated.job({"fault": kind}, priority=5)]


FAULTS: Final[tuple[Fault[Scene], ...]] = (
    Fault("kill -9 of a worker", kill_worker, kills=True),
    *(Fault(f"kill -9 {point}", kill_at(point), kills=True) for point in app.POINTS),
    Fault("SIGTERM", terminate),
    Fault("SIGTERM, then again", terminate_twice),
    Fault("frozen past its lease", freeze, kills=True),
    Fault("kill -9 of PostgreSQL", crash_server),
    Fault("disk full", fill_disk),
    Fault("all sessions terminated", end_sessions("%")),
    Fault("listeners terminated", end_sessions(*LISTENING)),
    Fault("connections cut", cut_network),
    Fault("network stalls", stall_network),
    Fault("half-open connections", half_open),
    Fault("slow network", slow_network),
    Fault("connection slots used up", use_up_slots),
    Fault("COMMIT fails", enqueue(lambda _: [app.commit_fails.job({}) for _ in range(5)], "5 jobs, disk full at commit")),
    Fault("event loop blocked", enqueue(lambda scene: [app.blocks_loop.job(_beyond_lease(scene))], "past the lease")),
    Fault("GIL held", enqueue(lambda scene: [app.holds_gil.job(_beyond_lease(scene, 3))], "past the lease")),
    Fault("poison payloads", enqueue(lambda _: [poison() for _ in range(5)], "5 jobs")),
    Fault("1 MB payload", enqueue(lambda _: [large() for _ in range(2)], "2 jobs")),
    Fault("wall clocks step", step_clocks),
    Fault("bad row", write_bad_row),
    Fault("server's clock set back", correct_clock, kills=True),
    Fault("dump restored elsewhere", restore_elsewhere),
    *(Fault(f"isolated job: {kind}", enqueue(_isolated(kind), "in a child process")) for kind in app.ISOLATED),
    Fault("job that aborts its process", enqueue(lambda _: [app.aborts.job({}, priority=5)], "until it is a dead letter")),
)


def in_order(seed: int, faults: Sequence[Fault[S]], names: tuple[str, ...] = ()) -> Iterator[tuple[Fault[S], Random]]:
    """Yield faults endlessly, each as often as every other, with the chance that each is to use: the same for a seed."""
    random = Random(seed)
    chosen = [fault for fault in faults if not names or fault.name in names]
    while True:
        for fault in random.sample(chosen, len(chosen)):
            yield fault, Random(random.getrandbits(64))


def inject(number: int, fault: Fault[S], scene: S) -> Injection:
    """Let one fault happen, and return when it is over; times are the server's."""
    began = scene.world.now()
    detail, attempts = fault.inject(scene)
    return Injection(number, fault.name, detail, began, scene.world.now(), attempts, fault.kills)
