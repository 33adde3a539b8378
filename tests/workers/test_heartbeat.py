"""The lease of a worker, as its own clock sees it."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from sa_jobqueue.worker.background.heartbeat import Heartbeat
from tests.fixtures.workers import shared


def test_attempts_are_stopped_after_a_pause_even_if_a_heartbeat_precedes_the_check(
    engine: Engine, async_engine: AsyncEngine
) -> None:
    now = [0.0]
    warnings: list[timedelta] = []
    heartbeat = Heartbeat(
        shared(async_engine, heartbeat_interval=timedelta(seconds=1), heartbeat_timeout=timedelta(seconds=3)),
        engine.execution_options(isolation_level="AUTOCOMMIT"),
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
