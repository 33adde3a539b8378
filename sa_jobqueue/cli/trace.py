"""`sa-jobqueue trace`: show a chain as a tree of its attempts, with times, from the job tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

import click
from rich.text import Text
from rich.tree import Tree
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import first_line, print_result, shown
from sa_jobqueue.operations import get_chain, list_attempts, list_blockers, list_chain_jobs
from sa_jobqueue.operations.pages import every_item
from sa_jobqueue.types import JobStatus

MOST_JOBS: Final = 500
"""Maximum number of jobs shown: each needs two statements."""

_CHAIN: Final = ("id", "type_name", "status", "created_at", "completed_at")
_COLORS: Final = {"completed": "green", "dead": "red", "failed": "red", "timed_out": "red", "lost": "red"}


@click.command()
@click.argument("chain_id", metavar="ID")
@opts.number_option("--depth", "Levels of blockers to follow.", least=0, most=20, default=3)
@opts.reading
def trace(database: opts.Database, /, *, chain_id: str, depth: int) -> None:
    """Show a chain as a tree: its jobs in order, their attempts, and the chains that they waited for.

    ID is the id of its first job. Times are seconds since the chain was enqueued. The data is read from the job tables,
    so no tracing is needed; with OpenTelemetry, the trace ids link to the spans.
    """
    with database.session() as session:
        document = _Reader(session, database.model).chain(database.job_id(chain_id), depth)
    tree = Tree(_heading(document))
    _grow(tree, document, document["created_at"])
    print_result(document, tree)


@dataclass
class _Reader:
    """Reads chains as documents. Chains seen before, and those beyond `MOST_JOBS` jobs, have no jobs."""

    session: Session
    model: Any
    shown_ids: set[Any] = field(default_factory=set)
    jobs_left: int = MOST_JOBS

    def chain(self, chain_id: Any, depth: int) -> dict[str, Any]:
        chain = get_chain(self.session, chain_id, model=self.model)
        fields: dict[str, Any] = {name: getattr(chain, name) for name in _CHAIN}
        if chain.id in self.shown_ids or self.jobs_left <= 0:
            return fields | {"left_out": "shown above" if chain.id in self.shown_ids else f"beyond {MOST_JOBS} jobs"}
        self.shown_ids.add(chain.id)
        page = list_chain_jobs(self.session, chain.id, limit=self.jobs_left, model=self.model)
        self.jobs_left -= len(page.items)
        fields["jobs"] = [self._job(job, depth) for job in page]
        return fields

    def _job(self, job: Any, depth: int) -> dict[str, Any]:
        blockers: Any = list_blockers(self.session, job.id, limit=MOST_JOBS, model=self.model) if depth else []
        attempts = [
            {name: getattr(row, name) for name in ("attempt", "outcome", "started_at", "ended_at", "worker_id")}
            | {"error": first_line(row.error, job.type_name) or None}
            | {"trace_context": row.error.get("trace_context") if isinstance(row.error, dict) else None}
            for row in every_item(lambda after: list_attempts(self.session, job.id, after=after, model=self.model))
        ]
        if job.status is JobStatus.RUNNING or (job.status is JobStatus.COMPLETED and job.completed_by is not None):
            last = {"attempt": job.attempt, "outcome": job.status, "started_at": job.started_at}
            last |= {"ended_at": job.completed_at, "worker_id": job.completed_by or job.leased_by, "error": None}
            attempts.append(last | {"trace_context": None})
        waited_for = [self.chain(blocker.blocked_by_chain_id, depth - 1) for blocker in blockers]
        fields = {name: getattr(job, name) for name in (*_CHAIN, "scheduled_at", "trace_context")}
        return fields | {"waited_for": waited_for, "attempts": attempts}


def _grow(tree: Tree, chain: dict[str, Any], since: datetime) -> None:
    for job in chain.get("jobs", ()):
        branch = tree.add(_line(job["type_name"], job["id"], job["status"], since, job["created_at"]))
        traced = _trace_id(job["trace_context"])
        if traced:
            branch.add(Text(f"trace {traced}", style="dim"))
        if job["waited_for"]:
            waited = branch.add(Text(f"waited for {len(job['waited_for'])}"))
            for blocker in job["waited_for"]:
                _grow(waited.add(_heading(blocker, since)), blocker, since)
        for attempt in job["attempts"]:
            branch.add(_attempt_line(attempt, since))
        if not job["attempts"] and job["status"] is JobStatus.PENDING:
            branch.add(Text(f"due {_offset(since, job['scheduled_at'])}", style="dim"))


def _heading(chain: dict[str, Any], since: datetime | None = None) -> Text:
    at = "" if since is None else f" {_offset(since, chain['created_at'])}"
    ended = "" if chain["completed_at"] is None else f" in {_seconds(chain['completed_at'] - chain['created_at'])}"
    left_out = (f" ({chain['left_out']})", "dim") if "left_out" in chain else ""
    name = f"chain {shown(chain['type_name'])} {shown(chain['id'])} "
    return Text.assemble(name, _state(chain["status"]), at, ended, left_out)


def _line(type_name: str, job_id: Any, status: str, since: datetime, at: datetime) -> Text:
    return Text.assemble(f"{shown(type_name)} {shown(job_id)} ", _state(status), f" {_offset(since, at)}")


def _attempt_line(attempt: dict[str, Any], since: datetime) -> Text:
    started, ended = attempt["started_at"], attempt["ended_at"]
    at = "" if started is None else f" {_offset(since, started)}"
    took = "" if started is None or ended is None else f" in {_seconds(ended - started)}"
    worker = (f" on {shown(attempt['worker_id'])}", "dim") if attempt["worker_id"] else ""
    error = f": {shown(attempt['error'])}" if attempt["error"] else ""
    return Text.assemble(f"attempt {attempt['attempt']} ", _state(str(attempt["outcome"])), at, took, worker, error)


def _state(name: str) -> tuple[str, str]:
    return name.replace("_", " "), _COLORS.get(name, "yellow")


def _offset(since: datetime, at: datetime) -> str:
    seconds = (at - since).total_seconds()
    return f"at {'+' if seconds >= 0 else ''}{seconds:.3f} s"


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():.3f} s"


def _trace_id(traceparent: str | None) -> str | None:
    parts = (traceparent or "").split("-")
    return shown(parts[1]) if len(parts) == 4 else None
