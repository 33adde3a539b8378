"""Frozen DDL, one module a version. Add modules; never edit one that was released."""

import re
from dataclasses import dataclass
from typing import Any

from sa_jobqueue.ddl import pipeline_v0001, v0001

UNITS: dict[str, tuple[Any, ...]] = {"queue": (v0001,), "pipeline": (pipeline_v0001,)}
"""Every version of each unit in order. Units have the same versions; the last is the one this library needs."""

LATEST = v0001.VERSION
"""The version this library needs."""

RETIRED: frozenset[str] = frozenset()
"""Names, without prefix, of tables, columns, indexes and constraints that an older version had and the latest has not:
autogenerate must not take them for the application's."""


def every_statement(**names: Any) -> list[str]:
    """Return the statements that create all units of a queue from version 0 to the latest. `names`: as in `v0001`."""
    steps = [step for versions in UNITS.values() for step in versions]
    return [statement for step in steps for statement in step.upgrade(**names)]


_STAMP = re.compile(r"sa_jobqueue version=(\d+)(?: build=(\w+))?")


@dataclass(frozen=True, slots=True)
class Stamp:
    """The contents of the comment of a unit's table: the version of the unit's tables, and the build that made them.

    `build` is empty for builds that recorded none.
    """

    version: int
    build: str

    @property
    def comment(self) -> str:
        """The text of the comment."""
        return f"sa_jobqueue version={self.version} build={self.build}"

    def is_of_another_build(self, unit: str) -> bool:
        """Return whether this library has the version, and makes other tables of it. A released version has one build."""
        return 0 < self.version <= len(UNITS[unit]) and self.build != UNITS[unit][self.version - 1].BUILD


def stamp(unit: str, version: int) -> Stamp:
    """Return the stamp of the tables that this library makes."""
    return Stamp(version, UNITS[unit][version - 1].BUILD)


def read_stamp(comment: str | None) -> Stamp | None:
    """Return the stamp in a table's comment, None without one."""
    match = _STAMP.fullmatch(comment or "")
    return Stamp(int(match[1]), match[2] or "") if match else None
