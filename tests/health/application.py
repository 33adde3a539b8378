"""An application whose jobs complete and die, for figures of both."""

from __future__ import annotations

APPLICATION = """
from sa_jobqueue import JobQueue, Discard
jobs = JobQueue()
@jobs.handler("good")
def good(payload): ...
@jobs.handler("bad", max_attempts=1)
def bad(payload):
    raise ValueError("no")
"""
