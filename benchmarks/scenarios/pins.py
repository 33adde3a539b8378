"""The same claim behind each kind of transaction that keeps vacuum from its work, and before and after it.

A **reader** is one snapshot that stays. A **writer** has a transaction id and does nothing more. **Analytics** are three
queries that overlap continuously, none of them long. A **dump** reads the queue's own table in one snapshot, and locks it as
`pg_dump` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Final

from sqlalchemy import Connection, text

from benchmarks import claiming, rows
from benchmarks.harness import Case, Comparison, Scenario
from benchmarks.meter import Stopwatch
from benchmarks.place import Place
from benchmarks.scenarios.horizon import churn

_DEAD: Final = 100_000
_QUERY_SECONDS: Final = 1.5
_OVERLAPPING: Final = 3
_OFF: Final = "off"

Pin = Callable[[Place], AbstractContextManager[object]]


def scenario() -> Scenario:
    """Return the cases: off, each kind, off again, and the first kind once more."""
    kinds: dict[str, Pin] = {
        _OFF: _nobody,
        "reader": reader,
        "writer": writer,
        "overlapping analytics": analytics,
        "dump": dump,
        "off again": _nobody,
        "reader again": reader,
    }
    return Scenario(
        name="kinds of open transactions",
        says=f"claims of one job, {_DEAD:,} dead rows held back by an open transaction; against the median without it",
        cases=[
            Case(
                name=name,
                run=partial(_claim, pin),
                against=None if name == _OFF else Comparison(case=_OFF, figure="p50_ms"),
                rated=False,
                most=10_000,
            )
            for name, pin in kinds.items()
        ],
    )


def _claim(pin: Pin, place: Place, watch: Stopwatch, jobs: int) -> int:
    place.clear()
    with pin(place):
        churn(place, _DEAD * jobs // 10_000)
        place.run("VACUUM job")  # which removes nothing while the transaction is open
        with place.begin() as connection:
            rows.copy(connection, 2 * claiming.CLAIMS)
        claim_count = claiming.claim_one_at_a_time(place, watch)
        watch.figures["dead"] = float(place.scalar("SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'job'"))
    return claim_count


def _nobody(place: Place) -> AbstractContextManager[object]:
    return nullcontext()


@contextmanager
def reader(place: Place) -> Iterator[None]:
    """Hold a snapshot."""
    with _snapshot(place) as connection:
        connection.execute(text("SELECT count(*) FROM pg_class"))
        yield


@contextmanager
def writer(place: Place) -> Iterator[None]:
    """Hold a transaction that wrote one row elsewhere."""
    with place.engine().connect() as connection:
        connection.execute(text("CREATE TEMPORARY TABLE held AS SELECT 1 AS id"))
        yield


@contextmanager
def dump(place: Place) -> Iterator[None]:
    """Hold a snapshot and the lock of a dump of the queue's table, in the middle of reading it."""
    with _snapshot(place) as connection:
        connection.execute(text("LOCK TABLE job IN ACCESS SHARE MODE"))
        connection.execute(text("DECLARE rows_of_the_dump CURSOR FOR SELECT * FROM job"))
        connection.execute(text("FETCH 100 FROM rows_of_the_dump"))
        yield


@contextmanager
def analytics(place: Place) -> Iterator[None]:
    """Run queries that overlap, so that one snapshot is always there that is older than the last."""
    over = threading.Event()

    def ask(number: int) -> None:
        over.wait(number * _QUERY_SECONDS / _OVERLAPPING)
        with place.engine(isolation_level="AUTOCOMMIT").connect() as connection:
            while not over.is_set():
                connection.execute(text(f"SELECT count(*), pg_sleep({_QUERY_SECONDS}) FROM job"))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(_OVERLAPPING)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


@contextmanager
def _snapshot(place: Place) -> Iterator[Connection]:
    with place.engine(isolation_level="REPEATABLE READ").connect() as connection:
        yield connection
