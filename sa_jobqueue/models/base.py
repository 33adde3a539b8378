"""The shared parts of the mapped classes: column types, server-made defaults and the DDL that `create_all` cannot infer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from enum import StrEnum
from functools import partial
from typing import Any, ClassVar, Final
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import DeclarativeBase, declared_attr
from sqlalchemy.sql.elements import conv
from sqlalchemy.sql.functions import Function
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType

from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.ids import uuid7
from sa_jobqueue.layout import Layout
from sa_jobqueue.types import AttemptOutcome, DeadReason, JobStatus, OnFailure, Resolution

REGISTRY_KEY = "sa_jobqueue"
"""`MetaData.info[REGISTRY_KEY]` lists the `Layout` of every queue whose tables are in that metadata."""

STORAGE_KEY = "sa_jobqueue.storage"
"""`Table.info[STORAGE_KEY]` has the storage parameters of a table by name."""

CURRENT_XID = sa.text("pg_current_xact_id()")


class Xid8(UserDefinedType[int]):
    """PostgreSQL's 64-bit transaction id, an `int` in Python. Ever growing within one cluster."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """Return its name in DDL."""
        return "xid8"

    def bind_processor(self, dialect: Any) -> Any:
        """Return what makes a parameter of an `int`."""
        return lambda value: None if value is None else str(value)

    def result_processor(self, dialect: Any, coltype: object) -> Any:
        """Return what makes an `int` of a result."""
        return lambda value: None if value is None else int(value)


class QueueFunction(Function[Any]):
    """A call of one of a queue's functions, whose schema may have any name.

    SQLAlchemy quotes the schema of a function for illegal characters only, not a reserved word, and formats it once more.
    """

    inherit_cache = True

    def __init__(self, schema: str | None, name: str, *arguments: Any) -> None:
        super().__init__(name, *arguments, packagenames=(schema,) if schema else ())


@compiles(QueueFunction)
def _render_function(function: QueueFunction, compiler: Any, add_to_result_map: Any = None, **options: Any) -> str:
    if add_to_result_map is not None:
        add_to_result_map(function.name, function.name, (function.name,), function.type)
    name = ".".join(compiler.preparer.quote(name) for name in (*function.packagenames, function.name))
    return f"{name}{compiler.function_argspec(function, **options)}"


class NotifyingXid(Xid8):
    """Type of `job.changed_xid`: an INSERT takes the queue key of workers to notify, and stores its transaction's id.

    `schema`, `function`: of `job_notify_due`. It is called in the value of a column, because a CTE that nothing reads would
    not be executed; by the type, because the unit of work would build a statement with an expression for each job; and in a
    CASE, because a subquery takes the server longer.
    """

    cache_ok = True

    def __init__(self, schema: str | None, function: str) -> None:
        self.schema, self.function = schema, function

    def bind_processor(self, dialect: Any) -> Any:
        """Return what refuses all but a queue key."""
        return _queue_key

    def bind_expression(self, bindvalue: sa.BindParameter[Any]) -> sa.ColumnElement[Any]:
        """Return the SQL of a value."""
        called = QueueFunction(self.schema, self.function, bindvalue)
        xid: sa.ColumnElement[Any] = sa.func.pg_current_xact_id()
        return sa.case((called.is_(None), xid), else_=xid)

    def coerce_compared_value(self, op: Any, value: Any) -> TypeEngine[Any]:
        """Return the type of a value that it is compared with."""
        return Xid8()


class ReadBack:
    """The `eager_defaults` of a mapper: true, but for a flush that has set `is_lazy`.

    Returned values are a large part of the cost of a job's INSERT, and a commit that expires its objects reads them for
    nothing. Their attributes are expired at its flush instead.
    Source: `Mapper._prefer_eager_defaults` asks for each INSERT.
    """

    def __init__(self) -> None:
        self.is_lazy: ContextVar[bool] = ContextVar("sa_jobqueue_is_lazy", default=False)

    def __bool__(self) -> bool:
        return not self.is_lazy.get()


