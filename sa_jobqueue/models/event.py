"""`job_event`: named events that jobs wait for."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import Text, func, text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import Mapped, mapped_column

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.models.base import Companion

_LONGEST: Final = 200


def check_event(name: str) -> str:
    """Return the name of an event. Raises: InvalidOptionError for one that cannot be."""
    if not isinstance(name, str) or not 0 < len(name) <= _LONGEST or not name.isprintable():
        raise InvalidOptionError("event", f"must be 1 to {_LONGEST} printable characters, got {name!r}")
    return name


class EventMixin(Companion):
    """One event that was sent. The first of a name counts, until it expires.

    Written by `send_event` and the function `job_send_event`, not by hand: they also wake the jobs that wait. Workers delete
    expired events.
    """

    name: Mapped[str] = mapped_column(Text, nullable=False)
    """Name of the event, such as `approved:7`."""
    payload: Mapped[Any] = mapped_column(JSONB(), nullable=False)
    """Its payload, as JSON; no codec encodes it."""
    sent_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False, server_default=func.now())
    """When it was sent: the start of the sender's transaction."""
    sent_by: Mapped[str] = mapped_column(Text, nullable=False, server_default=text("SESSION_USER"))
    """Database user who sent it, or the setting `sa_jobqueue.actor`."""
    expires_at: Mapped[datetime] = mapped_column(TIMESTAMP(timezone=True), nullable=False)
    """Until when it is kept for jobs that begin to wait later. After that it can be sent again."""

    __key__ = ("name",)
    __checks__: ClassVar = {"ck_job_event_name": "length(name) BETWEEN 1 AND 200"}
    __indexes__: ClassVar = {"ix_job_event_expires": ("expires_at",)}
