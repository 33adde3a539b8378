"""`rehearse` of jobs and of dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import IO, Any, Final

import click
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import print_result
from sa_jobqueue.db.urls import for_psycopg
from sa_jobqueue.display.redaction import error_line
from sa_jobqueue.rehearsal import RehearsalError, rehearse
from sa_jobqueue.types import JobId

_UNKNOWN: Final = 2
"""Exit status if a job cannot be rehearsed, or its rehearsal was stopped."""

options: Final = opts.stacked(
    opts.application_option("The application's JobQueue, with the handler.", required=True),
    click.option("--engine", metavar="MODULE:ATTRIBUTE", help="The application's engine or session factory, not --url."),
    click.option("--input", "file", type=click.File(), metavar="FILE", help="Use this JSON as input; - is standard input."),
    click.option("--allow-step", "allow_steps", multiple=True, metavar="NAME", help="Execute this step; may be repeated."),
    opts.duration_option("--timeout", "Limit of each rehearsal.", type=opts.period, default=timedelta(seconds=30)),
    opts.duration_option("--lock-timeout", "Limit of a wait for a lock.", type=opts.period, default=timedelta(seconds=1)),
    opts.url_option,
    opts.json_option,
)
"""The options of both commands."""


def rehearse_jobs(
    find: Callable[[opts.Database], Sequence[JobId]],
    *,
    is_sample: bool = False,
    app: str,
    engine: str | None,
    url: str | None,
    file: IO[str] | None,
    **arguments: Any,
) -> None:
    """Rehearse the jobs that `find` returns; print the report of the only one, or the outcomes of a sample. Raises: Exit."""
    jobs = opts.load_jobs(app)
    bind, factories = opts.engine_of(
        opts.load_object(engine) if engine else create_async_engine(opts.parse_url(url)), engine
    )
    maker: Any = async_sessionmaker if isinstance(bind, AsyncEngine) else sessionmaker
    factory = next(iter(factories.values()), None) or maker(bind)
    if file is not None:
        arguments["input"] = opts.json_document(file.read())
    reports, refusals = [], Counter[str]()
    job_ids = find(opts.Database(for_psycopg(bind.url, option="engine"), jobs.model))
    if not job_ids:
        raise click.ClickException("no dead letter found (for the id of a job use `jobs rehearse`)")
    for job_id in job_ids:
        try:
            reports.append(rehearse(factory, job_id, jobs=jobs, **arguments))
        except RehearsalError as error:
            refusals[str(error)] += 1
    counts = refusals + Counter(f"{report.outcome} {error_line(report.error) or report.reason}" for report in reports)
    if reports and not is_sample:
        print_result(asdict(reports[0]), *str(reports[0]).splitlines())
    else:
        lines = [f"{count} of {len(job_ids)}: {words.strip()}" for words, count in counts.most_common()]
        print_result({"rehearsals": [asdict(report) for report in reports], "refused": refusals}, *lines)
    statuses = [{"stopped": _UNKNOWN, "retries": 1, "dies": 1}.get(report.outcome, 0) for report in reports]
    click.get_current_context().exit(max([*statuses, _UNKNOWN * bool(refusals)]))
