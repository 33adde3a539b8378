"""Options and pagination shared by the `list` commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


fairness_key_option: Final = click.option(
    "--fairness-key", "fairness_keys", multiple=True, metavar="KEY", help="Only with this fairness key; may be repeated."
)


def listing_options(command: F) -> F:
    """Add `--limit`, `--after` and `--oldest-first`."""
    for option in (
        click.option(
            "--oldest-first",
            is_flag=True,
            help="Sort by id ascending: with UUIDv7 the oldest first.  [default: descending]",
        ),
        click.option("--after", metavar="ID", help="Continue after this id, the last one of the previous page."),
        click.option(
            "--limit",
            type=click.IntRange(1, 1000),
            metavar="N",
            default=50,
            show_default=True,
            help="Maximum number of rows.",
        ),
    ):
        command = option(command)
    return command
