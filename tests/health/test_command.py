"""`sa-jobqueue health`: lines for the person on call, a document for programs, a status for probes."""

from __future__ import annotations

import json
import re

from sqlalchemy import Engine

from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import WORKER, Jobs
from tests.fixtures.transactions import write


def test_the_exit_status_follows_monitoring_plugins(run: Run, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    assert run("health").output.split()[0] == "OK"
    jobs.add(due_in=-120)
    assert "warning  claim_age: A worker has a free slot, and it is next" in run("health", status=1).output
    run("health", "--threshold", "claim_age_warning=10m", status=0)
    run("health", "--threshold", "claim_age_critical=90s", status=2)

    url = "postgresql://somebody:secret@127.0.0.1:1/nowhere"
    for arguments, message in (
        (["--threshold", "nonsense=1"], "must be one of claim_age_warning"),
        (["--threshold", "saturation=much"], "is not a number"),
        (["--threshold", "claim_age_warning=9999s"], "must not be greater than claim_age_critical"),
        (["--window", "0"], "must be greater than 0"),
        (["--url", url], "cannot use postgresql"),
        (["--url", ""], "no database"),
    ):
        unknown = run("health", *arguments, status=3, **({"url": ""} if message == "no database" else {})).output
        assert message in unknown
        assert "secret" not in unknown
    write(engine, "DROP TABLE dead_letter CASCADE")
    assert "dead_letter" in run("health", status=3).output


def test_the_health_document_has_every_measurement(run: Run, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, concurrency=4)
    jobs.add_many(3, queue="mail")
    report = document(run("health", "--json", status=2))
    assert (report["severity"], report["due"]) == ("critical", 3)
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("queue_unserved", "critical")
    assert finding["evidence"] == {"queues": ["mail"]}
    assert report["queues"][0]["queue"] == "mail"
    assert report["queues"][0]["claim_age"] == report["claim_age"] >= 2
    assert (report["workers"]["slots"], report["workers"]["saturation"]) == (4, 0)
    assert {table["name"] for table in report["tables"]} >= {"job", "job_attempt", "worker"}
    assert report["horizon"]["holders"] == []
    assert report["rates"]["arrived"] == 3


def test_health_watch_repeats_the_report_and_exits_with_the_last_status(run: Run, jobs: Jobs) -> None:
    jobs.add()
    printed = run("health", "--json", "--watch", "--interval", "0", "--times", "3", status=2).output
    documents = [json.loads(line) for line in printed.splitlines()]
    assert [document["severity"] for document in documents] == ["critical"] * 3
    assert len({document["measured_at"] for document in documents}) == 3
    printed = run("health", "--watch", "--interval", "0", "--times", "2", status=2).output
    assert "No worker is registered" in printed


def test_the_queues_that_wait_longest_come_first_and_few_are_shown(run: Run, jobs: Jobs) -> None:
    jobs.add_worker(queues=["default"])
    for number in range(25):
        jobs.add(queue=f"q{number:02}", due_in=-number)
    printed = run("health", status=2).output
    assert "queues, the longest wait first; 5 more with --json" in printed
    assert re.findall(r"│ (q\d\d) ", printed) == [f"q{number:02}" for number in range(24, 4, -1)]
