"""Enqueueing many jobs: of `Job` objects in one statement, from an array a column; of payloads by COPY."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, repeat
from operator import itemgetter
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.adapt import PyFormat, Transformer
from sqlalchemy import ARRAY, JSON, ClauseElement, Connection, Dialect, inspect, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import instance_state
from sqlalchemy.types import TypeDecorator, TypeEngine

from sa_jobqueue.db.copy import CopyTarget, copy_in
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.ids import uuid7, uuid7_hexes
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.checks import check_text, due_at
from sa_jobqueue.operations.blockers import declare, write_edges
from sa_jobqueue.operations.schema import explained
from sa_jobqueue.operations.transactions import queue_connection, translated
from sa_jobqueue.operations.writer import (
    DEFAULTS,
    input_text,
    insert_of,
    notify_workers,
    queue_key_of,
    set_defaults,
    written_columns,
    written_values,
)
from sa_jobqueue.payloads import sealed
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import deduplication, jobs
from sa_jobqueue.statements._parts import once_a_model, table
from sa_jobqueue.tracing import announce, announce_bulk

CHUNK: Final = 64 * 1024
"""Number of characters passed to the driver in one call; it sends them while the next rows are built."""

_OF_EACH_ROW: Final = ("id", "chain_id", "input")
_DIFFERENT_OPTIONS: Final = ("id", "deduplication_key", "blockers", "input")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def write_many(session: Session, new: Iterable[JobMixin[Any]], *, unless_taken: bool = False) -> list[Any]:
    """Insert many jobs in one statement, in the caller's transaction; return the ids of those written, in the given order.

    As `enqueue_many` without deduplication. `unless_taken`: leave out jobs whose deduplication key an open chain has, and
    write in the given order.
    """
    listed = list(new)
    if not listed:
        return []
    kind = type(listed[0])
    written: set[Any] = set()

    def insert(statement: Insert, given: Any) -> None:
        if unless_taken:
            returning = jobs.unless_taken(kind, statement).returning(table(kind).c.id)
            written.update(connection.execute(returning, given).scalars())
        else:
            connection.execute(statement, given)

    for index, job in enumerate(listed):
        check_new(f"new[{index}]", job, kind)
    if any(job._blockers for job in listed):
        session.flush()  # they may wait for pending objects
    with translated():
        announce(session, listed)
        connection = queue_connection(session, kind)
        edges = declare(connection, listed)
        for names, group in group_by_columns(kind, listed, in_order=unless_taken):
            if uncarried(kind, names, group):
                # Row by row, as the unit of work does. Jobs that set the same columns have one statement, unless it has
                # expressions.
                for statement, pairs in groupby(map(insert_of, group), key=itemgetter(0)):
                    insert(statement, [given for _, given in pairs])
            else:
                varying, equal = without_defaults(arrays(kind, names, group, connection.dialect))
                columns = tuple(name for name in varying if name in names)
                insert(jobs.enqueue_many(kind, columns, tuple(equal)), varying | equal)
        if unless_taken:
            listed = [job for job in listed if job.__dict__["id"] in written]
        write_edges(connection, edges)
        for queue_key in sorted(set(map(queue_key_of, listed))):
            notify_workers(session, connection, kind, queue_key)
    for job in listed:
        job._is_enqueued = True
    return [job.__dict__["id"] for job in listed]


def check_new(field: str, job: object, kind: type[Any]) -> None:
    """Check that this is a fresh job, and of one class with the others. Raises: InvalidJobError."""
    if not isinstance(job, JobMixin):
        raise InvalidJobError(field, f"must be a job, as Job(...) or handler.job(...) make it, got {type(job).__name__}")
    if type(job) is not kind:
        raise InvalidJobError(field, f"is a {type(job).__name__}, the first is a {kind.__name__}")
    if not instance_state(job).transient:
        raise InvalidJobError(field, "is or was in a session; add it there, or pass a fresh job")


Group = tuple[dict[str, str], list[Any]]
"""The columns that some jobs set, as attribute by column, and those jobs."""


def group_by_columns(kind: JobClass, listed: Sequence[Any], *, in_order: bool = False) -> list[Group]:
    """Group jobs by the columns that they set; the database fills in the others. Sets defaults in Python.

    Columns that the database would fill in with null are set to None, so that they do not separate groups.
    `in_order`: whether the order stays, so that only consecutive jobs are of one group.
    """
    attributes = written_columns(kind)
    given = _set_by(kind, attributes, listed)
    empty = {key for key in frozenset().union(*given) if _is_null_unset(attributes[key])}
    for job, keys in zip(listed, given, strict=True):
        for key in empty - keys:
            setattr(job, key, None)
    groups: dict[tuple[frozenset[str], int], list[Any]] = {}
    runs = groupby(zip((keys | empty for keys in given), listed, strict=True), key=itemgetter(0))
    for number, (keys, run) in enumerate(runs):
        groups.setdefault((keys, number if in_order else 0), []).extend(job for _, job in run)
    return [({attributes[key].name: key for key in attributes if key in keys}, group) for (keys, _), group in groups.items()]


def _set_by(kind: JobClass, attributes: Mapping[str, Any], listed: Sequence[Any]) -> list[frozenset[str]]:
    """Return the columns that each job sets, after setting defaults in Python."""
    set_defaults(kind, listed)
    # Jobs created by the same call have the same attributes in the same order.
    known: dict[tuple[str, ...], frozenset[str]] = {}
    given: list[frozenset[str]] = []
    for job in listed:
        held = tuple(job.__dict__)
        if held not in known:
            known[held] = frozenset(attributes.keys() & held)
        given.append(known[held])
    return given


def _is_null_unset(column: Any) -> bool:
    """Return whether a column that no value is given for becomes null. For JSON, None may be a value instead."""
    filled_by = (column.default, column.server_default, column.computed, column.identity)
    is_filled = any(source is not None for source in filled_by)
    return bool(column.nullable) and not is_filled and not (isinstance(column.type, JSON) and not column.type.none_as_null)


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


def arrays(kind: JobClass, names: dict[str, str], group: Sequence[Any], dialect: Dialect) -> dict[str, Sequence[Any]]:
    """Return the values of jobs that set the same columns as the arrays of `statements.jobs.enqueue_many`.

    `dialect`: that of the connection, whose engine may have a `json_serializer`.
    """
    dumps = getattr(dialect, "_json_serializer", None) or json.dumps
    values: dict[str, Sequence[Any]] = {}
    states = [*map(vars, group)]
    for name, key in names.items():
        column_type = table(kind).c[name].type
        given: Sequence[Any] = [state[key] for state in states]
        if name == "input":
            given = [input_text(job) for job in group]
        elif isinstance(column_type, JSON):
            try:
                given = [None if value is None and column_type.none_as_null else dumps(value) for value in given]
            except (TypeError, ValueError) as error:
                reason = f"is not JSON: {error}; pass what `json.dumps` takes, or give the engine a json_serializer"
                raise InvalidJobError(key, reason) from error
        values[name] = given
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
        if key in never or (key in expressible and any(isinstance(job.__dict__[key], ClauseElement) for job in group)):
            return key
    return None


@once_a_model
def _uncarried_columns(kind: JobClass) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns whose values no array can carry, and those that may be set to SQL expressions, by attribute."""
    own = {key: column for key, column in written_columns(kind).items() if key not in vars(JobMixin)}
    never = tuple(key for key, column in own.items() if not _is_carried(column.type))
    return never, ("expires_at", *(key for key in own if key not in never))


