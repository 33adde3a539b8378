"""The objects that DDL statements of this package create, by the kinds whose names PostgreSQL keeps apart."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

QUALIFIED: Final = r'((?:"(?:[^"]|"")+"\.)?(\w+))'
"""A name of these statements, as SQL text and without its schema."""
CREATE: Final = r"(?:--.*\n)*CREATE"
"""The beginning of these statements, some of which a comment precedes."""
_RELATION: Final = re.compile(rf"{CREATE} (?:UNLOGGED )?(?:TABLE|VIEW|TYPE) {QUALIFIED}")
_VIEW: Final = re.compile(rf"{CREATE} VIEW {QUALIFIED}")
_FUNCTION: Final = re.compile(rf"{CREATE} FUNCTION {QUALIFIED}\(")
_INDEX: Final = re.compile(r"CREATE (?:UNIQUE )?INDEX (\w+) ON|CONSTRAINT (\w+) (?:PRIMARY KEY|UNIQUE)")
_TRIGGER: Final = re.compile(rf"{CREATE} (?:CONSTRAINT )?TRIGGER (\w+) ")


@dataclass
class CreatedNames:
    """The names of the objects that statements create, without their schema.

    `relations`: of tables, views, types and indexes, which share one namespace: a table has a type of its name. `views`,
    also among the relations. `functions`. `triggers`, which are in the namespace of their table.
    """

    relations: set[str] = field(default_factory=set)
    views: set[str] = field(default_factory=set)
    functions: set[str] = field(default_factory=set)
    triggers: set[str] = field(default_factory=set)

    def without(self, existing: CreatedNames) -> CreatedNames:
        """Return the names that `existing` does not have."""
        return CreatedNames(
            self.relations - existing.relations,
            self.views - existing.views,
            self.functions - existing.functions,
            self.triggers - existing.triggers,
        )


def created_names(statements: Iterable[str]) -> CreatedNames:
    """Return the names of what statements create."""
    names = CreatedNames()
    for statement in statements:
        if function := _FUNCTION.match(statement):
            names.functions.add(function[2])
        elif trigger := _TRIGGER.match(statement):
            names.triggers.add(trigger[1])
        else:
            if relation := _RELATION.match(statement):
                names.relations.add(relation[2])
            if view := _VIEW.match(statement):
                names.views.add(view[2])
            names.relations.update(index or key for index, key in _INDEX.findall(statement))
    return names
