"""Payload codecs: inputs and outputs that are stored encrypted or compressed, wherever a job is made and read."""

from __future__ import annotations

import asyncio
import gzip
import json
from base64 import b64decode, b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.fernet import Fernet, MultiFernet
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.orm import Session

from sa_jobqueue import AttemptContext, Blockers, Job, JobQueue, JobStatus, Worker, aio, operations, wait_chain
from sa_jobqueue.cli import main
from sa_jobqueue.context import Continuation
from sa_jobqueue.dashboard import Access, dashboard
from sa_jobqueue.errors import InvalidOptionError, InvalidPayloadError, PayloadTooLargeError
from sa_jobqueue.models import WaitFor
from sa_jobqueue.payloads import opened
from sa_jobqueue.registry import PayloadCodec
from sa_jobqueue.testing import assert_enqueued, drain, perform
from sa_jobqueue.types import Json
from tests.dashboard.conftest import Client
from tests.fixtures import isolated, workers
from tests.fixtures.jobs import Jobs, enqueue
from tests.fixtures.transactions import call
from tests.fixtures.workers import quick


class Encrypted:
    name = "encrypted"

    def __init__(self, *keys: bytes) -> None:
        self._fernet = MultiFernet([Fernet(key) for key in keys])

    def encode(self, data: bytes) -> Json:
        return self._fernet.encrypt(data).decode()

    def decode(self, stored: Json) -> bytes:
        return self._fernet.decrypt(stored)


class Compressed:
    name = "gzip"

    def encode(self, data: bytes) -> Json:
        return b64encode(gzip.compress(data)).decode()

    def decode(self, stored: Json) -> bytes:
        return gzip.decompress(b64decode(stored))


KEY = Fernet.generate_key()


@dataclass
class Patient:
    name: str
    ward: int


def declared(codec: PayloadCodec) -> JobQueue[Job]:
    """Return handlers of every way in which a payload is forwarded."""
    jobs = JobQueue()

    @jobs.handler("admit", codec=codec, max_attempts=1, fairness_by="ward")
    def admit(patient: Patient, session: Session) -> str:
        return f"{patient.name} admitted"

    @jobs.handler("move", codec=codec, max_attempts=1)
    async def move(patient: Patient, ctx: AttemptContext) -> Continuation[str]:
        return ctx.continue_with(jobs["write"], patient.name)

    @jobs.handler("write", codec=codec, max_attempts=1)
    def write(name: str) -> str:
        return f"{name} moved"

    @jobs.handler("report", max_attempts=1)
    def report(outputs: Blockers[list[str]]) -> list[str]:
        return [*outputs.outputs, *(str(outcome.output) for outcome in outputs.outcomes)]

    return jobs


def stored(engine: Engine) -> str:
    """Return everything that the job tables have."""
    with engine.connect() as connection:
        tables = ("job", "dead_letter", "job_attempt", "schedule")
        return "\n".join(
            str(value) for name in tables for (value,) in connection.execute(text(f"SELECT t::text FROM {name} t"))
        )


@pytest.mark.parametrize("codec", [Encrypted(KEY), Compressed()], ids=lambda codec: codec.name)
def test_encoded_payloads_are_stored_encoded_and_decoded_by_every_reader(
    engine: Engine, async_engine: AsyncEngine, codec: Any
) -> None:
    jobs = declared(codec)
    ann = Patient("Ann Smith", 7)
    with Session(engine) as session, session.begin():
        added = jobs["admit"].job(ann)
        session.add(added)
        jobs["admit"].enqueue(session, ann)
        operations.enqueue_many(session, [jobs["admit"].job(ann) for _ in range(2)])
        jobs["admit"].enqueue_many(session, [ann, ann], fairness_key="7")
        moved = jobs["move"].job(ann)
        waits = jobs["report"].job(blockers=[WaitFor(jobs["admit"].job(ann)), WaitFor(moved)])
        session.add(waits)
        session.flush()
        assert_enqueued(session, jobs["admit"], ann, count=7)
        assert added.fairness_key == "7"  # what is needed to find or order jobs is a column of its own
        moved_id, waits_id = moved.id, waits.id
    assert "Smith" not in stored(engine)
    asyncio.run(workers.drain(jobs, engine))
    with Session(engine) as session:
        assert {job.status for job in operations.list_jobs(session)} == {JobStatus.COMPLETED}
        assert session.get_one(Job, waits_id).output == ["Ann Smith admitted", "Ann Smith moved"] * 2
        chain = operations.get_chain(session, moved_id)
        assert jobs["move"].output(chain) == jobs["write"].output(chain) == jobs.output(chain) == "Ann Smith moved"
        session.execute(text("DELETE FROM job_blocker"))
        session.execute(text("DELETE FROM job WHERE type_name = 'report'"))  # whose own output is not encoded
        session.commit()
    assert "Smith" not in stored(engine)
    options: dict[str, Any] = {"timeout": timedelta(seconds=60)}
    assert wait_chain(engine, moved_id, output=jobs["move"], **options).output == "Ann Smith moved"

    async def waited() -> Any:
        result = await aio.wait_chain(async_engine, moved_id, output=jobs["move"], **options)
        await async_engine.dispose()
        return result.output

    assert asyncio.run(waited()) == "Ann Smith moved"
    with pytest.raises(InvalidPayloadError, match=f"encoded by the codec '{codec.name}', which is not known here"):
        wait_chain(engine, moved_id, output=str, **options)
    assert set(wait_chain(engine, moved_id, **options).output) == {"sa_jobqueue.codec", "data"}


