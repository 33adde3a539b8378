"""The table of policies: the guarantee of each, its bound, and its measured cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table

from benchmarks.scenarios import policy
from benchmarks.targets import Found


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One line."""

    name: str
    guarantee: str
    bound: str
    case: str
    """Its scenario."""
    wanted: float
    """Jobs a second with it, against without."""


POLICIES: Final[Sequence[Policy]] = (
    Policy(
        name="shares of queues",
        guarantee="in proportion to the weights, whatever the backlogs; no slot stays free",
        bound="one job of each queue, a worker; an idle queue has its share of the next claim",
        case="4 queues that share",
        wanted=0.95,
    ),
    Policy(
        name="shares of 20 queues",
        guarantee="the same",
        bound="the same",
        case="20 queues that share",
        wanted=0.95,
    ),
    Policy(
        name="shares by key, 10 keys",
        guarantee="within a queue, in proportion to the keys' weights",
        bound="a key's first job waits for one job of each other key that has some",
        case="10 fair keys",
        wanted=0.8,
    ),
    Policy(
        name="shares by key, 1,000 keys",
        guarantee="the same",
        bound="the same; a claim names 64 keys at most, 256 after one that they did not fill",
        case="1,000 fair keys",
        wanted=0.8,
    ),
    Policy(
        name="priorities that age",
        guarantee="the higher first, and none waits forever",
        bound="a job with n due before it has started when 16 n others have, and a second later",
        case="every priority",
        wanted=0.95,
    ),
    Policy(
        name="slots of a type",
        guarantee="at most so many at once in a worker",
        bound="exact",
        case="two types, slots for one",
        wanted=0.95,
    ),
    Policy(
        name="limit across workers",
        guarantee="at most so many at once in all of them",
        bound="exact at every instant; a freed slot is seen by other workers after 10 to 20 ms",
        case="global_concurrency",
        wanted=0.7,
    ),
    Policy(
        name="the same, as many as slots",
        guarantee="the same",
        bound="the same; here the limit is in the worker's way",
        case="global_concurrency, as many as slots",
        wanted=0.7,
    ),
    Policy(
        name="limit of each key",
        guarantee="at most so many of each key at once in all workers",
        bound="the same",
        case="10 fair keys, global_concurrency of each",
        wanted=0.7,
    ),
    Policy(
        name="rate across workers",
        guarantee="in any stretch at most the burst and what the rate gives",
        bound="exact by the database's clock",
        case="rate",
        wanted=0.7,
    ),
    Policy(
        name="order of a key",
        guarantee="one job of a key at a time, in order",
        bound="exact, by a unique index",
        case="1,000 ordering keys",
        wanted=0.7,
    ),
    Policy(
        name="a function chooses",
        guarantee="what it names, in its order, and nothing else",
        bound="of its window; what it leaves out waits, with `max_wait` for a limited time",
        case="a selector",
        wanted=0.6,
    ),
)


def table(document: Mapping[str, Any]) -> Table | None:
    """Return the table of a document's run; None of one that did not run the scenario."""
    found = Found(document)
    if found.case(policy.NAME, POLICIES[0].case) is None:
        return None
    shown = Table("policy", "guarantee", "bound", title="policies: jobs/s and CPU us a job, with it against without")
    for heading in ("wanted", "jobs/s", "CPU", "round trips", "WAL bytes"):
        shown.add_column(heading, justify="right")
    for one in POLICIES:
        case = found.case(policy.NAME, one.case)
        if case is None:
            continue
        without = found.case(policy.NAME, case["against"])
        assert without is not None
        cpu = without["figures"]["cpu_us"] / case["figures"]["cpu_us"]
        more = {name: case["per_job"][name] - without["per_job"][name] for name in ("round_trips", "wal_bytes")}
        cells = [f"{one.wanted:.2f}", f"{case['ratio']:.2f}", f"{cpu:.2f}"]
        cells += [f"{more['round_trips']:+.3f}", f"{more['wal_bytes']:+,.0f}"]
        shown.add_row(one.name, one.guarantee, one.bound, *cells)
    return shown
