"""A worker's options: each within its bounds, and each against its relations."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import WorkerOptions
from sa_jobqueue.errors import InvalidOptionError

MS, S, M, H, D = (timedelta(**{unit: 1}) for unit in ("milliseconds", "seconds", "minutes", "hours", "days"))


@pytest.mark.parametrize(
    ("option", "least", "most", "below", "above"),
    [
        ("concurrency", 1, 10_000, 0, 10_001),
        ("completion_batch_size", 1, 200, 0, 201),
        ("poll_interval", 10 * MS, 10 * M, 9 * MS, 10 * M + MS),
        ("shutdown_timeout", 0 * S, 1 * D, -1 * MS, 1 * D + MS),
        ("cancel_timeout", 0 * S, 1 * H, -1 * MS, 1 * H + MS),
    ],
)
def test_an_option_is_accepted_at_its_bounds_and_refused_beyond_them(
    option: str, least: Any, most: Any, below: Any, above: Any
) -> None:
    for value in (least, most):
        assert getattr(WorkerOptions(**{option: value}), option) == value
    for value in (below, above):
        with pytest.raises(InvalidOptionError, match=r"must be a (whole number|timedelta) from") as caught:
            WorkerOptions(**{option: value})
        assert caught.value.option == option


def test_heartbeat_interval_is_bounded() -> None:
    for interval in (100 * MS, 5 * M):
        assert WorkerOptions(heartbeat_interval=interval, heartbeat_timeout=2 * interval + MS).heartbeat_interval == interval
    for interval in (99 * MS, 5 * M + MS):
        with pytest.raises(InvalidOptionError, match="heartbeat_interval"):
            WorkerOptions(heartbeat_interval=interval, heartbeat_timeout=1 * H)


def test_by_default_jobs_of_a_dead_worker_are_rescued_within_twenty_seconds() -> None:
    options = WorkerOptions()
    assert options.heartbeat_timeout + options.heartbeat_interval == 20 * S  # what the guide says
    assert (
        options.heartbeat_timeout - options.heartbeat_interval == 10 * S
    )  # by then it has stopped its attempts itself, if it lives
    sooner = WorkerOptions(heartbeat_interval=MS * 500, heartbeat_timeout=3 * S)
    assert sooner.heartbeat_timeout + sooner.heartbeat_interval == 3.5 * S


def test_heartbeat_timeout_must_exceed_two_heartbeat_intervals() -> None:
    assert WorkerOptions(heartbeat_interval=1 * S, heartbeat_timeout=2 * S + MS)
    with pytest.raises(
        InvalidOptionError, match="heartbeat_timeout: must be a timedelta of more than two heartbeat intervals"
    ):
        WorkerOptions(heartbeat_interval=1 * S, heartbeat_timeout=2 * S)


@pytest.mark.parametrize("name", ["a", "web-1.example", "x" * 64, "0_9"])
def test_a_plain_worker_name_is_accepted(name: str) -> None:
    assert WorkerOptions(name=name).name == name


@pytest.mark.parametrize("name", ["", "-a", "a b", "x" * 65, "a\n", "ä"])
def test_an_invalid_worker_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidOptionError, match="name: must be 1 to 64"):
        WorkerOptions(name=name)


def test_queues_are_read_in_their_order_with_their_limits() -> None:
    assert list(WorkerOptions(queues=["b", "a"]).limits.items()) == [("b", None), ("a", None)]
    assert dict(WorkerOptions(queues={"a": None, "b": 2}).limits) == {"a": None, "b": 2}
    assert dict(WorkerOptions().limits) == {}


@pytest.mark.parametrize("queues", ["default", {"a": 0}, {"a": 10_001}])
def test_invalid_queue_options_are_refused(queues: Any) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        WorkerOptions(queues=queues)
    assert caught.value.option == "queues"


def test_worker_options_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        WorkerOptions().concurrency = 3  # type: ignore[misc]
