"""An application whose handlers keep what they receive: executors import it by its name."""

from __future__ import annotations

from datetime import date, datetime, time
from decimal import Decimal
from typing import Any

from pydantic import BaseModel

from sa_jobqueue import JobQueue

jobs: JobQueue[Any] = JobQueue()
received: list[Any] = []


class Inner(BaseModel):
    """A struct."""

    amount: Decimal
    at: datetime
    ratio: float


class Everything(BaseModel):
    """A field for every type of column that JSON can carry."""

    byte: int
    big: int
    real: float
    double: float
    narrow: Decimal
    wide: Decimal
    flag: bool
    text: str
    day: date
    instant: datetime
    wall: datetime
    numbers: list[Decimal | None]
    reals: list[float]
    by_name: dict[str, datetime]
    by_number: dict[int, Decimal]
    inner: Inner
    many: list[Inner | None]
    small: int
    whole: int
    early: date
    clock: time
    last: datetime
    matrix: list[list[Decimal] | None]
    deep: dict[str, list[Inner]]
    blank: dict[str, int]
    nothing: Decimal | None
    no_inner: Inner | None
    a_b: int


class Price(BaseModel):
    """Numbers of three kinds: exact, rounded, and of any type."""

    amount: Decimal
    ratio: float
    extra: Any = None


@jobs.handler("price")
def receive_price(payload: Price) -> None:
    """Keep the payload."""
    received.append(payload)


@jobs.handler("everything")
def receive(payload: Everything) -> None:
    """Keep the payload."""
    received.append(payload)


@jobs.handler("any")
def anything(payload: Any) -> None:
    """Keep the payload."""
    received.append(payload)
