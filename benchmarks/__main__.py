"""`python -m benchmarks`: run scenarios, print tables, write JSON; `table`, `profile`, `simulate`, `peers` beside that."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TextIO

import click
from rich.console import Console
from rich.table import Table

from benchmarks import harness, markdown, profiling, report, table
from benchmarks.peers import environments, places
from benchmarks.peers.catalogue import SYSTEMS
from benchmarks.place import describe, serve
from benchmarks.scenarios import all_scenarios

_SCENARIOS = {scenario.name.replace(" ", "-"): scenario for scenario in all_scenarios()}


def _on_a_server(command: Callable[..., None]) -> Callable[..., None]:
    url = click.option("--url", help="A server to run on, in throw-away databases; its settings are taken as they are.")
    server = click.option(
        "--server",
        type=click.Choice(["newest", "oldest"]),
        default="newest",
        show_default=True,
        help="Without --url: which programs at hand to start a server of its own from.",
    )
    return url(server(command))


@click.group(invoke_without_command=True)
@_on_a_server
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
@click.pass_context
def main(  # noqa: PLR0917 - click gives options by name
    context: click.Context,
    url: str | None,
    server: str,
    jobs: int | None,
    rounds: int,
    chosen: tuple[str, ...],
    to: str | None,
) -> None:
    """Measure the queue beside the limits of the same server, and beside other systems.

    Every case runs once a round. Ratios between cases of one run can be trusted; times of different runs cannot be
    compared.
    """
    if context.invoked_subcommand is not None:
        return
    # Progress and tables leave standard output alone when that is where the JSON goes.
    console = Console(stderr=to == "-", width=None if sys.stdout.isatty() else 200)
    scenarios = [scenario for name, scenario in _SCENARIOS.items() if not chosen or _is_chosen(name, chosen)]
    with serve(url or server) as running, console.status("starting") as status, places.templates(running):
        results = harness.run(running, scenarios, jobs=jobs, rounds=rounds, tell=status.update)
        document = report.document(results, scenarios, server=describe(running), jobs=jobs, rounds=rounds)
    report.show(console, results, scenarios, document)
    if to == "-":
        click.echo(report.dump(document))
    elif to is not None:
        Path(to).write_text(report.dump(document) + "\n")


def _is_chosen(name: str, chosen: tuple[str, ...]) -> bool:
    return name in chosen or ("pipeline" in chosen and name.startswith("pipeline"))


_INTO: Final = click.option(
    "--into",
    "page",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Page whose table is replaced: docs/benchmarks.md.",
)


@main.command("table")
@_on_a_server
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to write.")
@click.option("--quick", is_flag=True, help="Run only 100 jobs per case, to check that it runs; the figures mean nothing.")
@click.option("--rounds", type=click.IntRange(1), help="At most so many rounds of each part; by default 1 to 3.")
@_INTO
def write_table(  # noqa: PLR0917 - click gives options by name
    url: str | None, server: str, out: Path, quick: bool, rounds: int | None, page: Path | None
) -> None:
    """Measure everything that the table of the documentation shows, and write it: a quarter of an hour on an idle machine.

    Writes `result.json` and `table.md`, and prints the targets with their figures.
    """
    out.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)

    def keep(document: dict[str, Any]) -> None:
        (out / "result.json").write_text(report.dump(document) + "\n")

    def tell(progress: str) -> None:
        status.update(progress)
        if not console.is_terminal:
            console.print(progress, highlight=False)

    with serve(url or server) as running, console.status("starting") as status, places.templates(running):
        document = table.run(running, is_quick=quick, tell=tell, keep=keep, most_rounds=rounds)
    _write_table(document, out, page)


@main.command("page")
@click.option("--from", "document", required=True, type=click.File(), help="The `result.json` of a run.")
@click.option("--out", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to write.")
@_INTO
def write_page(document: TextIO, out: Path, page: Path | None) -> None:
    """Write the table of a run again from its `result.json`, without measuring."""
    out.mkdir(parents=True, exist_ok=True)
    _write_table(json.load(document), out, page)


def _write_table(document: dict[str, Any], out: Path, page: Path | None) -> None:
    written_table = markdown.write(document)
    report.show_targets(Console(width=None if sys.stdout.isatty() else 200), document)
    (out / "table.md").write_text(written_table)
    click.echo(out / "table.md")
    if page is not None:
        page.write_text(markdown.into_page(page.read_text(), markdown.write_summary(document)))
        click.echo(page)


@main.command("profile")
@_on_a_server
@click.option("--jobs", type=click.IntRange(1), default=50_000, show_default=True, help="How many to drain.")
def show_profile(url: str | None, server: str, jobs: int) -> None:
    """Show where the CPU microseconds of a drained job go: queue, SQLAlchemy, driver, event loop, server."""
    with serve(url or server) as running:
        profile = profiling.profile(running, jobs)
    profile_table = Table("where", "us a job")
    for name, value in profile["client"].items():
        profile_table.add_row(name, f"{value:.1f}")
    profile_table.add_row("worker process, all", f"{profile['client_us']:.1f}", end_section=True)
    for name, value in profile["queue"].items():
        profile_table.add_row(f"of the queue: {name}", f"{value:.1f}")
    profile_table.add_section()
    profile_table.add_row("server", f"{profile['server_us']:.1f}")
    profile_table.add_row("pgbench, our SQL", f"{profile['pgbench']['client_us']:.1f}")
    profile_table.add_row("its server", f"{profile['pgbench']['server_us']:.1f}")
    Console().print(profile_table)


@main.command("simulate")
@_on_a_server
@click.option("--seed", default=1, show_default=True, help="Of what comes when, and how long each job runs.")
@click.option("--real/--no-real", default=True, show_default=True, help="Run the same jobs by real workers, too.")
@click.option("--scale", type=click.FloatRange(0.01, 1), default=1.0, show_default=True, help="Of the 35 s of jobs.")
@click.option("--workers", type=click.IntRange(1), default=100, show_default=True, help="Of the fleet, 10 slots each.")
@click.option("--tenants", type=click.IntRange(2), default=1_000, show_default=True, help="Of the fleet.")
@click.option("--seconds", type=click.FloatRange(1), default=12.0, show_default=True, help="Of the fleet's jobs.")
@click.option("--json", "to", metavar="FILE|-", help="Also write everything as JSON; to standard output, it comes alone.")
def simulate(  # noqa: PLR0917 - click gives options by name
    url: str | None,
    server: str,
    seed: int,
    real: bool,
    scale: float,
    workers: int,
    tenants: int,
    seconds: float,
    to: str | None,
) -> None:
    """Predict how long jobs wait, with the worker's own planner, and run the same jobs for real: two minutes."""
    from benchmarks.simulation import command  # needs SimPy

    console = Console(stderr=to == "-", width=None if sys.stdout.isatty() else 200)
    document = command.predict(seed=seed, scale=scale)
    if real:
        with serve(url or server) as running, console.status("real workers"):
            document["real"] = command.run(running, seed=seed, scale=scale)
    with console.status("simulating") as status:
        document["fleet"] = command.predict_fleet(
            seed=seed, workers=workers, slots=10, tenants=tenants, seconds=seconds, tell=status.update
        )
    command.show(console, document)
    if to == "-":
        click.echo(report.dump(document))
    elif to is not None:
        Path(to).write_text(report.dump(document) + "\n")


@main.group("peers")
def peers() -> None:
    """Other systems, each in its own environment."""


@peers.command("install")
def install_peers() -> None:
    """Create missing environments in $SA_JOBQUEUE_BENCHMARK_PEERS, by default in the user's cache."""
    problems = 0
    for name, problem in environments.install():
        click.echo(f"{name}: {problem or 'installed'}")
        problems += problem is not None
    sys.exit(1 if problems else 0)


@peers.command("list")
def list_peers() -> None:
    """Show each system, its version, and why it cannot be measured here."""
    for system in SYSTEMS:
        click.echo(f"{system.name} {environments.release(system)}: {environments.why_not(system) or 'ready'}")


if __name__ == "__main__":
    main()
