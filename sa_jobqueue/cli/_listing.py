"""What the `list` commands share: a page's options, and a page that is full where there is enough to fill it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from sa_jobqueue.operations import Page

F = TypeVar("F", bound=Callable[..., Any])


def listing_options(command: F) -> F:
    """Add `--limit`, `--after` and `--oldest-first`."""
    for option in (
        click.option(
            "--oldest-first",
            is_flag=True,
            help="The smallest ids first, of UUIDv7 the oldest; else the largest.",
        ),
        click.option("--after", metavar="ID", help="The last id of the page before."),
        click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True),
    ):
        command = option(command)
    return command


def collected(list_page: Callable[..., Page[Any]], *, limit: int, after: Any = None) -> Page[Any]:
    """Follow the pages of a listing until `limit` items are there, or the end."""
    page = list_page(after=after, limit=limit)
    items = page.items
    while page.next is not None and len(items) < limit:
        page = list_page(after=page.next, limit=limit - len(items))
        items = items + page.items
    return Page(items, page.next)
