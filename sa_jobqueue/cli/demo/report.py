"""The result of a run, and its check."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.cli._output import first_line
from sa_jobqueue.cli.demo.app import FileCounts, Job, SourceFile
from sa_jobqueue.cli.demo.files import Counts
from sa_jobqueue.operations import DeadLetterFilter, group_dead_letters, list_dead_letters
from sa_jobqueue.types import AttemptOutcome, JobStatus

_SHOWN = 5
"""Maximum number of files named in a complaint; the rest are counted."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Dead letters with the same error, with examples."""

    error: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run. `seconds` is the time from the first claim to the last end, by the database's clock."""

    files: int
    completed: int
    retries: int
    rescued: int
    dead_letters: int
    dead_by_error: tuple[ErrorGroup, ...]
    seconds: float
    plain_seconds: float
    killed_pids: tuple[int, ...]
    pids: tuple[int, ...]
    complaints: tuple[str, ...] = field(default=())

    @property
    def jobs_per_second(self) -> float:
        """Ended jobs per second of the whole run, which includes the wait for the killed worker's jobs."""
        return (self.completed + self.dead_letters) / self.seconds if self.seconds else 0.0

    @property
    def is_right(self) -> bool:
        """Whether the check passed."""
        return not self.complaints

    def as_document(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible dict."""
        return asdict(self) | {"jobs_per_second": round(self.jobs_per_second, 1), "ok": self.is_right}


def read(
    session: Session,
    *,
    plain: Mapping[str, Counts | None],
    plain_seconds: float,
    killed: Mapping[int, str],
    pids: Sequence[int],
) -> Report:
    """Read the results from the database, and check them against the expected counts.

    `killed`: worker ids of killed processes, by process id.
    """
    statuses = dict(session.execute(select(Job.status, func.count()).group_by(Job.status)).all())
    outcomes = dict(session.execute(select(Job.Attempt.outcome, func.count()).group_by(Job.Attempt.outcome)).all())
    lost_workers = set(
        session.scalars(select(Job.Attempt.worker_id).where(Job.Attempt.outcome == AttemptOutcome.LOST.value))
    )
    first, last = session.execute(select(func.min(Job.started_at), func.max(Job.completed_at))).one()
    results: dict[str, list[Counts]] = {}
    for row in session.scalars(select(FileCounts)):
        results.setdefault(row.path, []).append(Counts(row.lines, row.functions, row.classes, row.imports))
    dead = Counter(session.scalars(select(SourceFile.path).join(Job.DeadLetter, Job.DeadLetter.job_id == SourceFile.job_id)))
    complaints = compare(set(session.scalars(select(SourceFile.path))), plain, results, dead)
    complaints += [f"{count} jobs are still {status}" for status, count in statuses.items() if status not in _ENDS]
    if not killed:
        complaints.append("no worker was killed, as none was found running a job; try more --files")
    complaints += [
        f"no job was rescued from the killed worker {pid}" for pid, name in killed.items() if name not in lost_workers
    ]
    failed = outcomes.get(AttemptOutcome.FAILED.value, 0)
    return Report(
        files=len(plain),
        completed=statuses.get(JobStatus.COMPLETED, 0),
        retries=failed - dead.total(),
        rescued=outcomes.get(AttemptOutcome.LOST.value, 0),
        dead_letters=dead.total(),
        dead_by_error=_groups(session),
        seconds=(last - first).total_seconds() if first and last else 0.0,
        plain_seconds=plain_seconds,
        killed_pids=tuple(killed),
        pids=tuple(pids),
        complaints=tuple(complaints),
    )


_ENDS = frozenset({JobStatus.COMPLETED, JobStatus.DEAD})


def compare(
    recorded: set[str],
    plain: Mapping[str, Counts | None],
    results: Mapping[str, Sequence[Counts]],
    dead: Mapping[str, int],
) -> list[str]:
    """Return complaints: files without exactly one result or dead letter, or with wrong counts. Pure."""
    wrong: dict[str, list[str]] = {}
    for path in sorted(plain.keys() | recorded | results.keys() | dead.keys()):
        ends, dead_letters, expected = results.get(path, ()), dead.get(path, 0), plain.get(path)
        if path not in plain or path not in recorded:
            wrong.setdefault("was not both enqueued and counted without the queue", []).append(path)
        elif len(ends) + dead_letters != 1:
            wrong.setdefault(
                f"has {len(ends)} results and {dead_letters} dead letters, instead of one of either", []
            ).append(path)
        elif expected is None and not dead_letters:
            wrong.setdefault("is broken, but has a result", []).append(path)
        elif expected is not None and dead_letters:
            wrong.setdefault("is valid, but has a dead letter", []).append(path)
        elif expected is not None and ends[0] != expected:
            wrong.setdefault("has different counts", []).append(path)
    return [
        f"{', '.join(paths[:_SHOWN])}{f' and {len(paths) - _SHOWN} more' if len(paths) > _SHOWN else ''}: {what}"
        for what, paths in wrong.items()
    ]


def _groups(session: Session) -> tuple[ErrorGroup, ...]:
    groups = []
    for group in group_dead_letters(session, model=Job):
        where = DeadLetterFilter(fingerprints=[group.fingerprint] if group.fingerprint else [])
        dead_letters = list_dead_letters(session, where=where, limit=_SHOWN, newest_first=False, model=Job)
        examples = tuple(f"{dead_letter.input['path']}: {first_line(dead_letter.error)}" for dead_letter in dead_letters)
        groups.append(ErrorGroup(group.error_type or group.reason, group.count, examples))
    return tuple(groups)
