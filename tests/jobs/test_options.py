"""The table of a job's options agrees with the newest DDL, with handlers, schedules and Spark's columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

import pytest
from sqlalchemy import Connection, Engine, text

from sa_jobqueue.models.options import JOB_OPTIONS, JobOption
from sa_jobqueue.registry.options import Options
from sa_jobqueue.registry.schedules import ScheduleColumns
from tests.fixtures.parts import needs

STATE = {
    *("type_name", "chain_id", "chain_type_name", "chain_index", "root_id", "input", "output", "status", "open_blockers"),
    *("has_waiters", "created_at", "scheduled_at", "started_at", "completed_at", "completed_by", "attempt", "last_error"),
    *("leased_by", "leased_until", "chain_completed_at", "chain_status", "trace_context", "chain_trace_context"),
    "changed_xid",
}
"""The columns of `job` that are no options."""
OF_HANDLERS = {"type_name", "retry", "retention", "concurrency", "fairness_by", "codec"}
"""The options of handlers that are no options of their jobs."""
OF_SCHEDULES = {
    *("name", "cron", "time_zone", "type_name", "input", "input_version", "fire_time_field", "misfire_policy", "catch_up"),
    *("grace", "overlap"),
}
"""The columns of a schedule that are no options of its jobs."""
OF_WRITES = {"type_name", "input", "on_failure", "trace_context"}
"""The columns of a DataFrame that are no options."""
SPARK = {"SECONDS": "DOUBLE", "ARRAY": "ARRAY<STRING>"}


def columns(connection: Connection, table: str) -> dict[str, str]:
    listed = text(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = CAST(:table AS regclass) AND attnum > 0 AND NOT attisdropped"
    )
    return {name: kind for name, kind in connection.execute(listed, {"table": table})}  # noqa: C416 - rows


def differences(options: Mapping[str, JobOption], connection: Connection) -> set[str]:
    """Return the names in which the table of options differs from the database, the handlers or the schedules."""
    job = {name: kind for name, kind in columns(connection, "job").items() if name not in STATE}
    of_options = {name: option.column for name, option in options.items() if option.column is not None}
    of_options |= {"id": "uuid"} if "id" in options else {}
    differing = {name for name in job.keys() | of_options if job.get(name) != of_options.get(name)}
    job_types = columns(connection, "job_type")
    differing |= {name for name, option in options.items() if (name in job_types) != bool(option.handler)}
    declared = {option.name: option.default for option in fields(Options) if option.name not in OF_HANDLERS}
    of_handlers = {option.handler: option.default for option in options.values() if option.handler}
    differing |= {name for name in declared.keys() | of_handlers if declared.get(name, ...) != of_handlers.get(name, ...)}
    schedules = {column.name for column in fields(ScheduleColumns)} - OF_SCHEDULES
    differing |= schedules ^ {name for name, option in options.items() if option.of_schedules}
    return differing | (schedules - columns(connection, "schedule").keys())


def test_the_options_are_the_columns_of_the_newest_tables_of_handlers_and_of_schedules(engine: Engine) -> None:
    with engine.connect() as connection:
        assert differences(JOB_OPTIONS, connection) == set()


WITH_COLUMN = [name for name, option in JOB_OPTIONS.items() if option.column is not None]


@pytest.mark.parametrize("missing", WITH_COLUMN)
def test_an_option_that_the_table_lacks_is_a_difference(missing: str, engine: Engine) -> None:
    options = {name: option for name, option in JOB_OPTIONS.items() if name != missing}
    with engine.connect() as connection:
        assert missing in differences(options, connection)


def test_a_row_without_options_has_their_defaults(engine: Engine) -> None:
    with engine.begin() as connection:
        ids = "SELECT id, id, 'x', 'x' FROM gen_random_uuid() AS id"
        inserted = text(f"INSERT INTO job (id, chain_id, type_name, chain_type_name) {ids} RETURNING *")
        row = connection.execute(inserted).mappings().one()
    for name, option in JOB_OPTIONS.items():
        if option.column is not None and name != "id":
            assert row[name] == option.default, name


def spark_differences(options: Mapping[str, JobOption]) -> set[str]:
    from sa_jobqueue.models import Job
    from sa_jobqueue.pipeline.spark.columns import CHECKS, COLUMNS

    staged = {option.staged: SPARK.get(option.spark, option.spark) for option in options.values()}
    described = {name: kind.partition(",")[0] for name, (kind, _) in COLUMNS.items() if name not in OF_WRITES}
    differing = {name for name in described.keys() | staged if described.get(name) != staged.get(name)}
    staging_columns = OF_WRITES | {"write_id", "sequence", "task_id", "row", "staged_at"}
    staging_columns |= {"rejected_field", "rejected_reason", "record"}
    stage = {column.name for column in Job.Stage.__table__.c} - staging_columns
    return differing | (stage ^ staged.keys()) | (staged.keys() - CHECKS.keys())


def test_the_options_are_the_columns_of_spark_and_of_its_staging_table() -> None:
    needs("pyspark")
    assert spark_differences(JOB_OPTIONS) == set()


@pytest.mark.parametrize("missing", JOB_OPTIONS)
def test_an_option_that_the_table_lacks_differs_from_spark(missing: str) -> None:
    needs("pyspark")
    options = {name: option for name, option in JOB_OPTIONS.items() if name != missing}
    assert JOB_OPTIONS[missing].staged in spark_differences(options)
