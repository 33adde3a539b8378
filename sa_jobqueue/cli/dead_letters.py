"""`sa-jobqueue dead-letters`: triage of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import click
from rich.progress import Progress
from sqlalchemy.orm import Session

from sa_jobqueue.cli._listing import fairness_key_option
from sa_jobqueue.cli._options import Database, duration, instant, json_option, user_name, with_database
from sa_jobqueue.cli._output import (
    console,
    counted,
    echo,
    echo_traceback,
    first_line,
    print_fields,
    print_json,
    print_table,
    row_of,
    shown,
)
from sa_jobqueue.cli.prune import prune_all_dead_letters
from sa_jobqueue.errors import ConflictError, JobQueueError
from sa_jobqueue.operations import (
    DeadLetterFilter,
    dismiss_dead_letters,
    group_dead_letters,
    list_dead_letters,
    redrive_dead_letters,
)
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.types import DeadReason

F = TypeVar("F", bound=Callable[..., Any])

LetterIds: TypeAlias = tuple[Any, Any]
"""The ids of a dead letter and of its job."""

CHUNK: Final = 1000
"""Dead letters resolved in one transaction: transactions are short, and little is lost if the run is interrupted."""

_REASONS: Final = click.Choice([reason.value for reason in DeadReason])


class DeadLetterNotFoundError(JobQueueError, LookupError):
    """The dead letter does not exist."""


def _filters(command: F) -> F:
    """Add the filter options that `_where` reads."""
    for option in (
        click.option(
            "--before",
            type=instant,
            metavar="TIME",
            help="Only if the job died before this time (ISO 8601, UTC by default).",
        ),
        click.option(
            "--fingerprint",
            "fingerprints",
            multiple=True,
            metavar="HEX",
            help="Only with this error fingerprint; see `groups`.",
        ),
        click.option(
            "--reason",
            "reasons",
            type=_REASONS,
            multiple=True,
            help="Only if the job died for this reason; may be repeated.",
        ),
        click.option("--queue", "queues", multiple=True, metavar="QUEUE", help="Only in this queue; may be repeated."),
        fairness_key_option,
        click.option("--type", "types", multiple=True, metavar="TYPE", help="Only of this job type; may be repeated."),
    ):
        command = option(command)
    return command


def _where(
    *,
    types: tuple[str, ...],
    queues: tuple[str, ...],
    fairness_keys: tuple[str, ...],
    reasons: tuple[str, ...],
    fingerprints: tuple[str, ...],
    before: datetime | None,
) -> DeadLetterFilter:
    return DeadLetterFilter(
        types=types,
        queues=queues,
        fairness_keys=fairness_keys,
        reasons=tuple(DeadReason(reason) for reason in reasons),
        fingerprints=fingerprints,
        died_before=before,
    )


@click.group("dead-letters")
def dead_letters() -> None:
    """List, group, redrive, dismiss and prune dead letters."""


@dead_letters.command("list")
@_filters
@click.option("--resolved/--all-states", default=None, help="List resolved dead letters, or all.  [default: unresolved]")
@click.option(
    "--limit", type=click.IntRange(1, 1000), metavar="N", default=50, show_default=True, help="Maximum number of rows."
)
@click.option("--after", metavar="ID", help="Continue after this id, the last one of the previous page.")
@click.option("--oldest-first", is_flag=True, help="Sort by id ascending.  [default: descending]")
@json_option
@with_database
def list_(
    database: Database,
    /,
    *,
    resolved: bool | None,
    limit: int,
    after: str | None,
    oldest_first: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """List dead letters, newest first, one page at a time."""
    wanted = {None: False, True: True, False: None}[resolved]
    with database.session() as session:
        page = list_dead_letters(
            session,
            where=replace(_where(**filters), resolved=wanted),
            after=None if after is None else database.job_id(after),
            limit=limit,
            newest_first=not oldest_first,
            model=database.model,
        )
    following = None if page.next is None else str(page.next)
    if as_json:
        print_json(
            {"dead_letters": [row_of(dead_letter, without=["input"]) for dead_letter in page], "next_after": following}
        )
        return
    headings = ["id", "type", "reason", "error", "died", "resolution", "job"]
    rows = [
        (one.id, one.type_name, one.reason, first_line(one.error, one.type_name), one.died_at, one.resolution, one.job_id)
        for one in page
    ]
    print_table(counted(len(page.items), "dead letter"), headings, rows)
    if following:
        echo(f"next page: --after {following}")


@dead_letters.command()
@click.argument("dead_letter_id", metavar="ID")
@json_option
@with_database
def show(database: Database, /, *, dead_letter_id: str, as_json: bool) -> None:
    """Show one dead letter: input, error with traceback, and resolution."""
    where = DeadLetterFilter(ids=[database.job_id(dead_letter_id)], resolved=None)
    with database.session() as session:
        found = list_dead_letters(session, where=where, limit=1, model=database.model).items
    if not found:
        raise DeadLetterNotFoundError(f"dead letter {dead_letter_id} not found (for the id of a job use `jobs show`)")
    fields = row_of(found[0])
    if as_json:
        print_json({"dead_letter": fields})
        return
    traceback = (fields["error"] or {}).pop("traceback", None)
    print_fields(f"dead letter {dead_letter_id}", fields)
    if traceback:
        echo_traceback(traceback)


@dead_letters.command()
@_filters
@json_option
@with_database
def groups(database: Database, /, *, as_json: bool, **filters: Any) -> None:
    """Count unresolved dead letters by type, reason and error, most frequent first."""
    with database.session() as session:
        found = group_dead_letters(session, where=_where(**filters), model=database.model)
    if as_json:
        print_json({"groups": [asdict(group) for group in found]})
        return
    headings = ["fingerprint", "count", "type", "reason", "error", "first", "last", "example job"]
    rows = [
        (
            group.fingerprint,
            group.count,
            group.type_name,
            group.reason,
            group.error_type,
            group.first_died_at,
            group.last_died_at,
            group.example_job_id,
        )
        for group in found
    ]
    print_table(counted(sum(group.count for group in found), "dead letter"), headings, rows)


def _chosen(command: F) -> F:
    """Add the options that select dead letters for `redrive` and `dismiss`."""
    for option in (
        click.option("--by", metavar="NAME", help="Name to record with the change; see `audit`.  [default: your user name]"),
        click.option("--dry-run", is_flag=True, help="Only show what would change."),
        click.option("--all", "everything", is_flag=True, help="Select every unresolved dead letter."),
        click.argument("ids", metavar="[ID...]", nargs=-1),
    ):
        command = option(command)
    return _filters(command)


@dead_letters.command()
@_chosen
@click.option("--from-step", metavar="NAME", help="Run this step and later ones again.  [default: keep all steps]")
@json_option
@with_database
def redrive(
    database: Database, /, *, by: str | None, dry_run: bool, from_step: str | None, as_json: bool, **chosen: Any
) -> None:
    """Redrive dead letters: make their jobs pending with fresh attempts. Select by id, by filters, or --all.

    \b
    Example:
      sa-jobqueue dead-letters redrive --type charge --reason exhausted --dry-run
    """

    def redrive_some(session: Session, chunk: list[LetterIds]) -> list[LetterIds]:
        where = DeadLetterFilter(ids=[dead_letter_id for dead_letter_id, _ in chunk])
        given: dict[str, Any] = {"by": by or user_name(), "limit": CHUNK, "model": database.model}
        found = set(redrive_dead_letters(session, where=where, from_step=from_step, **given))
        return [dead_letter for dead_letter in chunk if dead_letter[1] in found]

    _resolve(database, "redriven", redrive_some, dry_run=dry_run, as_json=as_json, **chosen)


@dead_letters.command()
@_chosen
@json_option
@with_database
def dismiss(database: Database, /, *, by: str | None, dry_run: bool, as_json: bool, **chosen: Any) -> None:
    """Dismiss dead letters: mark them as resolved; their jobs stay dead. Select by id, by filters, or --all."""

    def dismiss_some(session: Session, chunk: list[LetterIds]) -> list[LetterIds]:
        where = DeadLetterFilter(ids=[dead_letter_id for dead_letter_id, _ in chunk])
        found = set(dismiss_dead_letters(session, where=where, by=by or user_name(), model=database.model))
        return [dead_letter for dead_letter in chunk if dead_letter[0] in found]

    _resolve(database, "dismissed", dismiss_some, dry_run=dry_run, as_json=as_json, **chosen)


@dead_letters.command()
@click.option(
    "--older-than",
    type=duration,
    metavar="DURATION",
    required=True,
    help="Only those resolved longer ago than this, such as 90d.",
)
@click.option("--type", "types", multiple=True, metavar="TYPE", help="Only of this job type; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@json_option
@with_database
def prune(database: Database, /, *, older_than: timedelta, types: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Delete dead letters that were resolved before a given age. Those whose job is still dead are kept."""
    retention = Retention(dead_letters=older_than)
    rules = RetentionRules(types=dict.fromkeys(types, retention)) if types else RetentionRules(default=retention)
    with database.session() as session:
        session.rollback()
        deleted = prune_all_dead_letters(session, rules, dry_run=dry_run, model=database.model)
    if as_json:
        print_json({"dry_run": dry_run, "dead_letters": deleted})
    else:
        echo(f"{counted(deleted, 'dead letter')} {'would be deleted' if dry_run else 'deleted'}")


