"""Names, errors and payloads that attack their reader: no command, log, metric or page lets any through."""

from __future__ import annotations

import ast
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from io import StringIO
from typing import Any

import click
import pytest
from click.testing import CliRunner
from sqlalchemy import Engine

from sa_jobqueue import events as job_events
from sa_jobqueue.cli import main
from sa_jobqueue.observe.health import health
from sa_jobqueue.observe.log_lines import JsonFormatter, TextFormatter, bind
from sa_jobqueue.worker import logs
from tests.contracts.packages import SOURCE
from tests.fixtures.events import CASES
from tests.fixtures.hostile import HOSTILE, LONE, HostileJob, unsafe, write_hostile

ELSEWHERE = {
    "worker": "its output is its log: the formatters below",
    "dashboard": "its pages: tests/dashboard/test_hostile_text.py",
    "exporter": "its output is its figures: below",
    "demo": "it runs its own jobs",
    "jobs rehearse": "its report: tests/rehearsal/test_jobs.py",
    "dead-letters rehearse": "the same report",
    "postgres": "it reads no database",
    "grafana": "it writes files that are ours",
    "grants": "it prints SQL and names of roles, checked by their own pattern",
    "migrate downgrade": "it deletes all of this",
    "migrate sql": "it reads no database",
}
COMMANDS = {
    "events list": [],
    "events send": [HOSTILE, "1"],
    "events delete": [HOSTILE],
    "workers list": [],
    "workers concurrency": ["{worker}", "3"],
    "workers drain": ["{worker}", "--wait", "0"],
    "queues list": [],
    "queues show": ["{queue}"],
    "queues shares": [],
    "queues pause": ["{queue}", "--by", HOSTILE],
    "queues resume": ["{queue}"],
    "queues set": ["{queue}", "--weight", "2"],
    "queues sync": ["tests.fixtures.hostile_app:jobs"],
    "types list": [],
    "types show": ["{type}"],
    "types pause": ["{type}", "--by", HOSTILE],
    "types resume": ["{type}"],
    "types set": ["{type}", "--global-concurrency", "2"],
    "jobs list": ["--limit", "2"],
    "jobs show": ["{dead}"],
    "jobs priority": ["{pending}", "--to", "3"],
    "jobs retry": ["{pending}"],
    "jobs rerun": ["{dead}"],
    "jobs cancel": ["{gone}"],
    "chains list": ["--limit", "2"],
    "chains show": ["{dead}"],
    "chains cancel": ["{gone}"],
    "chains delete": ["{dead}", "--yes"],
    "schedules list": [],
    "schedules show": ["{schedule}"],
    "schedules explain": ["{schedule}"],
    "schedules next": ["{schedule} going", "--count", "2"],
    "schedules pause": ["{schedule}", "--by", HOSTILE],
    "schedules resume": ["{schedule} going"],
    "schedules run": ["{schedule} going"],
    "schedules delete": ["{gone}"],
    "schedules sync": ["tests.fixtures.hostile_app:jobs"],
    "explain": ["{blocked}"],
    "thresholds silence": ["claim_age", "--subject", HOSTILE, "--for", "1h", "--reason", HOSTILE],
    "restamp": [],
    "thresholds list": [],
    "thresholds set": ["claim_age_warning=15m", "--queue", "{queue}", "--by", HOSTILE],
    "trace": ["{dead}"],
    "health": [],
    "doctor": [],
    "deploy check": ["--records", "10"],
    "dead-letters list": ["--limit", "1"],
    "dead-letters groups": [],
    "dead-letters show": ["{letter}"],
    "dead-letters dismiss": ["{resolved letter}"],
    "dead-letters redrive": ["{gone}"],
    "dead-letters prune": ["--older-than", "1d", "--dry-run"],
    "archive": ["runs"],
    "vacuum": [],
    "reindex": ["{gone}"],
    "prune": ["--older-than", "1d", "--dry-run"],
    "enqueue": ["{type}", "[]", "--queue", "{queue}"],
    "audit list": [],
    "audit prune": ["--older-than", "1d"],
    "writes list": [],
    "writes show": ["{gone}"],
    "writes prune": ["--older-than", "1d"],
    "migrate version": [],
    "migrate upgrade": [],
    "migrate prepare": [],
}
REFUSED = {
    # No name of ours:
    *("jobs rerun", "queues pause", "queues resume", "queues set", "types pause", "types resume", "types set"),
    *("workers drain", "doctor", "deploy check", "health", "chains delete", "schedules run", "dead-letters dismiss"),
    *("enqueue", "events delete", "events send", "schedules pause", "thresholds set", "thresholds silence"),
}
"""Texts that end in an error, which quotes them."""
WRITERS = {"click.echo", "click.secho", "print", "Console"}
MISTAKES = (
    ["jobs", HOSTILE],
    [f"--{HOSTILE}"],
    ["jobs", "list", "--limit", HOSTILE],
    ["jobs", "list", "--after", HOSTILE, "--status", HOSTILE],
    ["explain", "no such job" + HOSTILE],
    ["schedules", "show", HOSTILE],
    ["queues", "show", HOSTILE],
    ["health", "--threshold", HOSTILE],
    ["worker", HOSTILE],
)


