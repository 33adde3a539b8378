"""Commands for rows: pages of them, and what all kinds of named rows have: queues, job types, schedules and events."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import Columns, counted, fields_of, print_changed, print_result, row_of, shown, table_of
from sa_jobqueue.operations import QueueStatus, TypeStatus
from sa_jobqueue.operations.pages import Page, collected
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.settings import Limits, settings_of

Operation = Callable[..., Any]
Option = Callable[[Any], Any]
_METAVARS: Final[dict[type, str]] = {int: "N", float: "N", timedelta: "DURATION"}

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
    rows: Callable[[Iterable[Any]], Sequence[Any]] = list,
    limit: int,
    after: str | None,
    oldest_first: bool,
    **filters: Any,
) -> None:
    """Print one page of a list.

    `where`: makes the filter from `filters`, the other options of the command. `key`: name of the rows in the JSON document,
    by default the noun's plural. `read_id`: reads `after`, by default as the id of a job. `rows`: makes the
    rows of the table.
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
    document = {key or f"{noun}s": [row_of(row, without=without) for row in page], "next_after": page.next}
    more = [] if page.next is None else [f"next page: --after {page.next}"]
    print_result(document, table_of(counted(len(page.items), noun), columns, rows(page)), *more)


@dataclass(frozen=True, slots=True)
class NamedRows:
    """A kind of named rows, and the group of its commands. `options`: what identifies a row beside its name."""

    group: click.Group
    noun: str
    _: KW_ONLY
    metavar: str = "NAME"
    options: tuple[Option, ...] = ()

    def add_list(self, key: str, operation: Operation, columns: Columns, words: str) -> None:
        """Add `list`. `key`: name of the rows in the JSON document. `words`: the command's help, also below."""

        def list_(database: opts.Database, /) -> None:
            with database.session() as session:
                statuses = database.every(session, operation)
            print_result(
                {key: [asdict(status) for status in statuses]},
                table_of(counted(len(statuses), self.noun), columns, statuses),
            )

        self._add("list", words, list_, opts.reading)

    def add_show(self, operation: Operation, words: str) -> None:
        """Add `show`."""

        def show(database: opts.Database, /, *, name: str, **identity: str) -> None:
            self._print(name, database.run(operation, name, **identity), **identity)

        self._add("show", words, show, self._name(), *self.options, opts.reading)

    def add_set(self, settings_class: type[Limits], get: Operation, upsert: Operation, words: str) -> None:
        """Add `set`, with an option for each setting of a class."""

        def set_(database: opts.Database, /, *, name: str, by: str, fairness_key: str | None = None, **texts: Any) -> None:
            identity = {} if fairness_key is None else {"fairness_key": fairness_key}
            with database.session() as session:
                locked = get(session, name, for_update=True, model=database.model, **identity)
                upsert(
                    session, replace(locked, **read_settings(settings_class, texts)).settings, by=by, model=database.model
                )
                session.commit()
                status = get(session, name, model=database.model, **identity)
            self._print(name, status, **identity)

        self._add(
            "set", words, set_, self._name(), *self.options, setting_options(settings_class), opts.by_option, opts.reading
        )

    def add_change(self, verb: str, operation: Operation, words: str) -> None:
        """Add a command that changes one or more rows, such as `pause`."""

        def change(database: opts.Database, /, *, names: tuple[str, ...], dry_run: bool, by: str, **identity: str) -> None:
            result = database.run(operation, names, by=by, dry_run=dry_run, **identity)
            print_changed(self.noun, result.ids, f"{verb.rstrip('e')}ed", dry_run=dry_run)

        names = click.argument("names", metavar=f"{self.metavar}...", nargs=-1, required=True)
        self._add(verb, words, change, names, *self.options, opts.changing)

    def add_sync(self, sync: Callable[[Session, JobQueue[Any], str], Any], words: str) -> None:
        """Add `sync` with the application's JobQueue."""

        def command(application: str, url: str | None, *, dry_run: bool, by: str) -> None:
            with opts.application_session(application, url) as (jobs, session):
                synced = sync(session, jobs, by)
                session.rollback() if dry_run else session.commit()
            would = "would be " if dry_run else ""
            lines = [f"{name}: {would}created" for name in synced.created]
            lines += [f"{name}: {would}changed{_changes(synced.changed, name)}" for name in synced.changed]
            lines += [f"{name}: not declared, not changed" for name in synced.undeclared]
            lines.append(f"{counted(len(synced.unchanged), self.noun)} unchanged")
            print_result(asdict(synced) | {"dry_run": dry_run}, *lines)

        changing = (opts.dry_run_option, opts.by_option, opts.json_option, opts.url_option)
        self._add("sync", words, command, opts.application_argument("application"), *changing)

    def _name(self) -> Option:
        return click.argument("name", metavar=self.metavar)

    def _print(self, name: str, row: Any, *, fairness_key: str = "") -> None:
        print_result(asdict(row), fields_of(f"{self.noun} {QueueKey(name, fairness_key).label}", asdict(row)))

    def _add(self, name: str, words: str, command: Any, *options: Option) -> None:
        self.group.command(name, help=words)(opts.stacked(*options)(command))


def setting_options(settings_class: type[Limits]) -> Option:
    """Return a decorator that gives a command an option for each setting of a class."""

    def decorate(command: Any) -> Any:
        for name, setting in reversed(settings_of(settings_class).items()):
            words = f"{setting.help.rstrip('.')}; 'none' removes it."
            option = click.option(f"--{name.replace('_', '-')}", metavar=_METAVARS[setting.kind], help=words)
            command = option(command)
        return command

    return decorate


def read_settings(settings_class: type[Limits], texts: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the given settings, with the default for `none`. Raises: click.BadParameter."""
    values: dict[str, Any] = {}
    for name, setting in settings_of(settings_class).items():
        text = texts[name]
        if text is None:
            continue
        if text == "none" and name in {"rate_limit", "retry_base"}:  # without it, its other settings have no meaning
            values |= {
                dependent: None
                for dependent in settings_of(settings_class)
                if dependent.startswith(f"{name.partition('_')[0]}_")
            }
            continue
        try:
            values[name] = getattr(settings_class, name) if text == "none" else _read(text, setting.kind)
        except click.BadParameter as error:
            error.param_hint = f"'--{name.replace('_', '-')}'"
            raise
    return values


def rate_text(status: QueueStatus | TypeStatus) -> str | None:
    """Return the rate limit as text; None without a limit."""
    if status.rate_limit is None or status.rate_period is None:
        return None
    burst = f", {status.rate_burst} at once" if status.rate_burst is not None else ""
    return f"{status.rate_limit} in {shown(status.rate_period)}{burst}"


def _changes(changed: Any, name: str) -> str:
    """Return the old and new values of a row's settings, if they are known."""
    settings = changed[name] if isinstance(changed, Mapping) else {}
    listed = ", ".join(f"{key} {shown(old)} -> {shown(new)}" for key, (old, new) in settings.items())
    return f": {listed}" if listed else ""


def _read(text: str, kind: type[Any]) -> Any:
    if kind is timedelta:
        return opts.duration(text)
    try:
        return kind(text)
    except ValueError:
        noun = "a whole number" if kind is int else "a number"
        raise click.BadParameter(f"{text!r} is neither {noun} nor 'none'") from None
