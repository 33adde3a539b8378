"""`sa-jobqueue enqueue`: enqueue one job."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import print_result
from sa_jobqueue.models import JobMixin
from sa_jobqueue.operations import get_job
from sa_jobqueue.operations.writer import write_one
from sa_jobqueue.registry.job_queue import JobQueue


@click.command()
@click.argument("type_name", metavar="TYPE")
@opts.json_argument("payload")
@opts.application_option("The application's JobQueue: its tables, and its handler of TYPE, which checks the payload.")
@click.option("--queue", metavar="QUEUE", help="Queue.  [default: that of the handler, or 'default']")
@opts.number_option("--priority", "Priority, -9 to 9; larger runs first.  [default: that of the handler, or 0]")
@opts.duration_option("--delay", "Run no earlier than this long from now, such as 10m.")
@opts.instant_option("--at", "at", "Run no earlier than this time")
@opts.number_option("--max-attempts", "Maximum number of attempts.  [default: that of the handler, or 20]")
@click.option("--fairness-key", metavar="KEY", help="Customer, tenant or user of the job; keys share the queue.")
@click.option("--ordering-key", metavar="KEY", help="Jobs with the same key run one at a time, in order.")
@click.option("--deduplication-key", metavar="KEY", help="Refuse the job if an open chain of this type has the key.")
@opts.url_option
@opts.json_option
def enqueue(
    *, type_name: str, payload: Any, app: str | None, url: str | None, delay: timedelta | None, at: datetime | None,
    **options: Any,
) -> None:  # fmt: skip
    """Enqueue one job of TYPE with a JSON payload, and print its id. With - the payload is read from standard input.

    With --app the handler of TYPE checks the payload and has the defaults. Without it any type and payload are accepted.

    \b
    Example:
      sa-jobqueue enqueue send_receipt '{"order_id": 7}' --app shop.jobs:jobs --delay 10m
    """
    job_options = {name: value for name, value in options.items() if value is not None}
    application = opts.load_object(app) if app is not None else None
    with opts.usage_errors():
        if isinstance(application, JobQueue):
            handler = application[type_name]
            decoded = handler.job_type.input.decode(f"payload of {type_name!r}", payload)
            job: JobMixin[Any] = handler.job(decoded, delay=delay, at=at, **job_options)
        else:
            job = opts.load_model(app)(type_name, payload, delay=delay, at=at, **job_options)
    with opts.Database(opts.parse_url(url), type(job)).session() as session:
        job_id = write_one(session, job)
        queue = job.queue or get_job(session, job_id, model=type(job)).queue
        session.commit()
    print_result({"id": job_id, "type_name": type_name, "queue": queue}, str(job_id))
