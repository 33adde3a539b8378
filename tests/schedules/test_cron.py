"""When schedules fire: against a clock that is watched minute by minute, most of all when it is set."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.policies.cron import Cron

PRAGUE = "Europe/Prague"
SPRING = datetime(2026, 3, 29, 1, tzinfo=UTC)
"""When 02:00 in Prague becomes 03:00."""
AUTUMN = datetime(2026, 10, 25, 1, tzinfo=UTC)
"""When 03:00 in Prague becomes 02:00."""
CHANGES = {
    PRAGUE: [SPRING, AUTUMN],
    "America/New_York": [datetime(2026, 3, 8, 7, tzinfo=UTC), datetime(2026, 11, 1, 6, tzinfo=UTC)],
    "America/Havana": [datetime(2026, 3, 8, 5, tzinfo=UTC), datetime(2026, 11, 1, 5, tzinfo=UTC)],  # at midnight
    "Africa/Cairo": [datetime(2026, 4, 23, 22, tzinfo=UTC), datetime(2026, 10, 29, 21, tzinfo=UTC)],  # at midnight
    "Asia/Kathmandu": [SPRING],  # 5:45 from UTC, all year
}


def local(text: str, zone: str = PRAGUE) -> datetime:
    """Return an instant by a wall clock's time; `+` after it means the second time."""
    return datetime.fromisoformat(text.rstrip("+")).replace(tzinfo=ZoneInfo(zone), fold=text.endswith("+")).astimezone(UTC)


def test_a_time_skipped_by_daylight_saving_fires_at_the_change() -> None:
    nightly = Cron("30 2 * * *", PRAGUE)
    assert nightly.times(local("2026-03-28T03:00"), 2) == [SPRING, local("2026-03-30T02:30")]
    assert Cron("0,20,40 2 * * *", PRAGUE).times(local("2026-03-28T03:00"), 2) == [SPRING, local("2026-03-30T02:00")]


def test_a_time_that_occurs_twice_fires_only_the_first_time() -> None:
    nightly = Cron("30 2 * * *", PRAGUE)
    assert nightly.times(local("2026-10-24T03:00"), 2) == [local("2026-10-25T02:30"), local("2026-10-26T02:30")]
    assert nightly.after(local("2026-10-25T02:10+")) == local("2026-10-26T02:30")


def test_hourly_schedules_fire_every_elapsed_hour_across_clock_changes() -> None:
    for change in (SPRING, AUTUMN):
        start = change - timedelta(hours=3)
        assert Cron("0 * * * *", PRAGUE).times(start, 6) == [start + timedelta(hours=hour) for hour in range(1, 7)]


def fires(field: str, value: int) -> bool:
    """Return whether a field of the expressions below has a value."""
    parts = [part.partition("/") for part in field.split(",")]
    return any(value % int(step or 1) == 0 if number == "*" else value == int(number) for number, _, step in parts)


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("60 * * * *", "bad minute; it takes 0 to 59"),
        ("0 25 * * *", "bad hour; it takes 0 to 23"),
        ("0 0 32 * *", "bad day-of-month; it takes 1 to 31"),
        ("0 0 * 13 *", "bad month; it takes 1 to 12 or JAN to DEC"),
        ("0 0 * * 8", "bad day-of-week; it takes 0 to 7 or SUN to SAT"),
    ],
)
def test_a_wrong_field_names_its_values(expression: str, accepted: str) -> None:
    with pytest.raises(InvalidOptionError, match=re.escape(accepted)):
        Cron(expression)


def watched(cron: Cron, since: datetime, until: datetime) -> list[datetime]:
    """Watch a wall clock minute by minute, as cron(8) does, and note when it should fire; both ends are included."""
    minutes, hours, *_ = cron.expression.split()
    by_the_clock = "*" not in (minutes[0], hours[0])
    times, zone, minute = [], ZoneInfo(cron.time_zone), timedelta(minutes=1)
    instant = since.replace(second=0, microsecond=0)
    while instant <= until:
        now, before = instant.astimezone(zone), (instant - minute).astimezone(zone)
        clock = [now.replace(tzinfo=None)]
        if by_the_clock and now.utcoffset() != before.utcoffset():
            while clock[-1] - minute > before.replace(tzinfo=None):  # what was skipped
                clock.append(clock[-1] - minute)
        repeated = by_the_clock and now.fold == 1
        if instant >= since and not repeated and any(fires(minutes, t.minute) and fires(hours, t.hour) for t in clock):
            times.append(instant)
        instant += minute
    return times


