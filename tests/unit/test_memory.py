"""What a worker's process holds, and what its garbage collections walk."""

from __future__ import annotations

import gc
from typing import Any

from sa_jobqueue.cli._serving import serve
from sa_jobqueue.events import EventBus


class Serving:
    """A worker that looks, and stops."""

    events = EventBus()
    wants_successor = has_stuck_threads = False
    frozen = 0

    async def run(self) -> None:
        self.frozen = gc.get_freeze_count()


def test_a_worker_runs_while_what_was_imported_is_out_of_garbage_collections() -> None:
    worker: Any = Serving()
    imported = len(gc.get_objects())
    assert serve(worker) == 0
    assert worker.frozen > imported / 2
    assert gc.get_freeze_count() == 0
