"""The picture of a flood: ten jobs come into one queue while another has a backlog, with shares and without."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any, Final

from sqlalchemy.orm import Session

from benchmarks import plots, workers
from benchmarks.meter import Stopwatch
from benchmarks.place import Place, open_place
from benchmarks.scenarios import policy
from benchmarks.scenarios.policy import Load
from sa_jobqueue import Job, JobQueue
from sa_jobqueue.testing.servers import PostgresServer

FEW: Final = 10
CASES: Final = {"queues share": True, "fair=False": False}
CONCURRENCY: Final = 20
_HEAD: Final = 0.02
"""Of the backlog, that has started when the ten come."""
_TYPE: Final = "no_op"
_POINTS: Final = 400


def run(server: PostgresServer, jobs: int) -> dict[str, Any]:
    """Return when the jobs of both queues started, in seconds from the commit of the ten."""
    found: dict[str, Any] = {"jobs": jobs, "few": FEW, "concurrency": CONCURRENCY}
    for name, fair in CASES.items():
        with open_place(server) as place:
            found[name] = _flooded(place, jobs, fair=fair)
    return found


def draw(found: dict[str, Any], picture: Path) -> bool:
    """Write the picture; False without a browser at hand."""
    from plotly import graph_objects

    figure = graph_objects.Figure()
    for name, colour, symbol in zip(CASES, ("#2471a3", "#c0392b"), ("circle", "diamond"), strict=True):
        seen = found[name]
        flood = [(at, number) for at, number in seen["flood"] if at > 0.0005]
        figure.add_scatter(
            x=[at * 1000 for at, _ in flood],
            y=[number for _, number in flood],
            name=f"flood, {name}",
            mode="lines",
            line={"width": 2, "color": colour},
        )
        figure.add_scatter(
            x=[at * 1000 for at in seen["few"]],
            y=[number + 1 for number in range(len(seen["few"]))],
            name=f"the ten, {name}",
            mode="markers",
            marker={"size": 9, "color": colour, "symbol": symbol},
        )
    figure.update_xaxes(type="log", title="milliseconds after the commit of the ten")
    figure.update_yaxes(type="log", title=f"jobs started; {found['jobs']:,} and {FEW} in all")
    return plots.photograph(figure, picture)


def _flooded(place: Place, jobs: int, *, fair: bool) -> dict[str, Any]:
    load = Load(queues=1)
    policy.fill(load, place, jobs)
    flood: list[float] = []
    few: list[float] = []
    at_last, committed = threading.Event(), list[float]()

    def enqueue() -> None:
        at_last.wait()
        with Session(place.engine()) as session:
            session.add_all([Job(_TYPE, number, queue="few") for number in range(FEW)])
            session.commit()
        committed.append(time.monotonic())

    queue, head = JobQueue(), int(jobs * _HEAD)

    @queue.handler(_TYPE)
    async def note(payload: Any) -> None:
        # What is in the flood is an order, and the ten are numbers.
        (flood if isinstance(payload, dict) else few).append(time.monotonic())
        if len(flood) == head:
            at_last.set()
        await asyncio.sleep(0)

    producer = threading.Thread(target=enqueue)
    producer.start()
    queues = [*load.names, "few"]
    workers.drain(place, Stopwatch(None), jobs + FEW, queue, concurrency=CONCURRENCY, queues=queues, fair=fair)
    producer.join()
    began, step = committed[0], max(1, jobs // _POINTS)
    started = [(at - began, number) for number, at in enumerate(flood, 1)]
    near = [one for one in started if 0 < one[0] < 0.2]
    curve = sorted({*started[::step], *near[:: max(1, len(near) // _POINTS)], started[-1]})
    return {"few": sorted(at - began for at in few), "flood": curve, "before": sum(at < began for at in flood)}
