"""Which queues and job types share a claim, and how many slots each partition leaves."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sa_jobqueue import Job
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.selectors import Selector
from sa_jobqueue.worker.background.controls import Control, Controls
from sa_jobqueue.worker.claim import partitions as module
from sa_jobqueue.worker.claim.cursors import Lane
from sa_jobqueue.worker.claim.partitions import Partition, Partitions
from sa_jobqueue.worker.claim.selectors import Selection

LIMITED = Control(global_concurrency=3)


def partitions(
    queues: Mapping[str, int | None],
    *types: str,
    slots: Mapping[str, int] | None = None,
    of_queues: Mapping[QueueKey, Control] | None = None,
    of_types: Mapping[str, Control] | None = None,
    selected: str = "",
) -> Partitions:
    """Return the partitions of a worker; its executor has 5 slots free of each queue, and 4 of each type."""
    controls = Controls(queues=of_queues or {}, types=of_types or {})
    selector = Selector(queue=selected or "unused", choose=lambda offered, free: offered)
    return Partitions(
        queues,
        types,
        slots or {},
        executor=cast("Any", SimpleNamespace(free_in=lambda _: 5, free_for=lambda _: 4)),
        model=Job,
        controls=controls,
        selections={selected: Selection(selector, Job, "tester", cast("Any", None))} if selected else {},
    )


def shape(partitions_found: Partitions) -> list[tuple[list[str], list[str], str | None]]:
    queues = {
        id(partition): [queue for (queue, _), part in partitions_found._of.items() if part is partition]
        for partition in partitions_found.every
    }
    return [(queues[id(partition)], list(partition.types), partition.own_type) for partition in partitions_found.every]


def of(all_partitions: Partitions, queue: str, type_name: str = "") -> Partition:
    partition = all_partitions.of((queue, type_name))
    assert partition is not None
    return partition


def test_without_limits_all_queues_and_types_share_one_partition() -> None:
    divided = partitions({"a": None, "b": None}, "t", "u")
    assert shape(divided) == [(["a", "b"], ["t", "u"], None)]
    (partition,) = divided.every
    assert (partition.is_plain, partition.has_capacity_of_its_own, partition.capacity(9)) == (True, False, 9)
    assert (divided.is_limited, divided.own_types) == (False, set())
    assert (divided.of(("a", "")), divided.of(("b", "")), divided.of(("c", ""))) == (partition, partition, None)
    assert (partition.full_until, partition.is_refused, partition.own_type) == (float("-inf"), False, None)


def test_queues_and_types_with_local_limits_form_a_partition_per_combination() -> None:
    divided = partitions({"a": None, "b": 5}, "t", "u", slots={"u": 4})
    assert shape(divided) == [(["a"], ["t"], None), (["a"], ["u"], "u"), (["b"], ["t"], None), (["b"], ["u"], "u")]
    assert [partition.capacity(9) for partition in divided.every] == [9, 4, 5, 4]
    assert [partition.capacity(1) for partition in divided.every] == [1, 1, 1, 1]
    assert [partition.has_capacity_of_its_own for partition in divided.every] == [False, True, True, True]
    assert all(partition.is_plain for partition in divided.every)
    assert divided.own_types == {"u"}


def test_global_limits_apply_per_queue_fairness_key_and_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Limits", lambda model, *limited: (model, *limited))
    key, other_key = QueueKey("a", "7"), QueueKey("z", "7")
    controls = {QueueKey("b"): LIMITED, key: LIMITED, other_key: LIMITED, QueueKey("c", "7"): Control(weight=2)}
    divided = partitions({"a": None, "b": None, "c": None}, "t", "u", of_queues=controls, of_types={"u": LIMITED})
    limits: dict[Any, Any] = {(partition.queue, partition.own_type): partition.limits for partition in divided.every}
    assert limits == {
        (None, None): None,
        (None, "u"): (Job, None, "u", []),
        ("a", None): (Job, None, None, [key]),
        ("a", "u"): (Job, None, "u", [key]),
        ("b", None): (Job, "b", None, []),
        ("b", "u"): (Job, "b", "u", []),
    }
    assert [partition.is_plain for partition in divided.every] == [True, False, False, False, False, False]
    assert divided.is_limited


async def test_a_queue_with_a_selector_is_its_own_partition() -> None:
    divided = partitions({"a": None, "b": None}, "t", selected="a")
    assert shape(divided) == [(["b"], ["t"], None), (["a"], ["t"], None)]
    assert (of(divided, "a").is_plain, of(divided, "b").is_plain) == (False, True)
    assert of(divided, "b").selection is None
    assert of(divided, "a").selection is not None


def test_a_lane_belongs_to_a_partition_unless_paused_or_not_served() -> None:
    paused = Control(is_paused=True)
    controls = {QueueKey("a", "7"): paused, QueueKey("b"): paused}
    divided = partitions({"a": None, "b": None}, "t", "u", slots={"u": 4}, of_queues=controls)
    assert divided.lanes("a", "8", 2) == [Lane("a", "8", 2, ""), Lane("a", "8", 2, "u")]
    assert divided.lanes("a", "7", 2) == divided.lanes("b", "", 2) == divided.lanes("c", "", 2) == []
    assert divided.of_lane(Lane("a", "8", 2, "u")) is divided.of(("a", "u"))
    assert divided.of_lane(Lane("a", "8", 2, "")) is divided.of(("a", ""))
    assert divided.of_lane(Lane("a", "7", 2, "")) is None
    assert divided.of_lane(Lane("b", "", 0, "")) is None
    assert divided.of_lane(Lane("c", "", 0, "")) is None
    assert partitions({"a": None}, "t").of_lane(Lane("c", "", 0, "")) is None
