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
    predictions: dict[str, Any] = {"workers": workers, "slots": slots, "tenants": tenants, "seconds": seconds}
    for name, shared in _SHARED.items():
        tell(f"{workers} workers, {tenants} tenants, {name}")
        workload = fleet(workers=workers, slots=slots, tenants=tenants, seconds=seconds, shared=shared)
        predictions[name] = _waits(simulate(workload, arrivals(workload, seed), Costs()))
    return predictions


def show(console: Console, document: dict[str, Any]) -> None:
    """Print the tables of a document."""
    console.print(
        f"{document['workers']} workers of {document['slots']} slots, {document['busy_slots']:.1f} of them busy on average; "
        f"seconds waited for a slot, seed {document['seed']}"
    )
    real_ones = {kind_waits["kind"]: kind_waits for kind_waits in document.get("real", ())}
    table = Table("jobs", "of them", *(f"p{percent}\npredicted" for percent in PERCENTS))
    for percent in PERCENTS if real_ones else ():
        table.add_column(f"p{percent}\nreal")
    for kind_waits in document["predicted"]:
        row = [*_seconds(kind_waits), *(_seconds(real_ones[kind_waits["kind"]]) if real_ones else [])]
        table.add_row(kind_waits["kind"], f"{kind_waits['count']:,}", *row)
    console.print(table)
    if "fleet" not in document:
        return
    many = document["fleet"]
    console.print(
        f"{many['workers']} workers of {many['slots']} slots, {many['tenants']:,} tenants, one of which floods the others"
    )
    table = Table("tenants have", "jobs", "of them", *(f"p{percent}\npredicted" for percent in PERCENTS), "longest")
    for name in _SHARED:
        for kind_waits in many[name]:
            table.add_row(
                name, kind_waits["kind"], f"{kind_waits['count']:,}", *_seconds(kind_waits), f"{kind_waits['longest']:.3f}"
            )
    console.print(table)


def _scaled(scale: float) -> Workload:
    kinds = [replace(kind, burst=round(kind.burst * scale), burst_at=kind.burst_at * scale) for kind in MIXED.kinds]
    return replace(MIXED, kinds=kinds, seconds=MIXED.seconds * scale)


def _waits(started: Sequence[Started]) -> list[dict[str, Any]]:
    waits_by_kind = summarise([(start.arrival.kind.name, start.waited) for start in started])
    return [_document(waits) for waits in sorted(waits_by_kind, key=lambda waits: waits.kind)]


def _document(waits: Waits) -> dict[str, Any]:
    return asdict(waits) | {"percentiles": {f"p{percent}": seconds for percent, seconds in waits.percentiles.items()}}


def _seconds(kind_waits: dict[str, Any]) -> list[str]:
    return [f"{kind_waits['percentiles'][f'p{percent}']:.3f}" for percent in PERCENTS]
