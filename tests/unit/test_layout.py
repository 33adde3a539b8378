"""Names of one queue's objects."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.layout import Layout, Topic
from sa_jobqueue.models import Job
from tests.fixtures.schemas import NASTY_SCHEMA


def test_schema_and_prefix_are_part_of_every_name() -> None:
    layout = Layout("app", "mail_")
    assert layout.name("job") == "mail_job"
    assert layout.qualified("dead_letter") == '"app".mail_dead_letter'
    assert layout.channel("lost") == "app.mail_job:lost"


@pytest.mark.parametrize("schema", ["", "a\0b", "\ud800", "x" * 64, "é" * 32, "pg_jobs", 7])
def test_a_schema_that_postgresql_does_not_take_is_refused(schema: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"must (be|not begin)") as caught:
        Layout(schema)
    assert caught.value.option == "queue_schema"


@pytest.mark.parametrize(
    ("option", "given_options"),
    [
        ("queue_prefix", {"prefix": "1_"}),
        ("queue_prefix", {"prefix": "a-b"}),
        ("queue_prefix", {"prefix": "ä_"}),
        ("queue_prefix", {"prefix": "x" * 21}),
        ("id_type", {"id_type": "int"}),
    ],
)
def test_a_prefix_that_is_not_a_plain_identifier_is_refused(option: str, given_options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        Layout(**given_options)
    assert caught.value.option == option


@pytest.mark.parametrize("schema", ["s" * 63, "é" * 31, NASTY_SCHEMA, "s" * 32])
def test_the_longest_layout_stays_within_postgresqls_identifier_limit(schema: str) -> None:
    layout = Layout(schema, "p" * 20)
    parts: list[Any] = [part for table in Job.metadata.tables.values() for part in (*table.constraints, *table.indexes)]
    names = [str(part.name) for part in parts]
    assert len(names) > 50
    assert max(len(layout.name(name)) for name in names) <= 63
    assert max(len(layout.channel(topic).encode()) for topic in get_args(Topic)) < 64


def test_queues_in_different_places_have_different_channels() -> None:
    places = [
        ("a", "b_"),
        ("a.b", "_"),
        ("A", "b_"),
        ("s" * 63, ""),
        ("s" * 62, "s"),
        ("s" * 62, ""),
        (None, "a_"),
        ("a_", ""),
    ]
    assert len({Layout(schema, prefix).channel("due") for schema, prefix in places}) == len(places)
