"""What the triggers cost that refuse illegal transitions and stamp the changing transaction."""

from __future__ import annotations

from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.place import Place
from benchmarks.scenarios import life

_WITHOUT = "triggers disabled"


def scenario() -> Scenario:
    """Return the cases."""
    return Scenario(
        name="guard triggers",
        says="insert, claim and complete, with the triggers on the job table and with them disabled",
        cases=(
            Case(name=_WITHOUT, run=life.live, prepare=_disable),
            Case(name="as shipped", run=life.live, prepare=_enable, against=Comparison(case=_WITHOUT)),
        ),
    )


def _disable(place: Place, jobs: int) -> None:
    place.clear()
    place.run("ALTER TABLE job DISABLE TRIGGER USER")


def _enable(place: Place, jobs: int) -> None:
    place.clear()
    place.run("ALTER TABLE job ENABLE TRIGGER USER")
