"""Support for queues in `alembic revision --autogenerate` and `alembic check`: one operation for each queue.

Alembic compares tables with models, but knows neither versions of queues nor their triggers and functions. After its
comparison, this module removes the differences in the library's own objects and adds one `op.migrate_job_queue` for each
queue whose tables are not of the latest version. That operation comes first, so that tables that refer to jobs find them; a
downgrade, which reverses the list, drops them last. Columns, indexes and constraints that the application added to a queue's
tables are kept.

alembic_utils drops whatever functions, triggers, views and grants it is not given; those of queues are kept.

A queue without a model is not changed, and a warning explains how to drop it. If the metadata contains no queue but the
application uses one, a warning names the missing metadata.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, TypeAlias, cast

from alembic.autogenerate.api import AutogenContext
from alembic.operations import ops
from alembic.util import PriorityDispatchResult
from sqlalchemy import Connection, Constraint, MetaData, PrimaryKeyConstraint, String, Table, text

from sa_jobqueue import ddl
from sa_jobqueue.errors import SchemaError
from sa_jobqueue.layout import STAMPED, Layout, Unit
from sa_jobqueue.migrations.operation import MigrateJobQueueOp
from sa_jobqueue.migrations.ownership import QueueNames
from sa_jobqueue.migrations.runner import check_names, current_version, known_version
from sa_jobqueue.models import Job, JobClass, JobMixin
from sa_jobqueue.models.base import REGISTRY_KEY
from sa_jobqueue.models.collisions import check_enums, enums_of
from sa_jobqueue.registry import JobQueue

_LOG = logging.getLogger(__name__)
_Ops: TypeAlias = list[ops.MigrateOperation]
_STAMPED_TABLES = text(
    "SELECT CAST(nspname AS text), CAST(relname AS text) "
    "FROM pg_class JOIN pg_namespace AS schema ON schema.oid = relnamespace "
    "WHERE relname LIKE '%job' AND obj_description(pg_class.oid, 'pg_class') LIKE 'sa_jobqueue version=%'"
)


def compare_queues(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> PriorityDispatchResult:
    """Replace the differences of queues' tables by one operation a queue. Changes `upgrade_ops` in place.

    Raises: SchemaTooNewError when the database is ahead of this library, SchemaError when a `job` table is not ours,
    UnsupportedServerError without PostgreSQL.
    """
    if context.connection is None:
        return PriorityDispatchResult.CONTINUE
    if context.connection.dialect.name != "postgresql" and not _declared(context.metadata):
        return PriorityDispatchResult.CONTINUE  # another database of the application
    migrations: _Ops = []
    for layout in _declared(context.metadata):
        versions = {unit: known_version(context.connection, layout, unit) for unit in STAMPED}
        queue = _Queue(context, layout, versions)
        queue.check_names()
        queue.take_out(upgrade_ops)
        migrations += queue.migrations()
    upgrade_ops.ops[:0] = migrations
    _keep_orphans(context, upgrade_ops)
    _keep_entities(context.connection, upgrade_ops)
    if not _declared(context.metadata):
        _warn_of_unknown(context.connection)
    return PriorityDispatchResult.CONTINUE


class _Queue:
    """One queue of the metadata: what of the operations found is about it, and what of that is the application's."""

    def __init__(self, context: AutogenContext, layout: Layout, versions: dict[Unit, int]) -> None:
        self.context = context
        self.layout = layout
        self.versions = versions
        self.names = QueueNames(replace(layout, pipeline=layout.pipeline or versions["pipeline"] > 0))

    def check_names(self) -> None:
        """Check that the names of its objects are not others', neither in the metadata nor in the database."""
        layout, connection = self.layout, cast("Connection", self.context.connection)
        enums = enums_of(ddl.every_statement(schema=layout.schema, prefix=layout.prefix, id_type=layout.id_type))
        for metadata in _collections(self.context.metadata):
            check_enums(metadata, layout, enums)
        for operation in self._planned():
            first, last = operation.from_version, operation.to_version
            check_names(connection, layout, from_version=first, to_version=last, unit=operation.unit)

    def migrations(self) -> _Ops:
        """Return what brings its tables to the latest version. The pipeline's are kept if the model has them no more."""
        if self.versions["pipeline"] and not self.layout.pipeline:
            _LOG.warning(
                "The model of table %s does not have queue_pipeline=True, which the ready-made class gets from an import of "
                "sa_jobqueue.pipeline. The tables of Spark's writes and of the archive are left alone; to drop them and "
                "what they record, write into a revision: %s",
                self.layout.qualified("job"),
                self.drop("pipeline"),
            )
        return [*self._planned()]

    def _planned(self) -> list[MigrateJobQueueOp]:
        return [
            MigrateJobQueueOp(self.layout, from_version=version, to_version=ddl.LATEST, unit=unit)
            for unit, version in self.versions.items()
            if version != ddl.LATEST and (version or self.layout.has_table(STAMPED[unit]))
        ]

    def drop(self, unit: Unit) -> str:
        """Return the line of a revision that drops a unit's tables."""
        operation = MigrateJobQueueOp(self.layout, from_version=self.versions[unit], to_version=0, unit=unit)
        return f"op.{operation.render()}"

    def take_out(self, upgrade_ops: ops.UpgradeOps) -> None:
        """Leave of these job tables only the application's objects."""
        ours = [operation for operation in upgrade_ops.ops if self.is_about(operation)]
        if any(isinstance(operation, ops.CreateTableOp) and self._version(operation) for operation in ours):
            # A queue that is there looks new where Alembic does not look at its schema (include_schemas).
            upgrade_ops.ops[:] = [operation for operation in upgrade_ops.ops if not self.is_about(operation)]
            upgrade_ops.ops += [added for operation in self._compare_again() for added in self._added(operation)]
            return
        in_place: _Ops = []
        late: _Ops = []  # columns of a new queue come after the application's tables, which they may refer to
        for operation in upgrade_ops.ops:
            if not self.is_about(operation):
                in_place.append(operation)
            else:
                (in_place if self._version(operation) else late).extend(self._added(operation))
        upgrade_ops.ops[:] = in_place + late

    def is_about(self, operation: ops.MigrateOperation) -> bool:
        """Return whether an operation concerns these job tables or their types."""
        schema = getattr(operation, "schema", None)
        if _place(schema, self.context) != _place(self.layout.schema, self.context):
            return False
        table = getattr(operation, "table_name", None)
        if table is not None:
            return self.names.has_table(str(table))
        # Operations of plugins for enums, such as alembic-postgresql-enum's.
        return any(self.names.has_enum(getattr(operation, field, None)) for field in ("name", "enum_name"))

    def _version(self, operation: ops.MigrateOperation) -> int:
        """Return the version of the table that an operation concerns, 0 if it is not there."""
        return self.versions[self.names.unit(getattr(operation, "table_name", ""))]

    def _added(self, operation: ops.MigrateOperation) -> _Ops:
        if not self._has_table(operation):
            return []  # the pipeline's tables, which are left alone where the model does not have them
        if isinstance(operation, ops.CreateTableOp) and self._version(operation) == 0:
            table, schema, changes = operation.table_name, operation.schema, self._added_to_new(operation)
        elif isinstance(operation, ops.ModifyTableOps):
            table, schema, changes = operation.table_name, operation.schema, []
            for change in operation.ops:
                if self._is_owned(table, change):
                    self._warn(change)
                else:
                    changes.append(change)
        else:
            self._warn(operation)
            return []
        return [_Additions(table, changes, schema=schema)] if changes else []

    def _has_table(self, operation: ops.MigrateOperation) -> bool:
        """Return whether the model has the table that an operation concerns. Those of the queue alone, each has."""
        return self.layout.pipeline or self.names.unit(getattr(operation, "table_name", None) or "") == "queue"

    def _added_to_new(self, operation: ops.CreateTableOp) -> _Ops:
        name, schema = operation.table_name, operation.schema
        table = self.context.table_key_to_table[f"{schema}.{name}" if schema else name]
        columns = [column for column in table.columns if not self.names.has_column(name, column.name)]
        rules = [
            rule
            for rule in table.constraints
            # A primary key is ours, and a check that is part of a type comes with its column.
            if not isinstance(rule, PrimaryKeyConstraint)
            and not getattr(rule, "_type_bound", False)
            and not self.names.has_rule(name, rule.name)
        ]
        return [
            *(ops.AddColumnOp.from_column_and_tablename(schema, name, column) for column in columns),
            *(ops.AddConstraintOp.from_constraint(rule) for rule in sorted(rules, key=_order)),
        ]

    def _is_owned(self, table: str, change: ops.MigrateOperation) -> bool:
        match change:
            case ops.AddColumnOp():
                return self.names.has_column(table, change.column.name)
            case ops.DropColumnOp() | ops.AlterColumnOp():
                return self.names.has_column(table, change.column_name)
            case ops.CreateIndexOp() | ops.DropIndexOp():
                return self.names.has_rule(table, change.index_name)
            case ops.AddConstraintOp() | ops.DropConstraintOp():
                return self.names.has_rule(table, getattr(change, "constraint_name", None))
        return True  # comments, and what plugins that we do not know make of our tables

    def _compare_again(self) -> _Ops:
        """Compare these job tables as Alembic compares those of the schemas it looks at."""
        context, schema = self.context, self.layout.schema
        include_object, include_name = context.opts.get("include_object"), context.opts.get("include_name")

        def is_ours(name: str | None, kind: str, parents: Any) -> bool:
            if kind == "table" and not self.names.has_table(name or ""):
                return False
            return include_name is None or bool(include_name(name, kind, parents))

        def is_on_ours(item: Any, name: Any, kind: str, reflected: bool, compare_to: Any) -> bool:
            table = item if isinstance(item, Table) else getattr(item, "table", None)  # alembic_utils has other items
            if not isinstance(table, Table) or table.schema != schema or not self.names.has_table(table.name):
                return False
            return include_object is None or bool(include_object(item, name, kind, reflected, compare_to))

        opts = {**context.opts, "include_schemas": True, "include_name": is_ours, "include_object": is_on_ours}
        narrow = AutogenContext(context.migration_context, context.metadata, opts)
        upgrade_ops = ops.UpgradeOps([])
        narrow.comparators.dispatch("schema", qualifier=context.dialect.name)(narrow, upgrade_ops, {schema})
        return [operation for operation in upgrade_ops.ops if self.is_about(operation)]

    def _warn(self, change: ops.MigrateOperation) -> None:
        # At another version than the latest, differences are what the migration is for. And a model that spells out the
        # default schema always differs for Alembic, which never does.
        version = self._version(change)
        if version == ddl.LATEST and self.layout.schema != _place(None, self.context):
            _LOG.warning(
                "%s differs from version %d of the job queue, and no migration is written for what is the library's own. "
                "Alembic would have written %s of %s",
                self.layout.qualified("job"),
                version,
                type(change).__name__,
                _name(change),
            )


