"""`python -m benchmarks.chaos`: break this queue and others in the same way, and put what became of them side by side."""

from __future__ import annotations

import json
from pathlib import Path

import click

from benchmarks.chaos import report
from benchmarks.chaos.faults import FAULTS
from benchmarks.chaos.run import NotStarted, Options, run
from benchmarks.chaos.systems import SYSTEMS, named


@click.command()
@click.option("--system", "names", type=click.Choice([one.name for one in SYSTEMS]), multiple=True, help="Only this one.")
@click.option("--seed", type=int, default=1, show_default=True, help="Decides the order of the faults and of the load.")
@click.option("--rounds", type=click.IntRange(1), default=2, show_default=True, help="How often each fault is injected.")
@click.option("--workers", type=click.IntRange(2), default=3, show_default=True, help="Worker processes.")
@click.option("--rate", type=click.FloatRange(1), default=8.0, show_default=True, help="Jobs enqueued a second.")
@click.option("--fault", "faults", type=click.Choice([one.name for one in FAULTS]), multiple=True, help="Only this one.")
@click.option("--logs", type=click.Path(path_type=Path, file_okay=False), help="Keep the workers' logs in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def main(
    *,
    names: tuple[str, ...],
    seed: int,
    rounds: int,
    workers: int,
    rate: float,
    faults: tuple[str, ...],
    logs: Path | None,
    as_json: bool,
) -> None:
    """Break each queue in turn, some four minutes each, by the same faults in the same order, and count from the database.

    Without --system it runs all that `python -m benchmarks peers install` has installed.
    """
    chosen = [named(name) for name in names] or [one for one in SYSTEMS if one.why_not() is None]
    for system in chosen:
        if (problem := system.why_not()) is not None:
            raise click.ClickException(f"{system.name}: {problem}")
    options = Options(seed=seed, rounds=rounds, workers=workers, rate=rate, faults=faults, log_dir=logs)
    results = []
    for system in chosen:
        click.echo(f"{system.name} {system.version}", err=True)
        try:
            results.append(run(system, options, lambda line: click.echo(line, err=True)))
        except NotStarted as problem:
            click.echo(problem, err=True)
    click.echo(json.dumps(report.document(options, results), indent=2) if as_json else report.markdown(results))
    raise SystemExit(len(results) < len(chosen))


if __name__ == "__main__":
    main()
