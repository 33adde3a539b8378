"""Arrays written as text mean what lists mean, whatever is in them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Boolean, Double, Engine, Integer, SmallInteger, Text, Uuid, bindparam, select
from sqlalchemy.dialects.postgresql import ARRAY, INTERVAL, TIMESTAMP
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.types import TypeEngine

from sa_jobqueue.statements._arrays import ArrayParameter
from tests.fixtures.database import both_servers

EDGES: list[tuple[TypeEngine[Any], Sequence[Any]]] = [
    (Text(), []),
    (Text(), ["", "null", "NULL", None, " a ", '"', "\\", '\\"', "{", "},{", "a,b", "é😀", "'; --", "\n\t\r", "%s %(a)s"]),
    (Text(), ["a\x1fb", "c", "\x1f"]),
    (Uuid(), [UUID(int=0), None, UUID(int=2**128 - 1)]),
    (Integer(), [0, -1, None, 2**31 - 1, -(2**31)]),
    (Double(), [0.0, 1, -1.5, None, 1e300, float("inf"), 5e-324]),
    (
        TIMESTAMP(timezone=True),
        [
            datetime(1, 1, 1, tzinfo=UTC),
            None,
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2026, 3, 29, 2, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
        ],
    ),
    (INTERVAL(), [timedelta(0), None, timedelta(days=-3, microseconds=1), timedelta(days=36_500, seconds=86_399)]),
    (Boolean(), [True, False, None]),
    (SmallInteger(), [1, None]),
]


def _returned(engine: Engine, element_type: TypeEngine[Any], values: Sequence[Any] | None) -> Any:
    with engine.connect() as connection:
        parameter = bindparam("given", type_=ArrayParameter(element_type))
        return connection.scalar(select(parameter.cast(ARRAY(element_type))), {"given": values})


@both_servers
@pytest.mark.parametrize(("element_type", "values"), EDGES, ids=lambda value: str(value)[:10])
def test_array_values_round_trip(engine: Engine, element_type: TypeEngine[Any], values: Sequence[Any]) -> None:
    # Without nulls they are written another way, and what one must be quoted for may hide what another must.
    for some in (values, [value for value in values if value is not None], *([value] for value in values)):
        assert _returned(engine, element_type, some) == list(some)
    assert _returned(engine, element_type, None) is None


def test_any_text_array_round_trips(engine: Engine) -> None:
    with engine.connect() as connection:
        statement = select(bindparam("given", type_=ArrayParameter(Text())).cast(ARRAY(Text())))

        @given(st.lists(st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"))))
        def same(values: list[str | None]) -> None:
            assert connection.scalar(statement, {"given": values}) == values

        same()


@pytest.mark.parametrize(
    ("element_type", "value"), [(Text(), "a\0b"), (Text(), "\ud800"), (Text(), 7), (Uuid(), "no id"), (Integer(), "x")]
)
def test_values_the_server_cannot_store_are_refused(engine: Engine, element_type: TypeEngine[Any], value: Any) -> None:
    with pytest.raises((SQLAlchemyError, TypeError, UnicodeEncodeError)):
        _returned(engine, element_type, [value])