READ_BACK: Final = ReadBack()


def _queue_key(value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidJobError("changed_xid", f"is written by the database, leave it out, got {value!r}")
    return value


# Reflection, Alembic's too, would warn of a type it does not know.
ischema_names.setdefault("xid8", Xid8)


class Base(DeclarativeBase):
    """The base of the ready-made models; an application's own models go on the application's base."""


class Where(str):
    """The condition of a partial index, after its columns."""

    __slots__ = ()


def table_args(
    layout: Layout,
    *,
    key: Mapping[str, Sequence[str]],
    checks: Mapping[str, str],
    indexes: Mapping[str, Sequence[str]],
    job_ids: Mapping[str, str],
    storage: Mapping[str, float],
    **options: Any,
) -> tuple[Any, ...]:
    """Return the `__table_args__` of one of a queue's tables, each name placed by its layout.

    `key`: the columns of the primary key, by its name. `checks`, `indexes`: conditions and columns, by name; an index
    called `uq_...` is unique. `job_ids`: columns that refer to a job, by the name of the foreign key. `storage`: storage
    parameters. `options`: those of the `Table`.
    """
    job_id = f"{layout.schema}.{layout.name('job')}.id" if layout.schema else f"{layout.name('job')}.id"

    def name(noun: str) -> str:
        return conv(layout.name(noun))

    def index(noun: str, parts: Sequence[str]) -> sa.Index:
        columns = [part for part in parts if not isinstance(part, Where)]
        where = [sa.text(part) for part in parts if isinstance(part, Where)]
        return sa.Index(name(noun), *columns, unique=noun.startswith("uq_"), postgresql_where=where[0] if where else None)

    return (
        *(sa.PrimaryKeyConstraint(*columns, name=name(noun)) for noun, columns in key.items()),
        *(sa.ForeignKeyConstraint([column], [job_id], name=name(noun)) for noun, column in job_ids.items()),
        *(sa.CheckConstraint(condition, name=name(noun)) for noun, condition in checks.items()),
        *(index(noun, parts) for noun, parts in indexes.items()),
        {"schema": layout.quoted_schema, **options, **(stored(storage) if storage else {})},
    )


class Companion:
    """A class of one queue that is derived from its `Job`: attempts, blockers, chains, dead letters, workers."""

    __jobqueue__: ClassVar[Layout]
    __job__: ClassVar[type[Any]]
    __noun__: ClassVar[str]
    __table__: ClassVar[sa.FromClause]
    # What its table has beside columns: see `table_args`.
    __key__: ClassVar[tuple[str, ...]] = ()
    __checks__: ClassVar[Mapping[str, str]] = {}
    __indexes__: ClassVar[Mapping[str, Sequence[str]]] = {}
    __job_ids__: ClassVar[Mapping[str, str]] = {}
    __storage__: ClassVar[Mapping[str, float]] = {}
    __options__: ClassVar[Mapping[str, Any]] = {}

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Any, ...]:
        return table_args(
            cls.__jobqueue__,
            key={f"pk_{cls.__noun__}": cls.__key__} if cls.__key__ else {},
            checks=cls.__checks__,
            indexes=cls.__indexes__,
            job_ids=cls.__job_ids__,
            storage=cls.__storage__,
            **cls.__options__,
        )


def id_type(layout: Layout) -> TypeEngine[Any]:
    """Return the column type of job ids in this queue.

    Text ids sort by code point, as Python sorts them: a worker compares keys that the database ordered.
    """
    return sa.Text(collation="C") if layout.id_type == "text" else sa.Uuid()


def id_parameter(layout: Layout) -> TypeEngine[Any]:
    """Return the type of job ids as parameters: a collation belongs to columns."""
    return sa.Text() if layout.id_type == "text" else sa.Uuid()


def lowest_id(layout: Layout) -> Any:
    """Return what comes before every job id, in the order of the database."""
    return "" if layout.id_type == "text" else UUID(int=0)


