"""`sa-jobqueue dead-letters`: triage of dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from datetime import timedelta
from functools import partial
from typing import IO, Any, Final

import click
from sqlalchemy.orm import Session

from sa_jobqueue import operations
from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli import _rehearsal, noun_group
from sa_jobqueue.cli._output import Columns, counted, first_line, print_result, record_of, row_of, shown, table_of
from sa_jobqueue.cli._rows import page_options, print_page
from sa_jobqueue.cli.prune import print_pruned
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.errors import ConflictError
from sa_jobqueue.operations.pages import MAX_PAGE, every_page
from sa_jobqueue.policies.retention import Retention, RetentionRules
from sa_jobqueue.types import DeadReason

_filters: Final = opts.stacked(
    opts.type_option,
    opts.fairness_key_option,
    opts.queue_option,
    opts.only("--reason", "reasons", None, "if the job died for this reason", type=opts.one_of(DeadReason)),
    opts.only("--fingerprint", "fingerprints", "HEX", "with this error fingerprint (see `groups`)"),
    opts.instant_option("--before", "died_before", "Only if the job died before this time"),
)
_chosen: Final = opts.stacked(
    _filters,
    click.argument("ids", metavar="[ID...]", nargs=-1),
    click.option("--all", "everything", is_flag=True, help="Select every unresolved dead letter."),
)
_COLUMNS: Final[Columns] = {
    "id": "id",
    "error": lambda letter: first_line(letter.error, letter.type_name),
    "type": "type_name",
    "died": "died_at",
    "reason": "reason",
    "resolution": "resolution",
    "job": "job_id",
}
_GROUPS: Final[Columns] = {
    "count": "count",
    "error": lambda group: first_line({"type": group.error_type, "message": group.message}, group.type_name),
    "type": "type_name",
    "last": "last_died_at",
    "reason": "reason",
    "example job": "example_job_id",
    "first": "first_died_at",
    "fingerprint": "fingerprint",
}

dead_letters: Final = noun_group("dead-letters")


@dead_letters.command("list")
@_filters
@click.option("--resolved/--all-states", default=None, help="List resolved dead letters, or all.  [default: unresolved]")
@page_options
@opts.reading
def list_(database: opts.Database, /, *, resolved: bool | None, **options: Any) -> None:
    """List dead letters, newest first, one page at a time."""
    where = partial(operations.DeadLetterFilter, resolved={None: False, True: True, False: None}[resolved])
    names: dict[str, Any] = {"noun": "dead letter", "key": "dead_letters", "columns": _COLUMNS, "without": ["input"]}
    names["read_id"] = partial(database.job_id, row_class=database.model.DeadLetter)
    print_page(database, operations.list_dead_letters, where, **names, **options)


@dead_letters.command()
@click.argument("dead_letter_id", metavar="ID")
@opts.reading
def show(database: opts.Database, /, *, dead_letter_id: str) -> None:
    """Show one dead letter: input, error with traceback, and resolution."""
    where = operations.DeadLetterFilter(ids=[database.job_id(dead_letter_id, database.model.DeadLetter)], resolved=None)
    letters = database.run(operations.list_dead_letters, where=where, limit=1).items
    if not letters:
        raise click.ClickException(f"dead letter {dead_letter_id} not found (for the id of a job use `jobs show`)")
    fields = row_of(letters[0])
    print_result({"dead_letter": fields}, *record_of(f"dead letter {letters[0].id}", fields))


@dead_letters.command()
@_filters
@opts.reading
def groups(database: opts.Database, /, **filters: Any) -> None:
    """Count unresolved dead letters by type, reason and error, most frequent first."""
    group_list = database.run(operations.group_dead_letters, where=operations.DeadLetterFilter(**filters))
    title = counted(sum(group.count for group in group_list), "dead letter")
    print_result({"groups": [asdict(group) for group in group_list]}, table_of(title, _GROUPS, group_list))


@dead_letters.command()
@_filters
@click.argument("dead_letter_id", metavar="[ID]", required=False)
@opts.number_option("--sample", "Without an ID, rehearse the newest N dead letters.", least=1, most=1000, default=20)
@_rehearsal.options
def rehearse(dead_letter_id: str | None, sample: int, **options: Any) -> None:
    """Rehearse a redrive: run the handler in a transaction that is rolled back, and report its outcome and effects.

    Without an ID, a sample of the unresolved dead letters that the filters match is rehearsed, and the outcomes are counted.
    The handlers are declared with rehearsable=True. Exit status: 0 none would fail, 1 one would, 2 of one it is not known.
    """
    names = [field.name for field in fields(operations.DeadLetterFilter)]
    filters = {name: options.pop(name) for name in names if name in options}

    def find(database: opts.Database) -> Sequence[Any]:
        ids = [database.job_id(letter_id, database.model.DeadLetter) for letter_id in filter(None, [dead_letter_id])]
        where = operations.DeadLetterFilter(ids=ids, resolved=None if ids else False, **filters)
        return [letter.job_id for letter in database.run(operations.list_dead_letters, where=where, limit=sample).items]

    _rehearsal.rehearse_jobs(find, is_sample=dead_letter_id is None, **options)


@dead_letters.command()
@_chosen
@click.option("--from-step", metavar="NAME", help="Run this step and later ones again.  [default: keep all steps]")
@click.option(
    "--input", "file", type=click.File(), metavar="FILE", help="Use this JSON as input of one job; - is standard input."
)
@opts.changing
def redrive(database: opts.Database, /, *, from_step: str | None, file: IO[str] | None, **chosen: Any) -> None:
    """Redrive dead letters: make their jobs pending with fresh attempts. Select by id, by filters, or --all.

    A thousand jobs per transaction. A job whose deduplication key an open job has is skipped and named. --input is checked
    by the handler's type, so that --app must be a JobQueue; the dead letter keeps the old input.

    \b
    Example:
      sa-jobqueue dead-letters redrive --type charge --reason exhausted --dry-run
    """
    options: dict[str, Any] = {"from_step": from_step}
    if file is not None:
        app = click.get_current_context().params.get("app")
        if app is None:
            raise click.UsageError("--input needs --app: the JobQueue whose handler checks it")
        options |= {"new_input": opts.json_document(file.read()), "registry": opts.load_jobs(app).registry}
    _resolve(database, partial(operations.redrive_dead_letters, **options), "job", "redriven", **chosen)


@dead_letters.command()
@_chosen
@opts.changing
def dismiss(database: opts.Database, /, **chosen: Any) -> None:
    """Dismiss dead letters: mark them as resolved; their jobs stay dead. Select by id, by filters, or --all."""
    _resolve(database, operations.dismiss_dead_letters, "dead letter", "dismissed", **chosen)


@dead_letters.command()
@opts.duration_option("--older-than", "Only those resolved longer ago than this, such as 90d.", required=True)
@opts.type_option
@opts.changing
def prune(database: opts.Database, /, *, older_than: timedelta, types: tuple[str, ...], dry_run: bool, by: str) -> None:
    """Delete dead letters that were resolved before a given age. Those whose job is still dead are kept."""
    retention = Retention(dead_letters=older_than)
    rules = RetentionRules(types=dict.fromkeys(types, retention)) if types else RetentionRules(default=retention)
    print_pruned(database, rules, "dead_letters", "dead letter", dry_run=dry_run, by=by)


def _resolve(
    database: opts.Database,
    operation: Callable[..., operations.BulkResult[Any]],
    noun: str,
    verb: str,
    *,
    ids: tuple[str, ...],
    everything: bool,
    dry_run: bool,
    by: str,
    **filters: Any,
) -> None:
    """Resolve the selected dead letters, one page per transaction; print the changes and the conflicts."""
    where = operations.DeadLetterFilter(**filters)
    if (bool(ids), everything, where != operations.DeadLetterFilter()).count(True) != 1:
        raise click.UsageError("pass ids, filters or --all, and only one of these")
    where = replace(where, ids=[database.job_id(letter_id, database.model.DeadLetter) for letter_id in dict.fromkeys(ids)])
    options: dict[str, Any] = {"where": where, "by": by, "model": database.model}
    resolved_ids: list[Any] = []
    conflicts: dict[Any, str] = {}
    with database.session() as session, ProgressLines("dead-letters") as lines:
        unfit = _unfit(session, database, where.ids)
        for page in every_page(lambda after: operation(session, after=after, limit=MAX_PAGE, dry_run=dry_run, **options)):
            session.commit()
            resolved_ids += page.ids
            conflicts |= page.conflicts
            lines.update(len(resolved_ids), step=verb)
    skipped = [{"job_id": job_id, "reason": reason} for job_id, reason in conflicts.items()]
    document = {f"would_be_{verb}": resolved_ids} if dry_run else {verb: resolved_ids, "conflicts": skipped}
    print_result(document, f"{counted(len(resolved_ids), noun)} {'would be ' if dry_run else ''}{verb}")
    if unfit:
        raise click.ClickException("; ".join(unfit))
    for job_id, reason in conflicts.items():
        raise ConflictError(f"{counted(len(conflicts), 'job')} skipped, such as {job_id}: {reason}", "")


def _unfit(session: Session, database: opts.Database, ids: Sequence[Any]) -> list[str]:
    """Return why ids are not those of unresolved dead letters: one line for each, and one for all unknown ids."""
    where = operations.DeadLetterFilter(ids=ids, resolved=None)
    letter_by_id = {
        letter.id: letter for letter in (database.every(session, operations.list_dead_letters, where=where) if ids else ())
    }
    session.rollback()
    lines = [
        f"dead letter {letter.id} is already resolved: {shown(letter.resolution)}"
        f"{f' by {letter.resolved_by}' if letter.resolved_by else ''} at {shown(letter.resolved_at)}"
        for letter in letter_by_id.values()
        if letter.resolution is not None
    ]
    if unknown := [letter_id for letter_id in ids if letter_id not in letter_by_id]:
        count = counted(len(unknown), "dead letter")
        lines.append(f"{count} not found, such as {unknown[0]} (for ids of jobs use `jobs retry`)")
    return lines
