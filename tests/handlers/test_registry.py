"""The meaning of a handler's signature, and signatures that are refused."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from sa_jobqueue import JobQueue, errors
from sa_jobqueue.context import Blockers, Continuation
from sa_jobqueue.registry.job_types import JobType, Registry, describe
from sa_jobqueue.registry.options import HandlerOptions

pytestmark = pytest.mark.every_python


class Order(BaseModel):
    order_id: int


class Unserialisable:
    pass


def described(func: Callable[..., Any], **options: Any) -> JobType:
    declared = HandlerOptions("test", **options)
    declared.check()
    return describe(func, declared)


def test_payload_output_and_location_are_read_from_the_function() -> None:
    def send(order: Order) -> list[int]:
        return []

    kind = described(send)
    signature = kind.signature
    assert kind.input.declared is Order
    assert kind.output.declared == list[int]
    assert kind.place.startswith("tests.handlers.test_registry:")
    assert kind.place.endswith("send")
    assert (signature.takes_input, signature.is_async, signature.session_argument, signature.context_argument) == (
        True,
        False,
        None,
        None,
    )


def test_blocker_outputs_are_found_by_annotation() -> None:
    def merge(order: Order, parts: Blockers[list[Order]]) -> None: ...
    def join(*, parts: Blockers[tuple[Order, int]], session: Session) -> None: ...
    def untyped(parts: Blockers) -> None: ...  # type: ignore[type-arg]

    kind = described(merge)
    signature = kind.signature
    assert (signature.takes_input, signature.blockers_argument, signature.context_argument) == (
        True,
        "parts",
        None,
    )
    assert kind.blockers is not None
    assert kind.blockers.decode("blockers", [{"order_id": 7}]) == [Order(order_id=7)]
    kind = described(join)
    signature = kind.signature
    assert (signature.takes_input, signature.blockers_argument, signature.session_argument) == (
        False,
        "parts",
        "session",
    )
    assert kind.blockers is not None
    assert kind.blockers.decode("blockers", [{"order_id": 7}, 8]) == (Order(order_id=7), 8)
    with pytest.raises(errors.InvalidPayloadError, match=r"blockers\[0\]\.order_id"):
        kind.blockers.decode("blockers", [{}, 8])
    kind = described(untyped)
    assert kind.blockers is not None
    assert kind.blockers.decode("blockers", [{}, 8]) == [{}, 8]

    def none(order: Order) -> None: ...

    assert described(none).blockers is None


def continues() -> Continuation[Order]:
    raise NotImplementedError


def continues_or_ends() -> int | Continuation[Order]:
    raise NotImplementedError


def continues_or_ends_with_none() -> None | Continuation[Order]:  # noqa: RUF036 - the order is what is tested
    raise NotImplementedError


def continues_with_several_types() -> Continuation[str | None] | int | list[int] | Continuation[Order]:
    raise NotImplementedError


def continues_untyped() -> int | Continuation:  # type: ignore[type-arg]
    raise NotImplementedError


@pytest.mark.parametrize(
    ("func", "ends_with", "chain_ends_with"),
    [
        (continues, Any, Order),
        (continues_or_ends, int, int | Order),
        (continues_or_ends_with_none, Any, Order | None),
        (continues_with_several_types, int | list[int], str | int | list[int] | Order | None),
        (continues_untyped, int, Any),
    ],
)
def test_continuation_types_determine_the_chain_output_not_the_job_output(
    func: Callable[..., Any], ends_with: Any, chain_ends_with: Any
) -> None:
    assert described(func).output.declared == ends_with
    assert described(func).chain_output.declared == chain_ends_with


def test_the_output_of_a_continuing_handler_is_checked_without_its_continuation() -> None:
    kind = described(continues_or_ends)
    assert kind.output.encode_output(7).value == 7
    with pytest.raises(errors.InvalidOutputError):
        kind.output.encode_output("seven")
    assert kind.chain_output.decode("output", {"order_id": 7}) == Order(order_id=7)


def two_payloads(order: Order, second_payload: int) -> None: ...
def two_sessions(order: Order, first: Session, two: Session) -> None: ...
def two_blockers(first: Blockers[int], two: Blockers[int]) -> None: ...
def untyped_blockers(blockers: Blockers[Unserialisable]) -> None: ...
def positional_blockers(order: Order, parts: Blockers[int], /) -> None: ...
def payload_last(session: Session, order: Order) -> None: ...
def payload_by_name(*, order: Order) -> None: ...
def many(order: Order, *more: int) -> None: ...
def anything(order: Order, **more: int) -> None: ...
def positional_session(order: Order, session: Session, /) -> None: ...
def sync_with_async_session(order: Order, session: AsyncSession) -> None: ...
async def async_with_sync_session(order: Order, session: Session) -> None: ...
def untyped_payload(order: Unserialisable) -> None: ...
def untyped_output(order: Order) -> Unserialisable:
    return Unserialisable()


def unknown_annotation(order: Odrer) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def maybe_session(session: Session | None) -> None: ...


def generates(order: Order) -> Iterator[int]:
    yield 1


async def generates_async(order: Order) -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("func", "reason"),
    [
        (two_payloads, "unexpected argument 'second_payload'"),
        (two_sessions, "asks for two arguments of type Session"),
        (two_blockers, "asks for two arguments of type Blockers"),
        (untyped_blockers, "the blockers cannot be typed as"),
        (positional_blockers, "'parts' is given by name"),
        (payload_last, "unexpected argument 'order'; the payload comes first"),
        (payload_by_name, "unexpected argument 'order'"),
        (many, r"\*more cannot be filled"),
        (anything, r"\*more cannot be filled"),
        (positional_session, "'session' is given by name"),
        (sync_with_async_session, "a synchronous handler takes a Session"),
        (async_with_sync_session, "an asynchronous handler takes an AsyncSession"),
        (untyped_payload, "the payload cannot be typed as"),
        (untyped_output, "the return value cannot be typed as"),
        (unknown_annotation, "the annotation 'Odrer' cannot be found"),
        (maybe_session, "the payload cannot be typed as"),
        (generates, "cannot yield"),
        (generates_async, "cannot yield"),
    ],
)
def test_a_signature_that_cannot_be_called_is_refused(func: Callable[..., Any], reason: str) -> None:
    with pytest.raises(errors.InvalidHandlerError, match=reason) as caught:
        described(func)
    assert str(caught.value).startswith(f"tests.handlers.test_registry:{func.__name__}: ")


@pytest.mark.parametrize("func", [functools.partial(two_payloads, second_payload=1), Order, print, 7])
def test_a_handler_that_is_not_a_function_is_refused(func: Any) -> None:
    with pytest.raises(errors.InvalidHandlerError, match="test: a handler is a function"):
        described(func)


@pytest.mark.parametrize(
    ("option", "value"),
    [("max_attempts", 0), ("version", 0), ("timeout", timedelta(0)), ("retry", 5)],
)
def test_an_option_out_of_bounds_is_named(option: str, value: Any) -> None:
    def send(order: Order) -> None: ...

    with pytest.raises((errors.InvalidOptionError, errors.InvalidJobError), match=f"^{option}:"):
        described(send, **{option: value})


def test_cron_below_handler_is_refused_with_the_right_order() -> None:
    def clean_up() -> None: ...

    declare: Any = JobQueue().cron("0 3 * * *")
    with pytest.raises(errors.InvalidOptionError, match=r"cron: must be written above @jobs.handler") as caught:
        declare(clean_up)
    assert caught.value.option == "cron"


def test_a_duplicate_type_error_names_both_handlers_and_changes_nothing() -> None:
    def first() -> None: ...
    def second() -> None: ...

    registry = Registry()
    registry.add(described(first))
    with pytest.raises(errors.InvalidHandlerError) as caught:
        registry.add(described(second))
    assert re.search(r"is declared at .*\.first and again at .*\.second; rename one", str(caught.value))
    assert registry.get("test").func is first


def versioned(**upcasters: Callable[[Any], Any]) -> JobType:
    def send(order: Order) -> None: ...

    kind = described(send, version=3)
    kind.upcasters.update({int(name[1:]): upcast for name, upcast in upcasters.items()})
    return kind


@pytest.mark.parametrize(
    ("data", "version", "field", "reason"),
    [
        ({}, 4, "input_version", "is 4, but this test knows up to 3: deploy the newer handler"),
        (7, 1, "input_version", "is 1 and test has no upcaster from 1"),
        ({}, 2, "input", "the upcaster from version 2 failed: KeyError('id')"),
        ({"id": "x"}, 2, "input.order_id", "valid integer"),
    ],
)
def test_a_failing_upcast_reports_its_field_and_reason(data: Any, version: int, field: str, reason: str) -> None:
    kind = versioned(v2=lambda old: {"order_id": old["id"]})
    with pytest.raises(errors.InvalidPayloadError) as caught:
        kind.decode(data, version)
    assert caught.value.field == field
    assert reason in caught.value.reason


def test_a_type_is_found_in_registries_that_include_this_one_even_in_cycles() -> None:
    first, two, outer = JobQueue(), JobQueue(), JobQueue()
    first.include(two)
    two.include(first)
    outer.include(first)

    @outer.handler("send")
    def send() -> None: ...

    assert two.registry.find("send") is send.job_type
    assert two.registry.find("unheard_of") is None


def test_a_method_can_be_a_handler() -> None:
    class Mailer:
        def send(self, order: Order) -> None: ...

    kind = described(Mailer().send)
    assert kind.signature.takes_input
    assert kind.input.declared is Order
