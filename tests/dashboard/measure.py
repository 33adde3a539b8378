"""How long the first byte of each page takes: python -m tests.dashboard.measure [JOBS] [REQUESTS].

Of 10 million jobs and 40 requests for each page unless given.

With `extremes` instead of JOBS, of a job of 1,000 attempts, one with a payload of 10 MB, a chain of 5,000 and one that
waits for 299 others, beside 20,000 jobs.

Fills a database with `large`, in SA_JOBQUEUE_URL if that is set (it must be empty), else on a server that it starts and
removes. Prints the median and the 95th percentile of each page, with a report that is there (warm), and of the first
request of a new process' dashboard (cold), which includes connecting.
"""

from __future__ import annotations

import http.client
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import quote, urlsplit

from sqlalchemy import Engine, create_engine, select, text

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli.dashboard import served
from sa_jobqueue.dashboard import Source, dashboard
from sa_jobqueue.migrations.runner import upgrade
from sa_jobqueue.testing.databases import create_database
from sa_jobqueue.testing.servers import open_server
from tests.dashboard.conftest import everyone
from tests.dashboard.large import fill, fill_extremes

CONTAINS = '{"n": 7}'


def paths(engine: Engine) -> list[str]:
    """Return the pages to measure, with filters that find much, little and nothing."""
    job = Job.__table__.c
    with engine.connect() as connection:
        dead, chain = (
            connection.execute(select(job.id).where(condition).limit(1)).scalar_one()
            for condition in (job.status == JobStatus.DEAD, job.type_name == "step")
        )
    lists = ["jobs", "jobs?status=pending", "jobs?type=none", f"jobs?input={quote(CONTAINS)}", "chains", "dead-letters"]
    single = [f"job?id={dead}", f"job?id={chain}", f"chain?id={chain}"]
    return ["overview", *lists, *single, "queues", "job-types", "limits", "schedules", "workers", "storage", "audit"]


def extremes(engine: Engine) -> dict[str, str]:
    """Fill in what is unusually large; return the pages by what they show."""
    ids = fill_extremes(engine)
    return {
        "a payload of 10 MB": f"job?id={ids['payload']}",
        "a job of 1,000 attempts": f"job?id={ids['attempts']}",
        "a chain of 5,000 jobs": f"chain?id={ids['chain']}",
        "its first job": f"job?id={ids['chain']}",
        "a graph of 300 chains": f"chain?id={ids['waiting']}",
    }


def first_byte(url: str, path: str) -> float:
    """Return the milliseconds until the first byte of a page's body."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    began = time.perf_counter()
    connection.request("GET", f"/queue/{path}")
    response = connection.getresponse()
    response.read(1)
    took = (time.perf_counter() - began) * 1000
    assert response.status == 200, (path, response.status)
    connection.close()
    return took


@contextmanager
def filled(jobs: int) -> Iterator[Engine]:
    """Yield an engine of a database with so many jobs."""
    with ExitStack() as stack:
        given = os.environ.get("SA_JOBQUEUE_URL")
        url = given or create_database(stack.enter_context(open_server()).url)
        engine = create_engine(url)
        stack.callback(engine.dispose)
        with engine.begin() as connection:
            upgrade(connection, Job.__jobqueue__)
        fill(engine, jobs)
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.execute(text("VACUUM ANALYZE"))
        yield engine


def main(jobs: int, requests: int, *, is_extreme: bool) -> None:
    """Measure, and print a table."""
    with filled(jobs) as engine:
        print(f"{jobs:,} jobs; milliseconds to the first byte, of {requests} requests each")
        print(f"{'page':45} {'cold':>8} {'median':>8} {'p95':>8}")
        every: list[float] = []
        pages = extremes(engine) if is_extreme else {path: path for path in paths(engine)}
        for name, path in pages.items():
            engine.dispose()
            source = Source(name="queue", engine=engine)
            with served(dashboard([source], authorize=everyone)) as url:
                cold = first_byte(url, path)
                while None in (source.sampler.sample().value, source.shares.sample().value):
                    pass
                took = sorted(first_byte(url, path) for _ in range(requests))
            every += took
            p95 = statistics.quantiles(took, n=20)[-1]
            print(f"{name:45} {cold:8.0f} {statistics.median(took):8.0f} {p95:8.0f}", flush=True)
        print(f"{'all':45} {'':8} {statistics.median(every):8.0f} {statistics.quantiles(every, n=20)[-1]:8.0f}")


if __name__ == "__main__":
    is_extreme = sys.argv[1:2] == ["extremes"]
    numbers = [int(one.replace("_", "")) for one in (["20000", *sys.argv[2:]] if is_extreme else sys.argv[1:])]
    main(*(numbers + [10_000_000, 40][len(numbers) :]), is_extreme=is_extreme)
