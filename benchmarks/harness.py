"""Runs cases in interleaved rounds and boils their samples down to medians."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.meter import Counted, Meter, Stopwatch
from benchmarks.place import Place, open_place
from sa_jobqueue.testing.servers import PostgresServer


def _nothing(place: Place, jobs: int) -> None:
    place.clear()


class CaseFailedError(RuntimeError):
    """A system that is measured beside ours failed: it is left out and named, and the others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The divisor of a case: another case of its scenario."""

    case: str
    figure: str | None = None
    """One of the figures; the rate unless given."""
    beyond: str | None = None
    """A case whose figure is subtracted from both: what they add to it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One thing measured."""

    name: str
    run: Callable[[Place, Stopwatch, int], int]
    """Does the work, the part that counts inside the stopwatch, and returns how many jobs it was."""
    prepare: Callable[[Place, int], None] = _nothing
    """Brings the place into the state the case begins with; not measured."""
    against: Comparison | None = None
    most: int = 1_000_000
    """Most jobs of one round, for cases that are slow by nature."""
    rated: bool = True
    """Whether jobs a second mean anything: not at a steady rate."""
    most_rounds: int = 1_000
    """Most rounds it takes part in, for cases that take minutes."""
    open_place: Callable[[PostgresServer], AbstractContextManager[Place]] | None = None
    """Opens its own place for each round, for systems that are not ours; that of the scenario unless given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One question, and the cases that answer it, in the order they run."""

    name: str
    says: str
    cases: Sequence[Case]
    jobs: int = 10_000
    """Default number of jobs of a case in one round."""
    close: Callable[[], None] = lambda: None
    """Releases the state that the cases keep from round to round."""


@dataclass(slots=True, kw_only=True)
class Sample:
    """One case in one round."""

    jobs: int
    rate: float
    per_job: dict[str, float | None]
    figures: dict[str, float]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and how far the rounds lay apart."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case over all rounds."""

    scenario: str
    case: str
    jobs: int
    rounds: int
    rate: Spread | None
    per_job: dict[str, float | None]
    figures: dict[str, float]
    against: str | None
    ratio: float | None
    """The median of each round's own ratio."""

    def document(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


def run(
    server: PostgresServer,
    scenarios: Iterable[Scenario],
    *,
    jobs: int | None,
    rounds: int,
    tell: Callable[[str], None] = lambda _: None,
    failed: dict[str, str] | None = None,
    most_seconds: float = math.inf,
) -> list[Result]:
    """Run every case of the scenarios once a round, each scenario in its own database; return them in order.

    `jobs`: of a case in one round; those of each scenario unless given. `failed` is called for each failed case, with the
    reason. No round begins that would likely end after `most_seconds`, but the first. Raises: CaseFailedError without
    `failed`.
    """
    samples: dict[tuple[str, str], list[Sample]] = {}
    with ExitStack() as places:
        opened: list[tuple[Scenario, Place | None, Meter | None]] = []
        for scenario in scenarios:
            if all(case.open_place for case in scenario.cases):
                opened.append((scenario, None, None))
                continue
            scenario_place = places.enter_context(open_place(server))
            places.callback(scenario.close)
            opened.append((scenario, scenario_place, places.enter_context(closing(Meter(scenario_place)))))
        began = time.monotonic()
        for number in range(1, rounds + 1):
            if number > 1 and (time.monotonic() - began) * number / (number - 1) > most_seconds:
                break
            for scenario, place, meter in opened:
                for case in scenario.cases:
                    if number > case.most_rounds:
                        continue
                    tell(f"round {number} of {rounds}: {scenario.name}: {case.name}")
                    job_count = min(jobs or scenario.jobs, case.most)
                    if case.open_place is None:
                        assert place is not None
                        assert meter is not None
                        sample = measure(case, place, meter, job_count)
                    else:
                        try:
                            with case.open_place(server) as case_place, closing(Meter(case_place)) as case_meter:
                                sample = measure(case, case_place, case_meter, job_count)
                        except CaseFailedError as error:
                            if failed is None:
                                raise
                            failed[f"{scenario.name}: {case.name}"] = str(error)
                            continue
                    samples.setdefault((scenario.name, case.name), []).append(sample)
        return [
            _result(
                scenario,
                case,
                {compared.name: samples.get((scenario.name, compared.name), []) for compared in scenario.cases},
            )
            for scenario, _, _ in opened
            for case in scenario.cases
            if (scenario.name, case.name) in samples
        ]


def measure(case: Case, place: Place, meter: Meter, jobs: int) -> Sample:
    """Run a case once. Raises: RuntimeError when it did no job, twice."""
    # Seen once, of two clients of pgbench with a hundred jobs on a busy machine; 25 tries did not show it again.
    for _ in range(2):
        case.prepare(place, jobs)
        counted: list[Counted] = []
        watch = Stopwatch(place.server_pid)
        with meter.reading(counted):
            job_count = case.run(place, watch, jobs)
        if job_count > 0:
            break
    if job_count <= 0 or not watch.used:
        raise RuntimeError(f"{case.name} did nothing")
    return Sample(
        jobs=job_count,
        rate=job_count / watch.seconds,
        per_job=_by_the_job(place, watch, counted[0], job_count),
        figures=watch.figures,
    )


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the value below which `percent` of the values lie: the nearest rank, so one that was really seen."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent * len(ordered) / 100) - 1)]


def _by_the_job(place: Place, watch: Stopwatch, server: Counted, jobs: int) -> dict[str, float | None]:
    used: dict[str, float | None] = {
        "commits": server.commits,
        "round_trips": watch.round_trips,
        "wal_bytes": server.wal_bytes,
        "row_versions": server.inserted + server.updated,
        "dead_tuples": server.updated + server.deleted,
        "client_cpu_us": watch.client_cpu * 1e6,
        "server_cpu_us": watch.server_cpu * 1e6 if place.server_pid is not None else None,
    }
    # PostgreSQL has no figures for jobs of another broker.
    per_job = ("client_cpu_us", "server_cpu_us") if place.broker is not None else tuple(used)
    return {
        name: value / jobs if watch.is_divided and name in per_job and value is not None else None
        for name, value in used.items()
    }


def _result(scenario: Scenario, case: Case, samples: Mapping[str, list[Sample]]) -> Result:
    mine = samples[case.name]
    rates = [sample.rate for sample in mine]
    ratio = None
    if case.against is not None and (other_samples := samples[case.against.case]):
        figure, beyond = case.against.figure, case.against.beyond
        common = [0.0] * len(mine) if beyond is None else [_measure(sample, figure) for sample in samples[beyond]]
        ratio = statistics.median(
            (_measure(a, figure) - less) / (_measure(b, figure) - less)
            for a, b, less in zip(mine, other_samples, common, strict=False)
        )
    return Result(
        scenario=scenario.name,
        case=case.name,
        jobs=min(sample.jobs for sample in mine),
        rounds=len(mine),
        rate=Spread(statistics.median(rates), min(rates), max(rates)) if case.rated else None,
        per_job={name: _median([sample.per_job[name] for sample in mine]) for name in mine[0].per_job},
        figures={name: statistics.median(sample.figures[name] for sample in mine) for name in mine[0].figures},
        against=case.against.case if case.against else None,
        ratio=ratio,
    )


def _measure(sample: Sample, figure: str | None) -> float:
    return sample.rate if figure is None else sample.figures[figure]


def _median(values: Sequence[float | None]) -> float | None:
    measured = [value for value in values if value is not None]
    return statistics.median(measured) if measured else None
