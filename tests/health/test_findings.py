"""Each problem in turn: a queue with one problem, and a report that names that and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from sa_jobqueue.errors import InvalidOptionError
from sa_jobqueue.observe.health import BulkWrites, Code, Health, Severity, Thresholds, health
from sa_jobqueue.observe.health.findings import judge
from sa_jobqueue.observe.metrics.samples import of_report
from tests.fixtures.database import both_servers, own_database
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.tallies import tally
from tests.health.problems import CRITICAL, PROBLEMS, WARNING, UnhealthyQueue, committed, staged

QUICK = Thresholds(bloat_bytes=100_000)


@own_database
@both_servers
@pytest.mark.parametrize(("problem", "named"), PROBLEMS, ids=lambda given: getattr(given, "__name__", ""))
def test_the_report_finds_exactly_the_injected_problem(
    problem: Callable[[UnhealthyQueue], None],
    named: set[tuple[Code, Severity]],
    engine: Engine,
    jobs: Jobs,
    request: pytest.FixtureRequest,
) -> None:
    jobs.add_worker(WORKER)
    problem(UnhealthyQueue(engine, jobs))
    report = health(engine, thresholds=QUICK)
    assert {(finding.code, finding.severity) for finding in report.findings} == named, report.findings
    assert report.severity == max((severity for _, severity in named), default=Severity.OK)
    for finding in report.findings:
        assert finding.summary.endswith(".")
        assert finding.advice.endswith(".")
    tally(request.config, "unhealthy queues each had their problem found by sa-jobqueue health", len(named))


@both_servers
def test_bulk_writes_are_counted_with_their_age_and_rejected_rows(engine: Engine, jobs: Jobs) -> None:
    unhealthy = UnhealthyQueue(engine, jobs)
    assert health(engine).bulk_writes == BulkWrites()
    for sequence in range(5):
        staged(unhealthy, "stream", sequence, age=f"{sequence} hours")
    committed(unhealthy, "new", rejected=2)
    committed(unhealthy, "old", rejected=3, age="2 days")
    found = health(engine).bulk_writes
    assert (found.unfinished, found.oldest_write_id, found.rejected, found.rejected_last_day) == (5, "stream", 5, 2)
    assert found.oldest_for is not None
    assert timedelta(hours=4) <= found.oldest_for < timedelta(hours=4, minutes=1)
    samples = {sample.name: sample.values for sample in of_report(health(engine))}
    assert samples["unfinished_bulk_writes"] == {(): 5}
    assert samples["unfinished_bulk_write_age_seconds"][()] >= 4 * 3600
    assert samples["rejected_bulk_rows"] == {(): 5}


SERVERS: list[tuple[Callable[[Health], Health], set[tuple[Code, Severity]]]] = [
    (lambda of: replace(of, server=replace(of.server, frozen_age=600_000_000)), {(Code.WRAPAROUND, WARNING)}),
    (lambda of: replace(of, server=replace(of.server, frozen_age=1_700_000_000)), {(Code.WRAPAROUND, CRITICAL)}),
    (lambda of: replace(of, server=replace(of.server, connections=95, max_connections=100)), {(Code.CONNECTIONS, WARNING)}),
    (lambda of: replace(of, server=replace(of.server, sees_all=False)), {(Code.CANNOT_SEE, Severity.OK)}),
    (lambda of: replace(of, tables=[replace(of.tables[0], bytes=2**40)]), {(Code.OUTGROWN, WARNING)}),
]


def test_server_wide_problems_are_found_from_measurements(engine: Engine, jobs: Jobs) -> None:
    healthy = health(engine)
    assert healthy.findings == []
    for change, named in SERVERS:
        report = judge(change(healthy), Thresholds())
        assert {(finding.code, finding.severity) for finding in report.findings} == named


def test_thresholds_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="claim_age_warning"):
        Thresholds(claim_age_warning=timedelta(hours=1))
    with pytest.raises(InvalidOptionError, match="saturation"):
        Thresholds(saturation=0)