class _Additions(ops.ModifyTableOps):
    """Columns, indexes and constraints that the application adds to a queue's table."""

    def reverse(self) -> ops.ModifyTableOps:
        """Return what takes it away. A constraint without a name goes with its column: Alembic could not drop it."""
        reversible_ops = [
            operation
            for operation in reversed(self.ops)
            if not isinstance(operation, ops.AddConstraintOp) or getattr(operation, "constraint_name", None) is not None
        ]
        return ops.ModifyTableOps(self.table_name, [operation.reverse() for operation in reversible_ops], schema=self.schema)


def _keep_orphans(context: AutogenContext, upgrade_ops: ops.UpgradeOps) -> None:
    """Take out whatever would drop, or half drop, queues that are in the database and in no model."""
    connection: Any = context.connection
    orphans = [_orphan(operation) for operation in upgrade_ops.ops if isinstance(operation, ops.DropTableOp)]
    for layout in filter(None, orphans):
        queue = _Queue(context, layout, {unit: current_version(connection, layout, unit) for unit in STAMPED})
        upgrade_ops.ops[:] = [operation for operation in upgrade_ops.ops if not queue.is_about(operation)]
        _LOG.warning(
            "The job queue of table %s has no model any more. It is left alone; to drop it and all its jobs, write "
            "into a revision: %s",
            layout.qualified("job"),
            "; ".join(queue.drop(unit) for unit in reversed(STAMPED) if queue.versions[unit]),
        )


