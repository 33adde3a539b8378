"""The findings of a health report, with all of their texts. Pure: no clock, no I/O."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, timedelta
from typing import Any, Final

from sa_jobqueue.display.printable import byte_size, span
from sa_jobqueue.observe.health.figures import (
    MISSED,
    SLOTS,
    Code,
    Finding,
    Health,
    Holder,
    HolderKind,
    IndexHealth,
    Severity,
    TableHealth,
    Waiting,
)
from sa_jobqueue.observe.health.thresholds import Thresholds
from sa_jobqueue.operations.explaining import refused_write
from sa_jobqueue.operations.row_security import in_words
from sa_jobqueue.operations.silence import Silence
from sa_jobqueue.policies.fairness import QueueKey
from sa_jobqueue.types import DeadReason

Evidence = Mapping[str, Any]
OK, WARNING, CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL


def judge(figures: Health, thresholds: Thresholds) -> Health:
    """Return the report with its findings, the most severe first: none that depends on a figure that is missing."""
    findings = [*_missing(figures), *_hidden(figures)]
    unknown = {*figures.missing, *(name for rows in figures.hidden for name in _NEEDED_ROWS.get(rows.noun, ()))}
    if figures.server.is_replica:
        unknown |= OF_PRIMARY
    for find, needs in _FINDINGS:
        if needs.isdisjoint(unknown):
            findings += find(figures, thresholds)
    judged = [_silenced(finding, figures) for finding in _folded(findings)]
    return replace(figures, findings=sorted(judged, key=lambda finding: -finding.severity))


def _silenced(finding: Finding, report: Health) -> Finding:
    """Return a finding as ok, with who has silenced it until when and why, if it was."""
    subjects = {""}
    for value in finding.evidence.values():
        subjects |= {value} if isinstance(value, str) else set(value) if _are_names(value) else set()
    for silence in report.silenced:
        if silence.code == finding.code and silence.subject in subjects:
            reason = f": {silence.reason}" if silence.reason else ""
            who = f" by {silence.by}" if silence.by else ""
            until = f"Silenced until {silence.until.astimezone(UTC):%Y-%m-%d %H:%M} UTC{who}{reason}."
            evidence = dict(finding.evidence) | {"silenced_until": silence.until, "severity": finding.severity}
            return replace(finding, severity=OK, details=f"{finding.details} {until}".lstrip(), evidence=evidence)
    return finding


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(member, str) for member in value)


def _folded(findings: Sequence[Finding]) -> list[Finding]:
    """Return one finding for one cause: leave out those that follow from another, which becomes as severe as they are."""
    findings_left = list(findings)

    def fold(child: Finding, into: Finding, sentences: str = "") -> None:
        findings_left.remove(child)
        bad = max(child.severity, into.severity)
        details = f"{into.details} {sentences}".strip()
        findings_left[findings_left.index(into)] = replace(into, severity=bad, details=details)

    def of_code(code: Code) -> list[Finding]:
        return [finding for finding in findings_left if finding.code is code]

    for unserved in of_code(Code.QUEUE_UNSERVED):
        for silent in of_code(Code.WORKERS_SILENT):
            queues = [name for name in unserved.evidence["queues"] if name in silent.evidence["queues"]]
            if queues:
                never = [name for name in unserved.evidence["queues"] if name not in queues]
                fold(unserved, silent, f"No other worker serves {_names(queues)}, where jobs are due.")
                findings_left += [_unserved(never)] if never else []
    for code, cause_code, follows, joined in _FOLDS:
        for child in of_code(code):
            for into in [cause for cause in of_code(cause_code) if follows(child.evidence, cause.evidence)][:1]:
                fold(child, into, "" if joined is None else f"{joined}{child.summary}")
    bloated = of_code(Code.BLOAT)
    if len(bloated) > 1:
        names = [finding.evidence["name"] for finding in bloated]
        wasted = sum(finding.evidence["wasted_bytes"] for finding in bloated)
        cause = f"About {byte_size(wasted)} of {len(names)} tables and indexes is bloat"
        # Tables come first, and a table that is written again has new indexes.
        findings_left[findings_left.index(bloated[0])] = replace(
            bloated[0], cause=cause, details=f"{', '.join(names)}.", evidence={"names": names, "wasted_bytes": wasted}
        )
        findings_left = [finding for finding in findings_left if finding not in bloated]
    return findings_left


def _always(child: Evidence, into: Evidence) -> bool:
    return True


_UNSEEN: Final = "By its own data: "
_BY_CLOCK: Final = "By the database's clock: "
_FOLDS: Final[Sequence[tuple[Code, Code, Callable[[Evidence, Evidence], bool], str | None]]] = (
    (Code.ORPHANED, Code.WORKERS_SILENT, lambda child, into: child["orphaned"] <= into["running"], None),
    (Code.WORKERS_SILENT, Code.NO_WORKER, _always, ""),
    (Code.SCHEDULE_LATE, Code.NO_WORKER, _always, ""),
    *(
        (code, Code.READ_ONLY, _always, _UNSEEN)
        for code in (Code.WORKERS_SILENT, Code.NO_WORKER, Code.QUEUE_UNSERVED, Code.ORPHANED)
    ),
    (
        Code.RETRIES,
        Code.DEAD_LETTERS,
        lambda child, into: child["type_name"] and child["type_name"] == into.get("type_name") and into["last_hour"],
        None,
    ),
    (Code.LONG_RUNNING, Code.CLOCK, _always, _BY_CLOCK),
    (Code.GROWING, Code.CLAIM_AGE, lambda child, into: child["type_name"] == into["type_name"], ""),
    (Code.FALLING_BEHIND, Code.CLAIM_AGE, lambda child, into: into["shared"].startswith(SLOTS), None),
    (Code.LOCKED, Code.CLAIM_AGE, lambda child, into: into["shared"] == f"session {child['pid']}", None),
    (Code.HORIZON, Code.LOCKED, lambda child, into: child["pid"] in {into["pid"], *into["waiters"]}, None),
    (Code.HORIZON, Code.CLAIM_AGE, lambda child, into: into["shared"] == f"session {child['pid']}", None),
)
"""Findings that follow from another: both codes, whether it follows, by the evidence of both, and the words that join
their sentences; None if that of the other tells all."""
_NAMED: Final = 5
"""Number of names in a sentence, and of quarantined rows with a separate finding; one more counts the rest."""
_GROUPS: Final = 3
"""Number of groups of dead letters, by type and error, with a separate finding."""
OF_PRIMARY: Final = frozenset({"workers", "unserved", "horizon", "locks", "bulk_writes"})
"""Figures about which a replica proves nothing: workers, sessions and locks of its primary, and unlogged tables."""
_MAY_BE_CRITICAL: Final = {
    *("queues", "workers", "unserved", "running", "waiting", "schedules", "failures", "rates", "horizon", "tables")
}


def _missing(report: Health) -> Iterator[Finding]:
    if report.missing:
        names = ", ".join(MEASURED.get(name, name) for name in report.missing)
        cause, details = f"Not measured, because the server cancelled the statement: {names}", ""
        advice = "Cause not found: look at wait_event in pg_stat_activity, or give it more time (--timeout)."
        for lock in [lock for lock in report.locks if lock.table or lock.waiters][:1]:
            details = lock.sentence
            advice = lock.advice
        # What cannot be seen may be critical: an outage must not lower the severity.
        bad = CRITICAL if not _MAY_BE_CRITICAL.isdisjoint(report.missing) else WARNING
        yield _found(Code.NOT_MEASURED, bad, cause, advice, details, missing=list(report.missing))


_NEEDED_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    "worker": ("workers", "unserved", "waiting", "running"),
    "queue": ("settings", "waiting"),
    "job_type": ("settings", "waiting"),
    "schedule": ("schedules",),
}
"""By table, figures about the absence of rows: where row-level security may hide some, their findings are left out."""


def _hidden(report: Health) -> Iterator[Finding]:
    if report.hidden:
        cause = f"{in_words(report.hidden)}: this report is about the rows that it sees"
        advice = (
            f'Run it as a role that sees all: ALTER ROLE "{report.hidden[0].role}" BYPASSRLS, or a policy with USING (true).'
        )
        tables = [rows.table for rows in report.hidden]
        yield _found(Code.ROWS_HIDDEN, WARNING, cause, advice, role=report.hidden[0].role, tables=tables)


def _served(report: Health, _: Thresholds) -> Iterator[Finding]:
    if report.due and not report.workers.live:
        cause = "No worker has a recent heartbeat" if report.workers.workers else "No worker is registered"
        advice = "Start a worker: sa-jobqueue worker MODULE:ATTRIBUTE."
        if failing := [silence for silence in report.workers.silences if silence.is_failing]:
            advice = _see_error(failing[0])
        yield _found(Code.NO_WORKER, CRITICAL, cause, advice, f"{_many(report.due, 'job')} due.", due=report.due)
    elif report.unserved:
        yield _unserved(report.unserved)


def _unserved(queues: Sequence[str]) -> Finding:
    cause = f"No live worker serves {_names(queues)}, where jobs are due"
    advice = f"Start a worker that serves them: sa-jobqueue worker --queues {shlex.quote(','.join(queues[:_NAMED]))}."
    return _found(Code.QUEUE_UNSERVED, CRITICAL, cause, advice, queues=list(queues))


def _workers(report: Health, _: Thresholds) -> Iterator[Finding]:
    started = {(worker.name, worker.host): worker.started_at for worker in report.workers.live}
    silent = [
        worker
        for worker in report.workers.silent
        # One without jobs that was started again since is history.
        if worker.running or started.get((worker.name, worker.host), worker.heartbeat_at) <= worker.heartbeat_at
    ]
    silences = {silence.worker.id: silence for silence in report.workers.silences}
    if silent:
        longest = span(max(worker.silent_for for worker in silent))
        cause, details = f"Worker {silent[0].id} on {silent[0].host} has had no heartbeat for {longest}", []
        if len(silent) > 1:
            some = ", ".join(worker.id for worker in silent[:_NAMED]) + (" and others" if len(silent) > _NAMED else "")
            cause, details = f"{len(silent):,} workers have had no heartbeat, the longest for {longest}", [f"{some}."]
        kinds = Counter(silences[worker.id].description if worker.id in silences else _UNKNOWN for worker in silent)
        cause += f" ({'; '.join(kind if len(kinds) == 1 else f'{n:,} {kind}' for kind, n in kinds.items())})"
        running = sum(worker.running for worker in silent)
        details += [f"{_many(running, 'running job')} to be rescued."] if running else []
        failing = [silences[worker.id] for worker in silent if worker.id in silences and silences[worker.id].is_failing]
        advice = _see_error(failing[0]) if failing else "Check its log, and whether its supervisor has restarted it."
        if running:
            rescued = "Other workers rescue the jobs" if report.workers.live else "Start a worker, which rescues the jobs"
            advice = f"{rescued}. {advice}"
        evidence: dict[str, Any] = {"workers": [worker.id for worker in silent], "running": running}
        evidence |= {"queues": sorted({queue for worker in silent for queue in worker.queues})}
        bad = WARNING if report.workers.live or not running else CRITICAL
        yield _found(Code.WORKERS_SILENT, bad, cause, advice, " ".join(details), **evidence)


_UNKNOWN: Final = "killed, frozen, or disconnected"


def _see_error(silence: Silence) -> str:
    return (
        f"See the error in the log of {silence.worker.id}, or at its /readyz: a full disk, a missing privilege, a lock. "
        "Another worker would fail as well."
    )


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:_NAMED])) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")


def _threads(report: Health, _: Thresholds) -> Iterator[Finding]:
    for worker in report.workers.live:
        if worker.stuck_threads:
            some = f"{worker.stuck_threads} of {_times(worker.concurrency, 'slot')}"
            cause = f"Worker {worker.id} has {some} taken by threads of ended attempts: handlers that did not stop"
            advice = "Have the handlers check ctx.cancelled, or use isolation='process'; restart the worker to free them."
            bad = CRITICAL if worker.used >= worker.concurrency and not worker.running else WARNING
            yield _found(Code.STUCK_THREADS, bad, cause, advice, worker=worker.id, stuck_threads=worker.stuck_threads)


def _failing_workers(report: Health, _: Thresholds) -> Iterator[Finding]:
    failing = {worker.failure: worker for worker in report.workers.live if worker.failure}
    for failure, worker in failing.items():
        same = sum(live_worker.failure == failure for live_worker in report.workers.live)
        who = f"Worker {worker.id}" if same == 1 else f"{same:,} workers, such as {worker.id},"
        due = sum(late.due for late in report.waiting if late.cause == "worker_failing")
        waits = f"{_times(due, 'job')} {'waits' if due == 1 else 'wait'} for it." if due else ""
        cause = f"{who} {'keeps' if same == 1 else 'keep'} failing: {failure}"
        advice = "Correct the cause; they try again every few seconds. sa-jobqueue doctor checks privileges and tables."
        bad = CRITICAL if due else WARNING
        yield _found(Code.WORKER_FAILING, bad, cause, advice, waits, worker=worker.id, failure=failure, due=due)


_RESTARTS: Final = 3
"""Number of restarts of a worker within ten minutes, and of lost attempts of a job type, from which on it is a finding."""


def _restarting(report: Health, _: Thresholds) -> Iterator[Finding]:
    for name in report.starts:
        live = [worker for worker in report.workers.live if worker.name == name.name]
        if name.starts <= _RESTARTS * max(len(live), 1):  # a deployment starts each once
            continue
        lost = f"; {_times(name.lost, 'attempt')} {'was' if name.lost == 1 else 'were'} lost with them" if name.lost else ""
        cause = f"Worker {name.name!r} was started {name.starts:,} times or more within the last 10 min"
        details = "This is by the ids of the workers that ended attempts; "
        details += f"{len(live):,} {'is' if len(live) == 1 else 'are'} live{lost}."
        memory = max((worker.resident_bytes or 0 for worker in live), default=0)
        ids = {worker.id for worker in live}
        types = dict.fromkeys(group.type_name for group in report.running.groups if group.worker_id in ids)
        if memory:
            of_types = f", and runs {', '.join(types)}" if types else ""
            details += f" The largest live one uses {byte_size(memory)} of memory{of_types}."
        advice = "See the end of its log and its exit status: 75 is --max-memory, 137 a kill, often for want of memory."
        evidence = _of(name) | {"resident_bytes": memory or None, "job_types": list(types)}
        yield _found(Code.WORKERS_RESTARTING, WARNING, cause, advice, details, **evidence)


def _lost(report: Health, _: Thresholds) -> Iterator[Finding]:
    recent = [failure for failure in report.latest if failure.outcome == "lost" and failure.ago < _RECENT]
    for type_name, count in Counter(failure.type_name for failure in recent).most_common(_NAMED):
        if count >= _RESTARTS:
            job_id = next(failure.job_id for failure in recent if failure.type_name == type_name)
            cause = f"{count:,} attempts of {type_name} were lost with their workers within the last 10 min"
            advice = f"Its handler may end its process (memory, a crash): isolation='process', or see jobs show {job_id}."
            yield _found(Code.WORKERS_RESTARTING, WARNING, cause, advice, type_name=type_name, lost=count, job_id=job_id)


_RECENT: Final = timedelta(minutes=10)


def _declared_differently(report: Health, at: Thresholds) -> Iterator[Finding]:
    workers = sorted(report.workers.live, key=lambda worker: worker.started_at)
    digests: dict[str, dict[str, str]] = {}
    for worker in workers:
        for declaration, digest in worker.declared.items():
            digests.setdefault(declaration, {})[digest] = worker.id
    differing = {declaration: list(ids.values()) for declaration, ids in digests.items() if len(ids) > 1}
    if differing:
        listed = [f"{kind} {name!r}" for kind, _, name in (declaration.partition(" ") for declaration in sorted(differing))]
        more = f" and {len(listed) - _NAMED:,} more" if len(listed) > _NAMED else ""
        ids = next(iter(differing.values()))[-2:]
        by_id = {worker.id: worker for worker in workers}
        last = max(by_id[worker_id].started_at for worker_id in ids)
        since = report.measured_at - last
        cause = f"Workers {ids[0]} and {ids[1]} declare differently: {', '.join(listed[:_NAMED])}{more}"
        details = f"The later one started {span(since)} ago: its schedules and job types were written, queues keep theirs."
        advice = "During a deployment this ends with the old workers; else two versions of the application run."
        bad = WARNING if since >= at.claim_age_critical else OK
        evidence = {"declarations": sorted(differing), "workers": ids}
        yield _found(Code.DECLARED_DIFFERENTLY, bad, cause, advice, details, **evidence)


_GROWN: Final = 1_000
"""Number of due jobs from which on growth is a finding."""


def _growing(report: Health, _: Thresholds) -> Iterator[Finding]:
    for growth in sorted(report.growth, key=lambda growth: growth.ended - growth.enqueued):
        more = growth.enqueued - growth.ended
        if min(growth.due, more) >= _GROWN and 2 * more >= growth.due:
            cause = f"More jobs of {growth.type_name} are enqueued than end"
            details = f"{growth.enqueued:,} were enqueued and {growth.ended:,} ended within the last 10 min that workers "
            details += f"recorded; {growth.due:,} are due."
            advice = (
                f"If that is not meant: sa-jobqueue types pause {shlex.quote(growth.type_name)}, and see what enqueues them."
            )
            yield _found(Code.GROWING, WARNING, cause, advice, details, **_of(growth))


def _long_chains(report: Health, _: Thresholds) -> Iterator[Finding]:
    for chain in report.long_chains:
        cause = f"Chain {chain.chain_id} of {chain.type_name} is open and has {chain.jobs:,} jobs"
        advice = f"If its handler was not meant to continue for so long: sa-jobqueue chains cancel {chain.chain_id}."
        yield _found(Code.LONG_CHAIN, WARNING, cause, advice, **_of(chain))


def _paused(report: Health, _: Thresholds) -> Iterator[Finding]:
    due = {QueueKey(queue.queue, queue.fairness_key): queue.due for queue in report.queues}
    for setting in report.settings:
        if setting.paused_for is None:
            continue
        queue_key = QueueKey(setting.name, setting.fairness_key)
        who = f" by {setting.by}" if setting.by else ""
        waiting = due.get(queue_key, 0)
        if setting.what == "type":  # of queues whose oldest job is late
            waiting = sum(
                late.due for late in report.waiting if (late.cause, late.type_name) == ("type_paused", setting.name)
            )
        waits = f"{_many(waiting, 'job')} due." if waiting else ""
        noun = queue_key.named if setting.what == "queue" else f"job type {setting.name!r}"
        cause = f"{_capitalized(noun)} has been paused for {span(setting.paused_for)}{who}"
        advice = f"Resume it when the reason is resolved: sa-jobqueue {setting.what}s resume {queue_key.arguments}."
        bad = WARNING if waiting or setting.what == "type" else OK
        evidence: dict[str, Any] = {"fairness_key": setting.fairness_key} if setting.fairness_key else {}
        evidence |= {setting.what: setting.name, "paused_for": setting.paused_for, "paused_by": setting.by}
        yield _found(Code.PAUSED, bad, cause, advice, waits, **evidence)


def _schedules(report: Health, _: Thresholds) -> Iterator[Finding]:
    for schedule in report.schedules:
        if schedule.error is not None:
            cause = f"Schedule {schedule.name!r} cannot fire: {schedule.error}"
            advice = "Set it again (on its page, or with upsert_schedule), or delete it: sa-jobqueue schedules delete."
            yield _found(Code.SCHEDULE_BROKEN, WARNING, cause, advice, schedule=schedule.name, error=schedule.error)
            continue
        if schedule.missed_from is not None and schedule.missed_until is not None:
            times = (
                "1 time"
                if schedule.missed == 1
                else f"{schedule.missed:,} times{' or more' if schedule.missed >= MISSED else ''}"
            )
            first, last = (
                time.astimezone(UTC).strftime("%Y-%m-%d %H:%M") for time in (schedule.missed_from, schedule.missed_until)
            )
            when = f"at {last} UTC" if schedule.missed == 1 else f"from {first} to {last} UTC"
            cause = f"Schedule {schedule.name!r} left out {times}: no worker fired it in time"
            period = f"--since {first.replace(' ', 'T')}Z --until {last.replace(' ', 'T')}Z"
            run = f"sa-jobqueue schedules run {schedule.name} {period}"
            advice = f"Run them ({run}), or leave them out: sa-jobqueue schedules resume {schedule.name}."
            evidence = {
                "schedule": schedule.name,
                "missed_from": schedule.missed_from,
                "missed_until": schedule.missed_until,
            }
            yield _found(Code.SCHEDULE_MISSED, WARNING, cause, advice, f"It did not fire {when}.", **evidence)


def _late_schedules(report: Health, at: Thresholds) -> Iterator[Finding]:
    late = [
        (schedule.overdue, schedule) for schedule in report.schedules if not schedule.error and schedule.overdue is not None
    ]
    late = sorted(
        (pair for pair in late if pair[0] >= at.claim_age_warning),
        key=lambda pair: (-int(pair[0].total_seconds()), pair[1].name),
    )
    # Without a live worker, all of them wait for one.
    for same in [late] if late and not report.workers.live else [[pair] for pair in late]:
        overdue, first = same[0]
        cause, details = f"Schedule {first.name!r} has been due for {span(overdue)}", ""
        cause += f"; {first.reason}" if first.reason else ""
        advice = f"See sa-jobqueue schedules explain {shlex.quote(first.name)}."
        if len(same) > 1:
            cause = "No worker has a recent heartbeat: start one (sa-jobqueue worker)"
            details = f"{len(same):,} schedules, such as {first.name!r}, have been due for {span(overdue)}."
        bad = _grade(overdue, at.claim_age_warning, at.claim_age_critical)
        names = [schedule.name for _, schedule in same]
        evidence = {"schedule": first.name, "overdue": overdue, "schedules": names}
        yield _found(Code.SCHEDULE_LATE, bad, cause, advice, details, **evidence)


def _quarantined(report: Health, _: Thresholds) -> Iterator[Finding]:
    references = [row for row in report.quarantined if row.is_reference]
    for row in references[:_NAMED]:
        cause = f"Foreign key {row.subject} of the application keeps rows past their retention"
        advice = (
            "Delete the rows that refer to them, or declare the key with ON DELETE SET NULL or CASCADE, if it should not."
        )
        yield _found(Code.QUARANTINED, OK, cause, advice, f"{row.error.removesuffix('.')}.", **_of(row))
    refused = [row for row in report.quarantined if not row.is_reference]
    for row in refused[:_NAMED]:
        noun, _words = refused_write(row.statement)
        cause = f"{noun.capitalize()} {row.subject} cannot be written ({row.statement}): {row.error}"
        details = f"{_times(row.failures, 'failure')} in {span(row.failing_for)}."
        advice = "Correct the row, or the constraint or trigger that rejects it. The write is retried; other rows continue."
        yield _found(Code.QUARANTINED, WARNING, cause, advice, details, **_of(row))
    if (more := len(refused) - _NAMED) > 0:
        cause = f"{_times(more, 'more row')} cannot be written"
        yield _found(Code.QUARANTINED, WARNING, cause, "See the table quarantine, grouped by error.", rows=len(refused))


def _bulk_writes(report: Health, at: Thresholds) -> Iterator[Finding]:
    bulk = report.bulk_writes
    if bulk.oldest_for is not None and bulk.oldest_for >= at.bulk_unfinished:
        cause = f"Bulk write {bulk.oldest_write_id} staged rows {span(bulk.oldest_for)} ago and has not committed"
        advice = "If its driver has ended, write again with the same writeId, or delete its rows from job_bulk_staging."
        yield _found(Code.BULK_UNFINISHED, WARNING, cause, advice, **_of(bulk))
    if bulk.rejected_last_day:
        cause = f"Bulk writes of the last day rejected {_times(bulk.rejected_last_day, 'row')}"
        advice = "See them with sa-jobqueue writes list and writes show ID; correct and write them, then delete them."
        yield _found(Code.BULK_REJECTED, WARNING, cause, advice, **_of(bulk))


FOUND_ELSEWHERE: Final = {"no_worker", "queue_unserved", "queue_paused", "type_paused", "quarantined", "worker_failing"}
"""Causes that have separate findings, each for all jobs that wait for it."""


def _waiting(report: Health, at: Thresholds) -> Iterator[Finding]:
    late: dict[tuple[str, str], list[tuple[Severity, Waiting]]] = {}
    for group in report.waiting:
        queue_thresholds = at.of(group.queue)
        bad = _grade(group.waiting_for, queue_thresholds.claim_age_warning, queue_thresholds.claim_age_critical)
        if bad and group.cause not in FOUND_ELSEWHERE:
            late.setdefault(("", group.shared) if group.shared else (group.queue, group.cause + group.type_name), []).append(
                (bad, group)
            )
    # However many queues wait for the same kind of cause, one finding names them.
    kinds = Counter(same[0][1].cause for same in late.values())
    together: dict[tuple[str, str], list[tuple[Severity, Waiting]]] = {}
    for key, same in late.items():
        cause = same[0][1].cause
        together.setdefault(("", cause) if kinds[cause] > _NAMED else key, []).extend(same)
    for same in together.values():
        oldest = max((group for _, group in same), key=lambda group: group.waiting_for)
        due = sum(group.due for _, group in same)
        jobs_text = f"{due:,} jobs wait" if due > 1 else "1 job waits"
        queues = list(dict.fromkeys(group.queue for _, group in same))
        where = f"Queue{'s' * (len(queues) > 1)} {_names(queues)}: "
        is_one = len({group.shared or group.queue for _, group in same}) == 1
        of_key = oldest.fairness_key and len(queues) == 1
        most = "all" if oldest.due_of_key == due else f"{oldest.due_of_key:,}"
        mostly = f", {most} of them of fairness key {oldest.fairness_key!r}" if of_key else ""
        first = "The oldest" if is_one else f"In {oldest.queue!r}, the oldest"
        details = f"{where}{jobs_text}{mostly}. {first} has been due for {span(oldest.waiting_for)}."
        details += _until(report, oldest, due)
        evidence = _of(oldest) | {"due": due, "queues": queues, "threshold": at.of(oldest.queue).claim_age_warning}
        bad = max(severity for severity, _ in same)
        advice = f"See sa-jobqueue explain {oldest.job_id}."
        yield _found(Code.CLAIM_AGE, bad, _capitalized(oldest.reason), advice, details, **evidence)


def _until(report: Health, group: Waiting, due: int) -> str:
    """Return when jobs that wait for a rate limit will have started, or that the limit is below what arrives."""
    if not group.per_second or group.limit_of is None:
        return ""
    arrived = sum(rate.arrived for rate in report.rates.queues if rate.queue == group.queue)
    arriving = report.rates.per_second(arrived)
    if group.limit_of[0] == "queue" and not group.limit_of[2] and arriving > group.per_second:
        limit = f"the limit lets {group.per_second:g} per second start"
        return f" {arriving:,.1f} jobs per second arrive, and {limit}: at these rates they are never all started."
    return f" At {group.per_second:g} per second, {due:,} take {span(timedelta(seconds=due / group.per_second))}."


def _locks(report: Health, at: Thresholds) -> Iterator[Finding]:
    for lock in report.locks:
        # Both: workers wait for each other for moments, and long transactions do not concern them.
        waited_for = lock.waited_for * _WAITS
        bad = _grade(min(lock.locked_for or waited_for, waited_for), at.claim_age_warning, at.claim_age_critical)
        if bad:
            n = len(lock.waiters)
            of_workers = " of workers" if all(name.startswith("sa_jobqueue ") for name in lock.waiter_names) else ""
            waits = f"{_times(n, 'statement')}{of_workers} {'waits' if n == 1 else 'wait'} for it"
            details = f"{waits}, the longest for {span(lock.waited_for)}."
            yield _found(Code.LOCKED, bad, lock.sentence.removesuffix("."), lock.advice, details, **_of(lock))


_WAITS: Final = 10
"""A statement that waits for a tenth of a threshold waits for a lock that will be held for that long."""


def _backlog(report: Health, at: Thresholds) -> Iterator[Finding]:
    arrived, completed = report.rates.arrived, report.rates.completed
    if report.workers.saturation >= at.saturation and report.due > report.workers.slots and arrived > completed:
        cause = "More jobs arrive than workers complete"
        details = f"{arrived:,} jobs arrived and {completed:,} completed in {span(report.rates.window)}, "
        details += f"with {report.workers.saturation:.0%} of {report.workers.slots} slots in use."
        advice = "Add workers or concurrency, unless the database is the bottleneck."
        evidence = {"arrived": arrived, "completed": completed, "saturation": report.workers.saturation}
        yield _found(Code.FALLING_BEHIND, WARNING, cause, advice, details, **evidence)


def _retries(report: Health, at: Thresholds) -> Iterator[Finding]:
    ended = report.rates.completed + report.rates.failed_attempts
    bad = _grade(report.rates.retry_rate, at.retry_rate_warning, at.retry_rate_critical)
    if bad and ended >= at.retry_minimum:
        kind, error, key = report.rates.failing or ("", "", "")
        of_key = f" and fairness key {key!r}" if key else ""
        failed = f"{report.rates.retry_rate:.0%} of {ended:,} attempts failed in {span(report.rates.window)}"
        cause, details = (
            (f"Attempts of {kind}{of_key} fail", f"{failed}, most of them of this type.") if kind else (failed, "")
        )
        evidence = {"retry_rate": report.rates.retry_rate, "by_outcome": dict(report.rates.unsuccessful), "type_name": kind}
        example = next((failure for failure in report.latest if failure.type_name == kind), None)
        advice = "Find the error in the workers' logs."
        if example is not None:
            advice = f"See the error: sa-jobqueue jobs show {example.job_id}."
            evidence |= {"error_type": example.error["type"], "message": example.error["message"]}
        if error.startswith("DeadlockDetected"):
            advice = f"Let the handler of {kind} lock its rows in one order, such as by id. {advice}"
        yield replace(_found(Code.RETRIES, bad, cause, advice, details, **evidence), error=error)


def _retry_later(report: Health, at: Thresholds) -> Iterator[Finding]:
    # While attempts still fail, the cause is not gone, and to run the rest now would fail them.
    failing = {group.type_name for group in report.latest if group.ago < at.claim_age_critical}
    for group in report.retrying:
        if group.count >= at.retry_minimum and group.type_name not in failing:
            why = f": {group.error_type}" if group.error_type else ""
            many = f"At least {_times(group.count, 'job')} of {group.type_name} failed{why}"
            when = " to ".join(dict.fromkeys(map(span, (group.next_in, group.last_in))))
            of_them = f"--status pending --queue {shlex.quote(group.queue)} --type {shlex.quote(group.type_name)}"
            advice = f"If the cause is gone: sa-jobqueue jobs retry ID..., with the ids of sa-jobqueue jobs list {of_them}."
            yield _found(Code.RETRY_LATER, WARNING, many, advice, f"They are due again in {when}.", **_of(group))


def _expired(report: Health, _: Thresholds) -> Iterator[Finding]:
    if queues := {rate.queue: rate.expired for rate in report.rates.queues if rate.expired}:
        expired = sum(queues.values())
        were = f"{_times(expired, 'job')} of {_names(list(queues))} {'was' if expired == 1 else 'were'} cancelled"
        cause = f"{were} in {span(report.rates.window)}"
        details = "They had not started by expires_at, or not ended by their deadline."
        advice = "Add workers or concurrency for these queues, or enqueue with a later expires_at or deadline."
        yield _found(Code.EXPIRED, WARNING, cause, advice, details, expired=expired, queues=list(queues))


def _running(report: Health, at: Thresholds) -> Iterator[Finding]:
    if report.running.orphaned:
        bad = WARNING if report.workers.live else CRITICAL
        cause = f"{_many(report.running.orphaned, 'running job')} leased by a dead worker"
        advice = "A live worker rescues them within seconds; without one, start one."
        yield _found(Code.ORPHANED, bad, cause, advice, orphaned=report.running.orphaned)
    if report.running.overdue:
        cause = f"{_many(report.running.overdue, 'running job')} past the timeout"
        advice = "A live worker rescues it. A handler that ignores its timeout keeps its slot: check its thread."
        yield _found(Code.OVERDUE, WARNING, cause, advice, overdue=report.running.overdue)
    long = [group for group in report.running.longest if group.running_for >= at.of(group.queue).long_running]
    for group in long[:_NAMED]:
        cause = f"{group.type_name} {group.job_id} of queue {group.queue!r} has been running for {span(group.running_for)}"
        advice = f"Set a timeout for its type, or cancel it: sa-jobqueue jobs cancel {group.job_id}."
        yield _found(Code.LONG_RUNNING, WARNING, cause, advice, **_of(group))


def _awaited(report: Health, at: Thresholds) -> Iterator[Finding]:
    awaited = report.awaited
    if awaited.sentence and awaited.waiting_for >= at.claim_age_warning:
        waits = (
            f"{_times(awaited.jobs, 'job')} {'waits' if awaited.jobs == 1 else 'wait'} for {_times(awaited.events, 'event')}"
        )
        details = f"Of the one that has waited longest: {awaited.sentence}"
        advice = f"Send the event, or cancel the job: sa-jobqueue jobs cancel {awaited.job_id}."
        ends_soon = awaited.times_out_in is not None and awaited.waiting_for >= awaited.times_out_in
        is_bad = awaited.similar_event or ends_soon or awaited.jobs >= at.retry_minimum
        bad = WARNING if is_bad or awaited.waiting_for >= at.awaiting_event else OK
        yield _found(Code.AWAITING_EVENT, bad, waits, advice, details, **_of(awaited))


def _failures(report: Health, at: Thresholds) -> Iterator[Finding]:
    dead = report.failures
    # Where each of them blocks others, that is the finding.
    if dead.unresolved and dead.oldest_for is not None and dead.unresolved > dead.dead_chains:
        bad = CRITICAL if dead.last_hour >= at.dead_letters_hour_critical else WARNING
        advice = "See the error, then redrive or dismiss them: sa-jobqueue dead-letters groups."
        at_least = "at least " if dead.is_capped else ""
        listed = dead.groups[:_GROUPS]
        for group in listed:
            ages = f"{group.last_hour:,} from the last hour, the oldest {span(report.measured_at - group.first_died_at)} old"
            of_key = f" and fairness key {group.fairness_key!r}" if group.fairness_key else ""
            cause = f"Jobs of {group.type_name}{of_key} died"
            details = _capitalized(f"{at_least}{_times(group.count, 'dead letter')} ({group.reason}); {ages}.")
            died = group.reason == DeadReason.LOST
            todo = (
                f"Their workers died in each attempt, perhaps because of them (out of memory?). {advice}" if died else advice
            )
            # A sum of groups: only the largest has the severity of all.
            severity = bad if group is listed[0] else WARNING
            finding = _found(Code.DEAD_LETTERS, severity, cause, todo, details, **_of(group))
            yield replace(finding, error=group.error_type or "")
        if (more := dead.unresolved - sum(group.count for group in listed)) > 0:
            count_text = "other dead letter" if listed else "dead letter"
            cause = _capitalized(f"{at_least}{_many(more, count_text)} unresolved")
            details = f"In all {dead.last_hour:,} from the last hour, {dead.last_day:,} from the last day, the oldest "
            details += f"{span(dead.oldest_for)} old."
            severity = WARNING if listed else bad
            yield _found(Code.DEAD_LETTERS, severity, cause, advice, details, unresolved=dead.unresolved)
    if dead.waiting:
        types = list(dict.fromkeys(type_name for _, type_name in dead.dead_blockers))
        details = f"{'It' if dead.dead_chains == 1 else 'They'} died in {_names(types)}." if types else ""
        cause = f"{_many(dead.waiting, 'job')} blocked by {_times(dead.dead_chains, 'dead chain')}"
        advice = f"They stay blocked until it is redriven: sa-jobqueue explain {dead.example_chain_id}."
        evidence = {"waiting": dead.waiting, "chains": dead.dead_chains, "chain_id": dead.example_chain_id}
        evidence |= {"job_ids": [job_id for job_id, _ in dead.dead_blockers]}
        yield _found(Code.BLOCKED_BY_DEAD, WARNING, cause, advice, details, **evidence)
    if dead.behind_cancelled:
        cause = f"{_many(dead.behind_cancelled, 'job')} blocked by {_times(dead.cancelled_chains, 'cancelled chain')}"
        some = dead.behind_cancelled_ids[0]
        advice = f"They wait until they are cancelled or completed: sa-jobqueue explain {some}, jobs cancel."
        evidence = {"waiting": dead.behind_cancelled, "chains": dead.cancelled_chains, "chain_id": some, "job_ids": []}
        yield _found(Code.BLOCKED_BY_DEAD, WARNING, cause, advice, **evidence, cancel=list(dead.behind_cancelled_ids))
    if dead.to_unblock_for is not None and dead.to_unblock_for >= at.chains_to_unblock:
        ended = f"{_times(dead.chains_to_unblock, 'chain')} ended {span(dead.to_unblock_for)} ago"
        cause = f"{ended}, and jobs still wait for {'it' if dead.chains_to_unblock == 1 else 'them'}"
        advice = "Any live worker unblocks them; if there is one, check what locks the blocked jobs' rows (pg_locks)."
        evidence = {"chains_to_unblock": dead.chains_to_unblock, "waits_for": dead.to_unblock_for}
        yield _found(Code.CHAINS_TO_UNBLOCK, WARNING, cause, advice, **evidence)


def with_message(finding: Finding, line: Callable[[str, Any], str]) -> Finding:
    """Return a finding whose error has its message. `line`: shows an error of a job type, redacted."""
    evidence = finding.evidence
    if not finding.error or not evidence.get("message"):
        return finding
    error = {"type": evidence["error_type"], "message": evidence["message"]}
    return replace(finding, error=line(evidence["type_name"], error))


def _horizon(report: Health, at: Thresholds) -> Iterator[Finding]:
    for holder in report.horizon.holders:
        by_age = _grade(holder.age, at.horizon_age_warning, at.horizon_age_critical)
        duration = holder.held_for or timedelta(0)
        bad = max(by_age, _grade(duration, at.horizon_warning, at.horizon_critical))
        if bad:
            lasting = f"for {span(duration)} and " if holder.held_for is not None else "for "
            cause = f"{described(holder)} has held back the xmin horizon {lasting}{holder.age:,} transactions"
            details = "Vacuum cannot remove rows that died since."
            yield _found(Code.HORIZON, bad, cause, _remedy(holder), details, **_of(holder))


def described(holder: Holder) -> str:
    """Describe what holds back the xmin horizon."""
    match holder.kind:
        case HolderKind.HANDLER:
            attempt = f", attempt {holder.attempt} on {holder.worker_id}" if holder.worker_id else ", no longer running"
            return f"The handler of {holder.type_name or 'job'} {holder.job_id} (pid {holder.pid}{attempt})"
        case HolderKind.PREPARED_TRANSACTION:
            return f"The prepared transaction {holder.name!r} of {holder.user}"
        case HolderKind.REPLICATION_SLOT:
            return f"The {holder.state} replication slot {holder.name!r}"
        case HolderKind.STANDBY_FEEDBACK:
            return f"The standby {holder.name!r} (pid {holder.pid}), by hot_standby_feedback,"
        case HolderKind.SESSION:
            called = f" {holder.name!r}" if holder.name else ""
            doing = f", {holder.state}" if holder.state else ""
            return f"Session {holder.pid}{called} of {holder.user}{doing}"


def _remedy(holder: Holder) -> str:
    """Return the advice for a holder that is over its threshold, in one line."""
    match holder.kind:
        case HolderKind.HANDLER:
            return (
                f"Cancel it (sa-jobqueue jobs cancel {holder.job_id}); then change the handler to do slow work before "
                "it uses its session."
            )
        case HolderKind.PREPARED_TRANSACTION:
            return f"Ask its coordinator; then COMMIT PREPARED {_quoted(holder.name)} or ROLLBACK PREPARED."
        case HolderKind.REPLICATION_SLOT if holder.state == "inactive":
            return f"If its standby was removed: SELECT pg_drop_replication_slot({_quoted(holder.name)})."
        case HolderKind.REPLICATION_SLOT | HolderKind.STANDBY_FEEDBACK:
            return "Cancel the long query on that standby, or turn hot_standby_feedback off there."
        case HolderKind.SESSION if (holder.name or "").startswith("sa_jobqueue "):
            return "It is a session of sa-jobqueue, which ends its transactions within seconds: see the log of its process."
        case HolderKind.SESSION if (holder.state or "").startswith("idle in transaction"):
            return f"SELECT pg_terminate_backend({holder.pid}); then set idle_in_transaction_session_timeout for its role."
        case HolderKind.SESSION:
            return f"Wait for it, or SELECT pg_cancel_backend({holder.pid}); long queries belong on a replica."


def _tables(report: Health, at: Thresholds) -> Iterator[Finding]:
    for table in report.tables:
        if not table.is_vacuumed:
            advice = f"Turn it on: autovacuum of the server, and autovacuum_enabled of table {table.name}."
            yield _found(Code.AUTOVACUUM_OFF, CRITICAL, f"Autovacuum is off for {table.name}", advice, table=table.name)
        if table.dead > max(table.vacuum_at * at.dead_tuples_factor, at.dead_tuples_minimum):
            doing = f"a vacuum is {table.vacuuming}" if table.vacuuming else "no vacuum is running"
            cause = f"{table.name} has {table.dead:,} dead rows, and autovacuum starts at {table.vacuum_at:,.0f}; {doing}"
            advice = "Check the xmin horizon first, then whether autovacuum workers are free; or VACUUM the table."
            yield _found(Code.DEAD_TUPLES, WARNING, cause, advice, table=table.name, dead=table.dead)
        yield from _bloat(table, "VACUUM FULL at a quiet time", at)
    size = sum(table.bytes + table.index_bytes for table in report.tables)
    if size >= at.outgrown_bytes:
        cause = f"The job tables take {byte_size(size)}, more than the threshold of {byte_size(at.outgrown_bytes)}"
        yield _found(Code.OUTGROWN, WARNING, cause, _OUTGROWN, bytes=size)


def _bloat(report: TableHealth | IndexHealth, cure: str, at: Thresholds) -> Iterator[Finding]:
    wasted = report.wasted_bytes
    if wasted is not None and wasted >= at.bloat_bytes and wasted >= report.bytes * at.bloat_share:
        cause = f"About {byte_size(wasted)} of the {byte_size(report.bytes)} of {report.name} is bloat"
        advice = f"When the cause is resolved: {cure}. PostgreSQL also reuses the space over time."
        yield _found(Code.BLOAT, WARNING, cause, advice, name=report.name, bytes=report.bytes, wasted_bytes=wasted)


def _indexes(report: Health, at: Thresholds) -> Iterator[Finding]:
    for index in report.indexes:
        yield from _bloat(index, f"REINDEX INDEX CONCURRENTLY {index.name}", at)
        if not index.is_valid:
            cause = f"Index {index.name} is invalid: every write maintains it, and no query uses it"
            advice = f"REINDEX INDEX CONCURRENTLY {index.name}; drop it if its name ends in _ccnew or _ccold."
            yield _found(Code.INVALID_INDEX, WARNING, cause, advice, index=index.name)


def _replica(report: Health, _: Thresholds) -> Iterator[Finding]:
    if report.server.is_replica:
        behind = report.server.replayed_for
        is_behind = behind is None or behind > report.workers.heartbeat_timeout
        ago = "none yet" if behind is None else f"the last one {span(behind)} ago"
        cause = f"These are the figures of a replica, which has replayed transactions of its primary: {ago}"
        details = "It is behind, or nothing writes to the primary." if is_behind else ""
        advice = "Ask the primary for workers, sessions and locks, which a replica does not see: sa-jobqueue health --url."
        bad = WARNING if is_behind else OK
        yield _found(Code.REPLICA, bad, cause, advice, details, behind=behind, is_behind=is_behind)


def _server(report: Health, at: Thresholds) -> Iterator[Finding]:
    server = report.server
    if bad := _grade(server.frozen_age, at.frozen_age_warning, at.frozen_age_critical):
        cause = f"The oldest unfrozen row is {server.frozen_age:,} transactions old; PostgreSQL stops writes near 2^31"
        advice = (
            "Resolve what holds back the xmin horizon, then VACUUM (FREEZE) the tables with the greatest age(relfrozenxid)."
        )
        yield _found(Code.WRAPAROUND, bad, cause, advice, frozen_age=server.frozen_age)
    if abs(server.clock_ahead) >= _CLOCKS_DIFFER:
        side = "ahead of" if server.clock_ahead > timedelta(0) else "behind"
        cause = f"The database's clock is {span(abs(server.clock_ahead))} {side} that of the machine that made this report"
        advice = "Check which of them was set (NTP). Jobs are due, and ages are measured, by the database's clock."
        yield _found(Code.CLOCK, WARNING, cause, advice, clock_ahead=server.clock_ahead)
    if server.connections >= server.max_connections * at.connections:
        most = ", ".join(f"{n} of {name!r}" if name else f"{n} without a name" for name, n in report.connected.items())
        cause = f"{server.connections} of {server.max_connections} connections are in use{f': {most}' if most else ''}"
        advice = "Use smaller pools or a pooler; see the connections of a worker in the guide to workers in production."
        evidence: dict[str, Any] = {"connections": server.connections, "max_connections": server.max_connections}
        evidence |= {"by_name": dict(report.connected)}
        yield _found(Code.CONNECTIONS, WARNING, cause, advice, **evidence)
    if server.read_only_by is not None:
        cause = f"The database is read-only: default_transaction_read_only is on ({server.read_only_by})"
        advice = "Some hosts turn it on when the disk is full: free or add space. Then turn it off: ALTER DATABASE or ALTER "
        advice += "SYSTEM RESET default_transaction_read_only."
        yield _found(Code.READ_ONLY, CRITICAL, cause, advice, "No job can start.", source=server.read_only_by)
    if server.notifying >= _NOTIFYING:
        cause = f"{server.notifying} commits with a NOTIFY wait for each other"
        advice = "Only idle workers are notified of jobs: find the NOTIFY of the application in pg_stat_statements."
        yield _found(Code.NOTIFY_CONTENDED, WARNING, cause, advice, waiting=server.notifying)
    if not server.sees_all:
        cause = "This role cannot see the queries and transactions of other users' sessions"
        yield _found(Code.CANNOT_SEE, OK, cause, "GRANT pg_monitor to the role that runs the report.")


_CLOCKS_DIFFER: Final = timedelta(minutes=1)
_NOTIFYING: Final = 3
"""Number of commits that wait for the lock of notifications, from which it is a finding: two may meet by chance."""
_OUTGROWN: Final = "Archive or prune ended chains; then consider a separate database for the queue, or a broker."


def _throughput(report: Health, at: Thresholds) -> Iterator[Finding]:
    rate = report.rates.per_second(report.rates.completed)
    if rate >= at.outgrown_per_second:
        cause = f"{rate:,.0f} jobs complete per second, more than the threshold of {at.outgrown_per_second:,.0f}"
        yield _found(Code.OUTGROWN, WARNING, cause, _OUTGROWN, per_second=rate)


MEASURED: Final = {
    "hidden": "row-level security",
    "queues": "depth of the queues",
    "unserved": "queues that no worker serves",
    "running": "running jobs",
    "failures": "dead letters and blocked jobs",
    "horizon": "xmin horizon",
    "waiting": "causes of waiting",
    "awaited": "jobs that wait for events",
    "retrying": "jobs that are retried later",
    "settings": "pauses and limits",
    "due_by_type": "due jobs by type",
    "growth": "growth by type",
    "starts": "restarts of workers",
    "long_chains": "long chains",
    "connected": "connections by name",
    "silenced": "silenced findings",
    "quarantined": "quarantine",
    "bulk_writes": "bulk writes",
    "locks": "locks that workers wait for",
    "statuses": "number of jobs by status",
    "latest": "latest failures",
}
"""Figures of a report by name, where the name in the report differs."""

_FINDINGS: Final[Sequence[tuple[Callable[[Health, Thresholds], Iterator[Finding]], set[str]]]] = (
    (_served, {"queues", "workers", "unserved"}),
    (_workers, {"workers"}),
    (_threads, {"workers"}),
    (_failing_workers, {"workers", "waiting"}),
    (_restarting, {"starts", "workers", "running"}),
    (_lost, {"latest"}),
    (_declared_differently, {"workers"}),
    (_growing, {"growth"}),
    (_long_chains, {"long_chains"}),
    (_paused, {"settings", "queues", "waiting"}),
    (_schedules, {"schedules"}),
    (_late_schedules, {"schedules", "workers"}),
    (_quarantined, {"quarantined"}),
    (_bulk_writes, {"bulk_writes"}),
    (_waiting, {"queues", "waiting", "rates"}),
    (_locks, {"locks"}),
    (_backlog, {"queues", "rates", "workers"}),
    (_retries, {"rates", "latest"}),
    (_retry_later, {"latest", "retrying"}),
    (_expired, {"rates"}),
    (_running, {"running", "workers"}),
    (_awaited, {"awaited"}),
    (_failures, {"failures"}),
    (_horizon, {"horizon"}),
    (_tables, {"tables"}),
    (_indexes, {"indexes"}),
    (_server, {"connected"}),
    (_replica, set()),
    (_throughput, {"rates"}),
)
"""Functions that return findings, each with the figures that it needs."""


def _found(code: Code, severity: Severity, cause: str, advice: str, details: str = "", /, **evidence: Any) -> Finding:
    return Finding(code=code, severity=severity, cause=cause, advice=advice, details=details, evidence=evidence)


def _capitalized(clause: str) -> str:
    return clause[:1].upper() + clause[1:]


def _of(figures: Any) -> dict[str, Any]:
    """Return figures by name, as evidence."""
    return {field.name: getattr(figures, field.name) for field in fields(figures)}


def _grade(value: Any, warning: Any, critical: Any) -> Severity:
    return CRITICAL if value >= critical else WARNING if value >= warning else OK


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _many(count: int, noun: str) -> str:
    return f"{_times(count, noun)} {'is' if count == 1 else 'are'}"


def _quoted(name: str | None) -> str:
    return "'{}'".format((name or "").replace("'", "''"))
