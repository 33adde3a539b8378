"""Settings of a queue are checked before they are written."""

from __future__ import annotations

from dataclasses import fields
from datetime import timedelta
from typing import Any

import pytest

from sa_jobqueue import Backoff, Job
from sa_jobqueue.cli.queues import queues
from sa_jobqueue.cli.types import types
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.operations import QueueStatus
from sa_jobqueue.policies.retention import Retention
from sa_jobqueue.registry.settings import Limits, QueueColumns, settings_of
from sa_jobqueue.settings import QueueSettings
from sa_jobqueue.worker.background.controls import Control

MINUTE = timedelta(minutes=1)


def test_a_declared_setting_is_a_column_a_live_setting_and_an_option() -> None:
    declared = set(settings_of(QueueColumns))
    assert declared == {column for column in declared if column in Job.Queue.__table__.c}
    assert declared <= {field.name for field in fields(Control)} & {field.name for field in fields(QueueStatus)}
    assert declared <= set(QueueSettings("mail").row)
    assert declared <= {option.name for option in queues.commands["set"].params}
    assert set(settings_of(Limits)) <= {option.name for option in types.commands["set"].params}


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("name", {"name": "no spaces"}),
        ("fairness_key", {"fairness_key": "x" * 101}),
        ("fairness_key", {"fairness_key": 42}),
        ("concurrency_per_key", {"fairness_key": "42", "concurrency_per_key": 3}),
        ("weight", {"weight": 0}),
        ("weight", {"weight": True}),
        ("global_concurrency", {"global_concurrency": 0}),
        ("rate_period", {"rate_limit": 5}),
        ("rate_period", {"rate_limit": 5, "rate_period": timedelta(0)}),
        ("rate_burst", {"rate_burst": 5}),
        ("retry", {"retry": lambda attempt, error: timedelta(0)}),
        ("retry", {"retry": Backoff(jitter=False)}),
        ("retry", {"retry": Backoff(factor=float("inf"))}),
        ("retry", {"retry": Backoff(cap=timedelta(days=40_000))}),
        ("retention", {"retention": timedelta(1)}),
        ("retention", {"fairness_key": "42", "retention": Retention(completed=timedelta(1))}),
    ],
)
def test_invalid_queue_settings_are_refused_by_field(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as raised:
        QueueSettings(**{"name": "mail", **settings})
    assert raised.value.option == field
