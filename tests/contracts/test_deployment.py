"""The files in examples/deploy: valid for the tools that read them, their commands understood, KEDA's query right."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from ruamel.yaml import YAML
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

from sa_jobqueue import Job, enqueue_many
from sa_jobqueue.cli import main
from tests.contracts.packages import ROOT

DEPLOY = ROOT / "examples" / "deploy"
_LATER = """
UPDATE job SET scheduled_at = now() - make_interval(secs => :age) WHERE queue = :queue AND priority = :priority
"""


def documents(name: str) -> list[Any]:
    return list(YAML(typ="safe").load_all((DEPLOY / name).read_text(encoding="utf-8")))


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every `sa-jobqueue` command of the files, with its file."""
    (compose,) = documents("compose.yaml")
    (deployment, *_) = documents("kubernetes.yaml")
    found = [("compose.yaml", list(map(str, one["command"]))) for one in compose["services"].values() if "command" in one]
    found += [("kubernetes.yaml", one["args"]) for one in deployment["spec"]["template"]["spec"]["containers"]]
    for name in ("Procfile", "shop-worker.service", "Dockerfile"):
        for line in re.findall(
            r"(?:^\w+: |^ExecStart=|^CMD )(.+)$", (DEPLOY / name).read_text(encoding="utf-8"), re.MULTILINE
        ):
            words = re.findall(r'"([^"]+)"', line) if line.startswith("[") else shlex.split(line)
            found.append((name, [word.replace("$PORT", "80") for word in words]))
    return ((name, words) for name, words in found if Path(words[0]).name == "sa-jobqueue")


def test_commands_are_understood() -> None:
    seen = set()
    for name, words in commands():
        group: Any = main
        command = group.get_command(click.Context(group), words[1])
        assert command is not None, words
        command.make_parser(click.Context(command)).parse_args(words[2:])
        seen.add(name)
    assert len(seen) == 5


@pytest.mark.long
def test_compose_matches_its_schema() -> None:
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        str(DEPLOY / "compose.yaml"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_kubernetes_gives_workers_time_to_stop() -> None:
    deployment, authentication, scaled = documents("kubernetes.yaml")
    pod = deployment["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    assert pod["terminationGracePeriodSeconds"] > int(arguments[arguments.index("--shutdown-timeout") + 1].rstrip("s"))
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert scaled["spec"]["minReplicaCount"] >= 1  # schedules and rescues need a worker
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


def test_the_query_that_scales_is_right_and_cheap(engine: Engine) -> None:
    *_, scaled = documents("kubernetes.yaml")
    query = scaled["spec"]["triggers"][0]["metadata"]["query"]

    def add(age: int, count: int, *, queue: str = "default", priority: int = 0) -> int:
        with Session(engine) as session, session.begin():
            enqueue_many(session, [Job("x", queue=queue, priority=priority) for _ in range(count)])
            place = {"age": age, "queue": queue, "priority": priority}
            session.execute(text(_LATER), place)
            return int(session.execute(text(query)).scalar_one())

    assert add(-600, 50) == 0  # not due yet
    assert add(900, 50, queue="other") == 0
    assert 90 <= add(90, 2000, priority=3) < 120
    assert add(1200, 1, priority=-9) >= 1200
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
        plan = "\n".join(connection.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}")).scalars())
    assert "ix_job_claim" in plan, plan
    assert "Seq Scan" not in plan
    (hit,) = re.findall(r"shared hit=(\d+)", plan)[:1]
    assert int(hit) < 200, plan


def test_prometheus_reads_its_configuration() -> None:
    if (promtool := shutil.which("promtool")) is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    subprocess.run([promtool, "check", "config", "--syntax-only", str(DEPLOY / "prometheus.yml")], check=True, timeout=60)


def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "shop-worker.service"
    found = (DEPLOY / "shop-worker.service").read_text(encoding="utf-8")
    unit.write_text(found.replace("/srv/shop/.venv/bin/sa-jobqueue", "/bin/true"), encoding="utf-8")
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "shop-worker.service" not in done.stderr  # warnings of the unit
