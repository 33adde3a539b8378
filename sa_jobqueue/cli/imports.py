"""`sa-jobqueue import`: move the waiting jobs of procrastinate or pgqueuer to this queue, in one transaction.

Their tables are read with plain SQL: neither package has to be installed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

import click
from sqlalchemy import Connection, Row, inspect, text
from sqlalchemy.orm import Session

from sa_jobqueue.cli import _options as opts
from sa_jobqueue.cli._output import counted, echo, print_result, table_of
from sa_jobqueue.display.redaction import is_redacted
from sa_jobqueue.errors import InvalidJobError, InvalidPayloadError, JobQueueError
from sa_jobqueue.models import JobMixin
from sa_jobqueue.models.job import DEFAULT_QUEUE
from sa_jobqueue.operations import Deduplicate, enqueue_many
from sa_jobqueue.operations.audit import record
from sa_jobqueue.registry.handlers import Handler
from sa_jobqueue.registry.job_queue import JobQueue
from sa_jobqueue.types import MAX_PRIORITY, MIN_PRIORITY, Enqueued

_PAGE: Final = 1000
"""Jobs that are read, enqueued and deleted at a time, all in the same transaction."""
_NAMED: Final = 5
"""Ids that are shown for each reason."""
_REASONS: Final = 20
"""Reasons that are shown for each task; a reason can quote a payload, so there may be one for each job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The table of another queue, and what its columns are called there."""

    name: str
    table: str
    columns: Mapping[str, str]
    deduplication_scope: Literal["open", "waiting"]
    """Which of our jobs have a key taken: the statuses in which the other queue has it."""
    waiting: str
    """Status of the jobs that wait."""
    running: str

    def find(self, connection: Connection, schema: str | None, prefix: str) -> str:
        """Return the quoted name of the table. Raises: click.UsageError if it does not exist, or a column of it."""
        name, inspector = f"{prefix}{self.table}", inspect(connection)
        if not inspector.has_table(name, schema):
            where = f"schema {schema!r}" if schema else "the search path"
            raise click.UsageError(f"table {name!r} of {self.name} not found in {where} of this database; pass --schema")
        found = {column["name"] for column in inspector.get_columns(name, schema)}
        if missing := sorted({"id", "priority", *self.columns.values()} - found):
            raise click.UsageError(f"table {name!r} has no column {missing[0]!r}; upgrade {self.name} first")
        quote = connection.dialect.identifier_preparer.quote
        return ".".join(quote(part) for part in (schema, name) if part)


_SOURCES: Final = {
    "procrastinate": Source(
        name="procrastinate",
        table="procrastinate_jobs",
        columns={
            **{"task": "task_name", "payload": "args", "due": "scheduled_at", "queue": "queue_name"},
            **{"deduplication_key": "queueing_lock", "ordering_key": "lock"},
        },
        deduplication_scope="waiting",
        waiting="todo",
        running="doing",
    ),
    "pgqueuer": Source(
        name="pgqueuer",
        table="pgqueuer",
        columns={"task": "entrypoint", "payload": "payload", "due": "execute_after", "deduplication_key": "dedupe_key"},
        deduplication_scope="open",
        waiting="queued",
        running="picked",
    ),
}
_COLUMNS: Final = ("task", "payload", "due", "queue", "deduplication_key", "ordering_key")


@dataclass(slots=True)
class TaskCounts:
    """Result of the import for the waiting jobs of one task."""

    task: str
    type_name: str | None
    waiting: int = 0
    moved: int = 0
    duplicates: int = 0
    """Number of moved jobs that were not enqueued, because an open job has the same deduplication key."""
    priority_changed: int = 0
    """Number of moved jobs whose priority was outside -9 to 9 and became the nearest bound."""
    left: int = 0
    reasons: dict[str, list[int]] = field(default_factory=dict)
    """Why jobs are left, with their ids there."""

    def leave(self, reason: str, job_id: int) -> None:
        """Count a job that cannot be moved."""
        self.left += 1
        known = reason if reason in self.reasons or len(self.reasons) < _REASONS else "other reasons"
        self.reasons.setdefault(known, []).append(job_id)


@dataclass(slots=True)
class _Move:
    """One transfer, within the caller's transaction."""

    session: Session
    jobs: JobQueue[Any]
    source: Source
    table: str
    types: Mapping[str, str]
    tasks: dict[str, TaskCounts] = field(default_factory=dict)
    held: dict[str, str] = field(default_factory=dict)
    """Why jobs with an ordering key have to stay, by key: those behind a job that stays would overtake it."""
    ids: list[Any] = field(default_factory=list)

    def run(self) -> None:
        connection, of = self.session.connection(), self.source.columns
        waiting = f"FROM {self.table} WHERE status = '{self.source.waiting}'"
        # Before the keys are read: a job that starts later could not be known to hold its key.
        connection.execute(text(f"SELECT count(*) FROM (SELECT id {waiting} ORDER BY id FOR UPDATE) locked"))
        if key := of.get("ordering_key"):
            held = f"SELECT DISTINCT {key} FROM {self.table} WHERE status = '{self.source.running}' AND {key} IS NOT NULL"
            for found in connection.execute(text(held)).scalars():
                self.held[found] = f"a running job of {self.source.name} holds its lock"
        columns = ", ".join(f"{of.get(name, 'NULL')} AS {name}" for name in _COLUMNS)
        jobs = text(f"SELECT id, priority, {columns} {waiting} ORDER BY priority DESC, id FOR UPDATE")
        options = {"stream_results": True, "yield_per": _PAGE}
        for page in connection.execute(jobs, execution_options=options).partitions():
            self._move(page)

    def others(self) -> dict[str, int]:
        """Return how many jobs have each of the other statuses."""
        others = f"FROM {self.table} WHERE status <> '{self.source.waiting}' GROUP BY 1 ORDER BY 1"
        rows = self.session.execute(text(f"SELECT status::text AS status, count(*) AS jobs {others}"))
        return {row.status: row.jobs for row in rows}

    def _move(self, page: Sequence[Row[Any]]) -> None:
        moved: list[int] = []
        plain: list[JobMixin[Any]] = []
        keyed: list[tuple[JobMixin[Any], TaskCounts]] = []
        for row in page:
            counts = self._counts(row.task)
            counts.waiting += 1
            try:
                job = self._job(row, counts.type_name)
            except JobQueueError as error:
                # The message of a refused payload can quote it.
                hidden = isinstance(error, InvalidJobError) and is_redacted(counts.type_name)
                counts.leave("(redacted)" if hidden else str(error), row.id)
                if row.ordering_key is not None:
                    self.held.setdefault(row.ordering_key, "a job with the same lock that runs earlier cannot be moved")
                continue
            moved.append(row.id)
            counts.moved += 1
            counts.priority_changed += job.priority != row.priority
            if row.deduplication_key is None:
                plain.append(job)
            else:
                keyed.append((job, counts))
        self.ids += enqueue_many(self.session, plain)
        found = enqueue_many(self.session, [job for job, _ in keyed], deduplicate_by=self._policy)
        for (_, counts), (job_id, outcome) in zip(keyed, found, strict=True):
            if outcome is Enqueued.CREATED:
                self.ids.append(job_id)
            else:
                counts.duplicates += 1
        self.session.execute(text(f"DELETE FROM {self.table} WHERE id = ANY (:ids)"), {"ids": moved})

    def _policy(self, job: JobMixin[Any]) -> Deduplicate:
        return Deduplicate(job.deduplication_key or "", scope=self.source.deduplication_scope)

    def _counts(self, task: str) -> TaskCounts:
        if task not in self.tasks:
            type_name = self.types.get(task, task)
            self.tasks[task] = TaskCounts(task, type_name if type_name in _names(self.jobs) else None)
        return self.tasks[task]

    def _job(self, row: Row[Any], type_name: str | None) -> JobMixin[Any]:
        """Return a waiting job as one of this queue. Raises: JobQueueError if it cannot be moved."""
        if type_name is None:
            raise JobQueueError(f"no handler is named {row.task!r}; pass --map '{row.task}=TYPE'")
        if row.ordering_key in self.held:
            raise JobQueueError(self.held[row.ordering_key])
        handler = self.jobs[type_name]
        job: JobMixin[Any] = handler.job(
            _payload(handler, row.payload),
            at=row.due,
            # the queue of a procrastinate task that declares none
            queue=None if row.queue in {None, DEFAULT_QUEUE} else row.queue,
            priority=min(max(row.priority, MIN_PRIORITY), MAX_PRIORITY),
            deduplication_key=row.deduplication_key,
            ordering_key=row.ordering_key,
        )
        return job


