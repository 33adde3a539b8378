"""Every exception: never blank, with its fields, under one base."""

from __future__ import annotations

import inspect
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from sa_jobqueue import errors
from sa_jobqueue.errors import AttemptSignal, InvalidOptionError, JobQueueError, Retry, Snooze
from sa_jobqueue.types import ChainResult, JobStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ended(status: JobStatus, *, error: Any = None) -> ChainResult[Any]:
    return ChainResult(
        id="1",
        type_name="a",
        status=status,
        output=None,
        error=error,
        created_at=NOW,
        completed_at=NOW,
        length=2,
        last_job_id="2",
        last_type_name="b",
    )


EXAMPLES: dict[str, tuple[Any, ...]] = {
    "InvalidOptionError": ("limit", "too much"),
    "InvalidJobError": ("queue", "bad"),
    "ObjectNotFoundError": ("Order", (7,), "shop", "worker"),
    "InvalidPayloadError": ("input.a", "bad"),
    "UnreadableInputError": ("input.a", "bad"),
    "PayloadTooLargeError": ("input", 2_000_000, 1_000_000),
    "UnknownJobTypeError": ("x", ["b", "a"]),
    "UncommittedWritesError": ("blog:export", "db.session"),
    "DuplicateStepError": ("ask", "7"),
    "EventTimeoutError": ("approved:7", "approval"),
    "StepOutputError": ("ask", "", "is recorded as a sleep"),
    "StepBlockedError": ("'mail'", "sa_jobqueue 7"),
    "ChildFailedError": ("'ship'", "7", "dead"),
    "StepRefusedError": ("'mail'", "'charge'", "CardDeclined", "no funds"),
    "NotFoundError": ("chain", ["1", "2"]),
    "ChainReferencedError": ([("1", "2")],),
    "ChainFailedError": (ended(JobStatus.DEAD),),
    "ChainTimeoutError": ("1", timedelta(seconds=3)),
    "NoOutputError": ("1", JobStatus.PENDING),
    "JobEndedError": ("1", JobStatus.DEAD),
    "ConflictError": ("taken", "uq_job"),
    "PipelineMissingError": ("Job",),
    "MissingExtraError": ("prometheus-client", "metrics"),
    "SchemaBuildError": ("job", 1, "0123abcd", "4567cdef"),
    "SchemaBusyError": ("job", timedelta(seconds=3), ["pid 7"]),
    "OpenJobsError": ("2 jobs are open",),
    "IsolationError": ("it cannot start",),
    "ProcessDiedError": ("was killed",),
    "MemoryLimitError": (128, 256),
    "IsolatedHandlerError": ("app.Boom", "boom", "in f"),
    "LostAttemptError": ("1", 3),
    "UnrecordedAttemptError": ("1", 3),
    "CompletionRefusedError": ("1", "it does not see the row"),
    "RowSecurityError": ("job", "shop"),
    "UndeclaredContinuationError": ("pay", "ship", "int", "str"),
    "MiddlewareError": ("app:timed", "returned"),
    "AttemptTimeoutError": (timedelta(seconds=3),),
    "DeadlinePassedError": (datetime(2026, 1, 1, tzinfo=UTC),),
    "Snooze": (timedelta(seconds=3),),
    "Retry": (timedelta(seconds=3),),
    "Discard": ("no use",),
}

ALL: list[type[Exception]] = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if kind.__module__ == errors.__name__ and issubclass(kind, Exception) and not kind.__name__.startswith("_")
]


@pytest.mark.parametrize("kind", ALL)
def test_every_error_has_one_of_two_bases_and_a_message(kind: type[Exception]) -> None:
    assert issubclass(kind, (JobQueueError, AttemptSignal))
    assert (inspect.getdoc(kind) or "").partition("\n")[0].endswith(".") or ":" in (inspect.getdoc(kind) or "")
    if kind is not AttemptSignal:
        assert str(kind(*EXAMPLES.get(kind.__name__, ())))


