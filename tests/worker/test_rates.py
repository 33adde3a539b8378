"""A claim under a rate goes by its own `now()`, which another one under the same rate may have left behind."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import Job
from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.worker.limits import BUSY, Limits, transaction

_GIVEN: dict[str, Any] = dict.fromkeys(ClaimedJob._fields) | {"queue": "default", "rate_weight": 2}
JOB = ClaimedJob(**_GIVEN)
RULE = """
INSERT INTO queue (name, rate_limit, rate_period, rate_algorithm) VALUES ('default', 5, interval '1 hour', 'sliding_window')
"""


async def test_a_claim_that_began_before_the_last_one_under_its_rate_starts_nothing_and_comes_again(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text(RULE))
    asynchronous = create_async_engine(engine.url, isolation_level="AUTOCOMMIT")
    late, quick = Limits(Job, "default", None), Limits(Job, "default", None)
    async with asynchronous.connect() as first, asynchronous.connect() as second:
        async with transaction(first):
            async with transaction(second):
                assert await quick.room(second, 9) == (5, {})
                await quick.rates.spend(second, [JOB])
            # Its jobs would be started at a `now()` before that of the others: a window that ends there would miss them.
            assert await late.room(first, 9) == (0, {})
            assert late.again_in == BUSY
        async with transaction(first):
            assert await late.room(first, 9) == (3, {})
            async with transaction(second):
                # Held by the first: nobody waits for it.
                assert await quick.room(second, 9) == (0, {})
    await asynchronous.dispose()