def _resolve(
    database: Database,
    verb: str,
    resolve: Callable[[Session, list[LetterIds]], list[LetterIds]],
    *,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    as_json: bool,
    **filters: Any,
) -> None:
    """Resolve the selected dead letters, one chunk per transaction; print them, and those that conflict."""
    where = _where(**filters)
    if (bool(ids), everything, where != DeadLetterFilter()).count(True) != 1:
        raise click.UsageError("pass ids, filters or --all, and only one of these")
    where = replace(where, ids=[database.job_id(one) for one in dict.fromkeys(ids)])
    done: list[LetterIds] = []
    conflicts: list[tuple[Any, str]] = []
    with database.session() as session:
        unfit = _unfit(session, database, where.ids)
        meant = sum(group.count for group in group_dead_letters(session, where=where, model=database.model))
        session.rollback()
        if dry_run:
            done = [dead_letter for chunk in _chunks(session, database, where) for dead_letter in chunk]
            verb = f"would be {verb}"
        with Progress(console=console(stderr=True), disable=dry_run or meant <= CHUNK, transient=True) as progress:
            task = progress.add_task(verb, total=meant)
            for chunk in () if dry_run else _chunks(session, database, where):
                try:
                    done += resolve(session, chunk)
                    session.commit()
                except ConflictError:
                    # One of them conflicts: resolve each in its own transaction.
                    session.rollback()
                    for dead_letter in chunk:
                        try:
                            done += resolve(session, [dead_letter])
                            session.commit()
                        except ConflictError as error:
                            session.rollback()
                            conflicts.append((dead_letter[0], str(error)))
                progress.advance(task, len(chunk))
    if as_json:
        document: dict[str, Any] = {verb.replace(" ", "_"): [{"id": one, "job_id": job_id} for one, job_id in done]}
        passed_over = [{"id": one, "reason": reason} for one, reason in conflicts]
        print_json(document if dry_run else document | {"conflicts": passed_over})
    else:
        echo(f"{counted(len(done), 'dead letter')} {verb}")
    if unfit:
        raise DeadLetterNotFoundError("; ".join(unfit))
    if conflicts:
        raise ConflictError(
            f"{counted(len(conflicts), 'dead letter')} skipped, such as {conflicts[0][0]}: {conflicts[0][1]}", ""
        )


