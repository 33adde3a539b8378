"""The examples survive a crash at every point of their handlers, and do not without the line that makes them idempotent."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, func, select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

from sa_jobqueue.testing import CallRecorder, crash_test
from sa_jobqueue.testing.databases import create_schema
from tests.fixtures.parts import needs

EXAMPLES = Path(__file__).parents[2] / "examples"
LONG = {"processing_files.py"}
"""The one with the most points is left to the long run."""
pytestmark = pytest.mark.slow


@dataclass
class Trial:
    """One handler of an example, and the edit that removes its cure."""

    example: str
    handler: str
    cure: str
    """The code that makes the handler idempotent."""
    twin: str
    """The code in its place."""
    payload: Callable[[Any], Any]
    """Makes the payload of a job, from the module."""
    rows: Callable[[Any], list[Any]] = lambda module: []
    """Makes the rows that are there before."""
    prepare: Callable[[Any, CallRecorder], object] = lambda module, recorder: None
    """Replaces calls to other systems."""
    counted: str = ""
    """The class whose rows are counted, if there are rows to count."""
    edits: tuple[tuple[str, str], ...] = ()
    """Edits of the example and its twin, which remove failures that it stages."""
    is_async: bool = False
    needs: str = ""


def accept_mail(module: Any, recorder: CallRecorder) -> None:
    send = recorder.wrap("smtp", lambda message: None, key=lambda message: message["Message-ID"])

    @contextmanager
    def connect(**options: object) -> Iterator[Any]:
        yield SimpleNamespace(send_message=send)

    module.smtplib = SimpleNamespace(
        SMTP=connect,
        SMTPRecipientsRefused=module.smtplib.SMTPRecipientsRefused,
        SMTPDataError=module.smtplib.SMTPDataError,
    )


def accept_webhooks(module: Any, recorder: CallRecorder) -> None:
    answer = SimpleNamespace(is_success=True, status_code=202)
    post = recorder.wrap(
        "partner", lambda url, **request: answer, key=lambda url, **request: request["headers"]["Idempotency-Key"]
    )
    module.httpx = SimpleNamespace(post=post)


def write_file(module: Any, recorder: CallRecorder) -> None:
    module.crashes.clear()
    module.PART = 1
    (module.STORE / "upload-crash").write_text("a,1\nb,2\n")


TRIALS = [
    Trial(
        *("chains.py", "ship"),
        cure="    session.add(Parcel(order_id=order.order_id))\n",
        twin="    with make_session.begin() as separate:\n        separate.add(Parcel(order_id=order.order_id))\n",
        payload=lambda module: module.Order(7, 990),
        counted="Parcel",
    ),
    Trial(
        *("transactional_effects.py", "transfer"),
        cure="    source.balance -= amount\n",
        twin=(
            "    async with AsyncSession(session.bind) as separate, separate.begin():\n"
            '        (await separate.get_one(Account, "ann")).balance -= amount\n'
        ),
        payload=lambda module: 30,
        rows=lambda module: [module.Account(name="ann", balance=100), module.Account(name="bob", balance=0)],
        edits=(("if ctx.attempt == 1:", "if False:"),),
        is_async=True,
    ),
    Trial(
        *("webhooks.py", "deliver"),
        cure="str(ctx.job.id)",
        twin='f"{ctx.job.id} {ctx.attempt}"',
        payload=lambda module: module.Delivery("http://partner.example", {"paid": 7}),
        prepare=accept_webhooks,
    ),
    Trial(
        *("webhooks.py", "payment_received"),
        cure="    session.add(Payment(order_id=event.order_id))\n",
        twin="    with make_session.begin() as separate:\n        separate.add(Payment(order_id=event.order_id))\n",
        payload=lambda module: module.Event(7),
        counted="Payment",
    ),
    Trial(
        *("sending_email.py", "welcome"),
        cure="<{ctx.job.id}@",
        twin="<{ctx.job.id}.{ctx.attempt}@",
        payload=lambda module: 1,
        rows=lambda module: [module.User(id=1, email="ann@mail.example")],
        prepare=accept_mail,
        needs="aiosmtpd",
    ),
    Trial(
        *("processing_files.py", "import_file"),
        cure="    session.execute(insert(Reading), rows)\n",
        twin="    with make_session.begin() as separate:\n        separate.execute(insert(Reading), rows)\n",
        payload=lambda module: module.Part("upload-crash"),
        rows=lambda module: [module.Upload(key="upload-crash", size=8)],
        prepare=write_file,
        counted="Reading",
    ),
]


def load(trial: Trial, path: Path, *, without_cure: bool) -> ModuleType:
    """Import an example, or its twin."""
    source = (EXAMPLES / trial.example).read_text()
    for old, new in (*trial.edits, *([(trial.cure, trial.twin)] if without_cure else [])):
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where annotations are looked up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("without_cure", [False, True], ids=["example", "twin"])
@pytest.mark.parametrize(
    "trial",
    [pytest.param(trial, marks=[pytest.mark.long] if trial.example in LONG else []) for trial in TRIALS],
    ids=lambda trial: f"{trial.example}-{trial.handler}",
)
def test_an_example_passes_every_crash_and_its_twin_does_not(
    trial: Trial, without_cure: bool, empty_database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trial.needs:
        needs(trial.needs)
    monkeypatch.setenv("NOTES", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    name = f"crashed_{trial.example.removesuffix('.py')}_{without_cure}"
    module: Any = load(trial, tmp_path / f"{name}.py", without_cure=without_cure)
    try:
        recorder = CallRecorder()
        trial.prepare(module, recorder)
        create_schema(empty_database_url, module.Base.metadata)
        sessions = sessionmaker(create_engine(empty_database_url))
        with sessions.begin() as session:
            session.add_all(trial.rows(module))
        module.make_session = sessions
        factory: Any = async_sessionmaker(create_async_engine(empty_database_url)) if trial.is_async else sessions
        sessions.kw["bind"].dispose()

        def check(session: Any) -> None:
            if trial.is_async:
                assert dict(session.execute(select(module.Account.name, module.Account.balance)).all()) == {
                    "ann": 70,
                    "bob": 30,
                }
            elif trial.counted:
                counted = getattr(module, trial.counted)
                assert session.scalar(select(func.count()).select_from(counted)) == (2 if trial.counted == "Reading" else 1)

        handler = getattr(module, trial.handler)
        report = crash_test(handler, trial.payload(module), session_factory=factory, check=check, recorder=recorder)
        assert report.passed is not without_cure, report
        assert all(crash.reached for crash in report.crashes)
    finally:
        if hasattr(module, "PARTNER"):
            module.PARTNER.server.shutdown()
            module.PARTNER.server.server_close()
        del sys.modules[name]