def dead_letter_ids(layout: Layout, count: int) -> list[Any]:
    """Return new ids of dead letters. Not from the application's factory: an attempt must end whatever that raises."""
    return [str(uuid7()) if layout.id_type == "text" else uuid7() for _ in range(count)]


ENUMS: Final[Mapping[str, type[StrEnum]]] = {
    "job_status": JobStatus,
    "job_blocker_on_failure": OnFailure,
    "job_attempt_outcome": AttemptOutcome,
    "dead_letter_reason": DeadReason,
    "dead_letter_resolution": Resolution,
}
"""The enum types of a queue by their names without prefix, each with its values."""


class StoredEnum(TypeDecorator[Any]):
    """A column of one of the queue's enum types. A value that `ENUMS` does not have is read as a `str`.

    A later release may add values, and workers of this one read them: SQLAlchemy's type would raise a LookupError.
    """

    impl = ENUM
    cache_ok = True

    def __init__(self, noun: str, name: str, schema: str | None) -> None:
        self.noun, self.name, self.schema = noun, name, schema
        self.members: Mapping[Any, StrEnum] = {member.value: member for member in ENUMS[noun]}
        # `creation` creates the type: SQLAlchemy would do so with any table of the MetaData.
        super().__init__(*self.members, name=name, schema=schema, create_type=False)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:
        """Return what makes a member, or the text itself, of a result."""
        members = self.members
        return lambda value: members.get(value, value)


def enum_type(layout: Layout, noun: str) -> StoredEnum:
    """Return the column type of one of the queue's enum types, which is named in `ENUMS`."""
    return StoredEnum(noun, layout.name(noun), layout.quoted_schema)


def stored(parameters: Mapping[str, float]) -> dict[str, Any]:
    """Return the arguments of a `Table` that `create_all` makes with these storage parameters; its `info` has them.

    Source: SQLAlchemy 2.0 has no `postgresql_with` for tables; 2.1 does.
    """
    settings = ", ".join(f"{name} = {value}" for name, value in parameters.items())

    def set_them(table: sa.Table, connection: sa.Connection, **_: Any) -> None:
        # Not by `sa.DDL`, which doubles the percent signs of a name once more.
        name = connection.dialect.identifier_preparer.format_table(table)
        connection.exec_driver_sql(f"ALTER TABLE {name} SET ({settings})")

    return {"listeners": [("after_create", set_them)], "info": {STORAGE_KEY: dict(parameters)}}


def one_of(column: str, values: Iterable[str]) -> str:
    """Return the condition of a CHECK that a column has one of these values."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def within_times(*columns: str) -> str:
    """Return the condition of a CHECK that keeps instants, where there are any, within the range that a worker can hold."""
    return " AND ".join(f"{name} BETWEEN '{_FIRST}' AND '{_LAST}'" for name in columns)


_FIRST, _LAST = "1900-01-01 00:00:00+00", "9000-01-01 00:00:00+00"


def expressed(table: sa.Table, *events: str) -> None:
    """Turn Python-side defaults of columns into SQL expressions: parameters whose values are made at each execution.

    SQLAlchemy calls the functions for statements alone. In a CTE, which most of the library's are, it refuses them.
    `events`: `default`, `onupdate`.
    """
    for column in table.c:
        for name in events:
            default: Any = getattr(column, name)
            if default is not None and (default.is_callable or default.is_scalar):
                make = partial(default.arg, None) if default.is_callable else partial(_same, default.arg)
                value: Any = sa.bindparam(f"{name}_{column.key}", callable_=make, type_=column.type, unique=True)
                column_default = sa.ColumnDefault(value, for_update=name == "onupdate")
                column_default.column = column
                setattr(column, name, column_default)


def _same(value: Any) -> Any:
    return value


def verbatim(statement: str) -> sa.TextClause:
    """Return SQL that is executed literally: its colons do not mark parameters."""
    return sa.text(statement.replace(":", "\\:"))