def test_cli_dashboard_and_explain_show_encoded_payloads_undecoded(engine: Engine, database_url: str) -> None:
    jobs = declared(Encrypted(KEY))
    job_id = call(engine, jobs["admit"].enqueue, Patient("Ann Smith", 7))
    output = CliRunner().invoke(main, ["jobs", "show", str(job_id), "--json"], env={"SA_JOBQUEUE_URL": database_url}).stdout
    assert json.loads(output)["job"]["input"]["sa_jobqueue.codec"] == "encrypted"
    access = Access(user="ann", payload_types=["*"])
    page = Client(dashboard(engine, authorize=lambda request: access)).page(f"/queue/job?id={job_id}")
    assert "sa_jobqueue.codec" in page
    explained = call(engine, operations.explain_job, job_id)
    assert all("Smith" not in text for text in (output, page, explained.sentence))


def test_an_undecodable_job_becomes_a_dead_letter_and_can_be_redriven_with_the_key(engine: Engine, jobs: Jobs) -> None:
    other_key = Fernet.generate_key()
    with Session(engine) as session, session.begin():
        lost = declared(Encrypted(other_key))["admit"].enqueue(session, Patient("Ann", 1))
        forged = declared(Encrypted(KEY))["admit"].enqueue(session, Patient("Bob", 1))
        unknown = declared(Compressed())["admit"].enqueue(session, Patient("Cid", 1))
        good = declared(Encrypted(KEY))["admit"].enqueue(session, Patient("Dan", 1))
        session.execute(text("UPDATE job SET input = jsonb_set(input, '{data}', '[7]') WHERE id = :id"), {"id": forged})
    asyncio.run(workers.drain(declared(Encrypted(KEY)), engine))
    assert jobs.status(good) is JobStatus.COMPLETED
    for job_id, reason in (
        (lost, "input: cannot be decoded by the codec 'encrypted': InvalidToken: "),
        (forged, "input: cannot be decoded by the codec 'encrypted': TypeError: "),
        (unknown, "input: is encoded by the codec 'gzip', which is not known here"),
    ):
        (dead_letter,) = jobs.dead_letters(job_id)
        assert dead_letter["reason"] == "invalid_input"
        assert dead_letter["error"]["message"].startswith(reason)
    call(engine, operations.redrive_dead_letters, where=operations.DeadLetterFilter(job_ids=[lost]), by="tester")
    asyncio.run(workers.drain(declared(Encrypted(KEY, other_key)), engine))  # rotated: the first key encrypts, each decrypts
    assert jobs.status(lost) is JobStatus.COMPLETED


def test_jobs_from_before_a_codec_are_readable_and_upcasters_get_decoded_payloads(engine: Engine, jobs: Jobs) -> None:
    plain, secret = JobQueue(), JobQueue()

    @plain.handler("greet")
    def greet_before(name: str) -> str:
        return name

    first = JobQueue()

    @first.handler("greet", codec=Encrypted(KEY))
    def greet_encrypted(name: str) -> str:
        return name

    @secret.handler("greet", codec=Encrypted(KEY), version=2)
    def greet(names: list[str]) -> int:
        return len(names)

    greet.upcast(1)(lambda name: [name])
    with Session(engine) as session, session.begin():
        ids = [handler.enqueue(session, "Ann") for handler in (greet_before, greet_encrypted)]
        ids.append(greet.enqueue(session, ["Ann"]))
    asyncio.run(workers.drain(secret, engine))
    assert [jobs.status(job_id) for job_id in ids] == [JobStatus.COMPLETED] * 3


def test_included_handlers_keep_their_codecs_and_two_of_one_name_are_refused() -> None:
    encrypted = Encrypted(KEY)
    jobs, feature = JobQueue(), declared(encrypted)

    @jobs.handler("report_all")
    def report_all(outputs: Blockers[list[str]]) -> int:
        return len(outputs.outputs)

    jobs.include(feature)
    sealed = feature["write"].job("Ann").input
    assert report_all.job_type.open("input", sealed) == "Ann"
    another = JobQueue()
    another.handler("another", codec=Encrypted(KEY))(lambda name: name)
    with pytest.raises(InvalidOptionError, match="has the name 'encrypted' of another codec"):
        jobs.handler("other", codec=Encrypted(KEY))
    with pytest.raises(InvalidOptionError, match="another codec of the name 'encrypted'"):
        jobs.include(another)
    with pytest.raises(InvalidOptionError, match="must be an object with `name`, `encode` and `decode`"):
        jobs.handler("other", codec=Fernet(KEY))  # type: ignore[arg-type]


