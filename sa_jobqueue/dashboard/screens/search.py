"""One search over jobs by id, and queues, job types, workers and schedules by a part of their name."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.parameters import ParameterError, Params
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.operations import (
    JobFilter,
    list_job_types,
    list_jobs,
    list_queues,
    list_schedules,
    list_workers,
)

_LISTED: Final = 8
"""Maximum number of rows of one kind."""
_WORKERS: Final = 200


def view(context: Context) -> dict[str, Any]:
    """Return links to the rows that a text names; a text that is an id has its job first."""
    text = (context.params.text("q") or "").strip()
    if not text:
        return {"text": "", "links": [], "jobs_url": ""}
    with context.read() as session:
        links = [*_job(context, session, text), *_named(context, session, text.casefold())]
    return {"text": text, "links": links, "jobs_url": context.url("jobs", search=text)}


def _job(context: Context, session: Session, text: str) -> list[tuple[str, str, str]]:
    try:
        job_id = Params([("id", text)]).job_id("id", context.model)
    except ParameterError:
        return []
    jobs = list_jobs(session, where=JobFilter(ids=[job_id]), columns=["id", "type_name", "status"], model=context.model)
    return [("job", f"{job.type_name} {job.id}, {job.status}", context.url("job", id=job.id)) for job in jobs]


def _named(context: Context, session: Session, text: str) -> list[tuple[str, str, str]]:
    """Return kind, name and link of rows with a part of their name, those that begin with it first."""
    ttl: dict[str, Any] = {"heartbeat_timeout": context.source.heartbeat_timeout, "model": context.model}
    workers = list_workers(session, limit=_WORKERS, model=context.model)
    schedules = list_schedules(session, model=context.model)
    kinds = {
        "queue": ("queue", [queue.name for queue in list_queues(session, fairness_key="", **ttl)]),
        "job type": ("job-type", [status.type_name for status in list_job_types(session, **ttl)]),
        "worker": ("workers", list(dict.fromkeys(worker.name for worker in workers))),
        "schedule": ("schedules", [schedule.name for schedule in schedules]),
    }
    links = []
    for kind, (screen, names) in kinds.items():
        matching = sorted(
            (name for name in names if text in name.casefold()), key=lambda name: (name.casefold().find(text), name)
        )
        links += [(kind, name, context.url(screen, name=name)) for name in matching[:_LISTED]]
    return links


SCREEN = Screen(name="search", title="Search", view=view, part_of="overview", refresh=0)
