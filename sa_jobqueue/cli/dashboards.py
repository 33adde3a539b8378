"""`sa-jobqueue dashboards`: a dashboard for Grafana and rules for Prometheus, as files."""

from __future__ import annotations

from pathlib import Path

import click

from sa_jobqueue.cli._output import echo
from sa_jobqueue.observe import dashboards as packaged


@click.command()
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIR",
    help="Where to write them, made where it is not there; the working directory unless given.",
)
@click.option("--force", is_flag=True, help="Write over files of these names that are different.")
def dashboards(*, folder: Path, force: bool) -> None:
    """Write a dashboard for Grafana (grafana.json) and recording and alerting rules for Prometheus (rules.yml).

    They show what `sa-jobqueue exporter` and `sa-jobqueue worker --metrics-port` serve. Files that are there and differ
    are left as they are, all of them, without --force.
    """
    texts = {folder / name: packaged.read(name) for name in packaged.NAMES}
    changed = [path for path, text in texts.items() if path.exists() and path.read_text(encoding="utf-8") != text]
    if changed and not force:
        raise click.ClickException(f"{changed[0]} is there and different: --force writes over it")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        path.write_text(text, encoding="utf-8")
        echo(str(path))
