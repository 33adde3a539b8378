"""The datasets of `pipeline.history` as statements: the query of a COPY to a reader, and where to cut it into parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import reduce
from itertools import chain
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB, REGCLASS, TIMESTAMP

from sa_jobqueue.display.redaction import ERRORS, PAYLOADS, REDACTED
from sa_jobqueue.models import Job
from sa_jobqueue.models.base import Xid8
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DEAD_LETTERS, JOBS, Dataset
from sa_jobqueue.statements._parts import Tables, block, bound, number, table
from sa_jobqueue.types import JobId

_LIKE: Final = str.maketrans({"*": "%", "?": "_", "%": r"\%", "_": r"\_", "\\": r"\\"})
"""Translation of `*` and `?` in a name to a pattern of LIKE."""
_FIRST: Final[Any] = sa.literal_column("'0001-01-01 00:00:00+00'", TIMESTAMP(timezone=True))
_LAST: Final[Any] = sa.literal_column("'9999-12-31 23:59:59.999999+00'", TIMESTAMP(timezone=True))
"""First and last instant that Spark, Arrow's readers and Python have."""
_OWN_A_CALL: Final = 40
"""Columns of the application in one call: a function takes a hundred arguments."""
_BEGINS: Final = {JOBS.name: "created_at", ATTEMPTS.name: "started_at", DEAD_LETTERS.name: "died_at"}
_ENDS: Final = {JOBS.name: "completed_at", ATTEMPTS.name: "ended_at", DEAD_LETTERS.name: "resolved_at"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which rows of a dataset; everything given must hold. A time range leaves out rows whose time is null.

    Only columns of the dataset can be asked for: the caller checks that, for a KeyError is all that is said here.
    """

    queues: Sequence[str] = ()
    types: Sequence[str] = ()
    """Filter of jobs and dead letters by `type_name`."""
    statuses: Sequence[str] = ()
    """Filter of jobs."""
    created_from: datetime | None = None
    """By `created_at`, `started_at` of attempts, `died_at` of dead letters; this instant or later."""
    created_before: datetime | None = None
    completed_from: datetime | None = None
    """By `completed_at`, `ended_at` of attempts, `resolved_at` of dead letters; this instant or later."""
    completed_before: datetime | None = None
    xid_from: int | None = None
    """By the transaction that last changed the row: this one or later. Not of blockers, which have none."""
    xid_before: int | None = None
    key_from: JobId | None = None
    """By the first column of the dataset's key: this id or a later one."""
    key_before: JobId | None = None


def source(t: Tables, dataset: Dataset) -> sa.Table:
    """Return the table that a dataset shows."""
    return {JOBS.name: t.job, ATTEMPTS.name: t.attempt, DEAD_LETTERS.name: t.dead_letter}.get(dataset.name, t.blocker)


@bound
def rows(
    t: Tables,
    dataset: Dataset,
    columns: Sequence[str] = (),
    filters: Filters | None = None,
    *,
    redact: Sequence[str] = (),
) -> sa.Select[Any]:
    """Return rows of a dataset, each column as COPY writes it for a reader: ids, states and JSON as text.

    An instant that readers do not have, such as `infinity`, is null.

    `redact`: names of job types, with the wildcards `*` and `?`: their payloads are replaced by `"(redacted)"`, and their
    errors by the class alone. An attempt's type is its job's, one probe each; without a job it may be any.
    Shape: `columns` in the order given, all of the dataset's for none. Unordered.
    Locks: none. Obliges: the session's time zone is UTC, or times are read with their offset.
    Index: a range of keys is one of the primary key; of transactions, `ix_job_history`, `ix_job_attempt_changed`,
    `ix_dead_letter_changed`.
    """
    dataset_table = source(t, dataset)
    hidden = _hidden(t, dataset_table, redact) if redact else None
    selected = [
        (_application(t, hidden) if name == "application" else _shown(dataset_table, name, hidden)).label(name)
        for name in columns or dataset.names
    ]
    return sa.select(*selected).where(*_conditions(t, dataset, filters or Filters()))


@bound
def size(t: Tables, dataset: Dataset) -> sa.Select[int, int]:
    """Return how large the table of a dataset is.

    Shape: one row `(bytes, pages)`: with values stored out of line, and of the table alone. Locks: none.
    """
    name = t.layout.qualified(source(t, dataset).name.removeprefix(t.layout.prefix))
    regclass = sa.cast(sa.literal(name, sa.Text), REGCLASS)
    pages = sa.func.pg_relation_size(regclass) / sa.cast(sa.func.current_setting("block_size"), sa.BigInteger)
    return sa.select(sa.func.pg_table_size(regclass).label("bytes"), sa.cast(pages, sa.BigInteger).label("pages"))


@bound
def sample(t: Tables, dataset: Dataset, *, percent: float) -> sa.Select[Any]:
    """Return keys of some of a dataset's rows, to cut it into about equal parts at.

    Shape: the first column of the key, in its order, of all rows on about `percent` of the table's pages. Locks: none.
    Source: TABLESAMPLE SYSTEM takes whole pages, so it reads no more than it returns; pg_stats would do as well, once
    the table has been analyzed.
    """
    dataset_table = source(t, dataset)
    sampled = dataset_table.tablesample(sa.func.system(sa.literal(percent, sa.Double)))
    key = sampled.c[dataset.key[0]]
    return sa.select(key).order_by(key)


def _hidden(t: Tables, dataset_table: sa.Table, patterns: Sequence[str]) -> sa.ColumnElement[bool]:
    """Return whether a row's payloads are not to be shown."""
    likes = sa.literal([pattern.translate(_LIKE) for pattern in patterns], ARRAY(sa.Text))
    if "type_name" in dataset_table.c:
        return dataset_table.c.type_name.like(sa.any_(likes))
    return ~sa.exists(
        sa.select(sa.literal_column("1")).where(
            t.job.c.id == dataset_table.c.job_id, ~t.job.c.type_name.like(sa.any_(likes))
        )
    )


def _application(t: Tables, hidden: sa.ColumnElement[bool] | None) -> sa.ColumnElement[Any]:
    """Return the application's own columns as the text of one JSON object; null if it has none."""
    ours = {column.name for column in table(Job).columns}
    columns = [column for column in t.job.columns if column.name not in ours]
    objects: list[sa.ColumnElement[Any]] = []
    for start in range(0, len(columns), _OWN_A_CALL):
        part = columns[start : start + _OWN_A_CALL]
        pairs = ((sa.literal_column(_quoted(column.name), sa.Text), column) for column in part)
        objects.append(sa.func.jsonb_build_object(*chain.from_iterable(pairs)))
    if not objects:
        return sa.cast(sa.null(), sa.Text)
    merged = sa.cast(reduce(lambda merged, more: merged.op("||")(more), objects), sa.Text)
    return merged if hidden is None else sa.case((hidden, sa.literal(f'"{REDACTED}"', sa.Text)), else_=merged)


def _quoted(name: str) -> str:
    return "'" + name.replace("'", "''") + "'"


def _shown(dataset_table: sa.Table, name: str, hidden: sa.ColumnElement[bool] | None = None) -> sa.ColumnElement[Any]:
    if hidden is not None and name in PAYLOADS | ERRORS and name in dataset_table.c:
        stands: sa.ColumnElement[Any] = sa.literal(f'"{REDACTED}"', sa.Text)
        if name in ERRORS:
            kind = sa.cast(dataset_table.c[name], JSONB).op("->")(sa.literal_column("'type'"))
            stands = sa.cast(
                sa.func.jsonb_strip_nulls(sa.func.jsonb_build_object("type", kind, "message", REDACTED)), sa.Text
            )
        return sa.case((sa.and_(dataset_table.c[name].is_not(None), hidden), stands), else_=_shown(dataset_table, name))
    if name == "xid":
        return number(dataset_table)
    if name == "timeout_seconds":
        return sa.cast(sa.extract("epoch", dataset_table.c.timeout), sa.Double)
    column = dataset_table.c[name]
    if isinstance(column.type, TIMESTAMP):
        return sa.case((column.between(_FIRST, _LAST), column))
    return column if isinstance(column.type, sa.Integer | sa.Boolean) else sa.cast(column, sa.Text)


def _conditions(t: Tables, dataset: Dataset, filters: Filters) -> list[sa.ColumnElement[bool]]:
    dataset_table = source(t, dataset)
    conditions: list[sa.ColumnElement[bool]] = []
    for name, texts in (("queue", filters.queues), ("type_name", filters.types), ("status", filters.statuses)):
        if texts:
            conditions.append(sa.cast(dataset_table.c[name], sa.Text) == sa.any_(sa.literal(list(texts), ARRAY(sa.Text))))
    for names, low, high in (
        (_BEGINS, filters.created_from, filters.created_before),
        (_ENDS, filters.completed_from, filters.completed_before),
    ):
        conditions += (
            _between(dataset_table.c[names[dataset.name]], low, high, TIMESTAMP(timezone=True)) if low or high else []
        )
    if dataset is not BLOCKERS:
        conditions += _between(dataset_table.c.changed_xid, filters.xid_from, filters.xid_before, Xid8())
        if dataset is JOBS:  # its index leads to the pages; the transactions themselves are compared above
            if filters.xid_from is not None:
                conditions.append(
                    block(number(dataset_table))
                    >= block(sa.cast(sa.literal(filters.xid_from, sa.BigInteger), sa.BigInteger))
                )
            if filters.xid_before is not None:
                conditions.append(
                    block(number(dataset_table))
                    <= block(sa.cast(sa.literal(filters.xid_before, sa.BigInteger), sa.BigInteger))
                )
    return conditions + _between(dataset_table.c[dataset.key[0]], filters.key_from, filters.key_before, t.id_type)


def _between(column: Any, low: Any, high: Any, kind: Any) -> list[sa.ColumnElement[bool]]:
    conditions: list[sa.ColumnElement[bool]] = []
    if low is not None:
        conditions.append(column >= sa.cast(sa.literal(low, kind), kind))
    if high is not None:
        conditions.append(column < sa.cast(sa.literal(high, kind), kind))
    return conditions
