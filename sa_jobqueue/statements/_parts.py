"""Expressions that several statements share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, OID
from sqlalchemy.sql.elements import BindParameter, ColumnElement, Grouping
from sqlalchemy.sql.selectable import TableValuedAlias

from sa_jobqueue.models import JobClass
from sa_jobqueue.models.base import Companion, QueueFunction, id_parameter
from sa_jobqueue.statements._arrays import ArrayParameter
from sa_jobqueue.types import JobId, JobStatus

P = ParamSpec("P")
R = TypeVar("R")


class Tables:
    """The tables of one queue, bound once for its `Job` class, with the names and types that its statements need.

    Its attributes are `job`, and each other table by the name of its class on `Job` (`dead_letter` for `Job.DeadLetter`).
    `model`: the class. `layout`: the names of its objects. `id_type`: of job ids as parameters.
    """

    def __init__(self, model: JobClass) -> None:
        self.model, self.layout = model, model.__jobqueue__
        self.job = table(model)
        self.id_type = id_parameter(self.layout)

    def __getattr__(self, name: str) -> sa.Table:
        mapped = getattr(self.model, "".join(word.title() for word in name.split("_")))
        setattr(self, name, mapped_table := table(mapped))
        return mapped_table

    def function(self, noun: str, *arguments: sa.ColumnElement[Any]) -> sa.Function[Any]:
        """Return a call of one of the queue's own functions."""
        return QueueFunction(self.layout.quoted_schema, self.layout.name(noun), *arguments)

    def id(self, name: str) -> BindParameter[Any]:
        """Return a parameter for a job id."""
        return sa.bindparam(name, type_=self.id_type)

    def ids(self, name: str) -> BindParameter[Any]:
        """Return an array parameter of job ids."""
        return array(name, self.id_type)

    def given_ids(self, ids: Iterable[JobId]) -> BindParameter[Any]:
        """Return job ids as a value of a statement that is built for them."""
        return sa.literal(list(ids), ARRAY(self.id_type))


def bound(build: Callable[Concatenate[Tables, P], R]) -> Callable[Concatenate[JobClass, P], R]:
    """Turn a function of a queue's tables into one of its `Job` class."""

    @wraps(build)
    def of_model(model: JobClass, *args: P.args, **kwargs: P.kwargs) -> R:
        return build(_tables(model), *args, **kwargs)

    return of_model  # type: ignore[return-value]  # its first parameter has another name


def statement(build: Callable[Concatenate[Tables, P], R]) -> Callable[Concatenate[JobClass, P], R]:
    """Turn a function of a queue's tables into one of its `Job` class, called once for each combination of arguments."""
    return once_a_model(bound(build))


def once_a_model(build: Callable[P, R]) -> Callable[P, R]:
    """Call a function once for each combination of arguments: a `Job` class, and flags."""
    return cast("Callable[P, R]", lru_cache(maxsize=256)(build))


_tables = once_a_model(Tables)


def table(mapped: JobClass | type[Companion]) -> sa.Table:
    """Return the table of a mapped class."""
    return cast("sa.Table", mapped.__table__)


def array(name: str, like: Any) -> BindParameter[Any]:
    """Return an array parameter whose elements have the type `like`."""
    return sa.bindparam(name, type_=ArrayParameter(like))


def relation(name: str, /, **columns: ColumnElement[Any]) -> TableValuedAlias:
    """Return arrays of one length as a relation: each is a column, and their elements are its rows."""
    types: dict[str, Any] = {column: values.type for column, values in columns.items()}
    named_columns = (sa.column(column, type_.item_type) for column, type_ in types.items())
    return sa.func.unnest(*columns.values()).table_valued(*named_columns).render_derived(name)


