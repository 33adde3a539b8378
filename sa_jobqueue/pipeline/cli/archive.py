"""`sa-jobqueue archive`: move finished chains to Parquet, preview, list the runs, and erase chains from the files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click
from rich.console import RenderableType

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import counted, fields_of, print_result, shown, table_of
from sa_jobqueue.display.progress import ProgressLines
from sa_jobqueue.operations import DeadLetterFilter, list_dead_letters
from sa_jobqueue.pipeline.cli._spark import spark_session

if TYPE_CHECKING:
    from sa_jobqueue.pipeline.archive import ArchivePreview, ArchiveReport, Progress

_DOING: Final = {
    **{"planned": "writing", "part": "writing", "files": "verifying", "verified": "publishing", "written": "publishing"},
    **{"published": "publishing", "deleting": "deleting", "deleted batch": "deleting"},
    **{"deleted": "finishing", "rewritten": "finishing", "done": "selecting chains"},
    **{"abandoned files": "selecting chains", "abandoned": "selecting chains"},
}
"""Description of each step of an archiver."""
_SHOWN: Final = 10
"""Ids of erased chains that are printed at most; `--json` has all."""
_COUNTED: Final = 1_000
"""Unresolved dead letters that a preview counts at most."""


@click.command()
@click.argument("action", type=click.Choice(["runs", "erase"]), required=False)
@click.option(
    "--before",
    type=opts.age_or_instant,
    metavar="AGE|TIME",
    help="Archive chains that ended before this age or time, such as 30d, 12h or 2026-01-31.",
)
@click.option("--to", "path", metavar="PATH", help="Target: a folder, or a URI such as s3://bucket/archive.")
@click.option(
    "--engine",
    type=click.Choice(["pyarrow", "spark"]),
    default="pyarrow",
    show_default=True,
    help="What reads rows and writes files.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be archived, by type and month.")
@click.option("--include-dead", is_flag=True, help="Also archive chains with unresolved dead letters.")
@click.option(
    "--max-jobs", type=click.IntRange(1, 10_000_000), metavar="N", default=200_000, show_default=True, help="Jobs per run."
)
@click.option(
    "--max-runs", type=click.IntRange(min=1), metavar="N", help="Stop after this many runs.  [default: when nothing is left]"
)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="COLUMN=VALUE",
    help="With erase: chains with a job that has this value, such as input.customer_id=7 or fairness_key=acme; repeatable, "
    "and all must be true of one job.",
)
@click.option("--chain", "chain_ids", multiple=True, metavar="ID", help="With erase: the chain with this id, repeatable.")
@opts.yes_option
@click.option("--abandon", type=click.UUID, metavar="RUN", help="With runs: give up a run that has only been planned.")
@opts.json_option
@opts.with_database
def archive(
    database: opts.Database,
    /,
    *,
    action: str | None,
    before: timedelta | datetime | None,
    path: str | None,
    engine: str,
    dry_run: bool,
    include_dead: bool,
    max_jobs: int,
    max_runs: int | None,
    conditions: tuple[str, ...],
    chain_ids: tuple[str, ...],
    yes: bool,
    abandon: UUID | None,
) -> None:
    """Move finished chains from the tables to Parquet files. Files are read back before rows are deleted.

    If it is interrupted, run it again with the same --to, and it continues. A chain stays in the tables while a job of
    another chain there waits or waited for it, and while it has unresolved dead letters. `archive runs` lists earlier runs;
    `archive runs --abandon RUN` gives up one that has not begun to delete: its files are lost, or cannot be read.
    `archive erase` erases chains from the files, such as those of a person who asks for it, and from nowhere else.
    Requires the extra "archive".

    \b
    Example:
      sa-jobqueue archive --before 30d --to /srv/archive
    """
    from sa_jobqueue.pipeline import archive as archives

    if abandon is not None:
        if action != "runs":
            raise click.UsageError("--abandon goes with runs: sa-jobqueue archive runs --abandon RUN")
        archives.abandon_run(database.url, abandon, model=database.model)
        print_result({"abandoned": abandon}, f"run {abandon} given up; its chains are in the tables")
        return
    if action == "runs":
        _print_runs([dict(row._mapping) for row in archives.archive_runs(database.url, model=database.model)])
        return
    if action == "erase":
        _erase(database, path, conditions, chain_ids, dry_run=dry_run, yes=yes)
        return
    if before is None or (path is None and not dry_run):
        raise click.UsageError("--before and --to are required, such as --before 30d --to PATH")
    options = archives.ArchiveOptions(include_dead=include_dead, max_jobs=max_jobs, max_runs=max_runs)
    if dry_run or path is None:
        preview = archives.preview(database.url, before=before, model=database.model, options=options)
        _print_preview(preview, 0 if include_dead else _unresolved(database, preview.cutoff))
        return
    with _listener() as listener:
        keywords: dict[str, Any] = {"before": before, "model": database.model, "options": options, "on_progress": listener}
        report = (
            _with_spark(database, path, **keywords)
            if engine == "spark"
            else archives.archive(database.url, path, **keywords)
        )
    _print_report(report)


def _erase(
    database: opts.Database,
    path: str | None,
    conditions: tuple[str, ...],
    chain_ids: tuple[str, ...],
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    from sa_jobqueue.pipeline.archive import erase

    if path is None or not (conditions or chain_ids):
        raise click.UsageError("--to and --where or --chain are required, such as --to PATH --where input.customer_id=7")
    if malformed := [condition for condition in conditions if "=" not in condition]:
        raise click.UsageError(f"--where: must be COLUMN=VALUE, such as input.customer_id=7, got {malformed[0]!r}")
    where = dict(condition.split("=", 1) for condition in conditions)
    arguments: dict[str, Any] = {"where": where, "chain_ids": chain_ids, "model": database.model}
    erased = erase(database.url, path, dry_run=True, **arguments)
    if not dry_run and erased.chain_ids:
        if not yes:
            click.confirm(f"Erase {counted(len(erased.chain_ids), 'chain')} from {path}?", abort=True, err=True)
        erased = erase(database.url, path, **arguments)
    title = f"{counted(len(erased.chain_ids), 'chain')} {'would be erased' if dry_run else 'erased'} from {path}"
    parts: list[RenderableType] = [fields_of(title, asdict(erased) | {"chain_ids": ", ".join(erased.chain_ids[:_SHOWN])})]
    if erased.unsearched_jobs:
        parts.append(
            f"Not searched: {counted(erased.unsearched_jobs, 'job')} of other chains, whose values a codec has encoded. "
            "Pass their chains with --chain."
        )
    print_result(asdict(erased), *parts)


def _with_spark(database: opts.Database, path: str, **keywords: Any) -> ArchiveReport:
    from sa_jobqueue.pipeline.spark import archive as archive_with_spark

    with spark_session("archive") as spark:
        return archive_with_spark(spark, path, url=database.url.render_as_string(hide_password=False), **keywords)


@contextmanager
def _listener() -> Iterator[Callable[[Progress], None]]:
    """Print progress lines on standard error."""
    with ProgressLines("archive") as lines:
        lines.begin("selecting chains")
        last = "selecting chains"

        def show(progress: Progress) -> None:
            nonlocal last
            doing = _DOING[progress.step.value]
            if progress.step.value not in {"done", "abandoned", "abandoned files"}:
                doing = f"{doing} run {progress.run_id}"
            if doing != last:
                last = doing
                lines.begin(doing)
            if progress.total:
                lines.update(progress.completed, progress.total)

        yield show


def _unresolved(database: opts.Database, cutoff: datetime) -> int:
    """Return how many unresolved dead letters there are from before a time, counted up to `_COUNTED`."""
    where = DeadLetterFilter(resolved=False, died_before=cutoff)
    with database.session() as session:
        return len(list_dead_letters(session, where=where, limit=_COUNTED, model=database.model).items)


def _print_preview(preview: ArchivePreview, unresolved: int) -> None:
    rows = [(month.type_name, month.month, month.chains, month.jobs) for month in preview.months]
    count = f"{counted(preview.chains, 'chain')} of {counted(preview.jobs, 'job')}"
    title = f"{count} that ended before {shown(preview.cutoff)} would be archived"
    parts = [table_of(title, ["type", "month", "chains", "jobs"], rows), *_held(preview)]
    if preview.chains:
        attempts, letters = counted(preview.attempts, "attempt"), counted(preview.dead_letters, "dead letter")
        parts.append(f"Archived with them: {attempts}, {letters} and {counted(preview.blockers, 'blocker')}.")
    if preview.steps:
        parts.append(f"Deleted with them, and not archived: {counted(preview.steps, 'step result')}.")
    if unresolved:
        many = f"{'at least ' if unresolved == _COUNTED else ''}{counted(unresolved, 'dead letter')}"
        parts.append(
            f"Chains with unresolved dead letters are kept: {many}. Redrive or dismiss them, or pass --include-dead."
        )
    print_result(asdict(preview) | {"unresolved_dead_letters": unresolved}, *parts)


def _print_report(report: ArchiveReport) -> None:
    fields = asdict(report) | {"seconds": round(report.seconds, 1)}
    del fields["held_by"]
    document = asdict(report) | {"jobs_per_second": round(report.jobs / max(report.seconds, 0.001), 1)}
    print_result(document, fields_of(f"{counted(report.chains, 'chain')} archived", fields), *_held(report))


def _held(result: ArchivePreview | ArchiveReport) -> list[RenderableType]:
    if not result.held_chains:
        return []
    rows = [(reference.chain_id, reference.by_job_id, reference.by_chain_id) for reference in result.held_by]
    title = (
        f"{counted(result.held_chains, 'chain')} kept because jobs of chains that are kept refer to them; direct references"
    )
    return [table_of(title, ["chain", "referring job", "its chain"], rows)]


def _print_runs(rows: list[dict[str, Any]]) -> None:
    headings = ["id", "state", "engine", "path", "cutoff", "chains", "jobs", "retained", "started_at", "changed_at"]
    cells = [[row[name] for name in headings] for row in rows]
    print_result({"runs": rows}, table_of(counted(len(rows), "run"), headings, cells))