def _orphan(operation: ops.DropTableOp) -> Layout | None:
    if ddl.read_stamp(operation.comment) is None or not operation.table_name.endswith("job"):
        return None
    has_text_ids = isinstance(operation.to_table().columns["id"].type, String)
    return Layout(operation.schema, operation.table_name.removesuffix("job"), "text" if has_text_ids else "uuid")


def _keep_entities(connection: Connection, upgrade_ops: ops.UpgradeOps) -> None:
    """Take out drops by alembic_utils of the functions, triggers and views of any queue, and of grants on its tables."""
    drops = [operation for operation in upgrade_ops.ops if _drops_entity(operation)]
    if not drops:
        return
    names_by_schema: dict[str, list[QueueNames]] = {}
    for schema, table in connection.execute(_STAMPED_TABLES):
        names = QueueNames(Layout(schema, table.removesuffix("job"), pipeline=True))
        names_by_schema.setdefault(schema, []).append(names)

    def is_kept(operation: ops.MigrateOperation) -> bool:
        entity: Any = getattr(operation, "target", None)
        return operation in drops and any(names.has_entity(entity) for names in names_by_schema.get(entity.schema, ()))

    upgrade_ops.ops[:] = [operation for operation in upgrade_ops.ops if not is_kept(operation)]


def _drops_entity(operation: ops.MigrateOperation) -> bool:
    return type(operation).__module__.startswith("alembic_utils.") and operation.to_diff_tuple()[0] == "drop_entity"


