"""Add what bulk writes, the archive and incremental reads need."""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.migrate_job_queue(from_version=1, to_version=2)


def downgrade() -> None:
    op.migrate_job_queue(from_version=2, to_version=1)