def _payload(handler: Handler[Any, Any, Any], stored: Any) -> Any:
    """Return the typed payload of JSON bytes, or of arguments. Raises: JobQueueError."""
    if isinstance(stored, (bytes, memoryview)):
        try:
            stored = json.loads(bytes(stored))
        except ValueError:
            raise JobQueueError("its payload is not JSON") from None
    if stored is None or (stored == {} and not handler.job_type.takes_input):
        return None
    if not handler.job_type.takes_input:
        raise JobQueueError(f"handler {handler.name!r} takes no payload, and the job has one")
    kind = handler.job_type.input
    payload = kind.decode("payload", stored)
    # A model that ignores fields it does not have would lose them: the old row is deleted.
    kept = kind.encode("payload", payload)
    if isinstance(stored, dict) and isinstance(kept, dict) and (surplus := sorted(stored.keys() - kept.keys())):
        raise InvalidPayloadError("payload", f"has {surplus[0]!r}, which the handler does not take")
    return payload


@click.command("import")
@click.argument("source", metavar="procrastinate|pgqueuer", type=click.Choice(list(_SOURCES)))
@opts.application_option("The application's JobQueue: its tables, and the handlers that check the payloads.", required=True)
@click.option(
    "--map",
    "pairs",
    multiple=True,
    metavar="TASK=TYPE",
    help="Job type for a task's jobs; may be repeated.  [default: the type with the name of the task]",
)
@click.option("--schema", metavar="NAME", help="Schema of the old tables.  [default: the search path]")
@click.option("--prefix", default="", metavar="PREFIX", help="PGQUEUER_PREFIX of the installation.")
@click.option("--partial", is_flag=True, help="Move the rest if some jobs cannot be moved.")
@click.option("--dry-run", is_flag=True, help="Do everything, show what was done, and roll it back.")
@opts.by_option
@opts.url_option
@opts.json_option
def import_(
    *, source: str, app: str, pairs: Sequence[str], url: str | None, schema: str | None, prefix: str, partial: bool,
    dry_run: bool, by: str,
) -> None:  # fmt: skip
    """Move the waiting jobs of another queue in the same database to this one.

    Jobs of procrastinate with the status todo keep their arguments, time, priority, queue, lock and queueing lock. Jobs of
    pgqueuer with the status queued keep their payload, which must be JSON, time, priority and dedupe key.

    In one transaction: all of them or, if one cannot be moved, none; each that cannot be is counted with the reason, and
    the exit status is 1. Stop the other queue's workers first. Running this again moves what has been added since.
    """
    of = _SOURCES[source]
    with opts.application_session(app, url) as (jobs, session), session.begin() as transaction:
        types = _types(jobs, pairs)
        move = _Move(session, jobs, of, of.find(session.connection(), schema, prefix), types)
        move.run()
        others = move.others()
        tasks = sorted(move.tasks.values(), key=lambda counts: counts.task)
        is_refused = not partial and any(counts.left for counts in tasks)
        if dry_run or is_refused:
            transaction.rollback()
        else:
            record(session, "import_jobs", by=by, ids=move.ids, model=jobs.model, source=source, types=types)
    _print(tasks, others, of, dry_run=dry_run, is_refused=is_refused)
    if is_refused:
        echo("Nothing was changed. Correct these jobs, or pass --partial to move the rest.", err=True)
        raise click.exceptions.Exit(1)