def fields(top: int) -> st.SearchStrategy[str]:
    numbers = st.integers(0, top).map(str)
    stars = st.sampled_from(["*", "*/2", "*/3", "*/5", "*/7", "*/15"])
    return st.one_of(stars, numbers, st.lists(numbers, min_size=2, max_size=3, unique=True).map(",".join))


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(
    minutes=fields(59),
    hours=st.one_of(fields(23), fields(3)),
    change=st.sampled_from([(zone, change) for zone, changes in CHANGES.items() for change in changes]),
    begin=st.integers(-240 * 60, 240 * 60),
    length=st.integers(0, 8 * 3600),
)
def test_cron_fires_whenever_a_wall_clock_shows_a_matching_time(
    minutes: str, hours: str, change: tuple[str, datetime], begin: int, length: int
) -> None:
    cron = Cron(f"{minutes} {hours} * * *", change[0])
    since = change[1] + timedelta(seconds=begin)
    until = since + timedelta(seconds=length)
    expected = watched(cron, since, until)
    ahead = cron.times(since - timedelta(microseconds=1), len(expected) + 1)
    assert ahead[:-1] == expected
    assert ahead[-1] > until
    assert cron.latest(since=since, until=until, limit=1000) == expected
    assert cron.latest(since=since, until=until, limit=2) == expected[-2:]


def test_latest_computes_only_as_many_past_times_as_requested() -> None:
    until = datetime(2026, 5, 1, tzinfo=UTC)
    times = Cron("* * * * *").latest(since=until - timedelta(days=3650), until=until, limit=3)
    assert times == [until - timedelta(minutes=minutes) for minutes in (2, 1, 0)]


@pytest.mark.parametrize(
    ("expression", "first"),
    [
        ("@daily", "2026-01-02T00:00"),
        ("@Monthly", "2026-02-01T00:00"),
        ("0 12 L * *", "2026-01-31T12:00"),
        ("0 0 * * mon#1", "2026-01-05T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("0 9 * * 1-5", "2026-01-01T09:00"),
    ],
)
def test_cron_accepts_crontab_expressions(expression: str, first: str) -> None:
    assert Cron(expression, PRAGUE).after(local("2026-01-01T00:00")) == local(first)


@pytest.mark.parametrize(
    ("expression", "zone", "option", "reason"),
    [
        ("61 * * * *", "UTC", "cron", "bad minute"),
        ("* * * *", "UTC", "cron", "five fields"),
        ("0 0 0 * * *", "UTC", "cron", "five fields"),
        ("@reboot", "UTC", "cron", "@hourly"),
        ("0 0 30 2 *", "UTC", "cron", "bad day-of-month"),
        ("* * */20 * 1L", "UTC", "cron", "no date meets it"),
        ("@daily", "Prague", "time_zone", "'Europe/Prague'"),
        ("@daily", "../etc/passwd", "time_zone", "IANA"),
        ("@daily", "", "time_zone", "IANA"),
    ],
)
def test_an_invalid_cron_option_is_refused_by_name(expression: str, zone: str, option: str, reason: str) -> None:
    with pytest.raises(InvalidOptionError) as refused:
        Cron(expression, zone)
    assert refused.value.option == option
    assert reason in refused.value.reason


@pytest.mark.parametrize("expression", ["*/20 2 * * *", "30 2 * * *", "15 * * * *"])
@pytest.mark.parametrize("day", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
def test_past_times_equal_future_times_across_clock_changes(expression: str, day: datetime) -> None:
    cron = Cron(expression, PRAGUE)
    since = day - timedelta(hours=1)
    ahead = cron.times(since - timedelta(microseconds=1), 12)
    assert all(instant.tzinfo is UTC for instant in ahead)
    for minutes in range(0, 300, 5):
        until = since + timedelta(minutes=minutes)
        behind = cron.latest(since=since, until=until, limit=100)
        assert behind == [instant for instant in ahead if instant <= until]
        assert cron.latest(since=until, until=until, limit=1) == behind[-1:] * (behind[-1:] == [until])
        assert all(instant.tzinfo is UTC for instant in behind)


FUZZED = st.lists(st.sampled_from(["*", "0"]) | st.text("0123456789*/,-LW#", min_size=1, max_size=5), min_size=5, max_size=5)


@settings(max_examples=200)
@given(FUZZED.map(" ".join) | st.text(max_size=30), st.sampled_from(["UTC", PRAGUE]) | st.text(max_size=20))
def test_any_expression_is_refused_or_has_times_and_a_description(expression: str, zone: str) -> None:
    try:
        cron = Cron(expression, zone)
    except InvalidOptionError as refused:
        assert refused.option in {"cron", "time_zone"}  # noqa: PT017 - others are accepted
        return
    assert cron.after(SPRING) > SPRING
    assert cron.in_words
