"""The parts of the `job` table beside its columns: constraints, indexes, storage settings and the stamp of its version."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Index, text
from sqlalchemy.sql.elements import conv

from sa_jobqueue.ddl import LATEST, stamp
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.base import Where, table_args, within_times
from sa_jobqueue.models.checks import LONGEST_TEXT, MOST_TEXT_BYTES
from sa_jobqueue.policies.fairness import LONGEST_KEY
from sa_jobqueue.types import LONGEST, MAX_PRIORITY, MIN_PRIORITY


def _within_text(column: str) -> str:
    return f"length({column}) BETWEEN 1 AND {LONGEST_TEXT} AND octet_length({column}) <= {MOST_TEXT_BYTES}"


_CHECKS: Final = {
    "ck_job_queue": "queue <> ''",
    "ck_job_fairness_key": f"length(fairness_key) <= {LONGEST_KEY}",
    "ck_job_deduplication_key": _within_text("deduplication_key"),
    "ck_job_ordering_key": _within_text("ordering_key"),
    "ck_job_type_name": "type_name <> ''",
    "ck_job_priority": f"priority BETWEEN {MIN_PRIORITY} AND {MAX_PRIORITY}",
    "ck_job_attempts": "attempt >= 0 AND max_attempts >= 1",
    "ck_job_timeout": "timeout > '0'::interval",
    # A time that Python cannot hold, or a lease that PostgreSQL cannot, would fail every claim that meets it.
    "ck_job_times": f"{within_times('scheduled_at')} AND timeout <= '{LONGEST.days} days'::interval"
    " AND deadline BETWEEN '0001-01-01 00:00:00+00' AND '9000-01-01 00:00:00+00'",
    "ck_job_chain": "(chain_index = 0) = (chain_id = id)",
    "ck_job_chain_status": "chain_status IS NULL OR (chain_index = 0 AND chain_completed_at IS NOT NULL)",
    "ck_job_blocked": "(status <> 'blocked' OR open_blockers > 0) AND open_blockers >= 0",
    "ck_job_lease": "(status = 'running') = (leased_by IS NOT NULL)",
    "ck_job_ended": "(status IN ('completed', 'dead', 'cancelled')) = (completed_at IS NOT NULL)",
}
# Each index is named after what reads by it.
_INDEXES: Final = {
    # The second condition of the next two is a tag: repeated only in statements that mean that index, it ties
    # them to it when an empty table's statistics make every partial index look equally cheap.
    "ix_job_claim": (
        *("queue", "fairness_key", "priority", "scheduled_at", "id"),
        Where(f"status = 'pending' AND priority >= '{MIN_PRIORITY}'"),
    ),
    "ix_job_changed": ("changed_xid", Where("status = 'pending' AND changed_xid > '0'")),
    # `changed_xid` for counts that start at a watermark, `leased_until` so that a search for null reads no rows.
    "ix_job_running": ("leased_by", "changed_xid", "leased_until", Where("status = 'running'")),
    "ix_job_has_waiters": ("id", Where("has_waiters AND chain_completed_at IS NOT NULL")),
    "uq_job_chain": ("root_id", "chain_index", Where("root_id IS NOT NULL")),
    "uq_job_deduplication": (
        *("chain_type_name", "deduplication_key"),
        Where("deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL"),
    ),
    "ix_job_deduplication": (
        *("chain_type_name", "deduplication_key", "created_at"),
        Where("deduplication_key IS NOT NULL AND chain_index = 0"),
    ),
    # For listings by these states; jobs that are never blocked and never die cost nothing.
    "ix_job_blocked_or_dead": ("id", Where("status IN ('blocked', 'dead')")),
    # The next three contain only jobs that use the feature.
    "ix_job_expiring": ("expires_at", Where("status = 'pending' AND expires_at IS NOT NULL")),
    "ix_job_ordering": (
        *("ordering_key", "created_at", "id"),
        Where("ordering_key IS NOT NULL AND status IN ('blocked', 'pending')"),
    ),
    # A claim picks no job of a key that has one running; this enforces it between claims that cannot see each other.
    # Its condition is `leased_by`, not the status, so that statements meant for it are not planned with `ix_job_running`.
    "uq_job_ordering": ("ordering_key", Where("ordering_key IS NOT NULL AND leased_by IS NOT NULL")),
    # By the transaction that released a key: the key's next job is found without writing to it
    # (`statements._lanes.freed`).
    "ix_job_ordering_freed": (
        "changed_xid",
        Where("ordering_key IS NOT NULL AND leased_by IS NULL AND (completed_at IS NOT NULL OR started_at IS NOT NULL)"),
    ),
}
# No update of a job is HOT (status is in every partial index's predicate), so the free space is not for
# that: it keeps a job's versions on one page. WAL of a job's whole life by fillfactor, measured on
# PostgreSQL 18: 100: 1,533 bytes, 80: 1,438, 70: 1,351, 60: 1,295; a backlog takes that much more room.
_STORAGE: Final = {
    "fillfactor": 70,
    "autovacuum_vacuum_scale_factor": 0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_vacuum_cost_delay": 0,
    "autovacuum_analyze_scale_factor": 0,
    "autovacuum_analyze_threshold": 20000,
    "autovacuum_vacuum_insert_scale_factor": 0.05,
}


def job_table_args(layout: Layout) -> tuple[Any, ...]:
    """Return the `__table_args__` of a queue's `Job`."""
    # For incremental reads. BRIN has no operators for xid8; of single transactions each one would write to it, of blocks
    # of 64 hardly any does, and a btree grows with every change.
    history = Index(
        conv(layout.name("ix_job_history")),
        text("(changed_xid::text::bigint >> 6)"),
        postgresql_using="brin",
        postgresql_with={"pages_per_range": 32},
    )
    args = table_args(
        layout,
        key={"pk_job": ["id"]},
        checks=_CHECKS,
        indexes=_INDEXES,
        job_ids={"fk_job_root": "root_id"},
        storage=_STORAGE,
        comment=stamp("queue", LATEST).comment,
    )
    return history, *args
