"""The statements of a version of the tables as text: what workers of that release run until the last of them is replaced.

Nothing is released yet, so the statements are those of the code. At the first release they are written to a file that never
changes again, and the tests of rolling upgrades read the file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Double, Interval, insert
from sqlalchemy.sql.elements import ClauseElement

from sa_jobqueue import Job
from tests.fixtures.plans import DIALECT
from tests.statements.cases import CASES

_PARAMETER = re.compile(r"%\((\w+)\)s")
_FILLED = {"has_waiters", "created_at", "scheduled_at", "changed_xid"}
"""Columns of a job that the database fills in, and `session.add` reads back."""


@dataclass(frozen=True)
class Frozen:
    """One statement as text, with the constants that were compiled into its parameters."""

    name: str
    sql: str
    constants: dict[str, Any]

    @property
    def numbered(self) -> str:
        """Return it with `$1` for its first parameter, as PREPARE wants it."""
        names = list(dict.fromkeys(_PARAMETER.findall(self.sql)))
        return _PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", self.sql).replace("%%", "%")


def current() -> dict[str, Frozen]:
    """Return the statements of this version by their names; `add` is the one that `session.add` runs."""
    table = Job.metadata.tables["job"]
    given = [column.name for column in table.columns if not column.computed and column.name not in _FILLED]
    add: ClauseElement = insert(table).values(dict.fromkeys(given)).returning(*(table.c[name] for name in sorted(_FILLED)))
    return {
        name: _frozen(name, built) for name, built in {"add": add, **{case.name: case.build() for case in CASES}}.items()
    }


def _frozen(name: str, statement: ClauseElement) -> Frozen:
    compiled: Any = statement.compile(dialect=DIALECT, compile_kwargs={"render_postcompile": True})
    text = str(compiled)
    for key, bind in compiled.binds.items():
        if isinstance(bind.type, (Interval, Double)):  # the driver tells the server their types, the text does not
            cast = "INTERVAL" if isinstance(bind.type, Interval) else "DOUBLE PRECISION"
            text = re.sub(rf"%\({key}\)s(?!::)", f"%({key})s::{cast}", text)
    return Frozen(name, text, {key: value for key, value in compiled.params.items() if value is not None})
