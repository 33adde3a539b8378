"""Lists: the options of their pages, and how a page is read and printed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import Columns, counted, print_result, row_of, table_of
from sa_jobqueue.operations.pages import Page, collected

page_options: Final = opts.stacked(
    opts.limit_option,
    click.option("--after", metavar="ID", help="Continue after this id, the last one of the previous page."),
    click.option(
        "--oldest-first", is_flag=True, help="Sort by id ascending: with UUIDv7 the oldest first.  [default: descending]"
    ),
)


def print_page(
    database: opts.Database,
    list_page: Callable[..., Page[Any]],
    where: Callable[..., Any],
    /,
    *,
    noun: str,
    columns: Columns,
    key: str = "",
    without: Sequence[str] = (),
    read_id: Callable[[str], Any] | None = None,
    limit: int,
    after: str | None,
    oldest_first: bool,
    **filters: Any,
) -> None:
    """Print one page of a list.

    `where`: makes the filter from `filters`, the other options of the command. `key`: name of the rows in the JSON document,
    by default the noun's plural. `read_id`: reads `after`, by default as the id of a job.
    """
    filters |= {name: database.job_ids(ids) for name, ids in filters.items() if name.endswith("_ids")}
    try:
        position = None if after is None else (read_id or database.job_id)(after)
    except click.BadParameter as error:
        error.param_hint = "'--after'"
        raise
    with database.session() as session:
        page = collected(
            lambda **more: list_page(
                session, where=where(**filters), newest_first=not oldest_first, model=database.model, **more
            ),
            after=position,
            limit=limit,
        )
    document = {key or f"{noun}s": [row_of(one, without=without) for one in page], "next_after": page.next}
    more = [] if page.next is None else [f"next page: --after {page.next}"]
    print_result(document, table_of(counted(len(page.items), noun), columns, page), *more)