def test_a_failing_codec_raises_in_the_enqueuing_call() -> None:
    class Broken(Compressed):
        def encode(self, data: bytes) -> Json:
            raise OSError("no key")

    class Raw(Compressed):
        def encode(self, data: bytes) -> Json:
            return data

    with pytest.raises(InvalidPayloadError, match="input: cannot be encoded by the codec 'gzip': OSError: no key"):
        declared(Broken())["write"].job("Ann")
    with pytest.raises(InvalidPayloadError, match=r"input\.data: is of type bytes"):
        declared(Raw())["write"].job("Ann")
    assert declared(Broken())["report"].job().input is None


def test_codecs_apply_to_schedules_perform_and_manual_completion(engine: Engine, jobs: Jobs) -> None:
    hospital = declared(Encrypted(KEY))
    hospital.schedule("nightly", cron="0 3 * * *", handler="admit", payload=Patient("Night", 1))
    hospital.schedule("hourly", cron="0 * * * *", handler="write", payload="Hour")
    assert perform(hospital["write"], "Ann") == "Ann moved"
    with Session(engine) as session, session.begin():
        # A schedule's payload is a constant of the source: stored as it is, so that each worker declares the same.
        assert operations.sync_schedules(session, hospital.schedules).created == ("hourly", "nightly")
        assert not operations.sync_schedules(session, hospital.schedules).changed
        (fired,) = operations.run_schedule(session, "hourly")
        by_hand = hospital["write"].enqueue(session, "Bob", delay=timedelta(days=1))
    with Session(engine) as session, session.begin():
        operations.lock_chain(session, by_hand)
        operations.complete_job(session, by_hand, "done", handler=hospital["write"])
    drain(hospital, engine)
    assert jobs.status(fired) is JobStatus.COMPLETED
    assert jobs.get(by_hand)["output"]["sa_jobqueue.codec"] == "encrypted"


@pytest.mark.slow
def test_a_child_process_decodes_and_encodes(engine: Engine, jobs: Jobs) -> None:
    job_id = call(engine, isolated.shouts.enqueue, "quiet")
    asyncio.run(Worker(isolated.jobs, engine, options=quick(heartbeat_timeout=timedelta(minutes=10))).run_until_idle())
    assert isolated.shouts.job_type.open("output", jobs.get(job_id)["output"]) == "QUIET"
    assert "quiet" not in str(jobs.get(job_id)["input"])


@pytest.mark.parametrize("way", ["handler.enqueue", "job of a known type", "job of an unknown type", "handler.enqueue_many"])
def test_a_payload_from_outside_never_chooses_a_codec(engine: Engine, way: str) -> None:
    """Given to a handler without a codec, it was decoded by another handler's: 65 kB became 50 MB."""
    bomb = {"sa_jobqueue.codec": "gzip", "data": Compressed().encode(b"[" + b"0," * 1000 + b"0]")}
    nested = {"sa_jobqueue.codec": None, "data": bomb}
    queue: JobQueue[Any] = JobQueue()
    payloads: list[Any] = []

    def declare(registry: JobQueue[Any]) -> Any:
        @registry.handler("plain")
        def plain(payload: Any) -> Any:
            payloads.append(payload)
            return payload

        @registry.handler("compressed", codec=Compressed())
        def compressed(payload: Any) -> None: ...

        return plain

    if way == "job of an unknown type":  # in a service that does not load the handlers
        enqueue(engine, Job("plain", bomb), Job("plain", nested))
    plain = declare(queue)
    with Session(engine) as session, session.begin():
        if way == "handler.enqueue":
            plain.enqueue(session, bomb)
            plain.enqueue(session, nested)
        elif way == "job of a known type":
            session.add_all([Job("plain", bomb), Job("plain", nested)])
        elif way == "handler.enqueue_many":
            plain.enqueue_many(session, [bomb, nested])
    asyncio.run(workers.drain(queue, engine))
    assert sorted(payloads, key=str) == sorted([bomb, nested], key=str)
    with Session(engine) as session:
        outputs = [plain.output(job.chain) for job in session.query(Job)]
    assert sorted(outputs, key=str) == sorted([bomb, nested], key=str)


def test_what_a_codec_decodes_is_bounded(engine: Engine, jobs: Jobs) -> None:
    queue = declared(Compressed())
    stored = Compressed().encode(b'"' + b"x" * 2_000_000 + b'"')
    job_id = jobs.add(type_name="admit", input={"sa_jobqueue.codec": "gzip", "data": stored}, max_attempts=1)
    asyncio.run(workers.drain(queue, engine))
    (dead,) = jobs.dead_letters(job_id)
    assert "2,000,002 bytes, more than the 1,048,576 of a payload" in dead["error"]["message"]


def test_the_size_limit_of_a_codecs_payload_counts_utf8() -> None:
    admit = declared(Compressed())["admit"]
    job = admit.job(Patient("日" * 340_000, 1))
    assert gzip.decompress(b64decode(job.input["data"])).decode().count("日") == 340_000
    assert opened("input", job.input, admit.job_type.registry.find_codec) == {"name": "日" * 340_000, "ward": 1}
    with pytest.raises(PayloadTooLargeError, match=r"1,050,0\d\d bytes"):
        admit.job(Patient("日" * 350_000, 1))
