"""`op.migrate_job_queue`: the Alembic operation that migrates the job tables.

Importing this module registers it. Where this is imported before Alembic, Alembic's import comes back to it half way, so
no module imports anything from it while Alembic is being imported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from alembic.autogenerate.render import renderers
from alembic.operations.base import Operations
from alembic.operations.ops import MigrateOperation

from sa_jobqueue.errors import require_postgresql
from sa_jobqueue.layout import IdType, Layout
from sa_jobqueue.migrations import runner

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext


@Operations.register_operation("migrate_job_queue")
class MigrateJobQueueOp(MigrateOperation):
    """Migrate one set of job tables from one version to another, up or down.

    `layout`: placement of the job tables. `from_version`, `to_version`: schema versions; 0 means no tables.
    """

    def __init__(self, layout: Layout, *, from_version: int, to_version: int) -> None:
        self.layout = layout
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
    ) -> None:
        """Migrate job tables from one version to another, up or down. Alembic offers it as `op.migrate_job_queue`.

        `operations`: passed by Alembic. `from_version`, `to_version`: the current and the wanted schema version, as
        literals, so that an old migration always replays the same; 0 means no tables: all jobs are lost. `schema`, `prefix`
        and `id_type` are those of the model.
        Raises: SchemaError if the tables are not of `from_version`; nothing was changed. Never with `--sql`.
        """
        layout = Layout(schema, prefix, id_type)
        operations.invoke(cls(layout, from_version=from_version, to_version=to_version))

    def reverse(self) -> MigrateJobQueueOp:
        """Return the operation that undoes this one."""
        return MigrateJobQueueOp(self.layout, from_version=self.to_version, to_version=self.from_version)

    def to_diff_tuple(self) -> tuple[Any, ...]:
        """Return what `alembic check` prints: `("migrate_job_queue", schema, prefix, from_version, to_version)`."""
        return ("migrate_job_queue", self.layout.schema, self.layout.prefix, self.from_version, self.to_version)

    def render(self) -> str:
        """Return the call without its object, arguments at their defaults left out."""
        arguments: dict[str, Any] = {"from_version": self.from_version, "to_version": self.to_version}
        if self.layout.schema is not None:
            arguments["schema"] = self.layout.schema
        if self.layout.prefix:
            arguments["prefix"] = self.layout.prefix
        if self.layout.id_type != "uuid":
            arguments["id_type"] = self.layout.id_type
        return "migrate_job_queue({})".format(", ".join(f"{name}={value!r}" for name, value in arguments.items()))


@Operations.implementation_for(MigrateJobQueueOp)
def _migrate_job_queue(operations: Operations, operation: MigrateJobQueueOp) -> None:
    start, goal = operation.from_version, operation.to_version
    context = operations.migration_context
    if not context.as_sql:
        runner.migrate(operations.get_bind(), operation.layout, from_version=start, to_version=goal)
        return
    require_postgresql(context.dialect.name)
    for statement in runner.statements(operation.layout, from_version=start, to_version=goal):
        # Not through `execute`: without a named paramstyle in env.py it doubles the % of plpgsql's RAISE.
        context.impl.static_output(f"{statement};")


@renderers.dispatch_for(MigrateJobQueueOp)
def _render_migrate_job_queue(context: AutogenContext, operation: MigrateJobQueueOp) -> str:
    return f"{context.opts['alembic_module_prefix'] or ''}{operation.render()}"