def _is_carried(given: TypeEngine[Any]) -> bool:
    """Return whether values of a column type can be elements of an array parameter."""
    inner = of_postgresql(given)
    while isinstance(inner, TypeDecorator):
        inner = of_postgresql(inner.impl_instance)
    wrapped = isinstance(inner, JSON) and not isinstance(given, JSON)
    return not (wrapped or isinstance(inner, ARRAY) or is_expressed(given))


def is_expressed(given: TypeEngine[Any]) -> bool:
    """Return whether a column type wraps its values into an SQL expression, which neither arrays nor COPY can."""
    own = of_postgresql(given)
    return own._has_bind_expression or (isinstance(own, TypeDecorator) and is_expressed(own.impl_instance))


def of_postgresql(given: TypeEngine[Any]) -> TypeEngine[Any]:
    """Return a type's variant for PostgreSQL, or the type itself."""
    return given._variant_mapping.get("postgresql", given)


def copy_payloads(
    session: Session,
    handler: Handler[Any, Any, Any],
    payloads: Iterable[Any],
    deduplicate_by: Callable[[Any], str] | None,
    options: dict[str, Any],
) -> int:
    """Write the jobs of `Handler.enqueue_many`."""
    model, kind = handler.model, handler.job_type
    for name in _DIFFERENT_OPTIONS:
        if name in options:
            raise InvalidJobError(name, "is not for jobs that differ by their payloads alone; use enqueue_many")
    if deduplicate_by is not None and session.twophase:
        raise InvalidJobError("deduplicate_by", "needs a temporary table, which PREPARE refuses; use enqueue_many")
    kind.check_blocker_count(0)
    # `trace_context` may be set to None, for no trace; None for any other option means that it is not given.
    given = {name: value for name, value in options.items() if value is not None or name == "trace_context"}
    if kind.fairness_by is not None and "fairness_key" not in given:
        raise InvalidJobError(
            "fairness_key", "is read from each payload by fairness_by: give one for all, or use enqueue_many"
        )
    # Never written: it checks the options, and has the values that all jobs share.
    own = {name: kind.new[name] for name in ("queue", "priority", "max_attempts", "timeout", "rate_cost", "input_version")}
    template: JobMixin[Any] = model(kind.name, _handler=None, **own | given)
    connection = queue_connection(session, model)
    announce_count = announce_bulk(session, template)
    values = _shared_values(model, template)
    if (due := due_at(delay=template._delay, at=template._at)) is not None:  # by the database's clock, once for all
        values["scheduled_at"] = connection.scalar(select(due))
    each: tuple[str, ...] = _OF_EACH_ROW
    if deduplicate_by is not None:
        each = (*each, "deduplication_key")
        values.pop("deduplication_key", None)
    tail = "".join("\t" + text for text in _texts(connection, model, values)) + "\n"
    columns = [*each, *values]
    chunks = _chunks(kind, payloads, model.__id_factory__, deduplicate_by, tail)
    with translated(), explained(model):  # COPY goes around SQLAlchemy
        if deduplicate_by is None:
            count = copy_in(connection, CopyTarget(table(model).schema, table(model).name, tuple(columns)), chunks)
        else:
            made, copied = deduplication.stage(model, columns)
            connection.exec_driver_sql(made)
            copy_in(connection, copied, chunks)
            count = connection.execute(deduplication.put_staged(model, columns)).rowcount
            connection.exec_driver_sql(deduplication.drop_staged())
    if count:
        announce_count(count)
        notify_workers(session, connection, model, queue_key_of(template))
    return count