def _types(jobs: JobQueue[Any], pairs: Iterable[str]) -> dict[str, str]:
    types, names = {}, _names(jobs)
    for pair in pairs:
        task, separator, type_name = pair.rpartition("=")
        if not separator or not task:
            raise click.BadParameter(f"{pair!r} must be TASK=TYPE, such as shop.tasks.send=send", param_hint="--map")
        if type_name not in names:
            known = ", ".join(sorted(names)) or "none"
            raise click.BadParameter(f"no handler is named {type_name!r}; there are: {known}", param_hint="--map")
        types[task] = type_name
    return types


def _names(jobs: JobQueue[Any]) -> set[str]:
    return {handler.name for handler in jobs}


def _print(tasks: list[TaskCounts], others: dict[str, int], source: Source, *, dry_run: bool, is_refused: bool) -> None:
    moved, left = sum(counts.moved for counts in tasks), sum(counts.left for counts in tasks)
    document = {"source": source.name, "dry_run": dry_run, "committed": not (dry_run or is_refused)}
    document |= {"moved": moved, "left": left, "other": others, "tasks": [_row(counts) for counts in tasks]}
    title = f"{counted(moved, 'job')} {'would be moved' if dry_run or is_refused else 'moved'}"
    if left:
        title += f", {left} cannot be"
    headings = ["task", "type", "waiting", "movable" if dry_run or is_refused else "moved", "duplicates", "left"]
    rows = [(one.task, one.type_name, one.waiting, one.moved, one.duplicates, one.left) for one in tasks]
    lines: list[str] = []
    for one in tasks:
        for reason, ids in one.reasons.items():
            named = ", ".join(str(job_id) for job_id in ids[:_NAMED]) + (", ..." if len(ids) > _NAMED else "")
            lines.append(f"{one.task}: {counted(len(ids), 'job')} left: {reason} (ids {named})")
        if one.priority_changed:
            bound = f"its nearest bound of {MIN_PRIORITY} to {MAX_PRIORITY}"
            lines.append(f"{one.task}: {counted(one.priority_changed, 'job')} whose priority becomes {bound}")
    if others:
        lines.append(f"not looked at in {source.name}: " + ", ".join(f"{n} {status}" for status, n in others.items()))
    print_result(document, table_of(title, headings, rows), *lines)


def _row(counts: TaskCounts) -> dict[str, Any]:
    reasons = [{"reason": reason, "jobs": len(ids), "ids": ids[:_NAMED]} for reason, ids in counts.reasons.items()]
    return asdict(counts) | {"reasons": reasons}
