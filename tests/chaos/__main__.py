"""`python -m tests.chaos`: break things for some minutes, and report the outcome."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tests.chaos import report
from tests.chaos.faults import FAULTS
from tests.chaos.run import Options, Result, run


@click.command()
@click.option("--minutes", type=click.FloatRange(0.1), default=3.0, show_default=True, help="How long, at least.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order of the faults and of the load.")
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True, help="Worker processes.")
@click.option("--rate", type=click.FloatRange(1), default=20.0, show_default=True, help="Jobs enqueued a second.")
@click.option("--fault", "faults", type=click.Choice([one.name for one in FAULTS]), multiple=True, help="Only this one.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep the workers' logs in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of a table.")
def main(
    minutes: float, seed: int, workers: int, rate: float, faults: tuple[str, ...], logs: Path | None, as_json: bool
) -> None:
    """Run workers on a server of their own, break both in a seeded order, and judge from the database alone.

    The exit status is 1 when a promise was broken. The same seed injects the same faults in the same order.
    """
    console = Console(stderr=as_json, width=None if sys.stdout.isatty() else 120)
    options = Options(seed=seed, seconds=minutes * 60, workers=workers, rate=rate, faults=faults, log_dir=logs)
    result = _run(console, options)
    if as_json:
        click.echo(json.dumps(report.document(result), indent=2))
    else:
        report.show(console, result)
    raise SystemExit(1 if result.violations else 0)


def _run(console: Console, options: Options) -> Result:
    if not console.is_terminal:
        return run(options, lambda line, _: console.print(line, markup=False, highlight=False))
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("chaos", total=1.0)

        def on_progress(line: str, done: float) -> None:
            progress.console.print(line, markup=False, highlight=False)
            progress.update(task, completed=done)

        return run(options, on_progress)


if __name__ == "__main__":
    main()
