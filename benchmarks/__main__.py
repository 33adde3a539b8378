"""`python -m benchmarks`: run scenarios, print tables, write JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich.console import Console

from benchmarks import harness, report
from benchmarks.peers import places
from benchmarks.place import describe, serve
from benchmarks.scenarios import all_scenarios

_SCENARIOS = {scenario.name.replace(" ", "-"): scenario for scenario in all_scenarios()}


@click.command()
@click.option("--url", help="A server to run on, in throw-away databases; its settings are taken as they are.")
@click.option(
    "--server",
    type=click.Choice(["newest", "oldest", "embedded", "local"]),
    default="newest",
    show_default=True,
    help="Without --url: which programs at hand to start a server of its own from.",
)
@click.option("--jobs", type=click.IntRange(1), help="Jobs of a case in one round, instead of what each scenario has.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="How often each case runs.")
@click.option(
    "--scenario",
    "chosen",
    type=click.Choice([*_SCENARIOS, "pipeline"]),
    multiple=True,
    help="Only this one; may be repeated. `pipeline` is all whose names begin so.",
)
@click.option("--json", "to", metavar="FILE|-", help="Also write everything as JSON; to standard output, it comes alone.")
def main(  # noqa: PLR0917 - click gives options by name
    url: str | None, server: str, jobs: int | None, rounds: int, chosen: tuple[str, ...], to: str | None
) -> None:
    """Measure the queue beside the limits of the same server.

    Every case runs once a round. Ratios between cases of one run can be trusted; times of different runs cannot be
    compared.
    """
    # Progress and tables leave standard output alone when that is where the JSON goes.
    console = Console(stderr=to == "-", width=None if sys.stdout.isatty() else 200)
    scenarios = [one for name, one in _SCENARIOS.items() if not chosen or name.startswith(chosen)]
    with serve(url or server) as running, console.status("starting") as status, places.templates(running):
        results = harness.run(running, scenarios, jobs=jobs, rounds=rounds, tell=status.update)
        found = report.document(results, scenarios, server=describe(running), jobs=jobs, rounds=rounds)
    report.show(console, results, scenarios, found)
    if to == "-":
        click.echo(report.dump(found))
    elif to is not None:
        Path(to).write_text(report.dump(found) + "\n")


if __name__ == "__main__":
    main()
