"""What `MetaData.create_all` and its counterpart do for a queue beside its tables: schema, enum types, routines, views.

Before anything is created, the names of all of it are compared with the objects of the database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from sa_jobqueue import ddl
from sa_jobqueue.ddl.objects import CreatedNames, created_names
from sa_jobqueue.errors import require_postgresql
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.base import REGISTRY_KEY, verbatim
from sa_jobqueue.models.collisions import check_enums, check_names_are_free, check_tables, enums_of, unused_enums


def register(job: sa.Table, layout: Layout) -> None:
    """Record a queue in the metadata of its `job` table; `create_all` and its counterpart then see to all its objects."""
    queues: list[Layout] = job.metadata.info.setdefault(REGISTRY_KEY, [])
    queues.append(layout)
    _Creation(job, layout)


def register_pipeline(job: sa.Table, layout: Layout) -> None:
    """Record that a queue has got the tables of the pipeline. `layout`: with them."""
    queues: list[Layout] = job.metadata.info[REGISTRY_KEY]
    queues[queues.index(replace(layout, pipeline=False))] = layout


class _Creation:
    """The listeners of one queue's metadata."""

    def __init__(self, job: sa.Table, layout: Layout) -> None:
        self.job, self.layout = job, layout
        self.place: dict[str, Any] = {"schema": layout.schema, "prefix": layout.prefix, "id_type": layout.id_type}
        self.needed = {layout.name(noun) for noun in ("job", "job_blocker", "dead_letter")}
        """The tables that triggers and views belong to."""
        sa.event.listen(job.metadata, "before_create", self.before_create, insert=True)
        sa.event.listen(job.metadata, "after_create", self.after_create)
        sa.event.listen(job, "before_drop", self.before_drop)
        sa.event.listen(job.metadata, "after_drop", self.after_drop)

    @cached_property
    def statements(self) -> list[str]:
        """Statements of a migration from an empty place to the latest version."""
        return ddl.every_statement(**self.place)

    @cached_property
    def names(self) -> CreatedNames:
        """The names of all of the queue's objects."""
        return created_names(self.statements)

    @cached_property
    def enums(self) -> dict[str, list[str]]:
        """The labels of its enum types."""
        return enums_of(self.statements)

    def before_create(self, metadata: sa.MetaData, connection: sa.Connection, tables: Any = None, **_: Any) -> None:
        """Check the names, then create the schema and the enum types."""
        created = self._ours(tables)
        if not created:
            return  # other tables of the application, which may well be created elsewhere
        require_postgresql(connection.dialect.name)
        self.layout.check_translation(connection.get_execution_options())
        check_enums(metadata, self.layout, self.enums)
        check_tables(connection, self.layout, self._ours(metadata.tables.values()) - created)
        parts: list[Any] = [part for table in created for part in (table, table.primary_key, *table.indexes)]
        names = replace(self.names, relations=self.names.relations & {str(part.name) for part in parts})
        if self._completes(connection, created):
            names.relations |= names.views
        else:
            names.functions = set()
        present = check_names_are_free(connection, self.layout, names, enums=self.enums)
        types = [statement for statement in self.statements if enums_of([statement]).keys() - present]
        self._execute(connection, [*ddl.v0001.place(**self.place), *types])

    def after_create(self, metadata: sa.MetaData, connection: sa.Connection, tables: Any = None, **_: Any) -> None:
        """Create functions, triggers and views."""
        if self._completes(connection, self._ours(tables)):
            self._execute(connection, ddl.v0001.statements(ddl.v0001.ROUTINES, **self.place))

    def before_drop(self, table: sa.Table, connection: sa.Connection, **_: Any) -> None:
        """Drop the views of the `job` table."""
        # Where dead letters stay, their trigger goes: its function does, and it is made again with the next job table.
        trigger, dead_letter = self.layout.name("tr_dead_letter_stamp"), self.layout.qualified("dead_letter")
        views = ddl.v0001.statements(ddl.v0001.DROP_VIEWS, **self.place)
        self._execute(connection, [*views, f"DROP TRIGGER IF EXISTS {trigger} ON {dead_letter}"])

    def after_drop(self, metadata: sa.MetaData, connection: sa.Connection, tables: Any = None, **_: Any) -> None:
        """Drop the functions, when no trigger needs them any more, and the enum types that no table has."""
        if self.job in (tables or ()):
            self._execute(connection, ddl.v0001.statements(ddl.v0001.DROP_FUNCTIONS, **self.place))
        if self._ours(tables):
            unused = unused_enums(connection, self.layout, self.enums)
            names = [self.layout.qualified(name.removeprefix(self.layout.prefix)) for name in unused]
            self._execute(connection, [f"DROP TYPE {name}" for name in names])

    def _ours(self, tables: Iterable[sa.Table] | None) -> set[sa.Table]:
        """Return the tables of this queue among others."""
        return {table for table in tables or () if table.schema == self.job.schema and table.name in self.names.relations}

    def _completes(self, connection: sa.Connection, created: Iterable[sa.Table]) -> bool:
        """Return whether all tables that the routines need are there with these, the last of them created now."""
        # Tables may be made in several steps: with the last of those needed, and not with tables that were there.
        names = {table.name for table in created}
        inspector = sa.inspect(connection)
        return bool(self.needed & names) and all(inspector.has_table(name, self.job.schema) for name in self.needed - names)

    def _execute(self, connection: sa.Connection, statements: Iterable[str]) -> None:
        for statement in statements:
            connection.execute(verbatim(statement))