def _shared_values(model: JobClass, job: JobMixin[Any]) -> dict[str, Any]:
    """Return the values that all rows share, by column."""
    columns = written_columns(model)
    version = inspect(model).version_id_col
    for key in columns.keys() - job.__dict__.keys():
        default = columns[key].default
        if default is not None and columns[key] is not version and not default.is_scalar:
            raise InvalidJobError(key, "has a default that is made for each row; use enqueue_many, or give a value")
    set_defaults(model, [job])
    values = {name: value for name, value in written_values(job).items() if name not in _OF_EACH_ROW}
    for name, value in values.items():
        if isinstance(value, ClauseElement):
            raise InvalidJobError(name, "is an SQL expression, which COPY does not take; use enqueue_many")
        if value is not None and is_expressed(table(model).c[name].type):
            reason = "is of a type that wraps its values into an SQL expression, which COPY cannot; use enqueue_many"
            raise InvalidJobError(name, reason)
    return values


def _texts(connection: Connection, model: JobClass, values: dict[str, Any]) -> list[str]:
    """Return values, by column, in COPY's text format."""
    given: list[Any] = []
    for name, value in values.items():
        kind = table(model).c[name].type.dialect_impl(connection.dialect)
        processor = kind.bind_processor(connection.dialect)
        given.append(processor(value) if processor else value)
    driver = connection.connection.driver_connection
    own = driver if isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)) else None
    transformer = Transformer(own)  # COPY's text is the same for every driver
    dumped = transformer.dump_sequence(given, [PyFormat.TEXT] * len(given))
    return ["\\N" if text is None else bytes(text).decode().translate(_ESCAPES) for text in dumped]


def _id_text(made: Any) -> str:
    return made.hex if isinstance(made, UUID) else str(made).translate(_ESCAPES)


def _key_text(place: int, key: str) -> str:
    check_text(f"payloads[{place}].deduplication_key", key)
    return key.translate(_ESCAPES)


def _chunks(
    kind: JobType,
    payloads: Iterable[Any],
    make_id: Callable[[], Any],
    key_of: Callable[[Any], str] | None,
    tail: str,
) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    ids = uuid7_hexes() if make_id is uuid7 else (_id_text(make_id()) for _ in repeat(None))
    for place, (payload, job_id) in enumerate(zip(payloads, ids, strict=False)):
        # In JSON text in ASCII, only the backslash needs escaping.
        field = f"payloads[{place}]"
        document = sealed(field, kind.input.document(field, payload), kind.codec).text
        key = "" if key_of is None else f"\t{_key_text(place, key_of(payload))}"
        document = document.replace("\\", "\\\\")
        lines.append(f"{job_id}\t{job_id}\t{document}{key}{tail}")
        size += len(document)
        if size >= CHUNK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)
