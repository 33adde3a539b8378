"""Write the statements of the latest version of the tables to a file that is kept permanently."""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import Double, Interval, insert
from sqlalchemy.sql.elements import ClauseElement

from sa_jobqueue import Job
from sa_jobqueue.migrations.versions import LATEST
from tests.contracts.frozen import FOLDER
from tests.fixtures.plans import DIALECT
from tests.statements.cases import CASES
from tests.statements.test_sql import readable

FILLED = {"has_waiters", "created_at", "scheduled_at", "changed_xid"}
"""Columns of a job that the database fills in, and `session.add` reads back."""


def frozen(name: str, statement: ClauseElement) -> str:
    """Return one statement under its title: its name, and the constants compiled into its parameters."""
    compiled: Any = statement.compile(dialect=DIALECT, compile_kwargs={"render_postcompile": True})
    constants = {key: value for key, value in compiled.params.items() if value is not None}
    text = readable(str(compiled))
    for key, bind in compiled.binds.items():
        if isinstance(bind.type, (Interval, Double)):  # the driver tells the server their types, the text does not
            cast = "INTERVAL" if isinstance(bind.type, Interval) else "DOUBLE PRECISION"
            text = re.sub(rf"%\({key}\)s(?!::)", f"%({key})s::{cast}", text)
    return f"-- {name} {json.dumps(constants, sort_keys=True, default=str)}\n{text}"


table = Job.metadata.tables["job"]
given = [column.name for column in table.columns if not column.computed and column.name not in FILLED]
statements: dict[str, ClauseElement] = {case.name: case.build() for case in CASES}
# What `session.add` runs.
statements["add"] = insert(table).values(dict.fromkeys(given)).returning(*(table.c[name] for name in sorted(FILLED)))
parts = [frozen(name, statement) for name, statement in sorted(statements.items())]
(FOLDER / f"v{LATEST:04}.sql").write_text("\n".join(parts))
