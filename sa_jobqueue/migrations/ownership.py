"""Names of a queue's database objects, and the objects that an application added to its tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Table

from sa_jobqueue import ddl
from sa_jobqueue.ddl.objects import created_names
from sa_jobqueue.layout import PIPELINE_TABLES, Layout, Unit
from sa_jobqueue.models import Job
from sa_jobqueue.models.base import ENUMS


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The names of one set of job tables and of their parts: those of the ready-made models, with the prefix.

    The parts of the pipeline's tables are known where a class is mapped to these, which imports `sa_jobqueue.pipeline`.
    """

    layout: Layout

    def has_table(self, name: str) -> bool:
        """Return whether a table of that name, in the queue's schema, is the queue's."""
        noun = self._noun(name)
        is_of_pipeline = noun in PIPELINE_TABLES
        return self.layout.pipeline if is_of_pipeline else noun in Job.metadata.tables or noun in ddl.RETIRED

    def has_enum(self, name: object) -> bool:
        """Return whether a type of that name, in the queue's schema, is the queue's."""
        return name in {self.layout.name(noun) for noun in ENUMS}

    def has_entity(self, entity: Any) -> bool:
        """Return whether an entity of alembic_utils, in the queue's schema, is the queue's, or a grant on one of its tables.

        Policies, and triggers with other names, are the application's.
        """
        names = created_names(ddl.every_statement(schema=None, prefix=self.layout.prefix, id_type=self.layout.id_type))
        retired = {self.layout.name(noun) for noun in ddl.RETIRED}
        name = str(entity.signature).partition("(")[0]
        match entity.type_:
            case "function":
                return name in names.functions | retired
            case "trigger":
                return name in names.triggers | retired
            case "view":
                return name in names.views | retired
            case "grant_table":
                return entity.table in names.relations | retired
        return False

    def unit(self, table: str) -> Unit:
        """Return the unit that creates a table."""
        return "pipeline" if self._noun(table) in PIPELINE_TABLES else "queue"

    def has_column(self, table: str, name: str) -> bool:
        """Return whether a column of one of the job tables is the library's."""
        ours = self._table(table)
        return ours is not None and (name in ours.columns or name in ddl.RETIRED)

    def has_rule(self, table: str, name: object) -> bool:
        """Return whether a constraint or index on one of the job tables is the library's; ours all have names."""
        ours = self._table(table)
        if ours is None or name is None:
            return False
        rules: list[Any] = [*ours.constraints, *ours.indexes]
        return self._noun(str(name)) in ddl.RETIRED.union(str(rule.name) for rule in rules)

    def _table(self, name: str) -> Table | None:
        noun = self._noun(name)
        return Job.metadata.tables.get(noun) if self.layout.has_table(noun) else None

    def _noun(self, name: str) -> str:
        """Return a name without the prefix; an empty text for one that does not have it."""
        return name.removeprefix(self.layout.prefix) if name.startswith(self.layout.prefix) else ""
