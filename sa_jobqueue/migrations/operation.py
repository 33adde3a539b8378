"""The Alembic operations: `op.migrate_job_queue` migrates the job tables, `op.require_no_jobs` refuses a migration.

Importing this module registers them. Where this is imported before Alembic, Alembic's import comes back to it half way, so
no module imports anything from it while Alembic is being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic.autogenerate.render import renderers
from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation

from sa_jobqueue.errors import require_postgresql
from sa_jobqueue.layout import IdType, Layout, Unit
from sa_jobqueue.migrations import runner
from sa_jobqueue.migrations.open_jobs import NoJobs

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext


@Operations.register_operation("migrate_job_queue")
class MigrateJobQueueOp(MigrateOperation):
    """Migrate one unit of a queue's tables from one version to another, up or down.

    `layout`: placement of the job tables. `from_version`, `to_version`: schema versions; 0 means no
    tables. `unit`: as in `statements`.
    """

    def __init__(self, layout: Layout, *, from_version: int, to_version: int, unit: Unit = "queue") -> None:
        self.layout = layout
        self.unit: Unit = unit
        self.from_version = from_version
        self.to_version = to_version

    @classmethod
    def migrate_job_queue(
        cls,
        operations: Operations,
        *,
        from_version: int,
        to_version: int,
        schema: str | None = None,
        prefix: str = "",
        id_type: IdType = "uuid",
        unit: Unit = "queue",
    ) -> None:
        """Migrate job tables in a revision, as `op.migrate_job_queue`: see `sa_jobqueue.migrations.migrate_job_queue`.

        `operations`: passed by Alembic. `from_version`, `to_version`, `schema`, `prefix`, `id_type`, `unit`: as there.
        Raises: SchemaError, as there.
        """
        layout = Layout(schema, prefix, id_type, pipeline=unit == "pipeline")
        operations.invoke(cls(layout, from_version=from_version, to_version=to_version, unit=unit))

    def reverse(self) -> MigrateJobQueueOp:
        """Return the operation that undoes this one."""
        return MigrateJobQueueOp(self.layout, from_version=self.to_version, to_version=self.from_version, unit=self.unit)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what `alembic check` prints: `("migrate_job_queue", unit, schema, prefix, from_version, to_version)`."""
        place = (self.layout.schema, self.layout.prefix)
        return ("migrate_job_queue", self.unit, *place, self.from_version, self.to_version)

    def render(self) -> str:
        """Return the call without its object, arguments at their defaults left out."""
        arguments: dict[str, Any] = {"from_version": self.from_version, "to_version": self.to_version}
        if self.layout.schema is not None:
            arguments["schema"] = self.layout.schema
        if self.layout.prefix:
            arguments["prefix"] = self.layout.prefix
        if self.layout.id_type != "uuid":
            arguments["id_type"] = self.layout.id_type
        if self.unit != "queue":
            arguments["unit"] = self.unit
        return "migrate_job_queue({})".format(", ".join(f"{name}={value!r}" for name, value in arguments.items()))


@Operations.implementation_for(MigrateJobQueueOp)
def _migrate_job_queue(operations: Operations, operation: MigrateJobQueueOp) -> None:
    steps: Any = {"from_version": operation.from_version, "to_version": operation.to_version, "unit": operation.unit}
    context = operations.migration_context
    if not context.as_sql:
        runner.migrate(operations.get_bind(), operation.layout, **steps)
        return
    require_postgresql(context.dialect.name)
    for statement in runner.statements(operation.layout, **steps):
        # Not through `execute`: without a named paramstyle in env.py it doubles the % of plpgsql's RAISE.
        context.impl.static_output(f"{statement};")


@renderers.dispatch_for(MigrateJobQueueOp)
def _render_migrate_job_queue(context: AutogenContext, operation: MigrateJobQueueOp) -> str:
    context.imports.add(
        "from sa_jobqueue.migrations import migrate_job_queue"
    )  # type checkers know nothing of `op.` but Alembic's
    return operation.render()


@Operations.register_operation("require_no_jobs")
class RequireNoJobsOp(MigrateOperation):
    """Refuse an upgrade while jobs are open. `condition`: which ones."""

    def __init__(self, condition: NoJobs) -> None:
        self.condition = condition

    @classmethod
    def require_no_jobs(
        cls,
        operations: Operations,
        type_name: str | None = None,
        *,
        schema: str | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        """Refuse an upgrade while jobs are open, as `op.require_no_jobs`: see `sa_jobqueue.migrations.require_no_jobs`.

        `operations`: passed by Alembic. `type_name`, `schema`, `prefix`, `options`: as there.
        Raises: OpenJobsError, as there.
        """
        operations.invoke(cls(NoJobs(layout=Layout(schema, prefix), type_name=type_name, **options)))


@Operations.implementation_for(RequireNoJobsOp)
def _require_no_jobs(operations: Operations, operation: RequireNoJobsOp) -> None:
    context = operations.migration_context
    if getattr(context.opts.get("fn"), "__name__", "") == "downgrade":  # the function of Alembic's command
        return
    if not context.as_sql:
        operation.condition.check(operations.get_bind())
        return
    require_postgresql(context.dialect.name)
    context.impl.static_output(f"{operation.condition.block()};")
