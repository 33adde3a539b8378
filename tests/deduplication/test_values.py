"""The values of a deduplication policy."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.dialects import postgresql

from sa_jobqueue import Deduplicate, Job
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.statements import deduplication

BAD: list[tuple[str, Callable[[], Any]]] = [
    ("key", lambda: Deduplicate("")),
    ("key", lambda: Deduplicate("a\x00")),
    ("scope", lambda: Deduplicate("k", scope="all")),  # type: ignore[arg-type]
    ("window", lambda: Deduplicate("k", scope="any", window=timedelta(0))),
    ("window", lambda: Deduplicate("k", window=timedelta(1))),
    ("window", lambda: Deduplicate("k", scope="waiting", window=timedelta(1))),
    ("replace", lambda: Deduplicate("k", replace="input")),  # type: ignore[arg-type]
    ("replace", lambda: Deduplicate("k", replace=["queue"])),  # type: ignore[list-item]
    ("replace", lambda: Deduplicate("k", replace=5)),  # type: ignore[arg-type]
    ("replace", lambda: Deduplicate("k", replace=[["input"]])),  # type: ignore[list-item]
    ("max_wait", lambda: Deduplicate("k", replace=["input"], max_wait=timedelta(1))),
    ("max_wait", lambda: Deduplicate("k", replace=["schedule"], max_wait=timedelta(0))),
    ("exclude", lambda: Deduplicate("k", exclude="id")),
    ("exclude", lambda: Deduplicate("k", exclude=UUID(int=1))),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("field", "make"), BAD)
def test_an_invalid_deduplication_option_is_refused_by_name(field: str, make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        make()
    assert caught.value.option == field


def test_copied_rows_with_keys_go_through_a_temporary_table() -> None:
    columns = ["id", "deduplication_key"]
    create_table, target = deduplication.stage(Job, columns)
    creation = "CREATE TEMPORARY TABLE job_copied ON COMMIT DROP AS SELECT id, deduplication_key FROM job WITH NO DATA"
    assert str(create_table) == creation
    assert target.statement == "COPY pg_temp.job_copied (id, deduplication_key) FROM STDIN"
    statement = str(deduplication.put_staged(Job, columns).compile(dialect=postgresql.dialect()))  # type: ignore[no-untyped-call]
    assert " ".join(statement.split()) == (
        "INSERT INTO job (id, deduplication_key) SELECT pg_temp.job_copied.id, pg_temp.job_copied.deduplication_key "
        'FROM pg_temp.job_copied ORDER BY pg_temp.job_copied.deduplication_key COLLATE "C", ctid '
        "ON CONFLICT (chain_type_name, deduplication_key) "
        "WHERE deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL DO NOTHING"
    )
