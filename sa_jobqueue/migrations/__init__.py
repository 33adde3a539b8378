"""Migrations of job tables: `migrate_job_queue`, the runner behind it, and the plugin that writes it into revisions.

A version is a module of `ddl` with two functions that return SQL text. It never changes once released and imports
nothing of ours: a migration written by an application years ago must replay to the byte. The version a database has is
stamped in the comment of its `job` table, where stock Alembic sees it as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sa_jobqueue.layout import IdType, Unit

__all__ = ["migrate_job_queue"]


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
