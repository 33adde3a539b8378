"""Add queues, job types and schedules as rows."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.migrate_job_queue(from_version=2, to_version=3)


def downgrade() -> None:
    op.migrate_job_queue(from_version=3, to_version=2)
