"""What viewers of a dashboard cost a worker: python -m tests.dashboard.viewers [JOBS] [ROUNDS].

Of 60,000 jobs that do nothing and five rounds unless given. Each round drains them twice: with ten viewers, whose pages
update every two seconds, and without. The dashboard runs in a process of its own, as for most users. Prints jobs/s and the
worker's CPU time a job, and the medians of the rounds' ratios.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
import threading
import time
from multiprocessing.connection import Connection
from urllib.request import Request, urlopen

from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from sa_jobqueue import Job, JobQueue, Worker, WorkerOptions
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.testing.databases import ThrowAwayDatabase
from sa_jobqueue.testing.servers import open_server
from tests.dashboard.conftest import everyone

VIEWERS = 10
EVERY_SECONDS = 2.0
PAGES = ("overview", "jobs", "queues", "workers", "limits")


def view(url: str, pipe: Connection) -> None:
    """Serve a dashboard and look at it, from the first message of a pipe to the second."""
    engine = create_engine(url)
    ended = threading.Event()
    looked = [0] * VIEWERS

    def look(place: int, root: str) -> None:
        page = Request(f"{root}/queue/{PAGES[place % len(PAGES)]}", headers={"HX-Request": "true"})
        ended.wait(EVERY_SECONDS * place / VIEWERS)
        while not ended.is_set():
            with urlopen(page, timeout=60) as answer:
                answer.read()
            looked[place] += 1
            ended.wait(EVERY_SECONDS)
        looked[place] = -looked[place]  # it has come to its end, and not failed

    with served(dashboard([Source(name="queue", engine=engine)], authorize=everyone)) as root:
        viewers = [threading.Thread(target=look, args=(place, root)) for place in range(VIEWERS)]
        for viewer in viewers:
            viewer.start()
        pipe.send("open")
        pipe.recv()
        ended.set()
        for viewer in viewers:
            viewer.join()
    engine.dispose()
    pipe.send(all(number < 0 for number in looked))


async def drain(url: str, jobs: int) -> tuple[float, float]:
    """Drain the queue; return jobs per second and the microseconds of CPU time a job in this process."""
    queue = JobQueue()

    @queue.handler("nothing")
    async def nothing(payload: object) -> None: ...

    engine = create_async_engine(url)
    worker = Worker(queue, engine, options=WorkerOptions(concurrency=100))
    began, cpu = time.perf_counter(), time.process_time()
    await worker.run_until_idle()
    took = time.perf_counter() - began, time.process_time() - cpu
    await engine.dispose()
    return jobs / took[0], took[1] / jobs * 1e6


def measured(server_url: str, jobs: int, *, viewed: bool) -> tuple[float, float]:
    """Fill a database of its own and drain it, with or without viewers."""
    with ThrowAwayDatabase(server_url) as database:
        engine = create_engine(database.url)
        with engine.begin() as connection:
            upgrade(connection, Job.__jobqueue__)
            connection.execute(
                text("""INSERT INTO job (id, chain_id, type_name, chain_type_name, input)
                        SELECT id, id, 'nothing', 'nothing', '{}'
                        FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, :jobs)) AS new"""),
                {"jobs": jobs},
            )
        engine.dispose()
        mine, theirs = multiprocessing.get_context("spawn").Pipe()
        dashboards = multiprocessing.get_context("spawn").Process(target=view, args=(database.url, theirs), daemon=True)
        if viewed:
            dashboards.start()
            mine.recv()
        found = asyncio.run(drain(database.url, jobs))
        if viewed:
            mine.send("close")
            if not mine.recv():
                raise SystemExit("a viewer got no answer")
            dashboards.join()
        return found


def main(jobs: int, rounds: int) -> None:
    """Measure, and print the rounds and the medians of their ratios."""
    ratios: list[tuple[float, float]] = []
    print(f"{jobs:,} jobs; {VIEWERS} viewers, each every {EVERY_SECONDS:.0f} s")
    with open_server() as server:
        measured(server.url, jobs, viewed=True)  # not counted: the first one compiles and warms up
        for number in range(rounds):
            order = (True, False) if number % 2 else (False, True)
            found = {viewed: measured(server.url, jobs, viewed=viewed) for viewed in order}
            (rate, cpu), (viewed_rate, viewed_cpu) = found[False], found[True]
            ratios.append((viewed_rate / rate, viewed_cpu / cpu))
            print(f"without {rate:8,.0f}/s {cpu:6.1f} us   with {viewed_rate:8,.0f}/s {viewed_cpu:6.1f} us", flush=True)
    rates, cpus = zip(*ratios, strict=True)
    print(f"with against without: jobs/s {statistics.median(rates):.3f}, CPU time a job {statistics.median(cpus):.3f}")


if __name__ == "__main__":
    numbers = [int(one.replace("_", "")) for one in sys.argv[1:]]
    main(*(numbers + [60_000, 5][len(numbers) :]))
