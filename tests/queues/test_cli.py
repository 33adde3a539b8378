"""`sa-jobqueue queues`, `types` and `workers concurrency`."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest
from sqlalchemy import Engine, text

from tests.fixtures.commands import Run, document, run
from tests.fixtures.jobs import WORKER, Jobs

__all__ = ["run"]  # a fixture

APPLICATION = """
from datetime import timedelta
from sa_jobqueue import JobQueue
from sa_jobqueue.policies.retention import Retention

jobs = JobQueue()
jobs.queue("mail", weight=2, global_concurrency=10)
jobs.queue("reports", rate_limit=5, rate_period=timedelta(seconds=60), retention=Retention(completed=timedelta(days=7)))
"""


@pytest.mark.slow
def test_queues_are_configured_paused_and_resumed(run: Run) -> None:
    assert "0 queues" in run("queues", "list").stdout
    run("queues", "show", "mail", status=1)
    run("queues", "set", "mail", "--weight", "3", "--rate-limit", "5", "--rate-period", "60s", "--retain-dead", "90d")
    missing = run("queues", "pause", "other", status=1)
    assert "no such queue: 'other'; it has no settings and no active worker" in missing.stderr
    run("queues", "set", "other")
    assert document(run("queues", "pause", "mail", "other", "--by", "ann", "--json")) == {"paused": ["mail", "other"]}
    assert "0 queues paused" in run("queues", "pause", "mail").stdout
    settings = document(run("queues", "set", "mail", "--global-concurrency", "7", "--rate-limit", "none", "--json"))
    assert (settings["weight"], settings["global_concurrency"], settings["rate_limit"], settings["rate_period"]) == (
        3,
        7,
        None,
        None,
    )
    assert (settings["retain_dead"], settings["paused_by"]) == (90 * 86_400, "ann")
    assert document(run("queues", "show", "mail", "--json")) == settings
    listed = run("queues", "list").stdout
    assert "2 queues" in listed
    assert "ann" in listed
    assert "1 queue resumed" in run("queues", "resume", "mail").stdout
    names = [one["name"] for one in document(run("queues", "list", "--json"))["queues"] if one["paused_at"]]
    assert names == ["other"]
    rate = ["--rate-limit", "100", "--rate-period", "60s", "--rate-burst", "7"]
    assert document(run("queues", "set", "other", *rate, "--json"))["rate_burst"] == 7
    assert "7 at once" in run("queues", "list").stdout
    assert "--rate-algorithm is no option: every rate is a token bucket" in run(
        "queues", "set", "other", "--rate-algorithm", "sliding_window", status=2
    ).stderr.replace("\n", " ")
    run("queues", "set", "other", "--concurrency-per-key", "1234")
    listed = run("queues", "list").stdout
    assert "1234" in listed
    (other,) = (one for one in document(run("queues", "list", "--json"))["queues"] if one["name"] == "other")
    assert (other["concurrency_per_key"], other["rate_limit"], other["rate_burst"]) == (1234, 100, 7)
    assert document(run("queues", "set", "other", "--rate-limit", "none", "--json"))["rate_burst"] is None
    settings = document(run("queues", "set", "other", "--retry-base", "5s", "--retry-cap", "60s", "--json"))
    assert (settings["retry_base"], settings["retry_factor"], settings["retry_cap"]) == (5, 2, 60)
    settings = document(run("queues", "set", "other", "--retry-factor", "3", "--json"))
    assert (settings["retry_base"], settings["retry_factor"], settings["retry_cap"]) == (5, 3, 60)
    assert "--retry-base" in run("queues", "set", "other", "--retry-base", "soon", status=2).stderr
    run("queues", "set", "other", "--retry-cap", "1s", status=2)
    assert document(run("queues", "set", "other", "--retry-base", "none", "--json"))["retry_cap"] is None
    for wrong in (["--weight", "0"], ["--global-concurrency", "0"], ["--rate-limit", "5"], ["--retain-dead", "99999d"]):
        run("queues", "set", "mail", *wrong, status=2)
    unreadable = {"global-concurrency": "many", "rate-period": "nan", "retain-dead": "30", "concurrency-per-key": "1.5"}
    for option, given in unreadable.items():
        assert f"'--{option}'" in run("queues", "set", "mail", f"--{option}", given, status=2).stderr
    run("queues", "pause", "no spaces", status=2)


def test_job_types_are_configured_paused_and_resumed(run: Run) -> None:
    settings = document(run("types", "set", "send", "--global-concurrency", "2", "--json"))
    assert (settings["type_name"], settings["global_concurrency"]) == ("send", 2)
    assert "1 job type paused" in run("types", "pause", "send", "--by", "ann").stdout
    assert "ann" in run("types", "list").stdout
    assert document(run("types", "list", "--json"))["types"][0]["paused_by"] == "ann"
    assert document(run("types", "resume", "send", "--json")) == {"resumed": ["send"]}


def test_queues_sync_writes_declared_settings_and_a_dry_run_only_prints_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declares_queues.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(tmp_path)
    run("queues", "set", "mail", "--weight", "5")
    run("queues", "set", "by_hand")
    printed = run("queues", "sync", "declares_queues:jobs", "--dry-run").stdout
    assert "reports: would be created" in printed
    assert "mail: would be changed: weight 5 -> 2, global_concurrency - -> 10" in printed
    assert "by_hand: not declared, not changed" in printed
    synced = document(run("queues", "sync", "declares_queues:jobs", "--json"))
    assert synced["changed"] == {"mail": {"weight": [5, 2], "global_concurrency": [None, 10]}}
    assert (synced["created"], synced["undeclared"], synced["dry_run"]) == (["reports"], ["by_hand"], False)
    assert "2 queues unchanged" in run("queues", "sync", "declares_queues:jobs").stdout


def test_workers_concurrency_requests_and_resets_a_workers_concurrency(run: Run, jobs: Jobs, engine: Engine) -> None:
    jobs.add_worker(WORKER)

    def asked() -> int | None:
        with engine.connect() as connection:
            number: int | None = connection.scalar(text("SELECT concurrency_requested FROM worker"))
            return number

    assert document(run("workers", "concurrency", WORKER, "4", "--json")) == {"worker": WORKER, "concurrency_requested": 4}
    assert asked() == 4
    assert "initial value" in run("workers", "concurrency", WORKER).stdout
    assert asked() is None
    run("workers", "concurrency", "nobody", "4", status=1)
    run("workers", "concurrency", WORKER, "0", status=2)


def test_each_change_is_recorded_with_its_actor_and_listed(run: Run, jobs: Jobs) -> None:
    job_id = jobs.add(due_in=3600)
    assert "1 pending job would be triggered" in run("jobs", "retry", job_id, "--dry-run").stdout
    run("jobs", "retry", job_id, "--by", "ann")
    run("queues", "set", "mail", "--weight", "3", "--by", "bob")
    run("queues", "pause", "mail")
    run("queues", "resume", "mail", "--by", "ann")
    listed = document(run("audit", "list", "--json"))["audit"]
    assert [one["operation"] for one in listed] == ["resume_queues", "pause_queues", "upsert_queue", "trigger_jobs"]
    assert listed[1]["done_by"] == getpass.getuser()
    assert listed[2]["arguments"]["settings"]["weight"] == 3
    assert listed[3]["ids"] == [str(job_id)]
    table = run("audit", "list", "--by", "ann", "--limit", "1").stdout
    assert "resume_queues" in table
    assert f"next page: --after {listed[0]['id']}" in table
    assert run("audit", "prune", "--older-than", "1d").stdout == "0 records deleted\n"
    planned = document(run("audit", "prune", "--older-than", "0s", "--dry-run", "--json"))
    assert planned == {"dry_run": True, "audit": 4}
    assert document(run("audit", "prune", "--older-than", "0s", "--json")) == {"dry_run": False, "audit": 4}
