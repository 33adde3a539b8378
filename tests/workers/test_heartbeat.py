"""The lease of a worker, as its own clock sees it."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine

from sa_jobqueue import Job
from sa_jobqueue.worker.background.heartbeat import Heartbeat
from sa_jobqueue.worker.shared import Identity


def test_attempts_are_stopped_after_a_pause_even_if_a_heartbeat_precedes_the_check(engine: Engine) -> None:
    now = [0.0]
    warnings: list[timedelta] = []
    identity = Identity("tester:1", "tester", "here", 1, "0", ["default"], ["nothing"], 1)
    heartbeat = Heartbeat(
        engine.execution_options(isolation_level="AUTOCOMMIT"),
        Job,
        identity,
        interval=timedelta(seconds=1),
        heartbeat_timeout=timedelta(seconds=3),
        on_endangered=warnings.append,
        clock=lambda: now[0],
    )
    heartbeat.send()
    now[0] = 1.5
    heartbeat.send()
    heartbeat.check()
    assert warnings == []
    now[0] = 5.0  # the whole process was paused; its threads resume in any order
    heartbeat.send()
    assert heartbeat.is_safe
    heartbeat.check()
    heartbeat.check()
    assert warnings == [timedelta(seconds=3.5)]
    now[0] = 9.0
    heartbeat.check()
    heartbeat.send()
    heartbeat.check()
    assert warnings == [timedelta(seconds=3.5), timedelta(seconds=4)]
    heartbeat.stop()
