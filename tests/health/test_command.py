"""`sa-jobqueue health`: lines for the person on call, a document for programs, a status for probes."""

from __future__ import annotations

import json
import re
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import Engine, text

from sa_jobqueue.cli import main
from tests.fixtures.jobs import WORKER, Jobs


def call(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["health", *arguments], env={"SA_JOBQUEUE_URL": url})


def test_the_exit_status_follows_monitoring_plugins(database_url: str, engine: Engine, jobs: Jobs) -> None:
    jobs.add_worker(WORKER)
    fine = call(database_url)
    assert (fine.exit_code, fine.output.split()[0]) == (0, "OK"), fine.output
    jobs.add(due_in=-120)
    warned = call(database_url)
    assert warned.exit_code == 1
    assert "warning  claim_age: A worker has a free slot, and it is next" in warned.output
    assert call(database_url, "--threshold", "claim_age_warning=10m").exit_code == 0
    assert call(database_url, "--threshold", "claim_age_critical=90s").exit_code == 2

    url = "postgresql://somebody:secret@127.0.0.1:1/nowhere"
    for arguments, message in (
        (["--threshold", "nonsense=1"], "must be one of claim_age_warning"),
        (["--threshold", "saturation=much"], "is not a number"),
        (["--threshold", "claim_age_warning=9999s"], "must not be greater than claim_age_critical"),
        (["--window", "0"], "must be greater than 0"),
        (["--url", url], "cannot use postgresql"),
        (["--url", ""], "no database"),
    ):
        unknown = call(database_url if message != "no database" else "", *arguments)
        assert unknown.exit_code == 3, unknown.output
        assert message in unknown.output
        assert "secret" not in unknown.output
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE dead_letter CASCADE"))
    broken = call(database_url)
    assert (broken.exit_code, "dead_letter" in broken.output) == (3, True)


def test_the_health_document_has_every_measurement(database_url: str, jobs: Jobs) -> None:
    jobs.add_worker(WORKER, concurrency=4)
    jobs.add_many(3, queue="mail")
    result = call(database_url, "--json")
    document: dict[str, Any] = json.loads(result.output)
    assert (result.exit_code, document["severity"], document["due"]) == (2, "critical", 3)
    (finding,) = document["findings"]
    assert (finding["code"], finding["severity"]) == ("queue_unserved", "critical")
    assert finding["evidence"] == {"queues": ["mail"]}
    assert document["queues"][0]["queue"] == "mail"
    assert document["queues"][0]["claim_age"] == document["claim_age"] >= 2
    assert (document["workers"]["slots"], document["workers"]["saturation"]) == (4, 0)
    assert {table["name"] for table in document["tables"]} >= {"job", "job_attempt", "worker"}
    assert document["horizon"]["holders"] == []
    assert document["rates"]["arrived"] == 3


def test_health_watch_repeats_the_report_and_exits_with_the_last_status(database_url: str, jobs: Jobs) -> None:
    jobs.add()
    result = call(database_url, "--json", "--watch", "--interval", "0", "--times", "3")
    documents = [json.loads(line) for line in result.output.splitlines()]
    assert [document["severity"] for document in documents] == ["critical"] * 3
    assert len({document["measured_at"] for document in documents}) == 3
    assert result.exit_code == 2
    output = call(database_url, "--watch", "--interval", "0", "--times", "2")
    assert output.exit_code == 2
    assert "No worker is registered" in output.output


def test_the_queues_that_wait_longest_come_first_and_few_are_shown(database_url: str, jobs: Jobs) -> None:
    jobs.add_worker(queues=["default"])
    for number in range(25):
        jobs.add(queue=f"q{number:02}", due_in=-number)
    ended = call(database_url)
    assert "queues, the longest wait first; 5 more with --json" in ended.output
    assert re.findall(r"│ (q\d\d) ", ended.output) == [f"q{number:02}" for number in range(24, 4, -1)]
