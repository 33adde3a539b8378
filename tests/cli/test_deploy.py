"""`sa-jobqueue deploy check`: new code is compared with the open jobs, the schedules and the recorded steps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, JobQueue, JobStatus
from sa_jobqueue.cli.deploy import compare
from sa_jobqueue.cli.doctor import Check, Status
from sa_jobqueue.operations import sync_schedules
from tests.fixtures.commands import Run, document, run
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

__all__ = ["run"]  # a fixture

APPLICATION = """
from sa_jobqueue import JobQueue
jobs = JobQueue()
@jobs.handler("deployed_ship", version=2, queue="parcels")
def ship(order: int) -> None: raise AssertionError("the check runs no handler")
"""


def checks(engine: Engine, jobs: JobQueue[Any], *, queues: Any = None, records: int | None = None) -> list[Check]:
    """Return the checks of the command without the first, which counts."""
    return list(call(engine, compare, jobs, queues=queues or jobs.queues, records=records))[1:]


def shipping(version: int = 1, *, queue: str = "default", payload: type = int) -> JobQueue[Any]:
    """Return the declarations of a deployment."""
    jobs: JobQueue[Any] = JobQueue()

    def ship(order: Any) -> None:
        raise AssertionError("the check runs no handler")

    ship.__annotations__["order"] = payload
    jobs.handler("ship", version=version, queue=queue)(ship)
    return jobs


def test_the_command_ends_with_1_until_the_new_code_fits(
    run: Run, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deployed_app.py").write_text(APPLICATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    app = ("--app", "deployed_app:jobs")
    job_id = jobs.add(type_name="deployed_ship", queue="parcels", input=7, input_version=1)
    report = document(run("deploy", "check", *app, "--json", status=1))
    assert [(check["name"], check["status"]) for check in report["checks"]] == [("read", "ok"), ("versions", "error")]
    assert not report["ok"]
    output = run("deploy", "check", *app, status=1).stdout
    assert "ok       read: 1 open job and 0 schedules" in output
    assert "register an upcaster: @ship.upcast(from_version=1)" in output
    run("jobs", "cancel", job_id)
    assert document(run("deploy", "check", *app, "--json"))["ok"]
    assert "nothing would serve queue 'parcels'" in run("deploy", "check", *app, "--queues", "mail=2", status=1).stdout
    run("deploy", "check", status=2)


def test_types_without_a_handler_are_named_with_their_jobs_and_schedules(engine: Engine, jobs: Jobs) -> None:
    for queue in ("a", "a", "default"):
        jobs.add(type_name="bill", queue=queue, input_version=3)
    call(engine, sync_schedules, [shipping().schedule("nightly", cron="@daily", handler="ship", payload=1)])
    new: JobQueue[Any] = JobQueue()

    @new.handler("mail", queue="a")
    def mail() -> None: ...

    by_name = {check.found: check for check in checks(engine, new, queues=["a", "default"])}
    assert list(by_name) == [
        "no handler for 'bill': 2 open jobs of version 3 in queue 'a', 1 open job of version 3 in queue 'default'",
        "no handler for 'ship': the schedule 'nightly'",
        "'nightly' is not declared any more, and goes on to fire 'ship'",
    ]
    assert [check.status for check in by_name.values()] == [Status.ERROR, Status.ERROR, Status.WARNING]


@pytest.mark.parametrize(
    ("stored", "declared", "upcasters", "status"),
    [(1, 1, [], None), (1, 3, [1, 2], None), (1, 3, [2], Status.ERROR), (2, 3, [2], None), (3, 2, [1], Status.WARNING)],
)
def test_versions_need_an_upcaster_of_each_step(
    engine: Engine, jobs: Jobs, stored: int, declared: int, upcasters: list[int], status: Status | None
) -> None:
    new = shipping(declared)
    for version in upcasters:
        new["ship"].upcast(from_version=version)(lambda payload: payload)
    jobs.add(type_name="ship", input=1, input_version=stored)
    assert [check.status for check in checks(engine, new)] == ([] if status is None else [status])


def test_jobs_that_have_ended_are_of_no_interest(engine: Engine, jobs: Jobs) -> None:
    jobs.add(type_name="bill", status=JobStatus.COMPLETED)
    jobs.add(type_name="bill", status=JobStatus.DEAD)
    assert checks(engine, shipping()) == []
    jobs.add(type_name="bill", status=JobStatus.RUNNING)
    assert [check.name for check in checks(engine, shipping())] == ["types"]


def test_queues_that_nothing_would_serve_are_named(engine: Engine, jobs: Jobs) -> None:
    jobs.add(type_name="ship", queue="slow", input=1)
    new = shipping()
    new.schedule("nightly", cron="@daily", handler="ship", payload=1, queue="nights")
    problems = [check.found for check in checks(engine, new)]
    assert problems == [
        "nothing would serve queue 'nights': the schedule 'nightly'",
        "nothing would serve queue 'slow': 1 open job of 'ship'",
    ]
    assert checks(engine, new, queues=["default", "slow", "nights"]) == []


def test_schedules_that_change_are_shown_with_old_and_new_values(engine: Engine) -> None:
    call(engine, sync_schedules, [shipping().schedule("nightly", cron="0 3 * * *", handler="ship", payload=1)])
    new = shipping()
    new.schedule("nightly", cron="0 4 * * *", handler="ship", payload=1)
    new.schedule("hourly", cron="0 * * * *", handler="ship", payload=1)
    (check,) = checks(engine, new)
    assert (check.status, check.found) == (Status.WARNING, "'nightly' changes: cron 0 3 * * * -> 0 4 * * *")


def test_records_decodes_payloads_by_upcasters_and_types(
    engine: Engine, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in (1, "x", "y"):
        jobs.add(type_name="ship", input=order, input_version=1)
    new = shipping(2)
    new["ship"].upcast(from_version=1)(lambda order: order)
    (check,) = checks(engine, new, records=10)
    assert check.status is Status.ERROR
    assert check.found.startswith("'ship': 2 of 3 payloads of version 1 that were read do not fit; the first is of job ")
    assert "int" in check.found
    assert checks(engine, new) == []
    (bounded,) = checks(engine, new, records=1)
    assert " of 1 payloads of version 1 that were read do not fit" in bounded.found
    fixed = shipping(2)
    fixed["ship"].upcast(from_version=1)(lambda order: 0)
    assert [check.status for check in checks(engine, fixed, records=10)] == [Status.OK]
    failing = shipping(2)
    failing["ship"].upcast(from_version=1)(lambda order: 1 / 0)
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "*")
    (check,) = checks(engine, failing, records=10)
    assert "ZeroDivisionError" in check.found


@dataclass
class Parcel:
    weight: int


@dataclass
class HeavyParcel:
    kilograms: int


def packing(parcel: Any, verdict: Any) -> JobQueue[Any]:
    """Return a deployment whose job runs another, waits for an event, and calls a step whose type only its code knows."""
    jobs: JobQueue[Any] = JobQueue()

    async def pack(order: int) -> Any:
        return parcel(order)

    pack.__annotations__["return"] = parcel
    handler = jobs.handler("pack")(pack)

    async def label(order: int) -> str:
        return str(order)

    @jobs.handler("send")
    async def send(order: int, ctx: AttemptContext) -> None:
        await ctx.run(handler, order)
        await ctx.step("label", label, order)
        await ctx.sleep("later", timedelta(days=1))

    jobs.event("approved", timeout=timedelta(days=1), output=verdict)
    return jobs


async def test_records_decodes_the_steps_whose_type_is_declared(engine: Engine) -> None:
    old = packing(Parcel, int)
    enqueue(engine, old.job("send", 7), old.job("approved", "order:7"))
    await drain(old, engine)
    await drain(old, engine)
    with engine.begin() as connection:  # its event has been sent, and its attempt not ended
        connection.execute(
            text("UPDATE job_step SET output = '3', completed_at = now() WHERE kind = 'wait'"),
        )
    same = checks(engine, packing(Parcel, int), records=10)
    assert [check.status for check in same] == [Status.OK] * len(same)
    texts = {check.found.partition(";")[0] for check in same}
    assert "'send': 0 of 1 records of step 'pack' that were read do not fit" in texts
    assert "'approved': 0 of 1 records of step 'event' that were read do not fit" in texts
    assert "'send': not decoded, as only the call knows the type: 'label' (1)" in texts
    new = packing(HeavyParcel, dict[str, int])
    problems = [check for check in checks(engine, new, records=10) if check.status is Status.ERROR]
    assert sorted(check.found.partition(" that")[0] for check in problems) == [
        "'approved': 1 of 1 records of step 'event'",
        "'send': 1 of 1 records of step 'pack'",
    ]
    new["send"].upcast_step("pack")(lambda parcel: {"kilograms": parcel["weight"]})
    new["approved"].upcast_step("event")(lambda payload: {"by": payload})
    assert {check.status for check in checks(engine, new, records=10)} == {Status.OK}


def test_what_row_security_may_hide_is_an_error(engine: Engine) -> None:
    role = f"deployer_{uuid4().hex[:8]}"
    with engine.connect() as connection:
        for statement in (
            f"CREATE ROLE {role}",
            f"GRANT USAGE ON SCHEMA public TO {role}",
            f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}",
            "ALTER TABLE job ENABLE ROW LEVEL SECURITY",
            f"SET ROLE {role}",
        ):
            connection.execute(text(statement))
        with Session(connection) as session:
            (_, check) = compare(session, shipping(), queues=["default"], records=None)
        connection.rollback()
    assert (check.name, check.status) == ("row security", Status.ERROR)
    assert f"row-level security on job may hide rows from role {role}" in check.found
