"""The document of a run, and its tables for people."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Final

import psycopg
from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result, Scenario
from benchmarks.place import cpu_count
from benchmarks.targets import all_targets

FORMAT: Final = 1
"""Of the document; raised when a field changes its meaning."""

_PER_JOB: Final[Mapping[str, tuple[str, str]]] = {
    "commits": ("commits", ".3f"),
    "round_trips": ("round\ntrips", ".3f"),
    "wal_bytes": ("WAL\nbytes", ",.0f"),
    "row_versions": ("row\nversions", ".2f"),
    "dead_tuples": ("dead\ntuples", ".2f"),
    "client_cpu_us": ("client\nus", ",.1f"),
    "server_cpu_us": ("server\nus", ",.1f"),
}


def document(
    results: Sequence[Result], scenarios: Sequence[Scenario], *, server: Mapping[str, Any], jobs: int | None, rounds: int
) -> dict[str, Any]:
    """Return the results of a run, and its machine, as JSON."""
    return {
        "format": FORMAT,
        "jobs": jobs,
        "rounds": rounds,
        "machine": {
            "cpus": cpu_count(),
            "architecture": platform.machine(),
            "system": platform.system(),
            "load_average": os.getloadavg()[0],
        },
        "versions": {
            "python": platform.python_version(),
            "sqlalchemy": version("sqlalchemy"),
            "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
            "postgresql": server["settings"].get("server_version"),
        },
        "server": dict(server),
        "scenarios": [
            {"name": scenario.name, "says": scenario.says, "jobs": jobs or scenario.jobs} for scenario in scenarios
        ],
        "results": [result.document() for result in results],
    }


def dump(document: Mapping[str, Any]) -> str:
    """Return a document as text."""
    return json.dumps(document, indent=2)


def show(console: Console, results: Sequence[Result], scenarios: Sequence[Scenario], document: Mapping[str, Any]) -> None:
    """Print the machine and a table for each scenario."""
    versions, machine = document["versions"], document["machine"]
    console.print(
        f"PostgreSQL {versions['postgresql']}, Python {versions['python']}, SQLAlchemy {versions['sqlalchemy']}, "
        f"psycopg {versions['psycopg']}; {machine['cpus']} CPUs, {machine['architecture']}, "
        f"load {machine['load_average']:.1f}"
    )
    console.print(", ".join(f"{name}={value}" for name, value in document["server"]["settings"].items()))
    console.print(f"{document['rounds']} rounds: median (min-max)")
    for scenario in scenarios:
        mine = [result for result in results if result.scenario == scenario.name]
        console.print(f"\n[bold]{scenario.name}[/]: {scenario.says}", highlight=False)
        console.print(_table(mine))
    show_targets(console, document)


def show_targets(console: Console, document: Mapping[str, Any]) -> None:
    """Print each target that was measured beside its figure; nothing where none was."""
    targets = [target for target in all_targets(document) if target.is_met is not None]
    if targets:
        table = Table("target", "wanted", "measured", "met", title="\ntargets")
        for target in targets:
            table.add_row(target.name, target.target, target.measured, "yes" if target.is_met else "no")
        console.print(table)


def _table(results: Sequence[Result]) -> Table:
    table = Table()
    table.add_column("case")
    table.add_column("jobs", justify="right")
    rated = any(result.rate is not None for result in results)
    compared_cases = list(dict.fromkeys(_first_words(result.against) for result in results if result.against))
    figures = list(dict.fromkeys(name for result in results for name in result.figures))
    headings = ["jobs/s"] if rated else []
    headings += [name.replace("_", "\n") for name in figures]
    headings += ["ratio to\n" + compared_cases[0] if len(compared_cases) == 1 else "ratio"] if compared_cases else []
    for heading in (*headings, *(heading for heading, _ in _PER_JOB.values())):
        table.add_column(heading, justify="right")
    for result in results:
        cells = [_rate(result)] if rated else []
        cells += [_number(value := result.figures.get(name), _shape(name, value)) for name in figures]
        cells += [_ratio(result, is_named=len(compared_cases) > 1)] if compared_cases else []
        cells += [_number(result.per_job[name], shape) for name, (_, shape) in _PER_JOB.items()]
        table.add_row(result.case, f"{result.jobs:,}", *cells)
    return table


def _first_words(case: str) -> str:
    # Cases of one scenario may be compared with different ones; what those have in common is how they end.
    return case.rpartition(", ")[2] if ", not " in case else case


def _ratio(result: Result, *, is_named: bool) -> str:
    if result.ratio is None or not is_named:
        return _number(result.ratio, ".2f")
    return f"{result.ratio:.{2 if result.ratio >= 0.1 else 4}f} of {result.against}"


def _rate(result: Result) -> str:
    if result.rate is None:
        return ""
    if result.rounds == 1:
        return f"{result.rate.median:,.0f}"
    return f"{result.rate.median:,.0f} ({result.rate.min:,.0f}-{result.rate.max:,.0f})"


def _shape(name: str, value: float | None) -> str:
    return ",.2f" if name.endswith("_ms") or (value or 0) % 1 else ",.0f"


def _number(value: float | None, shape: str) -> str:
    return "" if value is None else format(value, shape)
