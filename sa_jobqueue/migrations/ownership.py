"""Names of a queue's database objects, and the objects that an application added to its tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from sa_jobqueue import ddl
from sa_jobqueue.layout import PIPELINE_TABLES, Layout, Unit
from sa_jobqueue.models import Job


@dataclass(frozen=True, slots=True)
class QueueNames:
    """The names of one set of job tables, and in each of its columns, constraints and indexes."""

    layout: Layout
    columns: dict[str, frozenset[str]]
    """By table: the columns that are the library's."""
    rules: dict[str, frozenset[str]]
    """By table: the constraints and indexes that are the library's."""
    enum: str
    _retired: frozenset[str] = field(repr=False)

    @classmethod
    def of(cls, layout: Layout) -> QueueNames:
        """Take the names from the ready-made models: another queue's differ by their prefix alone."""
        columns, rules = {}, {}
        for noun, table in Job.metadata.tables.items():
            if not layout.has_table(noun):
                continue
            columns[layout.name(noun)] = frozenset(column.name for column in table.columns) | ddl.RETIRED
            names = [*(rule.name for rule in table.constraints), *(index.name for index in table.indexes)]
            rules[layout.name(noun)] = frozenset(layout.name(str(name)) for name in names)
        retired = frozenset(layout.name(noun) for noun in ddl.RETIRED)
        return cls(
            layout,
            columns,
            {table: names | retired for table, names in rules.items()},
            layout.name("job_status"),
            retired,
        )

    def has_table(self, name: str) -> bool:
        """Return whether a table of that name, in the queue's schema, is the queue's."""
        return name in self.columns or name in self._retired

    def unit(self, table: str) -> Unit:
        """Return the unit that creates a table."""
        return "pipeline" if table.removeprefix(self.layout.prefix) in PIPELINE_TABLES else "queue"

    def has_column(self, table: str, name: str) -> bool:
        """Return whether a column of one of the job tables is the library's."""
        return name in self.columns.get(table, ())

    def has_rule(self, table: str, name: object) -> bool:
        """Return whether a constraint or index on one of the job tables is the library's; ours all have names."""
        return name is not None and str(name) in self.rules.get(table, ())
