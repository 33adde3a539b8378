"""Access to a dashboard, and the permissions of each user."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from starlette.requests import Request

from sa_jobqueue.errors import InvalidOptionError


class Permission(StrEnum):
    """Permissions of a user, one for each operation, with the operation's name."""

    CANCEL_JOBS = "cancel_jobs"
    TRIGGER_JOBS = "trigger_jobs"
    SET_PRIORITY = "set_priority"
    REDRIVE_DEAD_LETTERS = "redrive_dead_letters"
    DISMISS_DEAD_LETTERS = "dismiss_dead_letters"
    PAUSE_QUEUES = "pause_queues"
    RESUME_QUEUES = "resume_queues"
    PAUSE_JOB_TYPES = "pause_job_types"
    RESUME_JOB_TYPES = "resume_job_types"
    UPSERT_QUEUE = "upsert_queue"
    DELETE_QUEUES = "delete_queues"
    UPSERT_JOB_TYPE = "upsert_job_type"
    DELETE_JOB_TYPES = "delete_job_types"
    CANCEL_CHAINS = "cancel_chains"
    DELETE_CHAINS = "delete_chains"
    PAUSE_SCHEDULES = "pause_schedules"
    RESUME_SCHEDULES = "resume_schedules"
    RUN_SCHEDULE = "run_schedule"
    UPSERT_SCHEDULE = "upsert_schedule"
    DELETE_SCHEDULES = "delete_schedules"
    DRAIN_WORKERS = "drain_workers"
    RESIZE_WORKERS = "resize_workers"
    SEND_EVENT = "send_event"
    DELETE_EVENT = "delete_event"


ALL_PERMISSIONS: Final = frozenset(Permission)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Access of one user.

    `user`: recorded with each change, 1 to 200 printable characters. `permissions`: empty by default. `sources`: names of
    the queues that the user may open; None for all. `payload_types`: patterns, with `*` and `?`, of the job types whose
    payloads and errors are shown; none by default.
    """

    user: str
    permissions: Collection[Permission] = frozenset()
    sources: Collection[str] | None = None
    payload_types: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.user, str) or not 1 <= len(self.user) <= 200 or not self.user.isprintable():
            raise InvalidOptionError("user", f"must be 1 to 200 printable characters, got {self.user!r}")
        for name in ("permissions", "sources", "payload_types"):
            if isinstance(getattr(self, name), str):
                raise InvalidOptionError(name, f"must be a list, not one value: [{getattr(self, name)!r}]")
        permission_names = {permission.value for permission in Permission}
        for permission in self.permissions:
            if permission not in permission_names:
                raise InvalidOptionError(
                    "permissions", f"must be among {', '.join(sorted(permission_names))}, got {permission!r}"
                )

    def may_open(self, source: str) -> bool:
        """Return whether the user may open a queue; `source` is its name."""
        return self.sources is None or source in self.sources

    def may_see(self, type_name: str | None) -> bool:
        """Return whether the user may see the payloads and errors of a job type, `type_name`; None if it is not known."""
        return any(fnmatchcase(type_name or "", pattern) for pattern in self.payload_types)


Authorize = Callable[[Request], Access | Awaitable[Access | None] | None]
"""Returns the user's access, or None to refuse the request. A plain function runs in a thread. It may raise
`starlette.exceptions.HTTPException(303, headers={"Location": "/login"})` to send the user to a login page."""
