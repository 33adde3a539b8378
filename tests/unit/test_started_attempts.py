"""Which attempts a worker knows it has started."""

from __future__ import annotations

from datetime import timedelta

from sa_jobqueue.worker.run.started import StartedAttempts
from tests.fixtures.attempts import job


def test_started_attempts_are_told_from_others_in_bounded_memory() -> None:
    started = StartedAttempts(most=2)
    begin = job().started_at
    attempts = [job(number)._replace(started_at=begin + timedelta(seconds=number)) for number in range(1, 6)]
    for attempt in attempts[:4]:
        started.add(attempt)
    assert all(attempt in started for attempt in attempts[:4])  # the first two by their time
    assert attempts[4] not in started
    assert attempts[0]._replace(attempt=9, started_at=begin + timedelta(seconds=3)) not in started
