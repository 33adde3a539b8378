"""Create the job queue."""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.migrate_job_queue(from_version=0, to_version=1)
    op.migrate_job_queue(from_version=0, to_version=1, unit="pipeline")


def downgrade() -> None:
    op.migrate_job_queue(from_version=1, to_version=0, unit="pipeline")
    op.migrate_job_queue(from_version=1, to_version=0)
