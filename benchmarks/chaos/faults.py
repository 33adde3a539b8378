"""What any queue can be broken by from outside, or by a job of its own. Each is the same for every queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from benchmarks.chaos.fleet import Producer
from benchmarks.chaos.journals import Journals
from tests.chaos import faults as any_fleets
from tests.chaos.faults import Fault, Stage


@dataclass(kw_only=True)
class PeerScene(Stage):
    """The tools of a fault."""

    producer: Producer
    journals: Journals

    def enqueue(self, kind: str, count: int, seconds: float = 0.0) -> None:
        """Enqueue jobs that are a fault, and wait until that is acknowledged."""
        numbers = self.producer.add(kind, count, seconds)

        def is_done() -> bool:
            self.journals.read()
            return self.journals.is_acknowledged(numbers)

        self.world.until(is_done, 30)


def kill_in_handler(scene: PeerScene) -> tuple[str, dict[UUID, int]]:
    """Let a job kill the worker that runs it, the first time."""
    before = len(scene.world.fleet.statuses)
    scene.enqueue("dies", 1)
    scene.world.until(lambda: len(scene.world.fleet.statuses) > before, 10)
    return "the worker that took the job", {}


def block_loop(scene: PeerScene) -> tuple[str, dict[UUID, int]]:
    """Let a job block the event loop of the worker that runs it, the first time."""
    seconds = scene.patience + 1
    scene.enqueue("blocks", 1, seconds)
    return f"for {seconds:g} s", {}


def poison(scene: PeerScene) -> tuple[str, dict[UUID, int]]:
    """Enqueue jobs that fail whenever they are run."""
    scene.enqueue("poison", 5)
    return "5 jobs", {}


_SHARED: Final[dict[str, Callable[[PeerScene], tuple[str, dict[UUID, int]]]]] = {
    "kill -9 of a worker": any_fleets.kill_worker,
    "kill -9 in the handler": kill_in_handler,
    "SIGTERM": any_fleets.terminate,
    "SIGTERM, then again": any_fleets.terminate_twice,
    "frozen past its lease": any_fleets.freeze,
    "kill -9 of PostgreSQL": any_fleets.crash_server,
    "all sessions terminated": any_fleets.end_sessions("%"),
    "listeners terminated": any_fleets.end_sessions(*any_fleets.LISTENING),
    "connections cut": any_fleets.cut_network,
    "network stalls": any_fleets.stall_network,
    "half-open connections": any_fleets.half_open,
    "slow network": any_fleets.slow_network,
    "connection slots used up": any_fleets.use_up_slots,
    "event loop blocked": block_loop,
    "poison payloads": poison,
}

FAULTS: Final[tuple[Fault[PeerScene], ...]] = tuple(Fault(name, inject) for name, inject in _SHARED.items())
