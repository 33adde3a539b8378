"""Modules for type checkers, read by `test_types.py`, and what they share."""

from __future__ import annotations

from typing import Any, TypeVar

from sa_jobqueue import JobMixin
from sa_jobqueue.registry import Handler

InT = TypeVar("InT")
OutT = TypeVar("OutT")
JobT = TypeVar("JobT", bound=JobMixin[Any])


def jobs_of(handler: Handler[InT, OutT, JobT]) -> Handler[InT, OutT, JobT]:
    """Return a handler with the types of its jobs alone, without those of its function."""
    return handler
