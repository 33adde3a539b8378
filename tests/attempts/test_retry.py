"""When a failed job is tried again."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.retry import Backoff, immediately

pytestmark = pytest.mark.every_python

ERROR = ValueError("once")
WAITS = st.timedeltas(min_value=timedelta(microseconds=1), max_value=timedelta(days=365))
ATTEMPTS = st.integers(1, 2**31 - 1)


@st.composite
def backoffs(draw: st.DrawFn, *, jitter: bool = True) -> Backoff:
    base, cap = sorted((draw(WAITS), draw(WAITS)))
    factor = draw(st.floats(1, 1e300) | st.integers(1, 10))
    rolled = draw(st.floats(0, 1, exclude_max=True))
    return Backoff(base=base, factor=factor, cap=cap, jitter=jitter, random=lambda: rolled)


def test_bounds_double_from_a_second_to_an_hour_by_default() -> None:
    bounds = [Backoff().bound(attempt) for attempt in (1, 2, 3, 12, 13, 10_000)]
    assert bounds == [timedelta(seconds=seconds) for seconds in (1, 2, 4, 2048, 3600, 3600)]


@given(backoffs(), ATTEMPTS)
def test_backoff_never_exceeds_its_cap(backoff: Backoff, attempt: int) -> None:
    assert backoff.bound(attempt) <= backoff.cap
    assert timedelta(0) <= backoff(attempt, ERROR) <= backoff.bound(attempt)


@given(backoffs(), ATTEMPTS, ATTEMPTS)
def test_backoff_bounds_never_decrease(backoff: Backoff, one: int, other: int) -> None:
    assert backoff.bound(min(one, other)) <= backoff.bound(max(one, other))


@given(backoffs(jitter=False), ATTEMPTS)
def test_without_jitter_the_backoff_equals_its_bound(backoff: Backoff, attempt: int) -> None:
    assert backoff(attempt, ERROR) == backoff.bound(attempt)


def test_a_small_factor_reaches_the_cap_too() -> None:
    slow = Backoff(base=timedelta(seconds=1), factor=1.01, cap=timedelta(hours=1))
    assert slow.bound(1000) == timedelta(hours=1)


@pytest.mark.parametrize("attempt", [0, -5])
def test_an_attempt_below_one_counts_as_the_first(attempt: int) -> None:
    assert Backoff().bound(attempt) == timedelta(seconds=1)


@pytest.mark.parametrize(
    ("option", "given_options"),
    [
        ("base", {"base": timedelta(0)}),
        ("base", {"base": timedelta(seconds=-1)}),
        ("factor", {"factor": 0.99}),
        ("factor", {"factor": math.nan}),
        ("cap", {"base": timedelta(seconds=2), "cap": timedelta(seconds=1)}),
    ],
)
def test_an_option_out_of_bounds_is_named(option: str, given_options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Backoff(**given_options)
    assert caught.value.option == option
    assert caught.value.reason.startswith("must ")


def test_jitter_is_a_random_fraction_of_the_bound() -> None:
    assert Backoff(random=lambda: 0.25)(3, ERROR) == timedelta(seconds=1)
    assert Backoff(random=lambda: 0.25, jitter=False)(3, ERROR) == timedelta(seconds=4)


def test_immediately_has_no_delay() -> None:
    assert immediately(3, ERROR) == timedelta(0)
