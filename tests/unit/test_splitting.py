"""Writing in parts: items that fail alone are found with few more statements, and other errors fail the whole."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.exc import DataError, DBAPIError, OperationalError, PendingRollbackError, ResourceClosedError, StatementError

from sa_jobqueue.db.splitting import in_parts, is_of_a_row, summary


def error_of(state: str | None, kind: type[DBAPIError] = DBAPIError) -> DBAPIError:
    original = psycopg.errors.lookup(state)("no") if state else psycopg.Error("no")
    return kind("UPDATE", None, original)


class Table:
    """Refuses some items; counts the statements."""

    def __init__(self, *refused: int, state: str = "23514") -> None:
        self.refused, self.state = set(refused), state
        self.rows: list[int] = []
        self.statements = 0

    async def write(self, items: Sequence[int]) -> int:
        self.statements += 1
        if self.refused & set(items):
            raise error_of(self.state)
        self.rows += items
        return len(items)


@pytest.mark.parametrize(("refused", "most"), [((), 1), ((0,), 16), ((57,), 16), ((99,), 16), ((3, 57), 32)])
async def test_a_refused_batch_is_split_until_all_other_items_are_written(refused: tuple[int, ...], most: int) -> None:
    table = Table(*refused)
    written_parts, failed = await in_parts(range(100), table.write)
    assert (sum(written_parts), sorted(table.rows)) == (
        100 - len(refused),
        [number for number in range(100) if number not in refused],
    )
    assert [item for item, _ in failed] == list(refused)
    assert table.statements <= most


async def test_an_error_not_caused_by_a_row_is_raised_without_splitting() -> None:
    table = Table(3, state="57P01")
    with pytest.raises(DBAPIError):
        await in_parts(range(10), table.write)
    assert (table.statements, table.rows) == (1, [])


@pytest.mark.parametrize(
    ("state", "kind", "of_a_row"),
    [
        *((state, DBAPIError, True) for state in ("22008", "23505", "23514", "P0001", "XX001", "54000")),
        *((state, DBAPIError, False) for state in ("08006", "57P01", "40P01", "40001", "53100", "55P03", "42501", "25006")),
        (None, DataError, True),
        (None, OperationalError, False),
    ],
)
def test_errors_caused_by_a_row_are_recognized(state: str | None, kind: type[DBAPIError], of_a_row: bool) -> None:
    assert is_of_a_row(error_of(state, kind)) is of_a_row


def test_an_error_summary_is_one_line() -> None:
    error = DBAPIError("UPDATE", {"secret": "x"}, psycopg.errors.CheckViolation("row violates ck\nDETAIL: Failing row"))
    assert summary(error) == "CheckViolation: row violates ck"


ERRORS = (ValueError, LookupError, UnicodeError, ConnectionError, TimeoutError, OSError, RuntimeError, AssertionError)


@given(st.dictionaries(st.integers(0, 60), st.sampled_from(ERRORS)))
async def test_whatever_python_raises_for_some_rows_the_others_are_written(bad: dict[int, type[Exception]]) -> None:
    async def write(items: Sequence[int]) -> list[int]:
        for item in items:
            if item in bad:
                raise bad[item](item)
        return list(items)

    written_parts, refused = await in_parts(range(61), write)
    assert [item for part in written_parts for item in part] == [item for item in range(61) if item not in bad]
    assert {item: type(error) for item, error in refused} == bad


@pytest.mark.parametrize(
    "error", [psycopg.OperationalError("gone"), PendingRollbackError("gone"), ResourceClosedError("gone"), MemoryError()]
)
def test_errors_of_the_connection_or_the_process_are_not_of_a_row(error: Exception) -> None:
    assert not is_of_a_row(error)


def test_a_summary_of_an_error_of_python_shows_no_parameters() -> None:
    error = StatementError("cannot", "INSERT", {"secret": "x"}, LookupError("no \udce9"))
    assert summary(error) == "LookupError: no \\udce9"
