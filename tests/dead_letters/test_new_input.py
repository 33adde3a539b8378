"""A dead job is redriven with another input, which its type has checked; the dead letter keeps the old one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sqlalchemy import Engine
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobQueue, JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.errors import InvalidOptionError, InvalidPayloadError, UnknownJobTypeError
from sa_jobqueue.operations import DeadLetterFilter, list_audit, list_dead_letters, redrive_dead_letters
from tests.fixtures.isolated import Reversed
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import drain

queue = JobQueue()
charges: list[Any] = []


@dataclass
class Charge:
    order_id: int
    country: str
    note: str | None = None


@queue.handler("charge", version=2, max_attempts=1)
async def charge(order: Charge) -> None:
    if order.country == "??":
        raise ValueError("no such country")
    charges.append(order)


@queue.handler("sealed", codec=Reversed(), max_attempts=1)
async def sealed(order: Charge) -> None:
    await charge.job_type.func(order)


@queue.handler("count", max_attempts=1)
async def count(numbers: dict[str, int]) -> None:
    raise ValueError(numbers)


@pytest.fixture(autouse=True)
def _none_taken() -> None:
    charges.clear()


async def dead(engine: Engine, job: Job) -> Any:
    (job_id,) = enqueue(engine, job)
    await drain(queue, engine)
    return job_id


def redrive(session: Session, job_id: Any, new_input: Any, **options: Any) -> Any:
    where = DeadLetterFilter(job_ids=[job_id])
    keywords: dict[str, Any] = {"registry": queue.registry, "by": "ann"} | options
    return redrive_dead_letters(session, where=where, new_input=new_input, **keywords)


@pytest.mark.parametrize("handler", [charge, sealed], ids=["plain", "with a codec"])
async def test_the_handler_runs_with_the_new_input_and_the_dead_letter_keeps_the_old(
    engine: Engine, session: Session, jobs: Jobs, handler: Any
) -> None:
    job_id = await dead(engine, handler.job(Charge(7, "??")))
    stored = jobs.get(job_id)["input"]
    new = {"order_id": 7, "country": "NL", "note": None}
    assert redrive(session, job_id, new, dry_run=True).ids == [job_id]
    assert (jobs.get(job_id)["status"], jobs.get(job_id)["input"]) == (JobStatus.DEAD, stored)
    assert redrive(session, job_id, new).ids == [job_id]
    session.commit()
    assert ("NL" in str(jobs.get(job_id)["input"])) is (handler is charge)  # the codec writes it backwards
    await drain(queue, engine)
    assert (jobs.get(job_id)["status"], charges) == (JobStatus.COMPLETED, [Charge(7, "NL")])
    (letter,) = list_dead_letters(session, where=DeadLetterFilter(job_ids=[job_id], resolved=True)).items
    assert (letter.input, letter.resolved_by) == (stored, "ann")
    (record,) = list_audit(session).items
    assert record.arguments["changed_fields"] == ["country"]
    assert "NL" not in str(record.arguments)


async def test_a_version_and_other_types_of_json_are_changes_too(session: Session, jobs: Jobs) -> None:
    job_id = jobs.add(JobStatus.DEAD, type_name="charge", input={"order_id": True, "country": "NL"})
    assert redrive(session, job_id, {"order_id": 1, "country": "NL", "note": None}).ids == [job_id]
    session.commit()
    assert jobs.get(job_id)["input_version"] == 2
    (record,) = list_audit(session).items
    assert record.arguments["changed_fields"] == ["note", "order_id"]


@pytest.mark.parametrize("is_redacted", [False, True])
async def test_the_audit_names_no_key_that_is_part_of_the_payload(
    engine: Engine, session: Session, monkeypatch: pytest.MonkeyPatch, is_redacted: bool
) -> None:
    monkeypatch.setenv("SA_JOBQUEUE_REDACT", "charge" if is_redacted else "")
    if is_redacted:
        redrive(session, await dead(engine, charge.job(Charge(7, "??"))), {"order_id": 8, "country": "NL"})
    else:
        redrive(session, await dead(engine, count.job({"ann@example.org": 1})), {"bob@example.org": 1})
    (record,) = list_audit(session).items
    assert record.arguments["changed_fields"] == ["input"]


async def test_an_input_that_cannot_be_used_changes_nothing(engine: Engine, session: Session, jobs: Jobs) -> None:
    job_id, other_id = [await dead(engine, charge.job(Charge(number, "??"))) for number in (1, 2)]
    fitting = {"order_id": 7, "country": "NL"}
    with pytest.raises(InvalidPayloadError, match=r"input\.order_id"):
        redrive(session, job_id, {"order_id": "x", "country": "NL"})
    with pytest.raises(InvalidPayloadError, match="NUL character"):
        redrive(session, job_id, {"order_id": 7, "country": "NL", "note": "\0"})
    with pytest.raises(UnknownJobTypeError):
        redrive(session, job_id, fitting, registry=JobQueue().registry)
    with pytest.raises(InvalidOptionError) as refused:
        redrive(session, job_id, fitting, registry=None)
    assert refused.value.option == "registry"
    for limit in (1, 1000):
        with pytest.raises(InvalidOptionError, match="more match"):
            redrive_dead_letters(session, new_input=fitting, registry=queue.registry, limit=limit)
    session.commit()
    assert [jobs.get(dead_id)["status"] for dead_id in (job_id, other_id)] == [JobStatus.DEAD] * 2
    assert (
        redrive_dead_letters(session, where=DeadLetterFilter(types=["none"]), new_input=1, registry=queue.registry).ids == []
    )


async def test_of_two_sessions_one_gives_the_new_input(engine: Engine, session: Session, jobs: Jobs) -> None:
    """The other finds the job pending, and leaves its input as it is."""
    job_id = await dead(engine, charge.job(Charge(7, "??")))
    new = {"order_id": 7, "country": "NL", "note": None}
    with Session(engine) as late:
        late.get_one(Job, job_id)  # in its identity map, as it was
        redrive(session, job_id, new)
        session.commit()
        where = DeadLetterFilter(job_ids=[job_id], resolved=None)
        options: dict[str, Any] = {"registry": queue.registry, "where": where}
        assert redrive_dead_letters(late, new_input=new | {"country": "BE"}, **options).ids == []
        late.commit()
    assert jobs.get(job_id)["input"]["country"] == "NL"


async def test_the_command_reads_the_input_from_a_file(engine: Engine, jobs: Jobs, tmp_path: Path) -> None:
    job_id = await dead(engine, charge.job(Charge(7, "??")))
    (tmp_path / "fixed.json").write_text('{"order_id": 7, "country": "NL"}')
    (letter,) = call(engine, list_dead_letters).items
    words = ["dead-letters", "redrive", str(letter.id), "--input", str(tmp_path / "fixed.json"), "--by", "ann"]
    environment = {"SA_JOBQUEUE_URL": engine.url.render_as_string(hide_password=False)}
    result = CliRunner().invoke(main, words, env=environment)
    assert (result.exit_code, "--input needs --app" in result.output) == (2, True)
    result = CliRunner().invoke(main, [*words, "--app", f"{__name__}:queue"], env=environment)
    assert (result.exit_code, result.output.strip()) == (0, "1 job redriven")
    assert jobs.get(job_id)["input"] == {"order_id": 7, "country": "NL"}