@pytest.mark.parametrize("kind", [kind for kind in ALL if issubclass(kind, JobQueueError) and kind.__name__ not in EXAMPLES])
def test_an_errors_docstring_is_its_default_message(kind: type[JobQueueError]) -> None:
    assert str(kind()) == (inspect.getdoc(kind) or "").partition("\n")[0]
    assert str(kind("said otherwise")) == "said otherwise"


def test_errors_with_a_builtin_base_can_be_caught_by_it() -> None:
    assert issubclass(errors.InvalidOptionError, ValueError)
    assert issubclass(errors.InvalidJobError, ValueError)
    assert issubclass(errors.NotFoundError, LookupError)
    assert issubclass(errors.UnknownJobTypeError, LookupError)
    assert issubclass(errors.InvalidHandlerError, TypeError)
    assert issubclass(errors.AttemptTimeoutError, TimeoutError)
    assert issubclass(errors.ChainTimeoutError, TimeoutError)


@pytest.mark.parametrize("signal", [Snooze, Retry])
def test_retry_and_snooze_take_either_a_delay_or_an_instant(signal: Any) -> None:
    assert (signal(timedelta(0)).delay, signal(timedelta(0)).at) == (timedelta(0), None)
    assert (signal(at=NOW).delay, signal(at=NOW).at) == (None, NOW)
    both = "delay: give exactly one of delay and at"
    refused: list[tuple[str, dict[str, Any]]] = [
        *(
            ("delay: must be a timedelta from zero to 36,500 days", {"delay": delay})
            for delay in (timedelta(-1), timedelta.max, 5)
        ),
        (both, {}),
        (both, {"delay": timedelta(1), "at": NOW}),
        ("at: must be an aware datetime", {"at": datetime(2026, 1, 1)}),
        ("at: must be an aware datetime", {"at": NOW.date()}),
        ("at: must be before the year 9000", {"at": datetime(9000, 1, 1, tzinfo=UTC)}),
    ]
    for reason, delays in refused:
        with pytest.raises(InvalidOptionError, match=reason):
            signal(**delays)


def test_error_fields_hold_what_the_message_shows() -> None:
    missing = errors.NotFoundError("job", ["a", "b"])
    assert (missing.noun, missing.ids, missing.field) == ("job", ("a", "b"), None)
    assert "no such job: 'a', 'b'; nothing was changed" in str(missing)
    unknown = errors.NotFoundError("chain", [UUID(int=7)], field="blockers[2]", reason="")
    assert str(unknown) == f"blockers[2]: no such chain: {UUID(int=7)}"
    error = errors.ChainReferencedError([("a", str(index)) for index in range(5)])
    assert error.references[4] == ("a", "4")
    assert "job 2 refers to chain a and 2 more" in str(error)
    assert errors.not_chains({"b": "a"}).ids == ("b",)
    lost = errors.LostAttemptError("a", 3)
    assert (lost.job_id, lost.attempt) == ("a", 3)
    assert errors.Cancel().reason == "cancelled by its handler"
    failed = errors.ChainFailedError(ended(JobStatus.DEAD, error={"type": "E", "message": "no\nmore"}))
    assert (failed.chain_id, failed.status, failed.error) == ("1", JobStatus.DEAD, {"type": "E", "message": "no\nmore"})
    assert str(failed) == "chain 1 (a) is dead: E: no; after a redrive it can be waited for again"
    assert str(errors.ChainFailedError(ended(JobStatus.CANCELLED))) == "chain 1 (a) was cancelled"


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not AttemptSignal])
def test_every_error_can_be_pickled(kind: type[Exception]) -> None:
    error = kind(*EXAMPLES.get(kind.__name__, ()))
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), vars(back)) == (kind, str(error), vars(error))


def test_a_short_timeout_is_shown_as_it_was_set() -> None:
    assert str(errors.AttemptTimeoutError(timedelta(milliseconds=40))) == "ran past its timeout of 0.04 s"
