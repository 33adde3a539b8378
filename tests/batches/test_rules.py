"""Handlers of batches as they are declared: accepted and refused signatures."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import AttemptContext, JobQueue
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError, InvalidOutputError, InvalidPayloadError
from sa_jobqueue.registry import BatchFailed, BatchItem
from sa_jobqueue.registry.batches import outcomes_of, outcomes_without


def test_a_batch_handler_derives_its_types_from_the_list_items() -> None:
    jobs = JobQueue()

    @jobs.batch_handler("bare", max_size=10)
    def bare(numbers: list[int]) -> None: ...

    @jobs.batch_handler("items", max_size=10)
    async def items(items: list[BatchItem[int]]) -> list[str | Exception]:
        return []

    for handler in (bare, items):
        assert handler.job(7).input == 7
        with pytest.raises(InvalidPayloadError):
            handler.job("x")  # type: ignore[arg-type]
    assert jobs["items"] is items
    assert [kind.batch.takes_items for kind in jobs.registry if kind.batch] == [False, True]
    assert items.job_type.output.declared is str
    queue: JobQueue[Any] = JobQueue()
    queue.include(jobs)
    assert queue.registry.get("bare").batch == bare.job_type.batch


@pytest.mark.parametrize("returned", [3, "ab", {0: 1}, [1], (1, 2, 3)])
def test_a_batch_must_return_one_outcome_per_job(returned: Any) -> None:
    with pytest.raises(InvalidOutputError):
        outcomes_of(returned, 2)


def test_a_batch_may_report_only_its_failures() -> None:
    error = ValueError()
    assert outcomes_of(None, 2) == [None, None]
    assert outcomes_without(BatchFailed({1: error}), 3) == [None, error, None]
    with pytest.raises(InvalidOutputError, match="place 3"):
        outcomes_without(BatchFailed({3: error}), 3)
    wrong: Any
    for wrong, reason in (({0: "down"}, "no exception"), ({0: None}, "no exception"), ({"a": error, 1: error}, "place a")):
        with pytest.raises(InvalidOutputError, match=reason):  # a job that was named as failed was completed
            outcomes_without(BatchFailed(wrong), 3)


def takes_one(number: int) -> None: ...
def takes_list(numbers: list[int]) -> None: ...
def takes_context(numbers: list[int], attempt: AttemptContext) -> None: ...


@pytest.mark.parametrize(
    ("func", "options", "error", "reason"),
    [
        (takes_one, {}, InvalidHandlerError, r"list\[Payload\]"),
        (takes_context, {}, InvalidHandlerError, "AttemptContext"),
        (takes_list, {"max_size": 1}, InvalidOptionError, "max_size"),
        (takes_list, {"max_wait": timedelta(minutes=2)}, InvalidOptionError, "max_wait"),
        (takes_list, {"timeout": timedelta(milliseconds=10)}, InvalidOptionError, "max_wait"),
    ],
)
def test_an_invalid_batch_handler_is_refused(
    func: Any, options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    jobs = JobQueue()
    with pytest.raises(error, match=reason):
        jobs.batch_handler("index", **{"max_size": 10} | options)(func)
    assert len(jobs.registry) == 0
