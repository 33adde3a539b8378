"""`sa-jobqueue prune`: delete chains that ended long enough ago, or tell which would go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from sqlalchemy.orm import Session

from sa_jobqueue.cli._options import APP_VARIABLE, Database, age, json_option, load_jobs, parse_url, url_option
from sa_jobqueue.cli._output import console, counted, print_json, print_table
from sa_jobqueue.models import Job, JobMixin
from sa_jobqueue.operations import PruneCursor, Pruned, prune_dead_letters
from sa_jobqueue.operations import prune as prune_page
from sa_jobqueue.operations.pruning import MAX_SCAN
from sa_jobqueue.policies.retention import OUTCOMES, Retention, RetentionRules
from sa_jobqueue.statements import retention, storage
from sa_jobqueue.types import JobStatus

_PATIENCE: Final = 2
"""Seconds that a lock on a row of the application's may be waited for, which refers to a job."""


@dataclass(slots=True)
class _Sum:
    """What all pages did together."""

    chains: dict[tuple[str, JobStatus], int] = field(default_factory=dict)
    jobs: int = 0
    kept: int = 0
    scanned: int = 0
    letters: int = 0

    def add(self, page: Pruned) -> None:
        """Count one page."""
        for kind, count in page.chains.items():
            self.chains[kind] = self.chains.get(kind, 0) + count
        self.jobs, self.kept, self.scanned = self.jobs + page.jobs, self.kept + page.kept, self.scanned + page.scanned


@click.command()
@url_option
@click.option(
    "--app",
    envvar=APP_VARIABLE,
    show_envvar=True,
    metavar="MODULE:ATTRIBUTE",
    help="The application's JobQueue: its tables, and without --older-than the ages that it says.",
)
@click.option("--older-than", type=age, metavar="AGE", help="What ended longer ago than this: 30d, 12h.")
@click.option(
    "--status",
    "statuses",
    type=click.Choice([str(outcome) for outcome in OUTCOMES]),
    multiple=True,
    help="How the chains ended; may be repeated.  [default: completed, cancelled]",
)
@click.option("--type", "types", multiple=True, metavar="NAME", help="Only chains that begin with it; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@json_option
def prune(
    *,
    url: str | None,
    app: str | None,
    older_than: timedelta | None,
    statuses: tuple[str, ...],
    types: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete chains that ended long enough ago, each whole, a page a transaction; nobody is waited for.

    A chain stays as long as a job of one that stays waits for it or waited. Dead ones go with --status dead alone. With
    --older-than it goes by that and by nothing else; without, by what the JobQueue and the queues' own rows say, as workers
    do by themselves, and resolved dead letters go too, by what the JobQueue says of those (see dead-letters prune).
    """
    jobs = load_jobs(app) if app is not None else None
    if older_than is None:
        if jobs is None or statuses or types:
            raise click.UsageError("say how old: --older-than 30d; or name with --app alone who says it")
        rules = jobs.retention_rules
    else:
        rules = _rules(older_than, statuses, types)
    database = Database(parse_url(url), jobs.model if jobs is not None else Job)
    done = _Sum()
    options: dict[str, Any] = {"queue_rows": older_than is None, "dry_run": dry_run, "by": "prune", "model": database.model}
    with database.session() as session, _bar() as show:
        name = database.model.__jobqueue__.name("job")
        estimate = next(row.live for row in session.execute(storage.tables(database.model)) if row.name == name)
        session.rollback()
        cursor: PruneCursor | None = PruneCursor(None)
        while cursor is not None:
            with session.begin():
                session.execute(retention.bounded(), {"seconds": _PATIENCE})
                page = prune_page(session, rules, cursor=cursor, **options)
            done.add(page)
            cursor = page.next
            show(done, estimate)
        if older_than is None:
            done.letters = prune_letters(session, rules, dry_run=dry_run, model=database.model)
    _print(done, as_json=as_json, dry_run=dry_run)


def prune_letters(session: Session, rules: RetentionRules, *, dry_run: bool, model: type[JobMixin[Any]]) -> int:
    """Delete resolved dead letters, a page a transaction; return how many."""
    after, letters, is_last = None, 0, False
    while not is_last:
        with session.begin():
            page = prune_dead_letters(session, rules, after=after, scan=MAX_SCAN, dry_run=dry_run, model=model)
        letters, after = letters + page.letters, page.next
        is_last = after is None
    return letters


def _rules(older_than: timedelta, statuses: tuple[str, ...], types: tuple[str, ...]) -> RetentionRules:
    said = Retention(**dict.fromkeys(statuses or ("completed", "cancelled"), older_than))
    return RetentionRules(types=dict.fromkeys(types, said)) if types else RetentionRules(default=said)


@contextmanager
def _bar() -> Iterator[Any]:
    """Show on standard error how far it has come, where somebody watches."""
    terminal = console(stderr=True)
    if not terminal.is_terminal:
        yield lambda done, estimate: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=terminal, transient=True) as bar:
        task = bar.add_task("looking", total=None)

        def show(done: _Sum, estimate: int) -> None:
            words = f"{done.jobs:,} jobs gone, {done.scanned:,} looked at"
            bar.update(task, description=words, completed=done.scanned, total=max(estimate, done.scanned) or None)

        yield show


def _print(done: _Sum, *, as_json: bool, dry_run: bool) -> None:
    kinds = sorted(done.chains.items(), key=lambda one: (one[0][0], one[0][1].value))
    if as_json:
        by_kind = [{"type_name": name, "status": outcome.value, "chains": n} for (name, outcome), n in kinds]
        totals = {"chains": sum(done.chains.values()), "jobs": done.jobs, "kept": done.kept, "scanned": done.scanned}
        totals["dead_letters"] = done.letters
        print_json({"dry_run": dry_run} | totals | {"by": by_kind})
        return
    chains, jobs = counted(sum(done.chains.values()), "chain"), counted(done.jobs, "job")
    title = f"{chains} of {jobs} {'would go' if dry_run else 'deleted'}"
    if done.letters:
        title += f", and {counted(done.letters, 'dead letter')}"
    if done.kept:
        title += f"; {counted(done.kept, 'chain')} stay for now: others refer to them, or somebody holds them"
    print_table(title, ["type", "status", "chains"], [(name, outcome, count) for (name, outcome), count in kinds])
