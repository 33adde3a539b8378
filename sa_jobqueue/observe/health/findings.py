"""What is concluded from the figures of a health report, and all of its wording. Pure: no clock, no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from sa_jobqueue.observe.health.figures import Code, Finding, Health, Holder, HolderKind, Severity
from sa_jobqueue.observe.health.thresholds import Thresholds
from sa_jobqueue.operations.spans import span
from sa_jobqueue.types import RefusedWrite

OK, WARNING, CRITICAL = Severity.OK, Severity.WARNING, Severity.CRITICAL


def judge(figures: Health, thresholds: Thresholds) -> Health:
    """Return the report with what is to be said about its figures, the worst first."""
    findings = [
        *_workers(figures),
        *_paused(figures),
        *_schedules(figures, thresholds),
        *_quarantined(figures),
        *_waiting(figures, thresholds),
        *_attempts(figures, thresholds),
        *_failures(figures, thresholds),
        *_horizon(figures, thresholds),
        *_storage(figures, thresholds),
        *_server(figures, thresholds),
    ]
    return replace(figures, findings=sorted(findings, key=lambda finding: -finding.severity))


def _workers(of: Health) -> Iterator[Finding]:
    live, silent = of.workers.live, of.workers.silent
    if of.due and not live:
        summary = f"{_many(of.due, 'job')} due, and no worker is alive."
        yield _found(Code.NO_WORKER, CRITICAL, summary, "Start one: sa-jobqueue worker MODULE:REGISTRY.", due=of.due)
    elif of.unserved:
        names = ", ".join(repr(name) for name in of.unserved)
        summary = f"No live worker serves {names}, where jobs are due."
        yield _found(
            Code.QUEUE_UNSERVED, CRITICAL, summary, "Start a worker with --queues naming it.", queues=list(of.unserved)
        )
    if silent:
        longest = max(worker.silent_for for worker in silent)
        summary = f"{_many(len(silent), 'worker')} silent, the longest for {span(longest)}: killed, or cut off."
        advice = "Its jobs are taken back while others live; see why it ended, and whether it is started again."
        yield _found(Code.WORKERS_SILENT, WARNING, summary, advice, workers=[worker.id for worker in silent])


def _paused(of: Health) -> Iterator[Finding]:
    due = {queue.queue: queue.due for queue in of.queues}
    for one in of.paused:
        who = f" by {one.by}" if one.by else ""
        waiting = due.get(one.name, 0) if one.what == "queue" else 0
        waits = f", and {_many(waiting, 'job')} due" if waiting else ""
        noun = "Queue" if one.what == "queue" else "Job type"
        summary = f"{noun} {one.name!r} has been paused for {span(one.paused_for)}{who}{waits}."
        advice = f"When its reason is gone: sa-jobqueue {one.what}s resume {one.name}."
        bad = WARNING if waiting or one.what == "type" else OK
        seen = {one.what: one.name, "paused_for": one.paused_for, "paused_by": one.by}
        yield _found(Code.PAUSED, bad, summary, advice, **seen)


def _schedules(of: Health, at: Thresholds) -> Iterator[Finding]:
    for one in of.schedules:
        if one.error is not None:
            summary = f"Schedule {one.name!r} cannot fire: {one.error}."
            advice = "Mend its row and set its error to null, or delete it: sa-jobqueue schedules delete."
            yield _found(Code.SCHEDULE_BROKEN, WARNING, summary, advice, schedule=one.name, error=one.error)
            continue
        late = one.overdue or timedelta(0)
        if bad := _grade(late, at.claim_age_warning, at.claim_age_critical):
            summary = f"Schedule {one.name!r} should have fired {span(late)} ago."
            advice = "Any worker fires it: see whether one runs, and who holds its row (pg_locks)."
            yield _found(Code.SCHEDULE_LATE, bad, summary, advice, schedule=one.name, overdue=late)


_NAMED: Final = 5
"""Rows in quarantine that have a finding each; one more counts the others."""


def _quarantined(of: Health) -> Iterator[Finding]:
    for one in of.quarantined[:_NAMED]:
        noun = NOUNS[one.statement]
        summary = (
            f"{noun.capitalize()} {one.subject} cannot be written ({one.statement}): {one.error}; "
            f"{_times(one.failures, 'failure')} in {span(one.failing_for)}."
        )
        advice = (
            "Correct the row, or the constraint or trigger that refuses it; it is tried again by itself, the others go on."
        )
        seen: dict[str, Any] = {"subject": one.subject, "statement": one.statement.value, "error": one.error}
        seen |= {"sqlstate": one.sqlstate, "failures": one.failures, "failing_for": one.failing_for}
        yield _found(Code.QUARANTINED, WARNING, summary, advice, worker_id=one.worker_id, **seen)
    if (more := len(of.quarantined) - _NAMED) > 0:
        summary = f"{_times(more, 'more row')} cannot be written."
        yield _found(Code.QUARANTINED, WARNING, summary, "See table quarantine, by its error.", rows=len(of.quarantined))


NOUNS: Final = {
    RefusedWrite.COMPLETE: "job",
    RefusedWrite.FINISH: "job",
    RefusedWrite.RESCUE: "job",
    RefusedWrite.UNBLOCK: "job or chain",
    RefusedWrite.EXPIRE: "job",
    RefusedWrite.FIRE: "schedule",
    RefusedWrite.DECLARE: "schedule",
    RefusedWrite.START: "job",
    RefusedWrite.CLAIM: "limit",
    RefusedWrite.PRUNE: "chain or dead letter",
    RefusedWrite.ARCHIVE: "chain",
}
"""What the subject of each write is."""


def _waiting(of: Health, at: Thresholds) -> Iterator[Finding]:
    paused = {one.name for one in of.paused if one.what == "queue"}  # whose jobs are meant to wait
    for queue in (queue for queue in of.queues if queue.queue not in paused):
        bad = _grade(queue.claim_age, at.claim_age_warning, at.claim_age_critical)
        if bad:
            summary = f"The oldest claimable job of queue {queue.queue!r} has been due for {span(queue.claim_age)}."
            advice = "Name one: sa-jobqueue jobs list --queue, then sa-jobqueue explain ID says why it is not running."
            seen = {"due": queue.due, "threshold": at.claim_age_warning}
            yield _found(Code.CLAIM_AGE, bad, summary, advice, queue=queue.queue, claim_age=queue.claim_age, **seen)
    arrived, completed = of.rates.arrived, of.rates.completed
    if of.workers.saturation >= at.saturation and of.due > of.workers.slots and arrived > completed:
        summary = (
            f"{arrived:,} jobs arrived and {completed:,} completed in {span(of.rates.window)}, "
            f"with {of.workers.saturation:.0%} of {of.workers.slots} slots taken."
        )
        advice = "More slots or workers, unless the database is what is slow."
        seen = {"arrived": arrived, "completed": completed, "saturation": of.workers.saturation}
        yield _found(Code.FALLING_BEHIND, WARNING, summary, advice, **seen)


def _attempts(of: Health, at: Thresholds) -> Iterator[Finding]:
    ended = of.rates.completed + of.rates.failed_attempts
    bad = _grade(of.rates.retry_rate, at.retry_rate_warning, at.retry_rate_critical)
    if bad and ended >= at.retry_minimum:
        summary = f"{of.rates.retry_rate:.0%} of {ended:,} attempts failed in {span(of.rates.window)}."
        advice = "See which error it is: sa-jobqueue dead-letters groups, or the workers' logs."
        seen = {"retry_rate": of.rates.retry_rate, "by_outcome": dict(of.rates.unsuccessful)}
        yield _found(Code.RETRIES, bad, summary, advice, **seen)
    if of.running.orphaned:
        bad = WARNING if of.workers.live else CRITICAL
        summary = f"{_many(of.running.orphaned, 'running job')} held by a worker that is gone."
        advice = "They are taken back within seconds while any worker lives; if none does, start one."
        yield _found(Code.ORPHANED, bad, summary, advice, orphaned=of.running.orphaned)
    if of.running.overdue:
        summary = f"{_many(of.running.overdue, 'running job')} past its time."
        advice = "It is taken back by any live worker; a handler that ignores its timeout keeps a slot: look at its thread."
        yield _found(Code.OVERDUE, WARNING, summary, advice, overdue=of.running.overdue)
    longest = of.running.longest_for
    if longest is not None and longest >= at.long_running:
        job = of.running
        summary = f"{job.longest_type_name} {job.longest_job_id} has been running for {span(longest)}."
        advice = "Give its type a timeout, or cancel it: sa-jobqueue jobs cancel ID."
        seen = {"job_id": job.longest_job_id, "worker_id": job.longest_worker_id, "running_for": longest}
        yield _found(Code.LONG_RUNNING, WARNING, summary, advice, **seen)


def _failures(of: Health, at: Thresholds) -> Iterator[Finding]:
    dead = of.failures
    if dead.unresolved and dead.oldest_for is not None:
        bad = CRITICAL if dead.last_hour >= at.dead_letters_hour_critical else WARNING
        summary = (
            f"{_many(dead.unresolved, 'dead letter')} unresolved: {dead.last_hour:,} of the last hour, "
            f"{dead.last_day:,} of the last day, the oldest {span(dead.oldest_for)} old."
        )
        advice = "Group them by error, then redrive or dismiss: sa-jobqueue dead-letters groups."
        seen = {"unresolved": dead.unresolved, "last_hour": dead.last_hour, "oldest_for": dead.oldest_for}
        yield _found(Code.DEAD_LETTERS, bad, summary, advice, **seen)
    if dead.waiting:
        summary = f"{_many(dead.waiting, 'job')} waiting for {_times(dead.dead_chains, 'dead chain')}."
        advice = f"They wait until it is redriven: sa-jobqueue explain {dead.example_chain_id}."
        seen = {"waiting": dead.waiting, "chains": dead.dead_chains, "chain_id": dead.example_chain_id}
        yield _found(Code.BLOCKED_BY_DEAD, WARNING, summary, advice, **seen)
    if dead.to_unblock_for is not None and dead.to_unblock_for >= at.chains_to_unblock:
        summary = f"The end of {_times(dead.chains_to_unblock, 'chain')} was not passed on for {span(dead.to_unblock_for)}."
        advice = "Any live worker does that; where one lives, see what holds the waiting jobs' rows (pg_locks)."
        yield _found(
            Code.CHAINS_TO_UNBLOCK,
            WARNING,
            summary,
            advice,
            chains_to_unblock=dead.chains_to_unblock,
            waits_for=dead.to_unblock_for,
        )


def _horizon(of: Health, at: Thresholds) -> Iterator[Finding]:
    for holder in of.horizon.holders:
        by_age = _grade(holder.age, at.horizon_age_warning, at.horizon_age_critical)
        held = holder.held_for or timedelta(0)
        bad = max(by_age, _grade(held, at.horizon_warning, at.horizon_critical))
        if bad:
            lasting = f"for {span(held)}, " if holder.held_for is not None else ""
            summary = (
                f"{described(holder)} has held back vacuum {lasting}{holder.age:,} transactions: "
                "no row that died since can be removed."
            )
            seen: dict[str, Any] = {"kind": holder.kind, "pid": holder.pid, "name": holder.name, "user": holder.user}
            seen |= {"state": holder.state, "query": holder.query, "age": holder.age, "held_for": holder.held_for}
            if holder.kind is HolderKind.HANDLER:
                seen |= {"job_id": holder.job_id, "type_name": holder.type_name, "worker_id": holder.worker_id}
            yield _found(Code.HORIZON, bad, summary, remedy(holder), **seen)


def described(holder: Holder) -> str:
    """Return who holds the horizon, in words."""
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


def remedy(holder: Holder) -> str:
    """Return what to do about one that holds the horizon, in one line."""
    match holder.kind:
        case HolderKind.HANDLER:
            return (
                f"Cancel it (sa-jobqueue jobs cancel {holder.job_id}); then let its handler do what is slow before "
                "it touches its session."
            )
        case HolderKind.PREPARED_TRANSACTION:
            return f"Ask who coordinates it; then COMMIT PREPARED {_quoted(holder.name)} or ROLLBACK PREPARED."
        case HolderKind.REPLICATION_SLOT if holder.state == "inactive":
            return f"If its standby is gone for good: SELECT pg_drop_replication_slot({_quoted(holder.name)})."
        case HolderKind.REPLICATION_SLOT | HolderKind.STANDBY_FEEDBACK:
            return "End the long query on that standby, or turn hot_standby_feedback off there."
        case HolderKind.SESSION if (holder.state or "").startswith("idle in transaction"):
            return f"SELECT pg_terminate_backend({holder.pid}); then set idle_in_transaction_session_timeout for its role."
        case HolderKind.SESSION:
            return f"Wait for it, or SELECT pg_cancel_backend({holder.pid}); long queries belong on a replica."


def _storage(of: Health, at: Thresholds) -> Iterator[Finding]:
    for table in of.tables:
        if not table.is_vacuumed:
            advice = f"Turn it on: autovacuum in the server's settings, autovacuum_enabled of table {table.name}."
            yield _found(Code.AUTOVACUUM_OFF, CRITICAL, f"Autovacuum is off for {table.name}.", advice, table=table.name)
        if table.dead > table.vacuum_at * at.dead_tuples_factor:
            doing = f"a vacuum is {table.vacuuming}" if table.vacuuming else "no vacuum runs"
            summary = f"{table.name} has {table.dead:,} dead rows, to be vacuumed at {table.vacuum_at:,.0f}; {doing}."
            advice = "See the horizon first; then whether autovacuum has workers left, or VACUUM the table by hand."
            yield _found(Code.DEAD_TUPLES, WARNING, summary, advice, table=table.name, dead=table.dead)
    relations = [(table.name, table.bytes, table.wasted_bytes, "VACUUM FULL in a quiet hour") for table in of.tables]
    relations += [(one.name, one.bytes, one.wasted_bytes, f"REINDEX INDEX CONCURRENTLY {one.name}") for one in of.indexes]
    for name, size, wasted, cure in relations:
        if wasted is not None and wasted >= at.bloat_bytes and wasted >= size * at.bloat_share:
            summary = f"About {_bytes(wasted)} of the {_bytes(size)} of {name} are waste."
            advice = f"After the cause is gone: {cure}. Space inside is used again by itself."
            yield _found(Code.BLOAT, WARNING, summary, advice, name=name, bytes=size, wasted_bytes=wasted)
    for index in of.indexes:
        if not index.is_valid:
            summary = f"Index {index.name} is not valid: it costs every write and serves no read."
            advice = f"REINDEX INDEX CONCURRENTLY {index.name}; one that ends in _ccnew or _ccold: drop it."
            yield _found(Code.INVALID_INDEX, WARNING, summary, advice, index=index.name)


def _server(of: Health, at: Thresholds) -> Iterator[Finding]:
    server = of.server
    if bad := _grade(server.frozen_age, at.frozen_age_warning, at.frozen_age_critical):
        summary = f"The oldest row that is not frozen is {server.frozen_age:,} transactions old; writes stop near 2^31."
        advice = "Release the horizon, then VACUUM (FREEZE) the tables of the greatest age(relfrozenxid)."
        yield _found(Code.WRAPAROUND, bad, summary, advice, frozen_age=server.frozen_age)
    if server.connections >= server.max_connections * at.connections:
        summary = f"{server.connections} of {server.max_connections} connections are taken."
        advice = "Smaller pools, or a pooler; a worker needs its concurrency and three more."
        seen = {"connections": server.connections, "max_connections": server.max_connections}
        yield _found(Code.CONNECTIONS, WARNING, summary, advice, **seen)
    rate = of.rates.per_second(of.rates.completed)
    size = sum(table.bytes + table.index_bytes for table in of.tables)
    advice = "Archive or delete what has ended; then weigh a database for the queue alone, or a broker."
    if rate >= at.outgrown_per_second:
        summary = f"{rate:,.0f} jobs a second complete, more than the {at.outgrown_per_second:,.0f} set as its measure."
        yield _found(Code.OUTGROWN, WARNING, summary, advice, per_second=rate)
    if size >= at.outgrown_bytes:
        summary = f"The queue's tables take {_bytes(size)}, more than the {_bytes(at.outgrown_bytes)} set as its measure."
        yield _found(Code.OUTGROWN, WARNING, summary, advice, bytes=size)
    if not server.sees_all:
        summary = "What others' sessions run, and since when, is not shown to this role."
        yield _found(Code.CANNOT_SEE, OK, summary, "GRANT pg_monitor to the role that asks.")


def _found(code: Code, severity: Severity, summary: str, advice: str, **evidence: Any) -> Finding:
    return Finding(code=code, severity=severity, summary=summary, advice=advice, evidence=evidence)


def _grade(value: Any, warning: Any, critical: Any) -> Severity:
    return CRITICAL if value >= critical else WARNING if value >= warning else OK


def _times(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _many(count: int, noun: str) -> str:
    return f"{_times(count, noun)} {'is' if count == 1 else 'are'}"


def _quoted(name: str | None) -> str:
    return "'{}'".format((name or "").replace("'", "''"))


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:,.0f} {unit}"
        size /= 1024
    return f"{size:,.1f} TB"
