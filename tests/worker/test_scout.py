"""What a look at parts asks of lanes that were read to their end."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from sqlalchemy import Engine, text

from sa_jobqueue import Job
from sa_jobqueue.db.connections import Connections
from sa_jobqueue.policies.fairness import part_of
from sa_jobqueue.worker.claim.floors import Lane
from sa_jobqueue.worker.claim.groups import Group
from sa_jobqueue.worker.claim.scout import Scout
from tests.fixtures.jobs import Jobs


async def test_of_lanes_that_were_read_to_different_instants_each_is_asked_from_its_own_or_an_earlier_one(
    engine: Engine, jobs: Jobs
) -> None:
    at = jobs.get(jobs.add(type_name="send", queue="mail", fairness_key="1", due_in=-50))["scheduled_at"]
    group = Group(["mail"], ["send"], UUID(int=0), room=None, limits=None, fair=True)
    for key, seconds in (("1", -10), ("2", 10)):
        lane = Lane(part_of("mail", key), 0)
        group.floors.track(lane, at + timedelta(seconds=seconds))
        group.parts._spent[lane] = None
    with engine.connect() as now:
        xmax = now.execute(text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")).scalar_one()
    scout = Scout(Job, ["send"])
    scout._seen, scout._after, scout._survey_at = (xmax, []), None, 1e9  # so that it is not found otherwise
    connections = Connections(engine.url, worker_name="here", patience=timedelta(seconds=15))
    own = connections.engine(1)
    async with own.connect() as connection:
        await scout.look(connection, [group], 0.0, lambda: 0.0)
    await own.dispose()
    await connections.close(timedelta(seconds=1))
    group.parts.wake(0.0)
    assert group.parts.names() == [part_of("mail", "1")]
