"""Enqueueing by COPY: as many jobs of one handler as an iterator has payloads for, at the speed of the table itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar
from uuid import UUID

import psycopg
from psycopg.adapt import PyFormat, Transformer
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from sa_jobqueue.db.copy import copy_in
from sa_jobqueue.db.encodings import Encoding, encoding_of
from sa_jobqueue.errors import InvalidJobError, InvalidPayloadError
from sa_jobqueue.ids import uuid7, uuid7_hex
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.checks import check_text
from sa_jobqueue.operations.enqueueing import check_encodable, wake, written_columns
from sa_jobqueue.operations.errors import translated
from sa_jobqueue.operations.schema import explained
from sa_jobqueue.registry.codecs import sealed
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_types import JobType
from sa_jobqueue.statements import deduplication, jobs
from sa_jobqueue.tracing import announce_alike

InT = TypeVar("InT")

CHUNK: Final = 64 * 1024
"""Characters of rows that are handed to the driver at once; it sends them while the next ones are made."""

_OF_EACH_ROW: Final = ("id", "chain_id", "input")
_NOT_ALIKE: Final = ("id", "deduplication_key", "blockers", "input")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})


def enqueue_payloads(
    session: Session,
    handler: Handler[InT, Any, Any],
    payloads: Iterable[InT],
    /,
    *,
    deduplicate_by: Callable[[InT], str] | None = None,
    **options: Any,
) -> int:
    """Enqueue one job a payload by COPY, in the caller's transaction; return how many were made.

    Several times as fast as `enqueue_many`, because no object is made of a job: all are of one handler and differ by their
    payloads alone. They wait for nothing.
    `deduplicate_by`: returns a payload's deduplication key; left out are those whose key an open chain has, and of equal
    keys all but the first. They go through a temporary table, which the database's role must be allowed to make.
    `payloads`: read once, each checked and sent as it comes, so that millions need no memory. Whatever makes them must
    leave this session alone meanwhile: its connection is busy. `options`: as `handler.job` takes them, the same for all.
    Changes: one row a job. Locks: the new rows; with keys in their order, and an equal key of a transaction that is under
    way is awaited.
    Raises: InvalidJobError naming the option, with nothing written. Once rows are on their way: InvalidPayloadError and
    PayloadTooLargeError naming the payload by its place from 0 (`payloads[17].order_id`), InvalidJobError naming its key
    so, ConflictError, and what the iterator or `deduplicate_by` raises; roll back then. Beside calls with scope
    "waiting" for the same keys it may be what the server ends of a deadlock: roll back and try again.
    """
    model, kind = handler.model, handler.job_type
    for name in _NOT_ALIKE:
        if name in options:
            raise InvalidJobError(name, "is not for jobs that differ by their payloads alone; use enqueue_many")
    kind.check_blocker_count(0)
    # `trace_context` may be set to None, for no trace; None for any other option means that it is not given.
    given = {name: value for name, value in options.items() if value is not None or name == "trace_context"}
    if kind.fairness_by is not None and "fairness_key" not in given:
        raise InvalidJobError(
            "fairness_key", "is read from each payload by fairness_by: give one for all, or use enqueue_many"
        )
    told = ("queue", "priority", "max_attempts", "timeout", "rate_cost")
    own = {name: getattr(kind, name) for name in told}
    # Never written: it has the options checked, and has the values of all the others.
    alike: JobMixin[Any] = model(kind.name, input_version=kind.version, **own | given)
    connection = session.connection()
    encoding = encoding_of(connection)
    if encoding is not None:
        check_encodable(encoding, alike)
    tell = announce_alike(session, alike)
    values = _alike(model, alike)
    if alike._delay or alike._at:
        due = jobs.due_at(delay=alike._delay, at=alike._at)
        values["scheduled_at"] = connection.execute(due).scalar_one()
    each: tuple[str, ...] = _OF_EACH_ROW
    if deduplicate_by is not None:
        each = (*each, "deduplication_key")
        values.pop("deduplication_key", None)
    tail = "".join("\t" + text for text in _texts(connection, model, values)) + "\n"
    columns = [*each, *values]
    chunks = _chunks(kind, payloads, model.__id_factory__, deduplicate_by, tail, encoding=encoding)
    with translated(), explained(model):  # COPY goes around SQLAlchemy
        if deduplicate_by is None:
            count = copy_in(connection, jobs.copy_new(model, columns), chunks)
        else:
            made, copied = deduplication.stage(model, columns)
            connection.exec_driver_sql(made)
            copy_in(connection, copied, chunks)
            count = connection.execute(deduplication.put_staged(model, columns)).rowcount
            connection.exec_driver_sql(deduplication.drop_staged())
    if count:
        tell(count)
        wake(session, connection, model, alike.queue, alike.fairness_key)
    return count


def _alike(model: type[JobMixin[Any]], job: JobMixin[Any]) -> dict[str, Any]:
    """Return what all rows have in common, by column."""
    values: dict[str, Any] = {}
    for key, column in written_columns(model).items():
        if column.name in _OF_EACH_ROW:
            continue
        if key in job.__dict__:
            values[column.name] = job.__dict__[key]
        elif column.default is not None and column.default.is_scalar:
            values[column.name] = column.default.arg
        elif column.default is not None:
            raise InvalidJobError(key, "has a default that is made for each row; use enqueue_many, or give a value")
    return values


def _texts(connection: Connection, model: type[JobMixin[Any]], values: dict[str, Any]) -> list[str]:
    """Return values, by column, as a row of COPY's text format has them."""
    given: list[Any] = []
    for name, value in values.items():
        kind = model.__table__.c[name].type.dialect_impl(connection.dialect)
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


def _check_encodable(encoding: Encoding, place: int, document: str, key: str) -> None:
    fields = (("", encoding.fault_in(json.loads(document))), (".deduplication_key", encoding.fault(key)))
    for name, fault in fields:
        if fault is not None:
            raise InvalidPayloadError(f"payloads[{place}]{name}", fault)


def _chunks(
    kind: JobType,
    payloads: Iterable[Any],
    make_id: Callable[[], Any],
    key_of: Callable[[Any], str] | None,
    tail: str,
    *,
    encoding: Encoding | None,
) -> Iterator[str]:
    lines: list[str] = []
    size = 0
    make_text = uuid7_hex if make_id is uuid7 else lambda: _id_text(make_id())
    for place, payload in enumerate(payloads):
        job_id = make_text()
        # Of what needs escaping, JSON text without other characters than ASCII's has the backslash alone.
        field = f"payloads[{place}]"
        if kind.codec is None:
            document = kind.input.encode_text(field, payload)
        else:
            document = json.dumps(sealed(field, kind.input.encode(field, payload), kind.codec))
        key = "" if key_of is None else f"\t{_key_text(place, key_of(payload))}"
        if encoding is not None:
            _check_encodable(encoding, place, document, key)
        document = document.replace("\\", "\\\\")
        lines.append(f"{job_id}\t{job_id}\t{document}{key}{tail}")
        size += len(document)
        if size >= CHUNK:
            yield "".join(lines)
            lines, size = [], 0
    if lines:
        yield "".join(lines)
