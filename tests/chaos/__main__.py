"""`python -m tests.chaos`: break things for some minutes, and report the outcome."""

from __future__ import annotations

import json
from pathlib import Path

import click

from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.run import Options, run


@click.command()
@click.option("--minutes", type=click.FloatRange(0.1), default=3.0, show_default=True, help="How long, at least.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order of the faults and of the load.")
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True, help="Worker processes.")
@click.option("--rate", type=click.FloatRange(1), default=20.0, show_default=True, help="Jobs enqueued a second.")
@click.option("--fault", "faults", type=click.Choice([fault.name for fault in FAULTS]), multiple=True, help="Only this one.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep the workers' logs in this directory.")
def main(minutes: float, seed: int, workers: int, rate: float, faults: tuple[str, ...], logs: Path | None) -> None:
    """Run workers on a server of their own, break both in a seeded order, and judge from the database alone.

    It prints a JSON document; the exit status is 1 when a promise was broken. The same seed injects the same faults in the
    same order.
    """
    options = Options(seed=seed, seconds=minutes * 60, workers=workers, rate=rate, faults=faults, log_dir=logs)
    result = run(options, lambda line: click.echo(line, err=True))
    click.echo(json.dumps(report.document(result), indent=2))
    raise SystemExit(1 if result.violations else 0)


if __name__ == "__main__":
    main()