def alike(where: Any, columns: Mapping[str, Any]) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter on columns, by the name of its field. An empty field matches all.

    A column has one of the values in a list, is not before `..._after`, and is before `..._before`.
    """
    conditions: list[ColumnElement[bool]] = []
    for name, column in columns.items():
        value = getattr(where, name)
        if isinstance(value, datetime):
            conditions.append(column >= value if name.endswith("_after") else column < value)
        elif value:
            conditions.append(column.in_(list(value)))
    return conditions


def excluded(column: ColumnElement[Any], like: Any) -> ColumnElement[bool]:
    """Return that a row is not in the array parameter `excluded` (rows in quarantine), which is empty by default."""
    return column != sa.all_(sa.bindparam("excluded", [], type_=ArrayParameter(like)))


def element(values: BindParameter[Any], position: ColumnElement[int]) -> ColumnElement[Any]:
    """Return the element of an array parameter at a position counted from 1."""
    # Grouped, because PostgreSQL subscripts only what stands in parentheses.
    return Grouping(values)[position]


def position(ids: BindParameter[Any], column: ColumnElement[Any]) -> ColumnElement[int]:
    """Return where in the array parameter `ids` a row stands, from 1.

    Values of many rows travel as parallel arrays that are looked up by it. It is quadratic in the array's length, so
    a statement takes at most `BATCH` rows; joining `unnest` instead is open to plans that scan the table once a row.
    """
    return sa.func.array_position(ids, column, type_=sa.Integer)


def fence(t: Tables, locked: ColumnElement[Any] | None = None, *, in_session: bool = False) -> ColumnElement[bool]:
    """Return the fence: whether the attempt `job_attempt` of the job `job_id` is still that of the worker `worker_id`.

    With `locked`, an array of ids, of each of these jobs; their attempts are in `attempts`, parallel to `ids`. `in_session`:
    the statement runs in the session of a handler, where another table may have the name: see `is_claimed_table`.
    """
    job = t.job
    if locked is None:
        attempt = sa.bindparam("job_attempt", type_=sa.Integer)
        is_attempt = (job.c.id == t.id("job_id")) & (job.c.attempt == attempt)
    else:
        attempts = element(array("attempts", sa.Integer()), position(t.ids("ids"), job.c.id))
        is_attempt = (job.c.id == sa.any_(locked)) & (job.c.attempt == attempts)
    is_leased = is_attempt & (job.c.leased_by == sa.bindparam("worker_id", type_=sa.Text)) & is_running(job)
    return is_leased & is_claimed_table(t) if in_session else is_leased


def table_oid(rows: sa.FromClause) -> ColumnElement[int]:
    """Return the OID of the table that a row is read from or written to. It does not depend on names."""
    return _tableoid(rows).label("table_oid")


def _tableoid(rows: sa.FromClause) -> ColumnElement[int]:
    column: Any = sa.column("tableoid", OID())
    column.table = rows
    return cast("ColumnElement[int]", column)


def is_claimed_table(t: Tables) -> ColumnElement[bool]:
    """Return whether a row of the job table is in the table `table_oid`, which the worker claimed the job in.

    In the session of a handler, the name may belong to another table: of another schema, or a temporary one, which may even
    have a copy of the row.
    """
    is_claimed: ColumnElement[bool] = _tableoid(t.job) == claimed_table()
    return is_claimed


def claimed_table() -> ColumnElement[int]:
    """Return the parameter `table_oid`."""
    return sa.cast(sa.bindparam("table_oid", type_=sa.BigInteger), OID())  # an OID may exceed an integer


def is_running(job: sa.Table) -> ColumnElement[bool]:
    """Return the fence's condition on status: by its text, which no partial index can serve.

    The primary key stays the only way to the row, whatever indexes an application adds.
    """
    return sa.cast(job.c.status, sa.Text) == sa.literal_column("'running'")


def alive_until(worker: Any) -> ColumnElement[Any]:
    """Return when a worker counts as dead unless it sends another heartbeat; `ttl` is the heartbeat timeout."""
    until: ColumnElement[Any] = worker.c.heartbeat_at + worker.c.heartbeat_pause + sa.bindparam("ttl", type_=sa.Interval)
    return until


def status(value: JobStatus) -> ColumnElement[JobStatus]:
    """Return a status as a literal: a parameter never matches a partial index in a generic plan."""
    return sa.literal_column(f"'{value}'")


LAST_ATTEMPT: ColumnElement[int] = sa.literal_column("2147483647", sa.Integer)
"""An attempt after which there is no number for another; by hand alone a job gets there, and then it is passed over."""
XID = sa.func.pg_current_xact_id()
BATCH = 200
"""Most rows of one set-based write."""


def number(row: sa.Table) -> sa.ColumnElement[int]:
    """Return a row's `changed_xid` as a number."""
    return sa.cast(sa.cast(row.c.changed_xid, sa.Text), sa.BigInteger)


def block(number: sa.ColumnElement[int]) -> sa.ColumnElement[int]:
    """Return which block of 64 transactions one is in; of a job's `number`, what `ix_job_history` indexes.

    Source: `contributing/decisions.md`.
    """
    return number.bitwise_rshift(sa.literal_column("6", sa.Integer))
