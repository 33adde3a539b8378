"""The rows of new jobs: which columns an INSERT writes, with what values, for one job and for many."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, TypeAlias

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.db.splitting import summary
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.job import NEW
from sa_jobqueue.statements._parts import once_a_model, table


@once_a_model
def written_columns(kind: JobClass) -> dict[str, Any]:
    """Return the columns that enqueueing may write, by attribute: all but those that are computed."""
    return {
        attribute.key: attribute.columns[0]
        for attribute in sa.inspect(kind).column_attrs
        if attribute.columns[0] in table(kind).c.values()
        and attribute.columns[0].computed is None
        # A job whose transaction was rolled back has that of the row it never became.
        and attribute.key not in {"scheduled_at", "changed_xid"}
    }


DEFAULTS: Final[Mapping[str, Any]] = {**NEW, "fairness_key": "", "trace_context": None, "chain_trace_context": None}
"""Values that the database fills in where a row leaves them out; None: it decides by the type."""


def written_values(job: JobMixin[Any]) -> dict[str, Any]:
    """Return the values of a job that its INSERT writes, by column: those that are not the database's defaults."""
    columns = _columns(type(job))
    # By identity: the constructor sets the very objects of `DEFAULTS`, and an equal one may as well be written.
    return {
        column[0]: value
        for key, value in job.__dict__.items()
        if (column := columns.get(key)) is not None and value is not column[1]
    }


@once_a_model
def _columns(model: JobClass) -> dict[str, tuple[str, Any]]:
    """Return the name and the default of each column that an INSERT may write, by attribute; `_ABSENT` for no default."""
    return {
        key: (column.name, DEFAULTS.get(column.name, _ABSENT) if key in vars(JobMixin) else _ABSENT)
        for key, column in written_columns(model).items()
    }


_ABSENT: Final = object()


def input_text(job: JobMixin[Any]) -> str:
    """Return a job's input as JSON text: that of its check, unless the attribute was set since."""
    value, document = job.__dict__["input"], job._document
    return document.text if document is not None and value is document.value else json.dumps(value)


def set_defaults(kind: JobClass, listed: Sequence[Any]) -> None:
    """Set the defaults in Python of columns that jobs do not set."""
    defaults = defaults_of(kind)
    for job in listed if defaults else ():
        for key, default in defaults.items():
            if key not in job.__dict__:
                setattr(job, key, _default_value(key, default, job))


Default: TypeAlias = Callable[[JobMixin[Any]], Any]
"""Returns the value of a column for a job that does not set it."""


@once_a_model
def defaults_of(kind: JobClass) -> dict[str, Default]:
    """Return the functions that return the defaults of columns with a default in Python, by attribute."""
    defaults = {
        key: default for key, column in written_columns(kind).items() if (default := _default_of(column)) is not None
    }
    mapper = sa.inspect(kind)
    if mapper.version_id_col is not None and callable(first := mapper.version_id_generator):
        defaults[mapper.get_property_by_column(mapper.version_id_col).key] = lambda job: first(None)
    return defaults


def _default_of(column: sa.ColumnElement[Any]) -> Default | None:
    default: Any = getattr(column, "default", None)
    if default is not None and default.is_callable:
        return lambda job: default.arg(_Context(job))
    if default is not None and default.is_scalar:
        return lambda job: default.arg
    return None


@dataclass(frozen=True, slots=True)
class _Context:
    """Answers a context-sensitive default that asks for the other values of its row, as SQLAlchemy's own context does."""

    job: JobMixin[Any]

    def get_current_parameters(self, isolate_multiinsert_groups: bool = True) -> dict[str, Any]:
        state = self.job.__dict__
        return {column.key: state[key] for key, column in written_columns(type(self.job)).items() if key in state}

    @property
    def current_parameters(self) -> dict[str, Any]:
        return self.get_current_parameters()


def _default_value(key: str, default: Default, job: JobMixin[Any]) -> Any:
    try:
        return default(job)
    except Exception as error:
        reason = f"its default raised {summary(error)}; pass a value, or correct the default"
        raise InvalidJobError(key, reason) from error


Group = tuple[dict[str, str], list[Any]]
"""The columns that some jobs set, as attribute by column, and those jobs."""


def group_by_columns(kind: JobClass, listed: Sequence[Any], *, in_order: bool = False) -> list[Group]:
    """Group jobs by the columns that they set; the database fills in the others. Sets defaults in Python.

    Columns that the database would fill in with null are set to None, so that they do not separate groups.
    `in_order`: whether the order stays, so that only consecutive jobs are of one group.
    """
    attributes = written_columns(kind)
    keys_by_job = _set_by(kind, attributes, listed)
    empty = {key for key in frozenset().union(*keys_by_job) if _is_null_unset(attributes[key])}
    for job, keys in zip(listed, keys_by_job, strict=True):
        for key in empty - keys:
            setattr(job, key, None)
    groups: dict[tuple[frozenset[str], int], list[Any]] = {}
    runs = groupby(zip((keys | empty for keys in keys_by_job), listed, strict=True), key=itemgetter(0))
    for number, (keys, run) in enumerate(runs):
        groups.setdefault((keys, number if in_order else 0), []).extend(job for _, job in run)
    return [({attributes[key].name: key for key in attributes if key in keys}, group) for (keys, _), group in groups.items()]


