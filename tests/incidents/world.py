"""A database, worker processes, and the dashboard as an on-call person reads it."""

from __future__ import annotations

import html
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import psycopg
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job
from sa_jobqueue.dashboard import dashboard
from sa_jobqueue.models import Base
from sa_jobqueue.observe.health import Thresholds, health
from sa_jobqueue.testing.databases import create_schema, throw_away_database
from tests.dashboard.conftest import Client, everyone

ROOT: Final = Path(__file__).parents[2]
QUEUES: Final = ("billing", "refunds", "imports", "mail", "texts", "news", "reports", "numbers")
SOONER: Final = Thresholds(
    claim_age_warning=timedelta(seconds=20), horizon_warning=timedelta(seconds=2), bloat_bytes=100_000
)
"""The defaults, but for jobs that would wait a minute, a transaction of five minutes, and 256 MB that would be written."""
PATIENCE: Final = 60.0
"""Seconds after which an on-call person would no longer look."""


@dataclass(frozen=True)
class ShownFinding:
    """A finding on the overview."""

    severity: str
    summary: str
    advice: str
    link: str
    forms: list[Form]
    buttons: list[str]
    """Links to forms that end it."""


@dataclass
class Form:
    """A form of a page, with what its fields hold."""

    action: str
    fields: dict[str, str] = field(default_factory=dict)


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []
        self._select: str | None = None
        self._text: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(attributes.get("action", "")))
        if not self.forms:
            return
        fields, name = self.forms[-1].fields, attributes.get("name", "")
        if tag == "input" and name and (attributes.get("type") != "checkbox" or "checked" in attributes):
            fields[name] = attributes.get("value", "")
        elif tag == "select":
            self._select = name
        elif tag == "option" and self._select and "selected" in attributes:
            fields[self._select] = attributes.get("value", "")
        elif tag == "textarea":
            self._text, fields[name] = name, ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "select":
            self._select = None
        elif tag == "textarea":
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text and self.forms:
            self.forms[-1].fields[self._text] += data


def forms_of(page: str) -> list[Form]:
    """Return the forms of a page."""
    parser = _Forms()
    parser.feed(page)
    return parser.forms


_FINDING: Final = re.compile(
    r'<li class="(?P<severity>\w+)">.*?<a href="(?P<link>[^"]*)" class="summary">(?P<summary>.*?)</a>.*?'
    r'<small class="advice">(?P<advice>.*?)</small>(?P<rest>.*?)</li>',
    re.DOTALL,
)
_BUTTON: Final = re.compile(r'<a class="button" href="([^"]*)"')


@dataclass
class World:
    """A queue with its workers, and its dashboard."""

    url: str
    engine: Engine
    client: Client
    stack: ExitStack
    logs: Path

    def enqueue(self, *new: Job) -> list[Any]:
        """Enqueue jobs in one transaction; return their ids."""
        with Session(self.engine) as session, session.begin():
            session.add_all(new)
            session.flush()
            return [job.id for job in new]

    def sql(self, statement: str, **values: Any) -> Any:
        """Run SQL in a transaction of its own, with autocommit; return the first column of its first row."""
        with self.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            result = connection.execute(text(statement), values)
            return result.scalar() if result.returns_rows else None

    def session_of_a_dba(self, *statements: str) -> None:
        """Open a session that executes statements in a transaction, which stays until the world ends or it is terminated."""
        url = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        connection = psycopg.connect(url, application_name="psql of the dba")
        self.stack.callback(connection.close)
        for statement in statements:
            connection.execute(statement.encode())

    def worker(self, name: str, *queues: str, concurrency: int = 3, role: str = "") -> subprocess.Popen[bytes]:
        """Start a worker process, and wait until it is registered."""
        log = self.stack.enter_context((self.logs / f"{name}.log").open("wb"))
        command = [sys.executable, "-m", "sa_jobqueue", "worker", "tests.incidents.application:jobs"]
        command += ["--name", name, "--queues", ",".join(queues or QUEUES), "--concurrency", str(concurrency)]
        command += ["--heartbeat-interval", "1s", "--poll-interval", "1s"]
        environment = os.environ | {"SA_JOBQUEUE_URL": self.url, "PYTHONPATH": str(ROOT)}
        environment |= {"PGOPTIONS": f"-c role={role}"} if role else {}
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
        self.stack.callback(_end, process)
        self.until(lambda: self.sql("SELECT count(*) FROM worker WHERE name = :name", name=name), f"worker {name}")
        return process

    def until(self, condition: Callable[[], Any], description: str, patience: float = PATIENCE) -> None:
        """Wait until a condition holds that sends no notification."""
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, f"{description}: not within {patience} s"
            time.sleep(0.1)

    def findings(self) -> list[ShownFinding]:
        """Return the findings on the overview, as they stand there."""
        page = self.client.page("/queue/overview")
        return [
            ShownFinding(
                match["severity"],
                html.unescape(match["summary"]),
                html.unescape(match["advice"]),
                html.unescape(match["link"]).removeprefix(self.client.prefix),
                forms_of(match["rest"]),
                [html.unescape(value).removeprefix(self.client.prefix) for value in _BUTTON.findall(match["rest"])],
            )
            for match in _FINDING.finditer(page)
        ]

    def matching(self, says: str) -> list[ShownFinding]:
        """Return the findings whose sentence a pattern matches."""
        return [finding for finding in self.findings() if re.search(says, finding.summary)]

    def press(self, finding: ShownFinding, act: str, **changes: str) -> None:
        """Do an act that a finding offers, or the page that it links to, with the fields that its form has."""
        pages = [self.client.page(link.partition("#")[0]) for link in (*finding.buttons, finding.link)]
        forms = [*finding.forms, *(form for page in pages for form in forms_of(page))]
        offered = [form for form in forms if form.action.endswith(f"/acts/{act}")]
        assert offered, f"neither the finding nor {finding.link} offers {act}"
        fields = offered[0].fields | changes | {"confirmed": "1"}
        path = offered[0].action.removeprefix(self.client.prefix)
        response = self.client.request("POST", path, data=fields, headers={"Sec-Fetch-Site": "same-origin"})
        assert response.status_code in {200, 303}, response.text

    def run_advice(self, finding: ShownFinding, pattern: str) -> None:
        """Run the SQL that a finding advises."""
        match = re.search(pattern, f"{finding.summary} {finding.advice}")
        assert match, f"{finding.summary} {finding.advice} advises no {pattern}"
        self.sql(match[0])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGCONT)
    process.kill()
    process.wait()


@contextmanager
def open_world(server_url: str, logs: Path) -> Iterator[World]:
    """Give a queue of its own on a server."""
    with ExitStack() as stack:
        url = stack.enter_context(throw_away_database(server_url))
        create_schema(url, Base.metadata)
        engine = create_engine(url, connect_args={"application_name": "shop"})
        stack.callback(engine.dispose)
        stack.enter_context(patch("sa_jobqueue.dashboard.sources.health", partial(health, thresholds=SOONER)))
        stack.enter_context(patch("sa_jobqueue.dashboard.sampler.PATIENCE", PATIENCE))
        # How long a report is kept depends on the machine, and half a minute is no finding.
        stack.enter_context(patch("sa_jobqueue.dashboard.sampler.SHARE", 1))
        client = Client(dashboard(engine, operator=engine, authorize=everyone))
        yield World(url, engine, client, stack, logs)
