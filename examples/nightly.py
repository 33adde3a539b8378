"""A nightly job by the time of Prague: once a night, even when the clocks change, and later if no worker was running.

Run it with `python examples/nightly.py`.
"""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, Worker
from sa_jobqueue.operations import fire_schedules, run_schedule, sync_schedules
from sa_jobqueue.testing.servers import open_server

jobs = JobQueue()


@dataclass
class Night:
    """Which night a run is for: the same at each attempt."""

    at: datetime


@jobs.cron("30 2 * * *", time_zone="Europe/Prague", name="orders", fire_time_field="at", misfire_policy="all", catch_up=3)
@jobs.handler("sum_up")
def sum_up(night: Night) -> str:
    """Sum up the orders of one night."""
    return f"{night.at:%Y-%m-%d %H:%M} UTC"


def main() -> None:
    with open_server() as server:
        engine = create_engine(server.url)
        Job.metadata.create_all(engine)
        with Session(engine) as session, session.begin():
            sync_schedules(session, jobs.schedules)  # a worker does this when it starts
        for _ in range(2):  # and this, when a time has come; here after a long pause, by two of them
            with Session(engine) as session, session.begin():
                fired = fire_schedules(session, at=datetime(2100, 3, 28, 12, tzinfo=UTC))
                print("fired", sum(len(schedule_run.fire_times) for schedule_run in fired))
        with Session(engine) as session, session.begin():  # by hand, what was left out
            since, until = datetime(2100, 3, 25, tzinfo=UTC), datetime(2100, 3, 29, tzinfo=UTC)
            print("made up for", len(run_schedule(session, "orders", since=since, until=until)))
        asyncio.run(Worker(jobs, engine).run_until_idle())
        with Session(engine) as session:
            print(*sorted(session.scalars(select(Job.output))), sep="\n")
        engine.dispose()


if __name__ == "__main__":
    main()

# Output:
# fired 3
# fired 0
# made up for 1
# 2100-03-25 01:30 UTC
# 2100-03-26 01:30 UTC
# 2100-03-27 01:30 UTC
# 2100-03-28 01:00 UTC
