"""Enqueueing many payloads by COPY."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Final
from uuid import UUID

import psycopg
from psycopg.adapt import PyFormat, Transformer
from sqlalchemy import ClauseElement, Connection, inspect, select
from sqlalchemy.orm import Session

from sa_jobqueue.db.copy import CopyTarget, copy_in
from sa_jobqueue.errors import InvalidJobError
from sa_jobqueue.ids import uuid7, uuid7_hexes
from sa_jobqueue.models import JobClass, JobMixin
from sa_jobqueue.models.checks import check_id, check_text, due_at
from sa_jobqueue.models.options import DECLARED, JOB_OPTIONS
from sa_jobqueue.operations import rows as job_rows
from sa_jobqueue.operations import wakeups
from sa_jobqueue.operations.schema import explained
from sa_jobqueue.operations.transactions import queue_connection, translated
from sa_jobqueue.payloads import sealed
from sa_jobqueue.payloads.references import encoded, unflushed
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import deduplication, row_security
from sa_jobqueue.statements._parts import table
from sa_jobqueue.tracing import announce_bulk

CHUNK: Final = 64 * 1024
"""Number of characters passed to the driver in one call; it sends them while the next rows are built."""

_OF_EACH_ROW: Final = ("id", "chain_id", "input")
_DIFFERENT_OPTIONS: Final = ("input", *(name for name, option in JOB_OPTIONS.items() if not option.is_shared))
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


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
    set_options = {name: value for name, value in options.items() if value is not None or name == "trace_context"}
    if kind.fairness_by is not None and "fairness_key" not in set_options:
        raise InvalidJobError(
            "fairness_key", "is read from each payload by fairness_by: give one for all, or use enqueue_many"
        )
    # Never written: it checks the options, and has the values that all jobs share.
    type_defaults = {name: kind.new[name] for name in DECLARED}
    template: JobMixin[Any] = model(kind.name, _handler=None, **type_defaults | set_options)
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
    chunks = _chunks(model, kind, payloads, deduplicate_by, tail)
    with translated(), explained(model):  # COPY goes around SQLAlchemy
        # COPY refuses a table with row-level security, even if its policies allow the rows; INSERT does not.
        is_secured = deduplicate_by is None and connection.scalar(row_security.is_active(model.__jobqueue__))
        if is_secured and session.twophase:
            raise InvalidJobError(
                "payloads", "need a temporary table under row-level security, which PREPARE refuses; use enqueue_many"
            )
        if deduplicate_by is None and not is_secured:
            row_count = copy_in(connection, CopyTarget(table(model).schema, table(model).name, tuple(columns)), chunks)
        else:
            create_table, copied = deduplication.stage(model, columns)
            connection.execute(create_table)
            copy_in(connection, copied, chunks)
            put_staged = deduplication.put_all_staged if is_secured else deduplication.put_staged
            row_count = connection.execute(put_staged(model, columns)).rowcount
            connection.exec_driver_sql(deduplication.drop_staged())
    if row_count:
        announce_count(row_count)
        wakeups.notify_workers(session, connection, model, wakeups.queue_key_of(template))
    return row_count


def _shared_values(model: JobClass, job: JobMixin[Any]) -> dict[str, Any]:
    """Return the values that all rows share, by column."""
    columns = job_rows.written_columns(model)
    version = inspect(model).version_id_col
    for key in columns.keys() - job.__dict__.keys():
        default = columns[key].default
        if default is not None and columns[key] is not version and not default.is_scalar:
            raise InvalidJobError(key, "has a default that is made for each row; use enqueue_many, or give a value")
    job_rows.set_defaults(model, [job])
    values = {name: value for name, value in job_rows.written_values(job).items() if name not in _OF_EACH_ROW}
    for name, value in values.items():
        if isinstance(value, ClauseElement):
            raise InvalidJobError(name, "is an SQL expression, which COPY does not take; use enqueue_many")
        if value is not None and job_rows.is_expressed(table(model).c[name].type):
            reason = "is of a type that wraps its values into an SQL expression, which COPY cannot; use enqueue_many"
            raise InvalidJobError(name, reason)
    return values


def _texts(connection: Connection, model: JobClass, values: dict[str, Any]) -> list[str]:
    """Return values, by column, in COPY's text format."""
    bound_values: list[Any] = []
    for name, value in values.items():
        kind = table(model).c[name].type.dialect_impl(connection.dialect)
        processor = kind.bind_processor(connection.dialect)
        bound_values.append(processor(value) if processor else value)
    driver = connection.connection.driver_connection
    psycopg_connection = driver if isinstance(driver, (psycopg.Connection, psycopg.AsyncConnection)) else None
    transformer = Transformer(psycopg_connection)  # COPY's text is the same for every driver
    dumped = transformer.dump_sequence(bound_values, [PyFormat.TEXT] * len(bound_values))
    return ["\\N" if text is None else bytes(text).decode().translate(_ESCAPES) for text in dumped]


def _id_text(model: JobClass, place: int, job_id: Any) -> str:
    check_id(model, f"payloads[{place}].id", job_id)
    return job_id.hex if isinstance(job_id, UUID) else job_id.translate(_ESCAPES)


def _key_text(place: int, key: str) -> str:
    check_text(f"payloads[{place}].deduplication_key", key)
    return key.translate(_ESCAPES)


def _chunks(
    model: JobClass,
    kind: JobType,
    payloads: Iterable[Any],
    key_of: Callable[[Any], str] | None,
    tail: str,
) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    make_id = model.__id_factory__
    ids = uuid7_hexes() if make_id is uuid7 else (_id_text(model, place, make_id()) for place in count())
    for place, (payload, job_id) in enumerate(zip(payloads, ids, strict=False)):
        # In JSON text in ASCII, only the backslash needs escaping.
        field = f"payloads[{place}]"
        if kind.input.has_references:
            checked, _ = encoded(kind.input, payload, kind.codec, field=field)
            if not checked.text and (error := unflushed(field, checked.value)) is not None:
                raise error
        else:
            checked = sealed(field, kind.input.document(field, payload), kind.codec)
        document = checked.text
        key = "" if key_of is None else f"\t{_key_text(place, key_of(payload))}"
        document = document.replace("\\", "\\\\")
        lines.append(f"{job_id}\t{job_id}\t{document}{key}{tail}")
        size += len(document)
        if size >= CHUNK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)
