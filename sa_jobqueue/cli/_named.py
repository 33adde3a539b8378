"""The commands that all kinds of named rows have: queues, job types and schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, asdict, dataclass, replace
from typing import Any

import click
from sqlalchemy.orm import Session

from sa_jobqueue.cli._limits import read_settings, setting_options
from sa_jobqueue.cli._listing import Columns, print_rows
from sa_jobqueue.cli._options import (
    Database,
    application_argument,
    application_session,
    by_option,
    changing,
    dry_run_option,
    json_option,
    reading,
    stacked,
    url_option,
)
from sa_jobqueue.cli._output import counted, print_changed, print_fields, print_json
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.registry.settings import Limits

Operation = Callable[..., Any]
Option = Callable[[Any], Any]


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

        def list_(database: Database, /, *, as_json: bool) -> None:
            with database.session() as session:
                found = list(every_item(lambda after: operation(session, after=after, model=database.model)))
            if as_json:
                print_json({key: [asdict(one) for one in found]})
            else:
                print_rows(counted(len(found), self.noun), columns, found)

        self._add("list", words, list_, reading)

    def add_show(self, operation: Operation, words: str) -> None:
        """Add `show`."""

        def show(database: Database, /, *, name: str, as_json: bool, **identity: str) -> None:
            with database.session() as session:
                found = operation(session, name, model=database.model, **identity)
            self._print(name, found, as_json=as_json, **identity)

        self._add("show", words, show, self._name(), *self.options, reading)

    def add_set(self, of: type[Limits], get: Operation, upsert: Operation, words: str) -> None:
        """Add `set`, with an option for each setting of a class."""

        def set_(
            database: Database, /, *, name: str, by: str, as_json: bool, fairness_key: str | None = None, **given: Any
        ) -> None:
            identity = {} if fairness_key is None else {"fairness_key": fairness_key}
            with database.session() as session:
                locked = get(session, name, for_update=True, model=database.model, **identity)
                upsert(session, replace(locked, **read_settings(of, given)).settings, by=by, model=database.model)
                session.commit()
                found = get(session, name, model=database.model, **identity)
            self._print(name, found, as_json=as_json, **identity)

        self._add("set", words, set_, self._name(), *self.options, setting_options(of), by_option, reading)

    def add_change(self, verb: str, operation: Operation, words: str) -> None:
        """Add a command that changes one or more rows, such as `pause`."""

        def change(
            database: Database, /, *, names: tuple[str, ...], dry_run: bool, by: str, as_json: bool, **identity: str
        ) -> None:
            with database.session() as session:
                done = operation(session, names, by=by, dry_run=dry_run, model=database.model, **identity)
                session.commit()
            print_changed(self.noun, done.ids, f"{verb.rstrip('e')}ed", dry_run=dry_run, as_json=as_json)

        names = click.argument("names", metavar=f"{self.metavar}...", nargs=-1, required=True)
        self._add(verb, words, change, names, *self.options, changing)

    def add_sync(self, sync: Callable[[Session, JobQueue[Any], str], Any], show: Callable[..., None], words: str) -> None:
        """Add `sync` with the application's JobQueue. `show`: prints the result, given `as_json` and `dry_run`."""

        def command(application: str, url: str | None, *, dry_run: bool, by: str, as_json: bool) -> None:
            with application_session(application, url) as (jobs, session):
                synced = sync(session, jobs, by)
                session.rollback() if dry_run else session.commit()
            show(synced, dry_run=dry_run, as_json=as_json)

        options = (application_argument("application"), dry_run_option, by_option, json_option, url_option)
        self._add("sync", words, command, *options)

    def _name(self) -> Option:
        return click.argument("name", metavar=self.metavar)

    def _print(self, name: str, row: Any, *, as_json: bool, fairness_key: str = "") -> None:
        if as_json:
            print_json(asdict(row))
        else:
            print_fields(f"{self.noun} {QueueKey(name, fairness_key).label}", asdict(row))

    def _add(self, name: str, words: str, command: Any, *options: Option) -> None:
        self.group.command(name, help=words)(stacked(*options)(command))
