"""`sa-jobqueue types`: list, pause and resume job types, and change their settings."""

from __future__ import annotations

from typing import Final

from sa_jobqueue.cli import noun_group
from sa_jobqueue.cli._rows import NamedRows, rate_text
from sa_jobqueue.operations import get_job_type, list_job_types, pause_job_types, resume_job_types, upsert_job_type
from sa_jobqueue.registry.settings import Limits

types: Final = noun_group("types")
_rows: Final = NamedRows(types, "job type", metavar="TYPE")
_rows.add_list(
    "types",
    list_job_types,
    {
        "job type": "type_name",
        "paused": "paused_at",
        "by": "paused_by",
        "concurrency": "global_concurrency",
        "rate": rate_text,
        "workers": "workers",
    },
    "List job types that have settings or an active worker.",
)
_rows.add_show(get_job_type, "Show the limits of one job type.")
_rows.add_set(
    Limits,
    get_job_type,
    upsert_job_type,
    """Change the limits of a job type. Options that are not given keep their value.

    \b
    Example:
      sa-jobqueue types set send_receipt --global-concurrency 3 --rate-limit none
    """,
)
_rows.add_change(
    "pause", pause_job_types, "Pause job types: start none of their jobs until they are resumed. Running jobs continue."
)
_rows.add_change("resume", resume_job_types, "Resume paused job types.")
