"""The starts that a rate allows, against the promise itself: no stretch of time has more."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.policies.rates import STEPPED_BACK, Rate

START = datetime(2026, 11, 22, tzinfo=UTC)
PERIOD = timedelta(seconds=10)
_GIVEN: dict[str, Any] = dict.fromkeys(ClaimedJob._fields) | {
    "priority": 0,
    "scheduled_at": START,
    "queue": "default",
    "fairness_key": "",
}
JOB = ClaimedJob(**_GIVEN)
# Milliseconds until the next claim, and the weights of what it finds.
CLAIMS = st.lists(st.tuples(st.integers(0, 4000), st.lists(st.integers(1, 40), min_size=1, max_size=20)), max_size=60)


def drive(rate: Rate, claims: list[tuple[int, list[int]]]) -> list[tuple[datetime, int]]:
    """Start the jobs that the rate allows; return their times and costs."""
    now, started = START, []
    for wait, weights in claims:
        now += timedelta(milliseconds=wait)
        rate = rate.as_of(now)
        granted = weights[: rate.fitting(weights)]
        if granted:
            started += [(now, weight) for weight in granted]
            rate = rate.spent(sum(granted))
        else:
            # Just before it says, nothing starts either; at the instant, it does.
            assert not rate.as_of(now + rate.wait(weights[0]) - timedelta(milliseconds=1)).fitting(weights[:1])
            assert rate.as_of(now + rate.wait(weights[0]) + timedelta(microseconds=1)).fitting(weights[:1])
    return started


@given(claims=CLAIMS, limit=st.integers(1, 200), burst=st.integers(1, 100))
def test_no_interval_exceeds_the_burst_or_its_heaviest_job_plus_the_rate(
    claims: list[tuple[int, list[int]]], limit: int, burst: int
) -> None:
    started = drive(Rate(limit=limit, period=PERIOD, burst=burst), claims)
    sums = list(accumulate(weight for _, weight in started))
    for first, (begun, weight) in enumerate(started):
        for last, (ended, _) in enumerate(started[first:], start=first):
            total = sums[last] - sums[first] + weight
            heaviest = max(weight for _, weight in started[first : last + 1])
            assert total <= max(burst, heaviest) + limit * ((ended - begun) / PERIOD) + 1e-6


@given(claims=CLAIMS, limit=st.integers(2, 200))
def test_a_limit_of_one_less_with_a_burst_of_one_never_exceeds_it_in_any_period(
    claims: list[tuple[int, list[int]]], limit: int
) -> None:
    """The refusal of `rate_algorithm` names this replacement."""
    of_one = [(wait, [1] * len(weights)) for wait, weights in claims]
    started = [at for at, _ in drive(Rate(limit=limit - 1, period=PERIOD, burst=1), of_one)]
    assert all(sum(first <= at <= first + PERIOD for at in started) <= limit for first in started)


def test_a_job_costing_more_than_the_burst_starts_when_the_bucket_is_full() -> None:
    rate = Rate(limit=10, period=PERIOD, burst=5).as_of(START)
    assert rate.fitting([8, 1]) == 1
    rate = rate.spent(8)
    assert (rate.left, rate.wait(1), rate.wait(8)) == (-3, timedelta(seconds=4), timedelta(seconds=8))
    assert rate.as_of(START + timedelta(seconds=7)).fitting([8]) == 0
    assert rate.as_of(START + timedelta(seconds=8)).fitting([8]) == 1


def test_a_clock_stepped_back_blocks_a_rate_for_at_most_one_period() -> None:
    rate = Rate(limit=5, period=PERIOD).as_of(START).spent(5)
    assert rate.is_after(START - timedelta(milliseconds=3))
    back = START - timedelta(hours=1)
    assert not rate.is_after(back)
    again = rate.as_of(back)
    assert again.left == 0
    assert again.as_of(back + PERIOD).left == 5
    assert not replace(rate, at=back + STEPPED_BACK + timedelta(seconds=1)).is_after(back)


def test_fitting_counts_the_leading_jobs_within_the_limit() -> None:
    rate = Rate(limit=10, period=PERIOD).as_of(START)
    assert [rate.fitting(weights) for weights in ([1, 2, 3, 4, 1], [9, 2, 1], [11], [11, 1], [])] == [4, 1, 1, 1, 0]


def test_a_claim_at_the_same_instant_is_not_later() -> None:
    rate = Rate(limit=5, period=PERIOD).as_of(START)
    assert not Rate(limit=5, period=PERIOD).is_after(START)
    assert not rate.is_after(START)
    assert rate.is_after(START - timedelta(microseconds=1))
    assert rate.is_after(START - STEPPED_BACK)
    assert not rate.is_after(START - STEPPED_BACK - timedelta(microseconds=1))


def test_a_rate_is_loaded_as_of_now_unless_a_later_claim_wrote_it() -> None:
    row = SimpleNamespace(
        rate_limit=10, rate_period=PERIOD, rate_burst=5, tokens=2.5, spent_at=START, now=START + PERIOD / 10
    )
    bucket = Rate.of(row)
    assert bucket is not None
    assert (bucket.at, bucket.period, bucket.most, bucket.left) == (row.now, PERIOD, 5, 3.5)
    row.now = START - timedelta(milliseconds=1)
    assert (faster := Rate.of(row)) is not None
    assert (faster.at, faster.left) == (START, 2.5)
    row.rate_limit = None
    assert Rate.of(row) is None
