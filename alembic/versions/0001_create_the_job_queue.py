"""Create the job queue."""

from __future__ import annotations

from sa_jobqueue.migrations import migrate_job_queue

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    migrate_job_queue(from_version=0, to_version=1)
    migrate_job_queue(from_version=0, to_version=1, unit="pipeline")


def downgrade() -> None:
    migrate_job_queue(from_version=1, to_version=0, unit="pipeline")
    migrate_job_queue(from_version=1, to_version=0)
