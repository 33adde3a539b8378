"""A primary is killed, its standby promoted: workers continue there, and no committed job is lost."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from os import chown
from pathlib import Path
from shutil import copytree
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Engine, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus, Worker
from sa_jobqueue.events import ComponentFailed
from sa_jobqueue.testing.binaries import binary_dirs
from sa_jobqueue.testing.embedded import EmbeddedServer
from tests.fixtures.transactions import write
from tests.fixtures.workers import quick, until, working

pytestmark = [pytest.mark.long, pytest.mark.timeout(180)]

# Checkpoints and the wait for a commit's record must be real; a laptop's fsync need not.
SETTINGS = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on", "fsync": "off", "max_connections": "60"}


class Pair:
    """A primary, and a standby that streams from it."""

    def __init__(self, primary: EmbeddedServer, standby: EmbeddedServer) -> None:
        self.primary, self.standby = primary, standby
        hosts = f"{primary.socket_dir},{standby.socket_dir}"
        self.url = (
            make_url(primary.socket_url)
            .update_query_dict({"host": hosts, "port": "5432,5432", "target_session_attrs": "read-write"})
            .render_as_string(hide_password=False)
        )
        """Whichever of the two takes writes."""

    def run(self, server: EmbeddedServer, statement: str) -> Any:
        engine = create_engine(server.socket_url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            result = connection.execute(text(statement))
            return result.scalar() if result.returns_rows else None

    def set(self, server: EmbeddedServer, name: str, value: str) -> None:
        self.run(server, f"ALTER SYSTEM SET {name} = '{value}'")
        self.run(server, "SELECT pg_reload_conf()")

    @property
    def is_streaming(self) -> bool:
        return bool(self.run(self.primary, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"))

    @property
    def has_caught_up(self) -> bool:
        here = self.run(self.primary, "SELECT pg_current_wal_flush_lsn()::text")
        return bool(self.run(self.standby, f"SELECT pg_last_wal_replay_lsn() >= '{here}'"))

    def fail_over(self) -> None:
        """Kill the primary, all of its processes at once, and promote the standby."""
        self.primary.crash()
        assert self.run(self.standby, "SELECT pg_promote(true, 60)") is True


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Give two real servers, the second streaming from the first, with a queue and a table of effects."""
    if not binary_dirs():
        pytest.skip("there are no PostgreSQL programs on this machine")
    programs = binary_dirs()[-1].path
    with EmbeddedServer(programs, SETTINGS) as primary:
        engine = create_engine(primary.socket_url, poolclass=NullPool)
        Job.metadata.create_all(engine)
        write(engine, "CREATE TABLE effect (job_id uuid NOT NULL, server text DEFAULT inet_server_addr()::text)")
        with (primary.socket_dir / "hba.conf").open("a") as rules:
            rules.write("local replication all trust\n")
        place = primary.data_dir.parent
        primary.restart()
        primary.crash()  # so that its files stand still
        copytree(primary.data_dir, place / "standby")
        (place / "standby" / "postmaster.pid").unlink(missing_ok=True)
        (place / "standby" / "standby.signal").touch()
        owner = primary.data_dir.stat()
        for path in (place / "standby", *(place / "standby").rglob("*")):
            chown(path, owner.st_uid, owner.st_gid)
        primary.start()
        upstream = f"host={primary.socket_dir} port=5432 user=postgres application_name=standby"
        following = SETTINGS | {"wal_retrieve_retry_interval": "100ms"}
        configuration = place / "standby" / "postgresql.auto.conf"
        configuration.write_text(f"primary_conninfo = '{upstream}'\n")
        with EmbeddedServer(programs, following, data_dir=Path(place / "standby")) as standby:
            yield Pair(primary, standby)


def application(engine: Engine, ran: Counter[str]) -> JobQueue[Any]:
    """A handler with an effect in the database and one that cannot be rolled back."""
    queue = JobQueue()

    @queue.handler("effect")
    def effect(n: int, session: Session) -> None:
        session.execute(text("INSERT INTO effect (job_id) VALUES (gen_random_uuid())"))
        ran[str(n)] += 1

    @queue.handler("plain")
    async def plain(n: int) -> None:
        ran[str(n)] += 1

    return queue


