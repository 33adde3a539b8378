"""`sa-jobqueue grafana`: write a Grafana dashboard and Prometheus rules."""

from __future__ import annotations

from pathlib import Path

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import print_result
from sa_jobqueue.observe import dashboards


@click.command()
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Target directory; created if missing.  [default: the working directory]",
)
@click.option("--force", is_flag=True, help="Overwrite files that differ.")
@opts.json_option
def grafana(*, folder: Path, force: bool) -> None:
    """Write a dashboard for Grafana (grafana.json) and recording and alerting rules for Prometheus (rules.yml).

    They use the metrics of `sa-jobqueue exporter` and `sa-jobqueue worker --metrics-port`. If an existing file differs,
    nothing is written without --force.
    """
    try:
        paths = _write(folder, force=force)
    except OSError as error:
        raise click.ClickException(f"cannot write {error.filename}: {error.strerror}") from error
    print_result({"written": paths}, *paths)


def _write(folder: Path, *, force: bool) -> list[str]:
    texts = {folder / name: dashboards.read(name) for name in dashboards.NAMES}
    changed = [path for path, text in texts.items() if path.exists() and path.read_text(encoding="utf-8") != text]
    if changed and not force:
        raise click.ClickException(f"{changed[0]} exists and differs: pass --force to overwrite it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
    return [str(path) for path in texts]
