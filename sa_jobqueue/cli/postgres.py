"""`sa-jobqueue postgres`: a PostgreSQL server for development."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import echo, print_result
from sa_jobqueue.cli._serving import ending
from sa_jobqueue.testing.embedded import EmbeddedServer
from sa_jobqueue.testing.servers import open_server


@click.command()
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIRECTORY",
    help="Directory of the data, which is kept; created if it does not exist.  [default: a temporary one]",
)
@click.option(
    "--tcp",
    is_flag=True,
    help="Listen on a port of 127.0.0.1 too, with a password; with --data-dir both stay the same.",
)
@opts.json_option
def postgres(*, data_dir: Path | None, tcp: bool) -> None:
    """Run a PostgreSQL server for development, and print its URL.

    Uses the newest PostgreSQL that is installed, or that of the extra "demo". SIGTERM or Ctrl-C stops it; it needs no
    terminal. Without --data-dir, its data is deleted then.
    """
    ended = ending(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    try:
        (data_dir or Path()).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"cannot create {data_dir}: {error.strerror}") from error
    with open_server("newest", data_dir=data_dir, tcp=tcp) as server:
        print_result({"url": server.url}, server.url, indent=None)
        data_text = f"its data is in {data_dir}" if data_dir else "its data is deleted at the end"
        echo(f"PostgreSQL {'.'.join(map(str, server.version))} is running, {data_text}; Ctrl-C stops it", err=True)
        while not ended.wait(timeout=1):
            if isinstance(server, EmbeddedServer) and not server.is_running:
                raise click.ClickException("the server has ended")
