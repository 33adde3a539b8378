"""`sa-jobqueue prune`: it deletes the selected chains and no others, and a dry run only reports."""

from __future__ import annotations

import getpass
import json
from typing import Any

from click.testing import CliRunner, Result
from sqlalchemy import Engine, insert

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from tests.fixtures.jobs import Jobs
from tests.fixtures.retention import CANCELLED, DAY, DEAD, dead_letters_of, ended, resolved


def call(url: str, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["prune", *arguments], env={"SA_JOBQUEUE_URL": url})


def document(url: str, *arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(call(url, "--json", *arguments).output)
    return parsed


def test_prune_deletes_only_by_age_status_and_type(database_url: str, engine: Engine, jobs: Jobs) -> None:
    mail, other_chain = ended(jobs, engine, type_name="mail"), ended(jobs, engine, CANCELLED)
    dead, young = ended(jobs, engine, DEAD), ended(jobs, engine, days=29)
    with engine.begin() as connection:
        connection.execute(insert(Job.Queue).values(name="default", retain_completed=DAY))
    dry = document(database_url, "--older-than", "30d", "--dry-run")
    assert (dry["dry_run"], dry["chains"], dry["jobs"], jobs.count()) == (True, 2, 2, 4)
    assert dry["by"] == [
        {"type_name": "mail", "status": "completed", "chains": 1},
        {"type_name": "test", "status": "cancelled", "chains": 1},
    ]
    assert document(database_url, "--older-than", "30d", "--type", "mail")["jobs"] == 1
    assert set(jobs.statuses()) == {other_chain, dead, young}
    result = call(database_url, "--older-than", "4w", "--status", "dead")
    assert result.output.startswith("1 chain of 1 job deleted")
    assert set(jobs.statuses()) == {other_chain, young}
    assert [dead_letter["resolved_by"] for dead_letter in jobs.dead_letters()] == [getpass.getuser()]
    assert mail


def test_prune_with_app_uses_declared_retention_and_queue_settings(
    database_url: str, engine: Engine, jobs: Jobs, tmp_path: Any, monkeypatch: Any
) -> None:
    (tmp_path / "prunes.py").write_text(
        "from datetime import timedelta\nfrom sa_jobqueue import JobQueue\nfrom sa_jobqueue.settings import Retention\n"
        "jobs = JobQueue(retention=Retention(completed=timedelta(days=30), dead_letters=timedelta(days=90)))\n"
    )
    monkeypatch.chdir(tmp_path)
    ended(jobs, engine)
    ended(jobs, engine, CANCELLED)
    kept_chain = ended(jobs, engine, queue="kept")
    with engine.begin() as connection:
        connection.execute(insert(Job.Queue).values(name="kept", retain_completed=60 * DAY))
    resolved(jobs, engine)
    pruned = document(database_url, "--app", "prunes:jobs")
    assert (pruned["jobs"], pruned["dead_letters"]) == (1, 1)
    assert jobs.statuses()[kept_chain] is JobStatus.COMPLETED
    for arguments, message in (
        ([], "pass --older-than"),
        (["--app", "prunes:jobs", "--status", "dead"], "pass --older-than"),
        (["--older-than", "soon"], "'soon' is not a duration such as 30s"),
        (["--older-than", "30d", "--status", "running"], "Invalid value for '--status'"),
    ):
        refused = call(database_url, *arguments)
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output


def test_dead_letters_prune_deletes_resolved_ones_by_age_and_type(database_url: str, engine: Engine, jobs: Jobs) -> None:
    mail, other_letter, young = (
        resolved(jobs, engine, type_name="mail"),
        resolved(jobs, engine),
        resolved(jobs, engine, type_name="mail", days=3),
    )
    opened = jobs.add(DEAD)

    def prune(*arguments: str) -> Result:
        environment = {"SA_JOBQUEUE_URL": database_url}
        return CliRunner().invoke(main, ["dead-letters", "prune", *arguments], env=environment)

    assert prune("--older-than", "30d", "--dry-run").output == "2 dead letters would be deleted\n"
    assert prune("--older-than", "30d", "--type", "mail").output == "1 dead letter deleted\n"
    assert dead_letters_of(jobs) == {other_letter, young, opened}
    assert json.loads(prune("--older-than", "1d", "--json").output) == {"dry_run": False, "dead_letters": 2}
    assert dead_letters_of(jobs) == {opened}
    assert prune().exit_code == 2
    assert mail
