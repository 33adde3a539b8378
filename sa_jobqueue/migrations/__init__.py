"""Migrations of job tables: `migrate_job_queue`, the runner behind it, and the plugin that writes it into revisions.

`require_no_jobs` is for migrations of the application's tables that jobs in flight depend on.

A version is a module of `ddl` with two functions that return SQL text. It never changes once released and imports
nothing of ours: a migration written by an application years ago must replay to the byte. The version a database has is
stamped in the comment of its `job` table, where stock Alembic sees it as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import timedelta

    from sa_jobqueue.layout import IdType, Unit

__all__ = ["migrate_job_queue", "require_no_jobs"]


def migrate_job_queue(
    *,
    from_version: int,
    to_version: int,
    schema: str | None = None,
    prefix: str = "",
    id_type: IdType = "uuid",
    unit: Unit = "queue",
) -> None:
    """Migrate job tables from one version to another, up or down, in a revision of Alembic.

    Revisions that Alembic writes call it. `op.migrate_job_queue` does the same, but type checkers do not know it.
    `from_version`, `to_version`: the current and the wanted schema version, as literals, so that an old migration always
    replays the same; 0 means no tables: all jobs are lost. `schema`, `prefix` and `id_type` are those of the model.
    `unit`: "pipeline" for the tables of Spark's writes and of the archive, without which the queue has all of its jobs.
    Raises: SchemaError if the tables are not of `from_version`; nothing was changed. Never with `--sql`.
    """
    # Alembic imports this package, for its plugin, while it is being imported itself.
    from alembic import op

    from sa_jobqueue.layout import Layout
    from sa_jobqueue.migrations.operation import MigrateJobQueueOp

    layout = Layout(schema, prefix, id_type, pipeline=unit == "pipeline")
    op.invoke(MigrateJobQueueOp(layout, from_version=from_version, to_version=to_version, unit=unit))


def require_no_jobs(
    type_name: str | None = None,
    *,
    below_version: int | None = None,
    queue: str | None = None,
    include_dead: bool = False,
    patience: timedelta | None = None,
    schema: str | None = None,
    prefix: str = "",
) -> None:
    """Refuse an upgrade in a revision of Alembic while jobs are open that need the code or tables from before it.

    Write it as the first line of `upgrade`. `op.require_no_jobs` does the same, but type checkers do not know it. It waits
    for older transactions that have written to the job table, then checks, and checks again, without waiting, before the
    migration commits. It passes if the job tables are not there, and does nothing in a downgrade. With `--sql` it writes a
    `DO` block that raises, without the second check.
    `type_name`: the job type. `below_version`: only jobs whose payload has an older version; all by default. `queue`: only
    jobs in this queue, of any type if no type is named. `include_dead`: whether unresolved dead letters, which can be
    redriven, count as well.
    `patience`: how long to wait for older transactions; 30 seconds by default. `schema`, `prefix`: those of the model.
    Locks: none. Raises: OpenJobsError; nothing was changed. InvalidOptionError, InvalidJobError.
    """
    from alembic import op

    from sa_jobqueue.layout import Layout
    from sa_jobqueue.migrations.open_jobs import PATIENCE, NoJobs
    from sa_jobqueue.migrations.operation import RequireNoJobsOp

    options: dict[str, Any] = {"below_version": below_version, "queue": queue, "include_dead": include_dead}
    patience = PATIENCE if patience is None else patience
    op.invoke(RequireNoJobsOp(NoJobs(layout=Layout(schema, prefix), type_name=type_name, patience=patience, **options)))