@pytest.fixture
def ids(engine: Engine) -> dict[str, str]:
    """Fill a queue with hostile text; return the named objects."""
    names = write_hostile(engine) | {"gone": f"gone{HOSTILE}"}
    with engine.connect() as connection:
        dead_letters: Any = HostileJob.DeadLetter.__table__
        by_job = {row.job_id: row.id for row in connection.execute(dead_letters.select())}
    return names | {"letter": by_job[names["dead"]], "resolved letter": by_job[names["resolved"]]}


def commands(group: click.Command, path: str = "") -> Iterator[str]:
    if not isinstance(group, click.Group):
        yield path
        return
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield from commands(command, f"{path} {name}".strip())


def test_every_command_is_tested_or_listed_as_tested_elsewhere() -> None:
    assert set(commands(main)) == COMMANDS.keys() | ELSEWHERE.keys()


@pytest.mark.long
def test_no_command_prints_raw_control_characters(ids: dict[str, str], database_url: str) -> None:
    environment = {"SA_JOBQUEUE_URL": database_url, "SA_JOBQUEUE_APP": "tests.fixtures.hostile_app:jobs"}
    wrong: dict[str, Any] = {}

    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(main, arguments, env=environment)
        if not isinstance(result.exception, SystemExit | None) or unsafe(result.output):
            wrong[" ".join(arguments)[:60]] = result.exception or unsafe(result.output)[:9]
        if result.exit_code == 0 and "--json" in arguments:
            json.loads(result.stdout)
        return result.exit_code, result.output

    for mistake in MISTAKES:
        assert run(*mistake)[0] != 0
    statuses: dict[str, int] = {}
    for as_json in (["--json"], []):
        for command, words in COMMANDS.items():
            arguments = [word.format_map(ids) if word.startswith("{") else word for word in words]
            statuses[command], output = run(*command.split(), *arguments, *as_json)
            if command in {"jobs show", "explain"} and not as_json:
                assert "[red]x[/red][link=" in output  # as it is, not as markup
    assert not wrong
    assert {name for name, status in statuses.items() if status} == REFUSED | {
        name for name, words in COMMANDS.items() if "{gone}" in words
    }


def test_only_the_output_module_of_the_cli_writes_to_streams() -> None:
    """So that no command can forget to escape: what prints is `cli._output`."""
    calls_found = []
    for path in sorted((SOURCE / "cli").rglob("*.py")):
        if path.name == "_output.py":
            continue
        calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        calls_found += [f"{path.name}:{call.lineno}" for call in calls if ast.unparse(call.func) in WRITERS]
    assert not calls_found


def hostile(value: Any) -> Any:
    """Return an event's field with every text in it hostile."""
    match value:
        case BaseException():
            return type(f"Error{HOSTILE}", (Exception,), {})(LONE)
        case dict():
            return {key: hostile(member) for key, member in value.items()}
        case tuple():
            return tuple(hostile(member) for member in value)
        case str() if type(value) is str:
            return LONE
    return value


@contextmanager
def log(formatter: logging.Formatter) -> Iterator[tuple[logging.Logger, StringIO]]:
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    bind(handler)
    logger = logging.getLogger("tests.hostile")
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    logger.addHandler(handler)
    yield logger, stream
    logger.removeHandler(handler)


@pytest.mark.parametrize("formatter", [TextFormatter(), logging.Formatter("%(levelname)s %(message)s"), JsonFormatter()])
def test_an_event_is_logged_on_one_line_whatever_its_names_contain(formatter: logging.Formatter) -> None:
    for event, _, _ in CASES.values():
        assert is_dataclass(event)
        fields_of_event = {field.name: hostile(getattr(event, field.name)) for field in fields(event)}
        with log(formatter) as (logger, stream):
            bus = job_events.EventBus()
            logs.subscribe(bus, logger)
            bus.emit(replace(event, **fields_of_event))
        lines = stream.getvalue().rstrip("\n").split("\n")
        if type(formatter) is logging.Formatter:  # the application's own: tracebacks are as it writes them
            lines = lines[:1]
        assert not unsafe("\n".join(lines)), event
        assert all(line.startswith("  ") for line in lines[1:]), event
        if isinstance(formatter, JsonFormatter):
            assert len(lines) == 1
            json.loads(lines[0])


def test_handler_log_records_are_one_line_and_tracebacks_are_indented() -> None:
    with log(TextFormatter()) as (logger, stream):
        logger.warning("charged %s", LONE, extra={"job_id": LONE, "job_attempt": 1})
        try:
            raise ValueError(LONE)
        except ValueError:
            logger.exception(LONE, stack_info=True)
    lines = stream.getvalue().splitlines()
    assert not unsafe(stream.getvalue())
    assert len([line for line in lines if not line.startswith("  ")]) == 2


@pytest.mark.slow
def test_labels_of_metrics_are_printable(engine: Engine, ids: dict[str, str]) -> None:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.parser import text_string_to_metric_families

    from sa_jobqueue.observe.metrics.database import DatabaseCollector

    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: health(engine, model=HostileJob)))
    page = generate_latest(registry).decode()
    assert not unsafe(page)
    samples = [sample for family in text_string_to_metric_families(page) for sample in family.samples]
    assert [sample for sample in samples if "queue" in sample.labels]


def hostile_row(row: dict[str, Any]) -> dict[str, Any]:
    texts = {"type_name", "error_type", "message", "example_message", "workflow_id", "example_job_id", "first_line"}
    return {
        name: LONE if name in texts else [hostile_row(member) for member in value] if name == "steps" else value
        for name, value in row.items()
    }
