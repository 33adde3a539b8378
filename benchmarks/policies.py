"""The table of policies: the guarantee of each, its bound, and its measured cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.table import Table

from benchmarks.scenarios import policy
from benchmarks.targets import Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """One line."""

    name: str
    guarantee: str
    bound: str
    case: str
    """Its scenario."""
    least_ratio: float
    """Jobs a second with it, against without."""


POLICIES: Final[Sequence[Policy]] = (
    Policy(
        name="shares of queues",
        guarantee="in proportion to the weights, whatever the backlogs; no slot stays free",
        bound="one job of each queue, a worker; an idle queue has its share of the next claim",
        case="4 queues that share",
        least_ratio=0.95,
    ),
    Policy(
        name="shares of 20 queues",
        guarantee="the same",
        bound="the same",
        case="20 queues that share",
        least_ratio=0.95,
    ),
    Policy(
        name="shares by key, 10 keys",
        guarantee="within a queue, in proportion to the keys' weights",
        bound="a key's first job waits for one job of each other key that has some",
        case="10 fair keys",
        least_ratio=0.8,
    ),
    Policy(
        name="shares by key, 1,000 keys",
        guarantee="the same",
        bound="the same; a claim names 64 keys at most, 256 after one that they did not fill",
        case="1,000 fair keys",
        least_ratio=0.8,
    ),
    Policy(
        name="priorities that age",
        guarantee="the higher first, and none waits forever",
        bound="a job with n due before it has started when 16 n others have, and a second later",
        case="every priority",
        least_ratio=0.95,
    ),
    Policy(
        name="slots of a type",
        guarantee="at most so many at once in a worker",
        bound="exact",
        case="two types, slots for one",
        least_ratio=0.95,
    ),
    Policy(
        name="limit across workers",
        guarantee="at most so many at once in all of them",
        bound="exact at every instant; a freed slot is seen by other workers after 10 to 20 ms",
        case="global_concurrency",
        least_ratio=0.7,
    ),
    Policy(
        name="the same, as many as slots",
        guarantee="the same",
        bound="the same; here the limit is in the worker's way",
        case="global_concurrency, as many as slots",
        least_ratio=0.7,
    ),
    Policy(
        name="limit of each key",
        guarantee="at most so many of each key at once in all workers",
        bound="the same",
        case="10 fair keys, global_concurrency of each",
        least_ratio=0.7,
    ),
    Policy(
        name="rate across workers",
        guarantee="in any stretch at most the burst and what the rate gives",
        bound="exact by the database's clock",
        case="rate",
        least_ratio=0.7,
    ),
    Policy(
        name="order of a key",
        guarantee="one job of a key at a time, in order",
        bound="exact, by a unique index",
        case="1,000 ordering keys",
        least_ratio=0.7,
    ),
    Policy(
        name="a function chooses",
        guarantee="what it names, in its order, and nothing else",
        bound="of its window; what it leaves out waits, with `max_wait` for a limited time",
        case="a selector",
        least_ratio=0.6,
    ),
)


def table(document: Mapping[str, Any]) -> Table | None:
    """Return the table of a document's run; None of one that did not run the scenario."""
    figures = Figures(document)
    if figures.case(policy.NAME, POLICIES[0].case) is None:
        return None
    table_of_policies = Table(
        "policy", "guarantee", "bound", title="policies: jobs/s and CPU us a job, with it against without"
    )
    for heading in ("wanted", "jobs/s", "CPU", "round trips", "WAL bytes"):
        table_of_policies.add_column(heading, justify="right")
    for line in POLICIES:
        case = figures.case(policy.NAME, line.case)
        if case is None:
            continue
        without = figures.case(policy.NAME, case["against"])
        assert without is not None
        cpu = without["figures"]["cpu_us"] / case["figures"]["cpu_us"]
        more = {name: case["per_job"][name] - without["per_job"][name] for name in ("round_trips", "wal_bytes")}
        cells = [f"{line.least_ratio:.2f}", f"{case['ratio']:.2f}", f"{cpu:.2f}"]
        cells += [f"{more['round_trips']:+.3f}", f"{more['wal_bytes']:+,.0f}"]
        table_of_policies.add_row(line.name, line.guarantee, line.bound, *cells)
    return table_of_policies
