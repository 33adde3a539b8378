"""The statements of bulk writes, in the shape of `cases`. None is a worker's: `guard` sets what they need."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from sa_jobqueue import Job
from sa_jobqueue.pipeline.statements import bulk, writes
from tests.statements.shapes import Case, World

NONE: frozenset[str] = frozenset()


def write(world: World) -> dict[str, Any]:
    """Name a write that has staged nothing."""
    return {"write_id": "nightly", "sequence": 0}


def staged(world: World) -> dict[str, Any]:
    """Name what two tasks of it staged."""
    return write(world) | {"task_ids": [1, 2]}


def defaults(world: World) -> dict[str, Any]:
    """Return the values of rows that set none."""
    own = {"queue": "default", "type_name": "test", "priority": 0, "max_attempts": 20, "input_version": 1}
    return staged(world) | own | {"trace_context": None, "ended_ids": [], "completed": []}


BULK_CASES = [
    Case("bulk_guard", bulk.guard, NONE, guarded=False),
    Case(
        "bulk_take_write",
        lambda: bulk.take_write(Job),
        NONE,
        lambda world: write(world) | {"written_by": "test"},
        guarded=False,
    ),
    Case(
        "bulk_account",
        lambda: bulk.account(Job),
        NONE,
        lambda world: {
            "of_write": "nightly",
            "of_sequence": 0,
            "staged": 3,
            "enqueued": 1,
            "duplicates": 1,
            "rejected": 1,
        },
        guarded=False,
    ),
    Case("bulk_find_write", lambda: bulk.find_write(Job), NONE, write, guarded=False),
    Case("write_counts", lambda: writes.counts(Job), NONE, write, guarded=False),
    Case("bulk_count_staged", lambda: bulk.count_staged(Job), NONE, staged, guarded=False),
    Case(
        "bulk_enqueue_staged",
        lambda: bulk.enqueue_staged(Job, keyed=False, skip=True),
        NONE,
        defaults,
        guarded=False,
    ),
    Case(
        "bulk_enqueue_staged_keyed",
        lambda: bulk.enqueue_staged(Job, keyed=True, skip=True),
        NONE,
        defaults,
        guarded=False,
    ),
    Case(
        "bulk_enqueue_waiting",
        lambda: bulk.enqueue_waiting(Job, keyed=True, skip=True),
        NONE,
        defaults,
        guarded=False,
    ),
    Case("bulk_chains_waited_for", lambda: bulk.chains_waited_for(Job), NONE, staged, guarded=False),
    Case("bulk_circular_edges", lambda: bulk.circular_edges(Job), NONE, staged, guarded=False),
    Case(
        "bulk_reject_taken_ids",
        lambda: bulk.reject_taken_ids(Job),
        NONE,
        lambda world: {"of_write_id": "nightly", "of_sequence": 0, "of_task_ids": [1, 2]},
        guarded=False,
    ),
    Case("bulk_reject_staged", lambda: bulk.reject_staged(Job), NONE, staged, guarded=False),
    Case("bulk_clear_stage", lambda: bulk.clear_stage(Job), NONE, write, guarded=False),
    Case(
        "bulk_clear_left_over",
        lambda: bulk.clear_left_over(Job),
        NONE,
        lambda world: {"age": timedelta(hours=24)},
        guarded=False,
    ),
]
