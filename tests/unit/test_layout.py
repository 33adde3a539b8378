"""Names of one queue's objects."""

from __future__ import annotations

from typing import Any

import pytest

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.layout import Layout
from sa_jobqueue.models import Job


def test_schema_and_prefix_are_part_of_every_name() -> None:
    layout = Layout("app", "mail_")
    assert layout.name("job") == "mail_job"
    assert layout.qualified("dead_letter") == '"app".mail_dead_letter'
    assert layout.channel("lost") == "app.mail_job:lost"


@pytest.mark.parametrize(
    ("option", "given_options"),
    [
        ("queue_schema", {"schema": ""}),
        ("queue_schema", {"schema": "App"}),
        ("queue_schema", {"schema": 'a"; drop'}),
        ("queue_schema", {"schema": "a\n"}),
        ("queue_schema", {"schema": "x" * 33}),
        ("queue_prefix", {"prefix": "1_"}),
        ("queue_prefix", {"prefix": "a-b"}),
        ("queue_prefix", {"prefix": "ä_"}),
        ("queue_prefix", {"prefix": "x" * 21}),
        ("id_type", {"id_type": "int"}),
    ],
)
def test_a_schema_or_prefix_that_is_not_a_plain_identifier_is_refused(option: str, given_options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Layout(**given_options)
    assert caught.value.option == option


def test_the_longest_layout_stays_within_postgresqls_identifier_limit() -> None:
    layout = Layout("s" * 32, "p" * 20)
    tables = [Job.__table__, *(kind.__table__ for kind in (Job.Attempt, Job.Blocker, Job.DeadLetter, Job.Worker))]
    names = [str(part.name) for table in tables for part in (*table.constraints, *table.indexes) if part.name]  # type: ignore[attr-defined]
    assert len(names) > 20
    assert max(len(layout.name(name)) for name in names) <= 63
    assert len(layout.channel("lost")) < 64