def _unfit(session: Session, database: Database, ids: Sequence[Any]) -> list[str]:
    """Return why ids are not those of unresolved dead letters: one line for each, and one for all unknown ids."""
    unknown, lines = list(ids), []
    for start in range(0, len(ids), CHUNK):
        where = DeadLetterFilter(ids=ids[start : start + CHUNK], resolved=None)
        for dead_letter in list_dead_letters(session, where=where, limit=CHUNK, newest_first=False, model=database.model):
            unknown.remove(dead_letter.id)
            if dead_letter.resolution is not None:
                by = f" by {dead_letter.resolved_by}" if dead_letter.resolved_by else ""
                how = f"{shown(dead_letter.resolution)}{by} at {shown(dead_letter.resolved_at)}"
                lines.append(f"dead letter {dead_letter.id} is already resolved: {how}")
    session.rollback()
    session.expunge_all()
    if unknown:
        lines.append(
            f"{counted(len(unknown), 'dead letter')} not found, such as {unknown[0]} (for ids of jobs use `jobs retry`)"
        )
    return lines


def _chunks(session: Session, database: Database, where: DeadLetterFilter) -> Iterator[list[LetterIds]]:
    """Yield the matching unresolved dead letters, oldest first; those added meanwhile are ignored."""
    newest = list_dead_letters(session, where=where, limit=1, model=database.model).items
    last: Any = newest[0].id if newest else None
    after: Any = None
    while last is not None and (after is None or after < last):
        page = list_dead_letters(session, where=where, after=after, limit=CHUNK, newest_first=False, model=database.model)
        chunk: list[LetterIds] = [(dead_letter.id, dead_letter.job_id) for dead_letter in page if dead_letter.id <= last]
        session.rollback()
        session.expunge_all()  # do not keep every row of a long run in memory
        if not chunk:
            return
        after = chunk[-1][0]
        yield chunk
