"""`sa-jobqueue doctor`: check an installation, and print what to change."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.text import Text

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._doctor import Check, Status, application, examine
from sa_jobqueue.cli._output import print_result, shown
from sa_jobqueue.migrations.grants import RIGHTS

_STYLES: Final = {Status.OK: "green", Status.WARNING: "yellow", Status.ERROR: "bold red"}


@click.command()
@opts.json_option
@click.option(
    "--role",
    type=click.Choice(list(RIGHTS)),
    default="worker",
    show_default=True,
    help="What the user of the URL is for: whose privileges to check.",
)
@opts.listen_url_option
@opts.url_option
@opts.app_option
def doctor(*, url: str | None, app: str | None, role: str, listen_url: str | None) -> None:
    """Check an installation: application, versions, settings, tables, privileges, pooler and clock; print what to change.

    Changes nothing. Run it where the worker runs, with the worker's URL. Exit status: 0 without errors, 1 with errors.
    """
    address, direct = opts.parse_url(url), opts.parse_url(listen_url, "--listen-url") if listen_url else None
    checks, model = application(app, role)
    checks += examine(address, model, role=role, listen_url=direct)
    failed = any(check.status is Status.ERROR for check in checks)
    document = {"ok": not failed, "checks": [asdict(check) for check in checks]}
    print_result(document, Group(*(line for check in checks for line in _lines(check))))
    raise click.exceptions.Exit(int(failed))


def _lines(check: Check) -> list[RenderableType]:
    """Return a check for people: its result, then what to change, one line each."""
    first = Text(f"{check.status:8} ", style=_STYLES[check.status])
    first.append(f"{check.name}: {shown(check.found)}", style="not bold default")
    return [first, *(Text(f"         {shown(advice)}", style="dim") for advice in check.advice.split("; ") if advice)]