def _set_by(kind: JobClass, attributes: Mapping[str, Any], listed: Sequence[Any]) -> list[frozenset[str]]:
    """Return the columns that each job sets, after setting defaults in Python."""
    set_defaults(kind, listed)
    # Jobs created by the same call have the same attributes in the same order.
    keys_by_attributes: dict[tuple[str, ...], frozenset[str]] = {}
    keys_by_job: list[frozenset[str]] = []
    for job in listed:
        attribute_names = tuple(job.__dict__)
        if attribute_names not in keys_by_attributes:
            keys_by_attributes[attribute_names] = frozenset(attributes.keys() & attribute_names)
        keys_by_job.append(keys_by_attributes[attribute_names])
    return keys_by_job


def _is_null_unset(column: Any) -> bool:
    """Return whether a column that no value is given for becomes null. For JSON, None may be a value instead."""
    filled_by = (column.default, column.server_default, column.computed, column.identity)
    is_filled = any(source is not None for source in filled_by)
    return (
        bool(column.nullable) and not is_filled and not (isinstance(column.type, sa.JSON) and not column.type.none_as_null)
    )


_OFTEN_EQUAL: Final = frozenset({"queue", "type_name", "priority", "chain_type_name", "max_attempts", "input_version"})
"""Columns in which most calls have one value for all jobs. Sent once, it makes the insert cheaper."""


def without_defaults(values: Mapping[str, Sequence[Any]]) -> tuple[dict[str, Sequence[Any]], dict[str, Any]]:
    """Return the `arrays` whose values vary among jobs, and the values of those of `_OFTEN_EQUAL` that do not.

    Columns in which all jobs have the database's default are left out, which reduces the cost of an insert by a third.
    """
    varying: dict[str, Sequence[Any]] = {}
    equal: dict[str, Any] = {}
    for name, column in values.items():
        if name in DEFAULTS and column.count(DEFAULTS[name]) == len(column):
            continue
        if name in _OFTEN_EQUAL and column.count(column[0]) == len(column):
            equal[name] = column[0]
        else:
            varying[name] = column
    return varying, equal


def arrays(kind: JobClass, names: dict[str, str], group: Sequence[Any], dialect: sa.Dialect) -> dict[str, Sequence[Any]]:
    """Return the values of jobs that set the same columns as the arrays of `statements.jobs.enqueue_many`.

    `dialect`: that of the connection, whose engine may have a `json_serializer`.
    """
    dumps = getattr(dialect, "_json_serializer", None) or json.dumps
    values: dict[str, Sequence[Any]] = {}
    states, attributes = [*map(vars, group)], written_columns(kind)
    for name, key in names.items():
        column_type = attributes[key].type
        column_values: Sequence[Any] = [state[key] for state in states]
        if name == "input":
            column_values = [input_text(job) for job in group]
        elif isinstance(column_type, sa.JSON):
            try:
                column_values = [
                    None if value is None and column_type.none_as_null else dumps(value) for value in column_values
                ]
            except (TypeError, ValueError) as error:
                reason = f"is not JSON: {error}; pass what `json.dumps` takes, or give the engine a json_serializer"
                raise InvalidJobError(key, reason) from error
        values[name] = column_values
    values["delays"] = [job._delay for job in group]
    values["ats"] = [job._at for job in group]
    return values


def uncarried(kind: JobClass, names: Mapping[str, str], group: Sequence[Any]) -> str | None:
    """Return an attribute with a value that no array of a set-based statement can carry, None if there is none.

    Such values are arrays, SQL expressions, and values that a column type wraps into an SQL expression or a TypeDecorator
    into JSON.
    """
    never, expressible = _uncarried_columns(kind)
    for key in names.values():
        if key in never or (key in expressible and any(isinstance(job.__dict__[key], sa.ClauseElement) for job in group)):
            return key
    return None


@once_a_model
def _uncarried_columns(kind: JobClass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns whose values no array can carry, and the ones that may be set to SQL expressions, by attribute."""
    application_columns = {key: column for key, column in written_columns(kind).items() if key not in vars(JobMixin)}
    never = tuple(key for key, column in application_columns.items() if not _is_carried(column.type))
    return never, ("expires_at", "deadline", *(key for key in application_columns if key not in never))


def _is_carried(column_type: TypeEngine[Any]) -> bool:
    """Return whether values of a column type can be elements of an array parameter."""
    inner = of_postgresql(column_type)
    while isinstance(inner, TypeDecorator):
        inner = of_postgresql(inner.impl_instance)
    wrapped = isinstance(inner, sa.JSON) and not isinstance(column_type, sa.JSON)
    return not (wrapped or isinstance(inner, sa.ARRAY) or is_expressed(column_type))


def is_expressed(column_type: TypeEngine[Any]) -> bool:
    """Return whether a column type wraps its values into an SQL expression, which neither arrays nor COPY can."""
    postgresql_type = of_postgresql(column_type)
    return postgresql_type._has_bind_expression or (
        isinstance(postgresql_type, TypeDecorator) and is_expressed(postgresql_type.impl_instance)
    )


def of_postgresql(column_type: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type's variant for PostgreSQL, or the type itself."""
    return column_type._variant_mapping.get("postgresql", column_type)
