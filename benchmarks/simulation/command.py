"""What `python -m benchmarks simulate` finds: a prediction, the same jobs for real beside it, and a fleet of workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.place import open_place
from benchmarks.simulation import real
from benchmarks.simulation.model import Costs, Started, simulate
from benchmarks.simulation.workload import MIXED, PERCENTS, Waits, Workload, arrivals, fleet, summarise
from sa_jobqueue.testing.servers import PostgresServer

_SHARED: Final = {"a fair key each": True, "no keys": False}


def predict(*, seed: int, scale: float) -> dict[str, Any]:
    """Return the predictions for the mixed workload; `scale`: for how much of its time jobs come."""
    workload = _scaled(scale)
    return {
        "seed": seed,
        "seconds": workload.seconds,
        "workers": workload.workers,
        "slots": workload.slots,
        "busy_slots": workload.load,
        "costs": asdict(Costs()),
        "predicted": _waits(simulate(workload, arrivals(workload, seed), Costs())),
    }


def run(server: PostgresServer, *, seed: int, scale: float) -> list[dict[str, Any]]:
    """Return the measurements of the same jobs by real workers."""
    workload = _scaled(scale)
    with open_place(server) as place:
        return _waits(real.run(place, workload, arrivals(workload, seed)))


def predict_fleet(
    *, seed: int, workers: int, slots: int, tenants: int, seconds: float, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the predictions where one of many tenants floods the others: with a fair key for each, and without."""
    found: dict[str, Any] = {"workers": workers, "slots": slots, "tenants": tenants, "seconds": seconds}
    for name, shared in _SHARED.items():
        tell(f"{workers} workers, {tenants} tenants, {name}")
        workload = fleet(workers=workers, slots=slots, tenants=tenants, seconds=seconds, shared=shared)
        found[name] = _waits(simulate(workload, arrivals(workload, seed), Costs()))
    return found


def show(console: Console, found: dict[str, Any]) -> None:
    """Print the tables of a document."""
    console.print(
        f"{found['workers']} workers of {found['slots']} slots, {found['busy_slots']:.1f} of them busy on average; "
        f"seconds waited for a slot, seed {found['seed']}"
    )
    real_ones = {one["kind"]: one for one in found.get("real", ())}
    table = Table("jobs", "of them", *(f"p{percent}\npredicted" for percent in PERCENTS))
    for percent in PERCENTS if real_ones else ():
        table.add_column(f"p{percent}\nreal")
    for one in found["predicted"]:
        row = [*_seconds(one), *(_seconds(real_ones[one["kind"]]) if real_ones else [])]
        table.add_row(one["kind"], f"{one['count']:,}", *row)
    console.print(table)
    if "fleet" not in found:
        return
    many = found["fleet"]
    console.print(
        f"{many['workers']} workers of {many['slots']} slots, {many['tenants']:,} tenants, one of which floods the others"
    )
    table = Table("tenants have", "jobs", "of them", *(f"p{percent}\npredicted" for percent in PERCENTS), "longest")
    for name in _SHARED:
        for one in many[name]:
            table.add_row(name, one["kind"], f"{one['count']:,}", *_seconds(one), f"{one['longest']:.3f}")
    console.print(table)


def _scaled(scale: float) -> Workload:
    kinds = [replace(kind, burst=round(kind.burst * scale), burst_at=kind.burst_at * scale) for kind in MIXED.kinds]
    return replace(MIXED, kinds=kinds, seconds=MIXED.seconds * scale)


def _waits(started: Sequence[Started]) -> list[dict[str, Any]]:
    found = summarise([(one.arrival.kind.name, one.waited) for one in started])
    return [_document(one) for one in sorted(found, key=lambda one: one.kind)]


def _document(one: Waits) -> dict[str, Any]:
    return asdict(one) | {"percentiles": {f"p{percent}": seconds for percent, seconds in one.percentiles.items()}}


def _seconds(one: dict[str, Any]) -> list[str]:
    return [f"{one['percentiles'][f'p{percent}']:.3f}" for percent in PERCENTS]
