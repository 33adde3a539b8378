"""The cost of the triggers that refuse illegal transitions and stamp the changing transaction.

They are dropped, not disabled: for a trigger that is merely disabled, PostgreSQL still locks each row before its update.
"""

from __future__ import annotations

import re
from typing import Final

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.place import Place
from benchmarks.scenarios import life
from sa_jobqueue import ddl

_WITHOUT: Final = "without triggers"


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="guard triggers",
        says="insert, claim and complete, with the triggers on the job table and without",
        cases=(
            Case(name=_WITHOUT, run=life.live, prepare=_drop),
            Case(name="as shipped", run=life.live, prepare=_create, against=Comparison(case=_WITHOUT)),
        ),
    )


def _triggers() -> dict[str, str]:
    routines = ddl.UNITS["queue"][-1].routines(schema=None, prefix="", id_type="uuid")
    found = ((re.match(r"CREATE TRIGGER (\w+) [^;]*? ON job ", routine), routine) for routine in routines)
    return {match[1]: routine for match, routine in found if match}


def _drop(place: Place, jobs: int) -> None:
    place.clear()
    place.run(*(f"DROP TRIGGER IF EXISTS {name} ON job" for name in _triggers()))


def _create(place: Place, jobs: int) -> None:
    _drop(place, jobs)
    place.run(*_triggers().values())
