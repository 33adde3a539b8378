"""Handlers, and the jobs they make."""

from __future__ import annotations

import gc
import re
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from unittest.mock import patch
from uuid import UUID

import pytest
from pydantic import BaseModel
from sqlalchemy.orm import DeclarativeBase

from sa_jobqueue import Continuation, Job, JobMixin, JobQueue, JobStatus, errors
from sa_jobqueue.policies.retry import immediately
from sa_jobqueue.registry import Handler
from sa_jobqueue.types import ChainResult

pytestmark = pytest.mark.every_python


class Order(BaseModel):
    order_id: int


class Base(DeclarativeBase):
    pass


class MailJob(JobMixin, Base, queue_prefix="mail_"):
    pass


@pytest.mark.parametrize("attribute", ["job", "enqueue", "enqueue_many", "continuation", "blocker", "payload"])
@pytest.mark.parametrize("autospec", [None, True])
def test_a_test_can_replace_each_method_of_a_handler_and_gets_it_back(attribute: str, autospec: bool | None) -> None:
    jobs = JobQueue()

    @jobs.keyword_handler("remind")
    def remind(order_id: int) -> None: ...

    arguments = ("session", [{"order_id": 7}]) if attribute == "enqueue_many" else ({"order_id": 7},)
    with patch.object(remind, attribute, autospec=autospec) as replacement:
        getattr(remind, attribute)(*arguments)
        replacement.assert_called_once_with(*arguments)
    assert remind.job(order_id=7).input == {"order_id": 7}
    assert vars(remind).keys() == {"job_type", "model"}


def test_the_type_of_a_handler_can_be_written_with_two_arguments_or_more() -> None:
    types = [Handler[int, str], Handler[int, str, MailJob], Handler[int, str, MailJob, [int], str]]
    assert [get_args(handler_type)[2:] for handler_type in types] == [
        (Job, ..., Any),
        (MailJob, ..., Any),
        (MailJob, (int,), str),
    ]


def test_attributes_can_be_set_on_a_handler_and_handlers_are_keys() -> None:
    jobs = JobQueue()

    @jobs.handler("ship")
    def ship(order: Order) -> None: ...

    handler: Any = ship
    handler.owner = "sales"
    assert ({ship: 1}[ship], handler.owner) == (1, "sales")


@pytest.mark.slow
def test_a_type_keeps_the_declaration_of_a_registry_that_exists_when_later_registries_are_collected() -> None:
    def declare(queue: str) -> JobQueue[Job]:
        jobs = JobQueue()

        @jobs.handler("ship", queue=queue)
        def ship(order: Order) -> None: ...

        return jobs

    registries = [declare("first"), declare("second"), declare("third")]
    assert Job("ship", {"order_id": 7}).queue == "third"
    for position, queue in [(1, "third"), (1, "first")]:  # the second, then the third
        del registries[position]
        gc.collect()
        assert Job("ship", {"order_id": 7}).queue == queue
        with pytest.raises(errors.InvalidPayloadError):
            Job("ship", {"order_id": "x"})
    registries.append(declare("fourth"))
    assert Job("ship", {"order_id": 7}).queue == "fourth"
    registries.clear()
    gc.collect()
    assert Job("ship", {"order_id": "x"}).queue is None


def test_a_handler_reads_the_payload_of_its_jobs() -> None:
    jobs = JobQueue()

    @jobs.handler("ship", version=2)
    def ship(order: Order) -> None: ...

    @ship.upcast(from_version=1)
    def wrap(data: Any) -> Any:
        return {"order_id": data}

    @jobs.keyword_handler("remind")
    def remind(order_id: int, text: str = "Please pay") -> None: ...

    @jobs.handler("tick")
    def tick() -> None: ...

    assert ship.payload(ship.job(Order(order_id=7))) == Order(order_id=7)
    assert ship.payload(Job("ship", 7, input_version=1)) == Order(order_id=7)
    assert remind.payload(remind.job(order_id=7))["order_id"] == 7
    assert tick.payload(tick.job()) is None
    with pytest.raises(errors.InvalidOptionError, match="is of type 'tick', not 'ship': ask the handler of that type"):
        ship.payload(tick.job())
    with pytest.raises(errors.InvalidPayloadError, match="order_id"):
        ship.payload(Job("ship", "x", input_version=1))


