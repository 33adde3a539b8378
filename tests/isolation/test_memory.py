"""The memory of a worker's process, and its garbage collections."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from sa_jobqueue.cli._serving import serve
from sa_jobqueue.events import EventBus

pytestmark = [pytest.mark.slow, pytest.mark.every_python]


class Serving:
    """A worker that looks, and stops."""

    events = EventBus()
    wants_successor = has_stuck_threads = False
    frozen = 0

    async def run(self) -> None:
        self.frozen = gc.get_freeze_count()


@pytest.fixture
def nothing_frozen() -> Iterator[None]:
    """Unfreeze the suite's objects, for one test."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
def test_a_worker_freezes_imported_objects_while_it_runs() -> None:
    worker: Any = Serving()
    imported = len(gc.get_objects())
    before = gc.get_freeze_count()
    assert serve(worker) == 0
    assert worker.frozen > imported / 2
    assert gc.get_freeze_count() <= before


@pytest.mark.usefixtures("nothing_frozen")
def test_objects_frozen_before_the_worker_started_stay_frozen() -> None:
    """As a server does before it forks its processes."""
    gc.freeze()
    before = gc.get_freeze_count()
    assert serve(Serving()) == 0  # type: ignore[arg-type]
    assert gc.get_freeze_count() > before * 0.9
