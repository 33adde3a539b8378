"""Findings that an operator has silenced until a time, with who did it and why."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models import Job, JobClass
from sa_jobqueue.observe.health.figures import Code, Silenced
from sa_jobqueue.operations.audit import AuditFilter, check_by, list_audit, record
from sa_jobqueue.statements import thresholds

_PREFIX: Final = "silence "
"""How the names of rows of `threshold` start that silence a finding until the instant that is their value."""
_OPERATION: Final = "silence_finding"
_RECORDS: Final = 100
"""Number of the newest audit records among which a reason is searched."""
LONGEST: Final = timedelta(days=30)
"""The longest time for which a finding is silenced."""


def silence_finding(
    session: Session, code: str, *, by: str, reason: str, duration: timedelta, subject: str = "", model: JobClass = Job
) -> datetime:
    """Silence a finding: reports show it as ok, with who did it and why, until that time is over; return its end.

    `code`: one of `Code`. `subject`: only those with this value in their evidence, such as a queue, job type, schedule or
    worker; empty for all. `reason`: 1 to 200 characters. `duration`: at most 30 days; 0 ends the silence.
    Changes: a row of `threshold`, an audit record. Raises: InvalidOptionError before anything is written.
    """
    if code not in {member.value for member in Code}:
        raise InvalidOptionError("code", f"must be the code of a finding, such as claim_age, got {code!r}")
    check_by(by)
    if not by:
        raise InvalidOptionError("by", "must be 1 to 200 printable characters, got ''")
    if not 1 <= len(reason) <= 200 or not reason.isprintable():
        raise InvalidOptionError("reason", f"must be 1 to 200 printable characters, got {reason!r}")
    if not timedelta(0) <= duration <= LONGEST:
        raise InvalidOptionError("duration", f"must be from 0 to 30 days, got {duration}")
    until: datetime = session.execute(select(func.clock_timestamp())).scalar_one() + duration
    name = _PREFIX + code
    session.execute(thresholds.drop(model), {"names": [name], "queue": subject})
    if duration:
        session.execute(thresholds.put(model), {"name": name, "queue": subject, "value": until.timestamp()})
    about: dict[str, Any] = {"code": code, "subject": subject, "until": until, "reason": reason}
    record(session, _OPERATION, by=by, ids=[code], model=model, **about)
    return until


def list_silenced(session: Session, *, now: datetime, model: JobClass = Job) -> list[Silenced]:
    """Return the findings that are silenced at an instant, with who did it and why, as the audit has it."""
    rows = [row for row in session.execute(thresholds.every(model)) if row.name.startswith(_PREFIX)]
    rows = [row for row in rows if row.value > now.timestamp()]
    if not rows:
        return []
    records = list_audit(session, where=AuditFilter(operations=[_OPERATION]), limit=_RECORDS, model=model).items
    silenced = []
    for row in rows:
        code = row.name.removeprefix(_PREFIX)
        of_finding = (
            audit_record
            for audit_record in records
            if (audit_record.arguments.get("code"), audit_record.arguments.get("subject", "")) == (code, row.queue)
        )
        latest = next(of_finding, None)
        silenced.append(
            Silenced(
                code=code,
                subject=row.queue,
                until=datetime.fromtimestamp(row.value, UTC),
                by="" if latest is None else latest.done_by,
                reason="" if latest is None else str(latest.arguments.get("reason", "")),
            )
        )
    return silenced
