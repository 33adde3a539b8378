"""Enqueues the rows of a DataFrame as jobs of one type, and returns the results of such writes."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all the world calls them
from pyspark.sql.streaming.readwriter import DataStreamWriter
from sqlalchemy.orm import Session

from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.pipeline.operations.bulk import WriteResult, find_write
from sa_jobqueue.pipeline.spark import writing
from sa_jobqueue.pipeline.spark.columns import CHECKS
from sa_jobqueue.pipeline.spark.connections import connect, find_queue, load_object, sanitised
from sa_jobqueue.pipeline.spark.documents import Ours, document_of, named
from sa_jobqueue.pipeline.spark.errors import WriteError
from sa_jobqueue.pipeline.spark.options import Options, Use, checked, plain, read_options, refuse
from sa_jobqueue.pipeline.spark.progress import counted_tasks
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.tracing import current_traceparent

_NAMED: Final = {"id", "blockers", "deduplication_key", "ordering_key", "fairness_key"}
"""Arguments whose text is the name of a column."""
_OUR_ERROR: Final = re.compile(r"sa_jobqueue\.[\w.]+: (.+)")


def enqueue(
    df: DataFrame,
    target: Handler[Any, Any, Any] | str,
    *,
    payload: Ours | Sequence[str] | None = None,
    url: str | None = None,
    queue: str | Column | None = None,
    priority: int | Column | None = None,
    at: datetime | Column | None = None,
    delay: timedelta | Column | None = None,
    max_attempts: int | Column | None = None,
    timeout: timedelta | Column | None = None,
    deduplication_key: Ours | None = None,
    id: Ours | None = None,
    blockers: Ours | None = None,
    on_failure: str | Column | None = None,
    rate_cost: int | Column | None = None,
    expires_at: datetime | Column | None = None,
    ordering_key: Ours | None = None,
    deadline: datetime | Column | None = None,
    fairness_key: Ours | None = None,
    write_id: str | None = None,
    progress: Literal["lines"] | None = None,
    **options: str,
) -> WriteResult:
    """Enqueue one job of one type for each row of `df`, atomically and exactly once.

    `target`: a handler, whose payload type validates the inputs and whose module the executors import; or the name of a job
    type, with the option `app` one that is registered there.
    `payload`: a column, names of columns to combine into an object, or None for all columns. Values become JSON:
    instants in UTC; decimals as text for a handler, as numbers of up to 15 digits for a name. BINARY is refused. A
    STRING column must contain JSON.
    `queue`, `priority`, `at`, `delay`, `max_attempts`, `timeout`, `on_failure`, `rate_cost`, `expires_at`, `deadline`: one
    value, or a column; the type's setting by default. `deduplication_key`, `ordering_key`, `fairness_key`, `id`, `blockers`
    (ARRAY<STRING>): columns. Jobs of one ordering key run in the order of the rows of their partition.
    `write_id`: a name for this write; repeating a committed write changes nothing and returns its result, and fails if a row
    is not among those committed, unless `on_repeat="skip"`, which does not compute it. A write without rows is not recorded.
    `progress`: "lines" prints it on standard error.
    `url`, `options`: options of the data source, such as `on_duplicate="fail"`. With `mode="PERMISSIVE"` each row is checked
    separately.
    Raises: InvalidColumnError and UnknownJobTypeError before anything runs; WriteError with Spark's message. Nothing is
    enqueued then, unless only the response was lost.
    """
    if df.isStreaming:
        refuse("df", "is a stream: use sa_jobqueue.pipeline.spark.enqueue_stream")
    rows, write_options = _rows_of(
        df,
        target,
        options,
        payload,
        queue=queue,
        priority=priority,
        at=at,
        delay=delay,
        max_attempts=max_attempts,
        timeout=timeout,
        deduplication_key=deduplication_key,
        id=id,
        blockers=blockers,
        on_failure=on_failure,
        rate_cost=rate_cost,
        expires_at=expires_at,
        ordering_key=ordering_key,
        deadline=deadline,
        fairness_key=fairness_key,
    )
    return _write(rows, write_options | {"url": url, "write_id": write_id}, progress)


def enqueue_stream(
    df: DataFrame,
    target: Handler[Any, Any, Any] | str,
    *,
    payload: Ours | Sequence[str] | None = None,
    url: str | None = None,
    queue: str | Column | None = None,
    priority: int | Column | None = None,
    at: datetime | Column | None = None,
    delay: timedelta | Column | None = None,
    max_attempts: int | Column | None = None,
    timeout: timedelta | Column | None = None,
    deduplication_key: Ours | None = None,
    id: Ours | None = None,
    blockers: Ours | None = None,
    on_failure: str | Column | None = None,
    rate_cost: int | Column | None = None,
    expires_at: datetime | Column | None = None,
    ordering_key: Ours | None = None,
    deadline: datetime | Column | None = None,
    fairness_key: Ours | None = None,
    **options: str,
) -> DataStreamWriter:
    """Return the writer of a stream whose rows become jobs of one type, with the same conversion as `enqueue`.

    Set its checkpoint, and start it: `.option("checkpointLocation", path).start()`. Each batch is enqueued atomically and,
    with its checkpoint, exactly once.

    `target`, `payload`, `url`, `options` and the others: as in `enqueue`.
    Raises: InvalidColumnError and UnknownJobTypeError; InvalidOptionError for a DataFrame that is not a stream.
    """
    if not df.isStreaming:
        refuse("df", "is not a stream: use sa_jobqueue.pipeline.spark.enqueue")
    rows, write_options = _rows_of(
        df,
        target,
        options,
        payload,
        queue=queue,
        priority=priority,
        at=at,
        delay=delay,
        max_attempts=max_attempts,
        timeout=timeout,
        deduplication_key=deduplication_key,
        id=id,
        blockers=blockers,
        on_failure=on_failure,
        rate_cost=rate_cost,
        expires_at=expires_at,
        ordering_key=ordering_key,
        deadline=deadline,
        fairness_key=fairness_key,
    )
    named_options = {name: value for name, value in write_options.items() if value is not None}
    return rows.writeStream.format("jobqueue").options(**named_options, **({} if url is None else {"url": url}))


def document(
    df: DataFrame,
    target: Handler[Any, Any, Any] | str,
    payload: Ours | Sequence[str] | None = None,
    *,
    app: str | None = None,
) -> Column:
    """Return the column `input` of JSON documents for a write of your own, as `enqueue` makes it.

    `df`: the DataFrame that the column is selected from; it may be a stream. `target`, `payload`, `app`: as in `enqueue`. A
    row with a value that JSON does not have has a text that the write refuses, with the reason.
    Raises: InvalidColumnError for a column whose values JSON, or Python's JSON numbers, would change.
    """
    return document_of(df, payload, is_typed=_is_declared(target, app))


def _rows_of(
    df: DataFrame,
    target: Handler[Any, Any, Any] | str,
    options: Mapping[str, str],
    payload: Ours | Sequence[str] | None,
    **settings: Any,
) -> tuple[DataFrame, dict[str, str | None]]:
    """Return the rows of jobs, and the options of the data source that writes them."""
    write_options: dict[str, str | None] = dict(options)
    if isinstance(target, Handler) and "app" not in options:
        write_options["app"] = _app_of(target)
    write_options["type"] = target if isinstance(target, str) else target.name
    columns = {"input": document(df, target, payload, app=write_options.get("app"))}
    settings["scheduled_at"] = settings.pop("at")
    for name, option in settings.items():
        if isinstance(option, Column):
            columns[name] = option
        elif option is not None and name not in _NAMED:
            checked(CHECKS[name], option)
            columns[name] = F.lit(option.total_seconds() if isinstance(option, timedelta) else option)
        elif isinstance(option, str):
            columns[name] = named(df, option)
        elif option is not None:
            refuse(name, f"must be a column or its name, got {option!r}")
    trace = current_traceparent()
    if trace is not None:
        columns["trace_context"] = F.lit(trace)
    if "writtenby" not in map(plain, write_options):
        write_options["writtenBy"] = str(df.sparkSession.conf.get("spark.app.name"))
    return df.select(*(column.alias(name) for name, column in columns.items())), write_options


def _is_declared(target: Handler[Any, Any, Any] | str, app: str | None) -> bool:
    """Return whether a handler reads the inputs. Raises: UnknownJobTypeError for a name that the JobQueue lacks."""
    jobs = load_object(app) if isinstance(target, str) and app is not None else None
    return isinstance(target, Handler) or (isinstance(jobs, JobQueue) and jobs.registry.get(target) is not None)


def _write(rows: DataFrame, write_options: dict[str, str | None], progress: str | None) -> WriteResult:
    if progress not in {None, "lines"}:
        refuse("progress", f'must be "lines" or None, got {progress!r}')
    options = read_options(write_options, Use.WRITE)
    # Spark would run the same checks, but replace their errors with its own.
    writer = writing.batch_writer(rows.schema, options, overwrite=False)
    write_id = writer.write_id
    named_options = {name: value for name, value in write_options.items() if value is not None} | {"write_id": write_id}
    if writer.committed is not None and writer.is_repeated:
        return replace(writer.committed, repeated=True)
    try:
        with ExitStack() as stack:
            if progress:
                lines = stack.enter_context(ProgressLines(f"enqueue {write_id}"))
                lines.begin("staging tasks", measure=stack.enter_context(counted_tasks(rows.sparkSession)))
            rows.write.format("jobqueue").mode("append").options(**named_options).save()
    except PySparkException as error:
        match = _OUR_ERROR.search(str(error))
        if match is None:
            raise
        raise WriteError(match[1]) from error
    # The commit may have been the last thing before a failover.
    result = writing.retried(lambda: _written(options, write_id, 0), patience=writing.PATIENCE)
    if result is None:  # a write without rows is not in the ledger
        return WriteResult(write_id=write_id, staged=0, enqueued=0, duplicates=0, rejected=0)
    return replace(result, repeated=writer.committed is not None)


def written(
    url: str | None,
    write_id: str,
    *,
    sequence: int = 0,
    **options: str,
) -> WriteResult | None:
    """Return the result of a bulk write, or None if no write with this name has committed.

    `write_id`: its name; for a stream, the id of the query, and `sequence` the number of the batch. `url`, `options`: see
    `enqueue`.
    """
    return _written(read_options(dict(url=url, **options), Use.WRITE), write_id, sequence)


def _written(options: Options, write_id: str, sequence: int) -> WriteResult | None:
    with sanitised(options), connect(options) as connection, Session(connection) as session:
        return find_write(session, write_id, sequence=sequence, model=find_queue(connection, options).model)


def _app_of(handler: Handler[Any, Any, Any]) -> str:
    """Return the `module:name` of a handler's JobQueue, which must be a global of the module that declares the handler."""
    module = handler.job_type.func.__module__
    for name, value in vars(sys.modules.get(module, object)).items():
        if isinstance(value, JobQueue) and any(declared is handler for declared in value) and module != "__main__":
            return f"{module}:{name}"
    where = "set app='module:attribute'"
    raise InvalidOptionError("app", f"the executors must import the JobQueue that has {handler.name!r}: {where}")