async def test_synchronously_committed_jobs_survive_a_failover(pair: Pair) -> None:
    """Jobs are enqueued and run all the while; every acknowledged commit is found on the promoted standby."""
    await until(lambda: pair.is_streaming, description="the stream")
    pair.set(pair.primary, "synchronous_standby_names", "*")
    committed: list[UUID] = []
    stop = threading.Event()
    ran: Counter[str] = Counter()
    engine = create_engine(pair.url, pool_size=12, pool_pre_ping=True, connect_args={"connect_timeout": 2})

    def produce() -> None:
        while not stop.wait(0.02):
            with suppress(DBAPIError), Session(engine) as session:
                job = Job("effect" if len(committed) % 2 else "plain", len(committed))
                job_id = job.id
                session.add(job)
                session.commit()
                committed.append(job_id)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        async with working(
            Worker(application(engine, ran), engine, options=quick(heartbeat_timeout=timedelta(seconds=3)))
        ) as log:
            await until(lambda: len(ran) >= 20, description="the first jobs")
            before = len(committed)
            await asyncio.to_thread(pair.fail_over)
            await until(lambda: len(committed) >= before + 20, description="jobs enqueued on the promoted standby")
            stop.set()
            producer.join()
            assert log.of(ComponentFailed)  # it met the outage, and restarted

            def all_done() -> bool:
                return bool(pair.run(pair.standby, "SELECT count(*) FROM job WHERE status <> 'completed'") == 0)

            await until(all_done, description="the end of all jobs")
    finally:
        stop.set()
        producer.join()
    with Session(create_engine(pair.standby.socket_url, poolclass=NullPool)) as session:
        there: dict[UUID, str] = dict(session.execute(text("SELECT id, type_name FROM job")).all())
        assert set(committed) <= set(there)
        with_effect = sum(name == "effect" for name in there.values())
        # Exactly once through the session, wherever it ran; what ran beside it may have run again.
        assert session.scalar(text("SELECT count(*) FROM effect")) == with_effect
    assert all(count >= 1 for count in ran.values())
    engine.dispose()


async def test_a_completion_lost_in_an_asynchronous_failover_runs_again(pair: Pair) -> None:
    """Asynchronously: a completion that was lost with the primary runs once more, with one effect; a job may be lost."""
    ran: Counter[str] = Counter()
    engine = create_engine(pair.url, pool_size=12, pool_pre_ping=True, connect_args={"connect_timeout": 2})
    await until(lambda: pair.is_streaming, description="the stream")
    with Session(engine) as session, session.begin():
        session.add(job := Job("effect", 1))
        job_id = job.id
    await until(lambda: pair.has_caught_up, description="the standby's replay")
    pair.set(pair.standby, "primary_conninfo", "")  # from here on it receives nothing
    await until(lambda: not pair.is_streaming, description="the end of the stream")

    def status(server: EmbeddedServer, job_id: UUID) -> Any:
        return pair.run(server, f"SELECT status::text FROM job WHERE id = '{job_id}'")

    async with working(Worker(application(engine, ran), engine, options=quick(heartbeat_timeout=timedelta(seconds=3)))):
        await until(lambda: status(pair.primary, job_id) == JobStatus.COMPLETED, description="the first run")
        with Session(engine) as session, session.begin():
            session.add(unreplicated := Job("plain", 2, delay=timedelta(hours=1)))
            lost = unreplicated.id
        await asyncio.to_thread(pair.fail_over)
        await until(lambda: status(pair.standby, job_id) == JobStatus.COMPLETED, description="the second run")
    assert ran["1"] == 2
    assert pair.run(pair.standby, "SELECT count(*) FROM effect") == 1
    assert status(pair.standby, lost) is None
    engine.dispose()
