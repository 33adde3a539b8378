"""The parts of the `job` table beside its columns: constraints, indexes, storage settings and the stamp of its version."""

from __future__ import annotations

from typing import Any

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index, PrimaryKeyConstraint, text
from sqlalchemy.sql.elements import conv

from sa_jobqueue.ddl import LATEST
from sa_jobqueue.layout import Layout
from sa_jobqueue.models.base import stamp, storage, within_times
from sa_jobqueue.policies.fairness import LONGEST_KEY
from sa_jobqueue.types import LONGEST, MAX_PRIORITY, MIN_PRIORITY


def job_table_args(layout: Layout) -> tuple[Any, ...]:
    """Return the `__table_args__` of a queue's `Job`: each name explicit, each index named after what reads by it."""
    name = layout.name
    own_id = f"{layout.schema}.{name('job')}.id" if layout.schema else f"{name('job')}.id"

    def check(noun: str, condition: str) -> CheckConstraint:
        return CheckConstraint(condition, name=conv(name(noun)))

    return (
        PrimaryKeyConstraint("id", name=conv(name("pk_job"))),
        ForeignKeyConstraint(["root_id"], [own_id], name=conv(name("fk_job_root"))),
        check("ck_job_queue", "queue <> ''"),
        check("ck_job_fairness_key", f"length(fairness_key) <= {LONGEST_KEY}"),
        check("ck_job_type_name", "type_name <> ''"),
        check("ck_job_priority", f"priority BETWEEN {MIN_PRIORITY} AND {MAX_PRIORITY}"),
        check("ck_job_attempts", "attempt >= 0 AND max_attempts >= 1"),
        check("ck_job_timeout", "timeout > '0'::interval"),
        # A time that Python cannot hold, or a lease that PostgreSQL cannot, would fail every claim that meets it.
        check(
            "ck_job_times",
            f"{within_times('scheduled_at')} AND timeout <= '{LONGEST.days} days'::interval",
        ),
        check("ck_job_chain", "(chain_index = 0) = (chain_id = id)"),
        check("ck_job_chain_status", "chain_status IS NULL OR (chain_index = 0 AND chain_completed_at IS NOT NULL)"),
        check("ck_job_blocked", "(status <> 'blocked' OR open_blockers > 0) AND open_blockers >= 0"),
        check("ck_job_lease", "(status = 'running') = (leased_by IS NOT NULL)"),
        check("ck_job_ended", "(status IN ('completed', 'dead', 'cancelled')) = (completed_at IS NOT NULL)"),
        # The second condition of the next two is a tag: repeated only in statements that mean that index, it ties
        # them to it when an empty table's statistics make every partial index look equally cheap.
        Index(
            conv(name("ix_job_claim")),
            "queue",
            "fairness_key",
            "priority",
            "scheduled_at",
            "id",
            postgresql_where=text(f"status = 'pending' AND priority >= '{MIN_PRIORITY}'"),
        ),
        Index(
            conv(name("ix_job_changed")),
            "changed_xid",
            postgresql_where=text("status = 'pending' AND changed_xid > '0'"),
        ),
        # `changed_xid` for counts that start at a watermark, `leased_until` so that a search for null reads no rows.
        Index(
            conv(name("ix_job_running")),
            "leased_by",
            "changed_xid",
            "leased_until",
            postgresql_where=text("status = 'running'"),
        ),
        Index(
            conv(name("ix_job_has_waiters")), "id", postgresql_where=text("has_waiters AND chain_completed_at IS NOT NULL")
        ),
        Index(
            conv(name("uq_job_chain")),
            "root_id",
            "chain_index",
            unique=True,
            postgresql_where=text("root_id IS NOT NULL"),
        ),
        Index(
            conv(name("uq_job_deduplication")),
            "chain_type_name",
            "deduplication_key",
            unique=True,
            postgresql_where=text("deduplication_key IS NOT NULL AND chain_index = 0 AND chain_completed_at IS NULL"),
        ),
        Index(
            conv(name("ix_job_deduplication")),
            "chain_type_name",
            "deduplication_key",
            "created_at",
            postgresql_where=text("deduplication_key IS NOT NULL AND chain_index = 0"),
        ),
        # For listings by these states; jobs that are never blocked and never die cost nothing.
        Index(conv(name("ix_job_blocked_or_dead")), "id", postgresql_where=text("status IN ('blocked', 'dead')")),
        # The next three contain only jobs that use the feature.
        Index(
            conv(name("ix_job_expiring")),
            "expires_at",
            postgresql_where=text("status = 'pending' AND expires_at IS NOT NULL"),
        ),
        Index(
            conv(name("ix_job_ordering")),
            "ordering_key",
            "created_at",
            "id",
            postgresql_where=text("ordering_key IS NOT NULL AND status IN ('blocked', 'pending')"),
        ),
        # A claim picks no job of a key that has one running; this enforces it between claims that cannot see each other.
        # Its condition is `leased_by`, not the status, so that statements meant for it are not planned with
        # `ix_job_running`.
        Index(
            conv(name("uq_job_ordering")),
            "ordering_key",
            unique=True,
            postgresql_where=text("ordering_key IS NOT NULL AND leased_by IS NOT NULL"),
        ),
        # By the transaction that released a key: the key's next job is found without writing to it
        # (`statements._lanes.freed`).
        Index(
            conv(name("ix_job_ordering_freed")),
            "changed_xid",
            postgresql_where=text(
                "ordering_key IS NOT NULL AND leased_by IS NULL AND (completed_at IS NOT NULL OR started_at IS NOT NULL)"
            ),
        ),
        # For incremental reads. BRIN has no operators for xid8; of single transactions each one would write to it, of blocks
        # of 64 hardly any does, and a btree grows with every change.
        Index(
            conv(name("ix_job_history")),
            text("(changed_xid::text::bigint >> 6)"),
            postgresql_using="brin",
            postgresql_with={"pages_per_range": 32},
        ),
        {
            "schema": layout.schema,
            "comment": stamp(LATEST),
            # No update of a job is HOT (status is in every partial index's predicate), so the free space is not for
            # that: it keeps a job's versions on one page. WAL of a job's whole life by fillfactor, measured on
            # PostgreSQL 18: 100: 1,533 bytes, 80: 1,438, 70: 1,351, 60: 1,295; a backlog takes that much more room.
            **storage(
                fillfactor=70,
                autovacuum_vacuum_scale_factor=0,
                autovacuum_vacuum_threshold=5000,
                autovacuum_vacuum_cost_delay=0,
                autovacuum_analyze_scale_factor=0,
                autovacuum_analyze_threshold=20000,
                autovacuum_vacuum_insert_scale_factor=0.05,
            ),
        },
    )
