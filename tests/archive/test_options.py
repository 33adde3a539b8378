"""Options of an archiver, without a database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from sa_jobqueue.cli._options import age_or_instant


def test_ages_and_dates_are_parsed() -> None:
    assert age_or_instant("30d") == timedelta(days=30)
    assert age_or_instant("12h") == timedelta(hours=12)
    assert age_or_instant("2026-01-31") == datetime(2026, 1, 31, tzinfo=UTC)
    for wrong in ("30", "-1d", "99999999999w", "d"):
        with pytest.raises(click.BadParameter):
            age_or_instant(wrong)
