"""What each index beside the primary key and the claim's own costs over a job's life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Table
from sqlalchemy.schema import CreateIndex, DropIndex

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.place import Place
from benchmarks.scenarios import life
from sa_jobqueue import Job

_SHIPPED: Final = "as shipped"
_NEEDED: Final = "ix_job_claim"


def scenario() -> Scenario:
    """Return the cases."""
    names = sorted(str(index.name) for index in _job().indexes if index.name != _NEEDED)
    shipped = Comparison(case=_SHIPPED)
    return Scenario(
        name="index cost",
        says="insert, claim and complete, with all indexes, without one, and with the claim's and the primary key alone",
        cases=(
            Case(name=_SHIPPED, run=life.live, prepare=_without()),
            *(Case(name=f"without {name}", run=life.live, prepare=_without(name), against=shipped) for name in names),
            Case(name="without all of these", run=life.live, prepare=_without(*names), against=shipped),
        ),
    )


def _job() -> Table:
    table = Job.__table__
    assert isinstance(table, Table)
    return table


def _without(*names: str) -> Callable[[Place, int], None]:
    def prepare(place: Place, jobs: int) -> None:
        place.clear()
        with place.begin() as connection:
            for index in _job().indexes:
                connection.execute(DropIndex(index, if_exists=True))
                if index.name not in names:
                    connection.execute(CreateIndex(index))
        place.checkpoint()

    return prepare