def test_a_handler_makes_jobs_with_its_own_defaults() -> None:
    jobs = JobQueue()

    @jobs.handler(
        "send", queue="mail", priority=3, max_attempts=8, timeout=timedelta(minutes=2), retry=immediately, version=2
    )
    def send(order: Order) -> None: ...

    job = send.job(Order(order_id=7))
    assert type(job) is Job
    assert (job.type_name, job.chain_type_name, job.input, job.input_version) == ("send", "send", {"order_id": 7}, 2)
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("mail", 3, 8, timedelta(minutes=2))
    assert job.chain_id == job.id
    assert send.name == "send"
    assert send.job_type.retry is immediately


def test_each_default_can_be_overridden_for_one_job() -> None:
    jobs = JobQueue()

    @jobs.handler("send", queue="mail", priority=3, timeout=timedelta(minutes=2))
    def send(order: Order) -> None: ...

    fixed = MailJob("x").id
    job = send.job(
        Order(order_id=7),
        queue="other",
        priority=0,
        max_attempts=1,
        timeout=timedelta(seconds=1),
        id=fixed,
        deduplication_key="7",
    )
    assert (job.queue, job.priority, job.max_attempts, job.timeout) == ("other", 0, 1, timedelta(seconds=1))
    assert (job.id, job.deduplication_key) == (fixed, "7")


def test_an_invalid_payload_or_field_is_refused_when_the_job_is_created() -> None:
    jobs = JobQueue()

    @jobs.handler("send")
    def send(order: Order) -> None: ...

    with pytest.raises(errors.InvalidPayloadError, match=r"input\.order_id"):
        send.job({"order_id": "x"})  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidJobError, match="delay: must be a timedelta from zero"):
        send.job(Order(order_id=1), delay=timedelta(seconds=-1))
    with pytest.raises(errors.InvalidJobError, match="at: must be an aware datetime"):
        send.job(Order(order_id=1), at=datetime(2026, 1, 1))
    with pytest.raises(errors.InvalidJobError, match="delay: give either"):
        send.job(Order(order_id=1), at=datetime(2026, 1, 1, tzinfo=UTC), delay=timedelta(0))


def test_calling_a_handler_calls_its_function() -> None:
    jobs = JobQueue()

    @jobs.handler("double")
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    assert double(number=4) == 8  # type: ignore[call-arg]  # to type checkers, the payload has no name


def test_a_registry_makes_jobs_of_its_own_class() -> None:
    jobs = JobQueue(MailJob)

    @jobs.handler("send")
    def send(order: Order) -> None: ...

    assert isinstance(send.job(Order(order_id=1)), MailJob)
    assert isinstance(jobs.job("send", {"order_id": 1}), MailJob)


def test_jobs_created_by_type_name_are_validated_too() -> None:
    jobs = JobQueue()

    @jobs.handler("send", priority=2)
    def send(order: Order) -> None: ...

    assert jobs["send"] is send
    assert jobs.job("send", Order(order_id=1), queue="q").queue == "q"
    with pytest.raises(errors.InvalidPayloadError):
        jobs.job("send", {})
    with pytest.raises(errors.UnknownJobTypeError, match="'sned'; known job types: send"):
        jobs.job("sned", {})
    with pytest.raises(errors.UnknownJobTypeError):
        jobs["sned"]


@pytest.mark.parametrize(
    ("type_name", "options", "field"),
    [
        ("", {}, "type_name"),
        ("a b", {}, "type_name"),
        ("send", {"queue": "no spaces"}, "queue"),
        ("send", {"priority": 10}, "priority"),
        ("send", {"max_attempts": 0}, "max_attempts"),
        ("send", {"timeout": timedelta(0)}, "timeout"),
    ],
)
def test_invalid_handler_defaults_are_refused_before_the_function_is_decorated(
    type_name: str, options: Any, field: str
) -> None:
    with pytest.raises(errors.InvalidJobError) as caught:
        JobQueue().handler(type_name, **options)
    assert caught.value.field == field