def _warn_of_unknown(connection: Connection) -> None:
    """Name the queues that the application uses and Alembic was not given, unless their tables are migrated elsewhere."""
    for model in _used_models():
        try:
            is_migrated = known_version(connection, model.__jobqueue__) == ddl.LATEST
        except SchemaError:  # a table of another program has the name
            continue
        if not is_migrated:
            _LOG.warning(
                "This application uses the job queue of %s.%s, whose tables are not in target_metadata, so no migration is "
                "written for them. Set in env.py: target_metadata = [Base.metadata, %s.metadata]",
                *("sa_jobqueue" if model is Job else model.__module__, model.__qualname__, model.__name__),
            )


def _used_models() -> list[JobClass]:
    """Return the mapped `Job` classes that modules of the application have, or a `JobQueue` of.

    Alembic imports this library, and with it the ready-made `Job`, wherever it is installed.
    """
    used: dict[type[Any], None] = {}
    for module in _modules():
        for value in list(object.__getattribute__(module, "__dict__").values()):  # loads no lazy module
            kind = type(value)  # not isinstance, which proxies answer
            if issubclass(kind, JobQueue):
                used[value.model] = None
            elif issubclass(kind, type) and issubclass(value, JobMixin) and "__jobqueue__" in vars(value):
                used[value] = None
    return list(used)


def _modules() -> list[ModuleType]:
    """Return the loaded modules but the library's own."""
    ours = {"sa_jobqueue", "pyspark_sa_jobqueue"}
    loaded = list(sys.modules.items())
    # By type(), not isinstance: libraries of cffi answer that they are modules, and have no `__dict__`.
    return [module for name, module in loaded if issubclass(type(module), ModuleType) and name.partition(".")[0] not in ours]


def _declared(metadata: MetaData | Sequence[MetaData] | None) -> list[Layout]:
    return [layout for collection in _collections(metadata) for layout in collection.info.get(REGISTRY_KEY, ())]


def _collections(metadata: MetaData | Sequence[MetaData] | None) -> Sequence[MetaData]:
    return [metadata] if isinstance(metadata, MetaData) else metadata or []


def _name(change: ops.MigrateOperation) -> str:
    column = getattr(change, "column", None)
    names = (getattr(change, kind, None) for kind in ("column_name", "index_name", "constraint_name", "table_name", "name"))
    return str(column.name if column is not None else next(filter(None, names), None))


def _order(rule: Constraint) -> tuple[str, ...]:
    # A table keeps its constraints in a set, and a revision must not depend on chance.
    return (str(rule.name or ""), rule.__visit_name__, *(column.name for column in getattr(rule, "columns", ())))


def _place(schema: str | None, context: AutogenContext) -> str | None:
    # Alembic reports None for the default schema, where the model may have its name.
    return getattr(context.dialect, "default_schema_name", None) if schema is None else schema
