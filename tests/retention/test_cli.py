"""`sa-jobqueue prune`: it deletes the selected chains and no others, and a dry run only reports."""

from __future__ import annotations

import getpass
import json
from typing import Any

from sqlalchemy import Engine, insert

from sa_jobqueue import Job, JobStatus
from tests.fixtures.commands import Run, document
from tests.fixtures.jobs import Jobs
from tests.fixtures.retention import CANCELLED, DAY, DEAD, dead_letters_of, ended, resolved
from tests.fixtures.transactions import write


def test_prune_deletes_only_by_age_status_and_type(run: Run, engine: Engine, jobs: Jobs) -> None:
    mail, other_chain = ended(jobs, engine, type_name="mail"), ended(jobs, engine, CANCELLED)
    dead, young = ended(jobs, engine, DEAD), ended(jobs, engine, days=29)
    write(engine, insert(Job.Queue).values(name="default", retain_completed=DAY))
    dry = document(run("prune", "--json", "--older-than", "30d", "--dry-run"))
    assert (dry["dry_run"], dry["chains"], dry["jobs"], jobs.count()) == (True, 2, 2, 4)
    assert dry["by"] == [
        {"type_name": "mail", "status": "completed", "chains": 1},
        {"type_name": "test", "status": "cancelled", "chains": 1},
    ]
    assert document(run("prune", "--json", "--older-than", "30d", "--type", "mail"))["jobs"] == 1
    assert set(jobs.statuses()) == {other_chain, dead, young}
    assert run("prune", "--older-than", "4w", "--status", "dead").stdout.startswith("1 chain of 1 job deleted")
    assert set(jobs.statuses()) == {other_chain, young}
    assert [dead_letter["resolved_by"] for dead_letter in jobs.dead_letters()] == [getpass.getuser()]
    assert mail


def test_prune_with_app_uses_declared_retention_and_queue_settings(
    run: Run, engine: Engine, jobs: Jobs, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "prunes.py").write_text(
        "from datetime import timedelta\nfrom sa_jobqueue import JobQueue\nfrom sa_jobqueue.settings import Retention\n"
        "jobs = JobQueue(retention=Retention(completed=timedelta(days=30), dead_letters=timedelta(days=90)))\n"
    )
    monkeypatch.chdir(tmp_path)
    ended(jobs, engine)
    ended(jobs, engine, CANCELLED)
    kept_chain = ended(jobs, engine, queue="kept")
    write(engine, insert(Job.Queue).values(name="kept", retain_completed=60 * DAY))
    resolved(jobs, engine)
    pruned = document(run("prune", "--json", "--app", "prunes:jobs"))
    assert (pruned["jobs"], pruned["dead_letters"]) == (1, 1)
    assert jobs.statuses()[kept_chain] is JobStatus.COMPLETED
    for arguments, message in (
        ([], "pass --older-than"),
        (["--app", "prunes:jobs", "--status", "dead"], "pass --older-than"),
        (["--older-than", "soon"], "'soon' is not a duration such as 30s"),
        (["--older-than", "30d", "--status", "running"], "Invalid value for '--status'"),
    ):
        assert message in run("prune", *arguments, status=2).stderr


def test_dead_letters_prune_deletes_resolved_ones_by_age_and_type(run: Run, engine: Engine, jobs: Jobs) -> None:
    mail, other_letter, young = (
        resolved(jobs, engine, type_name="mail"),
        resolved(jobs, engine),
        resolved(jobs, engine, type_name="mail", days=3),
    )
    opened = jobs.add(DEAD)

    def prune(*arguments: str, status: int = 0) -> str:
        return run("dead-letters", "prune", *arguments, status=status).stdout

    assert prune("--older-than", "30d", "--dry-run") == "2 dead letters would be deleted\n"
    assert prune("--older-than", "30d", "--type", "mail") == "1 dead letter deleted\n"
    assert dead_letters_of(jobs) == {other_letter, young, opened}
    assert json.loads(prune("--older-than", "1d", "--json")) == {"dry_run": False, "dead_letters": 2}
    assert dead_letters_of(jobs) == {opened}
    prune(status=2)
    assert mail