def test_upcasters_are_registered_by_the_version_they_start_from() -> None:
    jobs = JobQueue()

    @jobs.handler("send", version=2)
    def send(order: Order) -> None: ...

    @send.upcast(1)
    def to_two(old: Any) -> Any:
        return {"order_id": old}

    assert to_two(3) == {"order_id": 3}
    assert send.job_type.decode(3, 1) == Order(order_id=3)
    for version in (0, 2):
        with pytest.raises(errors.InvalidOptionError, match="from_version: must be from 1 to 1"):
            send.upcast(version)(to_two)
    with pytest.raises(errors.InvalidOptionError, match="already has an upcaster from 1"):
        send.upcast(1)(to_two)


def test_include_takes_over_every_handler() -> None:
    jobs, feature = JobQueue(), JobQueue()

    @jobs.handler("a")
    def a() -> None: ...
    @feature.handler("b", queue="feature")
    def b() -> None: ...

    jobs.include(feature)
    assert [handler.name for handler in jobs] == ["a", "b"]
    assert jobs["b"] is b
    assert jobs.queues == ("default", "feature")


def test_include_of_a_duplicate_type_names_both_handlers_and_changes_nothing() -> None:
    jobs, feature = JobQueue(), JobQueue()

    @jobs.handler("same")
    def ours() -> None: ...
    @feature.handler("fine")
    def fine() -> None: ...
    @feature.handler("same")
    def theirs() -> None: ...

    with pytest.raises(errors.InvalidHandlerError) as caught:
        jobs.include(feature)
    assert re.search(r"is declared at .*\.ours and again at .*\.theirs; rename one", str(caught.value))
    assert jobs.registry.names == ("same",)
    assert jobs["same"] is ours


def test_include_refuses_a_registry_of_another_class() -> None:
    with pytest.raises(errors.InvalidOptionError, match="makes jobs of MailJob, this registry those of Job"):
        JobQueue().include(JobQueue(MailJob))  # type: ignore[arg-type]


def test_a_continuation_is_validated_when_it_is_created() -> None:
    jobs = JobQueue(MailJob)

    @jobs.handler("send", priority=3)
    def send(order: Order) -> None: ...

    job = send.continuation(Order(order_id=7), delay=timedelta(minutes=5), queue="later").job
    assert isinstance(job, MailJob)
    assert (job.type_name, job.input, job.priority, job.queue) == ("send", {"order_id": 7}, 3, "later")
    with pytest.raises(errors.InvalidPayloadError, match=r"input\.order_id"):
        send.continuation({})  # type: ignore[arg-type]


CHAIN = UUID(int=7)


def ended(output: Any, last: str = "first", status: JobStatus = JobStatus.COMPLETED) -> ChainResult[Any]:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    return ChainResult(
        id=CHAIN,
        type_name="first",
        status=status,
        output=output,
        error=None,
        created_at=now,
        completed_at=now,
        length=1,
        last_job_id=CHAIN,
        last_type_name=last,
    )


def chained() -> tuple[JobQueue[Job], Handler[int, int | Order, Job]]:
    jobs = JobQueue()

    @jobs.handler("first")
    def first(n: int) -> int | Continuation[Order]:
        return n

    @jobs.handler("second")
    def second() -> Order:
        return Order(order_id=7)

    return jobs, first


def test_a_chains_output_is_decoded_by_the_type_of_its_last_job() -> None:
    jobs, first = chained()
    for output, last, typed in [(7, "first", 7), ({"order_id": 7}, "second", Order(order_id=7))]:
        assert first.output(ended(output, last)) == jobs.output(ended(output, last)) == typed
    with pytest.raises(errors.InvalidPayloadError, match="output"):
        first.output(ended("seven"))
    with pytest.raises(errors.InvalidPayloadError, match="output: Input should be a valid integer"):
        jobs.output(ended({"order_id": 7}, "first"))
    with pytest.raises(errors.UnknownJobTypeError, match="'gone'"):
        jobs.output(ended(7, "gone"))


@pytest.mark.parametrize("status", [JobStatus.PENDING, JobStatus.DEAD])
def test_a_chain_that_has_not_completed_has_no_output(status: JobStatus) -> None:
    jobs, first = chained()
    for read in (first.output, jobs.output):
        with pytest.raises(errors.NoOutputError, match=f"chain {CHAIN} has no output: it is {status}") as caught:
            read(ended(None, status=status))
        assert (caught.value.chain_id, caught.value.status) == (CHAIN, status)
