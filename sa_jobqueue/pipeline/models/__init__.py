"""The pipeline's tables: what makes bulk writes exactly once, and the ledger of the archive."""

from __future__ import annotations

from typing import Final

from sa_jobqueue.pipeline.models.archive import ArchiveChainMixin, ArchiveRunMixin
from sa_jobqueue.pipeline.models.bulk import RejectMixin, StageMixin, WriteMixin

COMPANIONS: Final[dict[str, tuple[type, str]]] = {
    "Stage": (StageMixin, "job_bulk_staging"),
    "Write": (WriteMixin, "job_bulk_write"),
    "Reject": (RejectMixin, "job_bulk_reject"),
    "ArchiveRun": (ArchiveRunMixin, "archive_run"),
    "ArchiveChain": (ArchiveChainMixin, "archive_chain"),
}
"""The classes by their names on `Job`: what each inherits, and its table."""
