"""The statements that readers of history run, in the shape of `cases`."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from sa_jobqueue import Job
from sa_jobqueue.layout import Layout
from sa_jobqueue.pipeline.history import ATTEMPTS, BLOCKERS, DEAD_LETTERS, JOBS
from sa_jobqueue.pipeline.statements import history, watermarks
from sa_jobqueue.pipeline.statements.history import Filters
from sa_jobqueue.statements import schema
from tests.statements.shapes import Case

_DAY = datetime(2026, 1, 31, tzinfo=UTC)
_EVERY = Filters(
    queues=("a", "b"),
    types=("t",),
    statuses=("dead",),
    created_from=_DAY,
    created_before=_DAY,
    completed_from=_DAY,
    completed_before=_DAY,
    xid_from=1,
    xid_before=2,
    key_from=UUID(int=1),
    key_before=UUID(int=2),
)
_RANGE = Filters(xid_from=1, xid_before=2)
_NONE: frozenset[str] = frozenset()

HISTORY_CASES = [
    Case("history_jobs", lambda: history.rows(Job, JOBS, (), _EVERY), _NONE, guarded=False),
    Case("history_attempts", lambda: history.rows(Job, ATTEMPTS, (), _RANGE), _NONE, guarded=False),
    Case("history_dead_letters", lambda: history.rows(Job, DEAD_LETTERS, (), _RANGE), _NONE, guarded=False),
    Case("history_redacted", lambda: history.rows(Job, JOBS, (), redact=["pay.*"]), _NONE, guarded=False),
    Case("history_redacted_attempts", lambda: history.rows(Job, ATTEMPTS, (), redact=["a_b"]), _NONE, guarded=False),
    Case("history_blockers", lambda: history.rows(Job, BLOCKERS), _NONE, guarded=False),
    Case("history_count", lambda: history.count(Job, JOBS, _RANGE), _NONE, guarded=False),
    Case("history_size", lambda: history.size(Job, ATTEMPTS), _NONE, guarded=False),
    Case("history_sample", lambda: history.sample(Job, ATTEMPTS, percent=12.5), _NONE, guarded=False),
    Case("history_watermark", history.watermark, _NONE, guarded=False),
    Case("stream_position", watermarks.position, _NONE, guarded=False),
    Case("stream_holders", watermarks.holders, _NONE, guarded=False),
    Case("stream_first_xid", lambda: watermarks.first_xid(Job, JOBS, _RANGE), _NONE, guarded=False),
    Case("stream_bounds_of_jobs", lambda: watermarks.bounds(Job, JOBS, _RANGE, rows=10), _NONE, guarded=False),
    Case("stream_bounds", lambda: watermarks.bounds(Job, ATTEMPTS, _RANGE, rows=10), _NONE, guarded=False),
    Case("schema_id_type", lambda: schema.id_type(Layout("mail", "m_")), _NONE, guarded=False),
]
