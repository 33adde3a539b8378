"""Annotations with names that only type checkers know: text, or evaluated late as from Python 3.14 on."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from sa_jobqueue import JobQueue
from sa_jobqueue.errors import InvalidHandlerError, InvalidOptionError
from sa_jobqueue.worker.run.steps import codec_of

pytestmark = pytest.mark.every_python

STYLES = ["from __future__ import annotations", *([""] if sys.version_info >= (3, 14) else [])]
APPLICATION = """
import dataclasses
import decimal
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypedDict

import pydantic

if TYPE_CHECKING:
    from decimal import Decimal as Money

def price() -> Money: ...
def prices() -> list[Money]: ...
def charge(order: Money) -> int: ...
async def charge_later(order: Money) -> Awaitable[int]: ...
def no_attribute(order: decimal.Money) -> decimal.Money: ...

@dataclasses.dataclass
class Data:
    price: Money

class Model(pydantic.BaseModel):
    price: Money

class Fields(TypedDict):
    price: Money

def takes_data(order: Data) -> None: ...
def takes_model(order: Model) -> None: ...
def takes_fields(order: Fields) -> None: ...

async def middleware(attempt: Money, proceed: Money) -> Money: ...
def select(candidates: Money, free: Money) -> Money: ...
"""


@pytest.fixture(params=STYLES, ids=lambda style: style or "evaluated late")
def application(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module with names that only type checkers know."""
    module = ModuleType("application_of_annotations")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(f"{request.param}\n{APPLICATION}", module.__name__, "exec", dont_inherit=True), module.__dict__)
    return module


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("price", "the annotation 'Money' cannot be found"),
        ("charge", "the annotation 'Money' cannot be found.*not under `if TYPE_CHECKING:`"),
        ("no_attribute", r"an annotation cannot be evaluated \(AttributeError"),
        ("takes_data", "payload cannot be typed as"),
        ("takes_model", "payload cannot be typed as"),
        ("takes_fields", "payload cannot be typed as"),
    ],
)
def test_a_handler_with_an_annotation_that_cannot_be_evaluated_is_refused(application: Any, name: str, reason: str) -> None:
    for register in (JobQueue().handler, JobQueue().keyword_handler):
        with pytest.raises(InvalidHandlerError, match=rf"application_of_annotations:{name}: .*{reason}"):
            register("test")(getattr(application, name))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("price", "price: the annotation 'Money' cannot be found"),
        ("prices", "prices: the annotation 'Money' cannot be found"),
        ("no_attribute", r"no_attribute: an annotation cannot be evaluated \(AttributeError"),
    ],
)
def test_a_step_whose_result_has_an_annotation_that_cannot_be_evaluated_needs_its_type(
    application: Any, name: str, reason: str
) -> None:
    function = getattr(application, name)
    with pytest.raises(InvalidOptionError, match=f"of step 'test' is needed: {reason}"):
        codec_of("test", function, None)
    assert codec_of("test", function, int).declared is int


@pytest.mark.parametrize("name", ["charge", "charge_later"])
def test_only_the_annotation_of_a_steps_result_is_read(application: Any, name: str) -> None:
    assert codec_of("test", getattr(application, name), None).declared is int


def test_annotations_of_middleware_and_selectors_are_not_evaluated(application: Any) -> None:
    queue: JobQueue[Any] = JobQueue()
    functions: list[Callable[..., Any]] = [
        queue.middleware(application.middleware),
        queue.selector("default")(application.select),
    ]
    assert functions == [application.middleware, application.select]
