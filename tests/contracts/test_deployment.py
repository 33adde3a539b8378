"""The files in examples/deploy: valid for the tools that read them, safe, their commands run, KEDA's query right."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement
from ruamel.yaml import YAML
from sqlalchemy import Engine, make_url, text
from sqlalchemy.orm import Session

import sa_jobqueue
from sa_jobqueue import Job, enqueue_many
from sa_jobqueue.cli import main
from sa_jobqueue.cli._options import duration
from sa_jobqueue.db.connections import OWN_CONNECTIONS
from sa_jobqueue.migrations.grants import RIGHTS
from sa_jobqueue.observe import dashboards
from sa_jobqueue.operations import pause_queues, resume_queues
from tests.contracts.packages import ROOT
from tests.fixtures.parts import needs
from tests.fixtures.poolers import MakePooler
from tests.fixtures.ports import free_port
from tests.fixtures.transactions import call
from tests.fixtures.workers import PATIENCE, wait_until
from tests.telemetry.prometheus import promtool, serving

DEPLOY = ROOT / "examples" / "deploy"
APPLICATION = ROOT / "examples" / "fastapi_app"
RELEASING = timedelta(seconds=25)
"""The time that a worker needs after its shutdown timeout at worst: docs/guides/workers-in-production.md."""
PORTS = ("8000", "8080", "9464", "9465")
"""Of the services of compose.yaml that the tests start, by which they are replaced with free ones."""
_LATER = """
UPDATE job SET scheduled_at = now() - make_interval(secs => :age)
WHERE queue = :queue AND fairness_key = :key AND priority = :priority
"""


def documents(name: str) -> list[Any]:
    return list(YAML(typ="safe").load_all((DEPLOY / name).read_text(encoding="utf-8")))


def resource(kind: str, name: str = "") -> Any:
    """Return the only resource of a kind, or the one whose name ends so."""
    every = [*documents("kubernetes.yaml"), *documents("kubernetes-migrate.yaml")]
    (document,) = (
        document for document in every if document["kind"] == kind and document["metadata"]["name"].endswith(name)
    )
    return document


def services() -> dict[str, Any]:
    (compose,) = documents("compose.yaml")
    services: dict[str, Any] = compose["services"]
    return services


def words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command]


def procfile() -> dict[str, str]:
    return dict(re.findall(r"^(\w+): (.+)$", (DEPLOY / "Procfile").read_text(encoding="utf-8"), re.MULTILINE))


def pods() -> list[Any]:
    kinds = ("Deployment", "Job")
    every = [*documents("kubernetes.yaml"), *documents("kubernetes-migrate.yaml")]
    return [document["spec"]["template"]["spec"] for document in every if document["kind"] in kinds]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield every command of the files, with its file."""
    for service in services().values():
        if "command" in service:
            yield "compose.yaml", words(service["command"])
    for pod in pods():
        for container in pod["containers"]:
            if container["args"][0] != "sh":
                yield "kubernetes.yaml", words(container["args"])
                continue
            for line in container["args"][2].split("&&"):
                yield "kubernetes.yaml", words(line.removeprefix(" exec"))
    for line in procfile().values():
        yield "Procfile", words(line.replace("exec ", "").replace("$PORT", "80"))[1:]
    (line,) = re.findall(r"^ExecStart=(.+)$", (DEPLOY / "shop-worker.service").read_text(encoding="utf-8"), re.MULTILINE)
    yield "shop-worker.service", [Path(word).name for word in words(line)]
    (line,) = re.findall(r"^CMD (.+)$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    yield "Dockerfile", json.loads(line)


def shutdown_timeout(command: list[str]) -> timedelta:
    """Return the shutdown timeout of a worker's command."""
    group: Any = main
    worker = group.get_command(click.Context(group), "worker")
    option = worker.make_parser(click.Context(worker)).parse_args(command[2:])[0]["shutdown_timeout"]
    timeout: timedelta = duration(option)
    return timeout


def test_deployment_commands_parse() -> None:
    seen = set()
    for name, command in commands():
        if command[0] != "sa-jobqueue":
            assert command[:1] in (["alembic"], ["uvicorn"]), command
            continue
        group: Any = main
        subcommand = group.get_command(click.Context(group), command[1])
        assert subcommand is not None, command
        subcommand.make_parser(click.Context(subcommand)).parse_args(command[2:])
        seen.add(name)
    assert seen == {"compose.yaml", "kubernetes.yaml", "Procfile", "shop-worker.service", "Dockerfile"}


def test_workers_have_time_to_stop() -> None:
    worker = services()["worker"]
    assert duration(worker["stop_grace_period"]) >= shutdown_timeout(words(worker["command"])) + RELEASING
    pod = resource("Deployment", "worker")["spec"]["template"]["spec"]
    grace = timedelta(seconds=pod["terminationGracePeriodSeconds"])
    assert grace >= shutdown_timeout(pod["containers"][0]["args"]) + RELEASING
    unit = (DEPLOY / "shop-worker.service").read_text(encoding="utf-8")
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    (line,) = re.findall(r"^ExecStart=(.+)$", unit, re.MULTILINE)
    assert timedelta(seconds=int(stop)) >= shutdown_timeout(words(line)) + RELEASING
    # Heroku kills after 30 s: time for handlers that are cancelled, and for the release.
    (line,) = (words(line.replace("exec ", ""))[1:] for name, line in procfile().items() if name == "worker")
    assert shutdown_timeout(line) <= timedelta(seconds=20)


@pytest.mark.long
def test_compose_matches_its_schema() -> None:
    schema = ["--builtin-schema", "vendor.compose-spec", str(DEPLOY / "compose.yaml")]
    process = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *schema], capture_output=True, text=True, timeout=240, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_no_file_has_a_password() -> None:
    example = (DEPLOY / ".env.example").read_text(encoding="utf-8")
    variables = re.findall(r"^(\w+)=$", example, re.MULTILINE)
    used = re.findall(r"\$\{(\w+)", (DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    assert set(used) == set(variables)
    for path in DEPLOY.iterdir():
        content = path.read_text(encoding="utf-8")
        for password in re.findall(r"\w+://[\w${}.-]+:([^@\s]+)@", content):
            assert password.startswith("${"), (path, password)
        for value in re.findall(r"PASSWORD: (\S+)", content):
            assert value.startswith("${"), (path, value)
    assert ".env" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert ".env*" in (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()


def test_the_requirements_of_the_image_accept_this_release() -> None:
    lines = (APPLICATION / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wheel = f"./wheels/sa_jobqueue-{sa_jobqueue.__version__}-py3-none-any.whl"
    # A wheel until the package is published: tests/contracts/test_published.py.
    requirements = [Requirement(line.replace(wheel, "sa-jobqueue")) for line in lines if not line.startswith("#")]
    (library,) = (requirement for requirement in requirements if requirement.name == "sa-jobqueue")
    assert library.specifier.contains(sa_jobqueue.__version__, prereleases=True)
    assert library.extras == {"binary", "metrics"}
    for requirement in requirements:
        assert requirement.specifier.contains(metadata.version(requirement.name), prereleases=True), requirement


@pytest.mark.long
def test_the_image_is_built_from_what_compose_prints(tmp_path: Path) -> None:
    header = (DEPLOY / "compose.yaml").read_text(encoding="utf-8").partition("\nname:")[0]
    printed = [line.removeprefix("#   ") for line in header.splitlines() if line.startswith("#   ")]
    guide = (ROOT / "docs/guides/deployment.md").read_text(encoding="utf-8")
    assert all(line.split("  ")[0] in guide for line in printed)
    build = services()["web"]["build"]
    assert (DEPLOY / build["context"]).resolve() == APPLICATION
    dockerfile = (DEPLOY / build["context"] / build["dockerfile"]).read_text(encoding="utf-8")
    context, image = tmp_path / "context", tmp_path / "image"
    shutil.copytree(APPLICATION, context, ignore=shutil.ignore_patterns("__pycache__", "wheels"))
    for line in printed:
        if line.startswith("python "):
            command = shlex.split(line.replace("../fastapi_app", str(context)))[1:]
            assert (
                subprocess.run([sys.executable, *command, "--no-build-isolation"], cwd=DEPLOY, check=False).returncode == 0
            )
    image.mkdir()
    for instruction, arguments in re.findall(r"^([A-Z]+) (.+)$", dockerfile, re.MULTILINE):
        if instruction == "COPY":
            source, target = arguments.split()
            assert (context / source).exists(), source
            if (context / source).is_dir():
                shutil.copytree(context / source, image / target, dirs_exist_ok=True)
            else:
                shutil.copy(context / source, image / target)
        elif instruction == "RUN":
            command = shlex.split(arguments)
            assert command[:4] == ["python", "-m", "pip", "install"]
            # The packages of others are installed here, in versions that the file accepts.
            lines = (image / command[-1]).read_text(encoding="utf-8").splitlines()
            (library,) = (line for line in lines if "jobqueue" in line and not line.startswith("#"))
            offline = ["--no-index", "--no-deps", "--target", str(tmp_path / "site"), library]
            if library.startswith("./"):
                assert subprocess.run([sys.executable, *command[1:4], *offline], cwd=image, check=False).returncode == 0
                script = "import sa_jobqueue; print(sa_jobqueue.__file__)"
                environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
                process = subprocess.run(
                    [sys.executable, "-c", script], cwd=image, env=environment, capture_output=True, check=True
                )
                assert str(tmp_path / "site") in process.stdout.decode()


def test_compose_mounts_files_that_exist() -> None:
    mounts = [volume for service in services().values() for volume in service.get("volumes", ()) if volume.startswith(".")]
    assert mounts
    assert [mount for mount in mounts if not (DEPLOY / mount.partition(":")[0]).is_file()] == []


def test_the_pooler_of_compose_has_room_for_the_workers() -> None:
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    (workers,) = re.findall(r"--scale worker=(\d+)", text)
    (concurrency,) = re.findall(r"--concurrency (\d+)", services()["worker"]["command"])
    settings = services()["pgbouncer"]["environment"]
    formula = f"`{OWN_CONNECTIONS} + concurrency`"
    assert all(formula in (DEPLOY / name).read_text(encoding="utf-8") for name in ("compose.yaml", "kubernetes.yaml"))
    assert formula in (ROOT / "docs/guides/deployment.md").read_text(encoding="utf-8")
    assert int(settings["MAX_CLIENT_CONN"]) >= int(workers) * (OWN_CONNECTIONS + int(concurrency))
    assert int(settings["DEFAULT_POOL_SIZE"]) >= int(workers) * (3 + int(concurrency))


def test_keda_scales_the_workers_and_keeps_one() -> None:
    scaled = resource("ScaledObject")["spec"]
    deployment = resource("Deployment", "worker")
    assert scaled["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    assert "replicas" not in deployment["spec"]  # each `kubectl apply` would undo what KEDA has set
    assert scaled["minReplicaCount"] >= 1  # schedules and rescues need a worker
    (trigger,) = scaled["triggers"]
    assert trigger["authenticationRef"]["name"] == resource("TriggerAuthentication")["metadata"]["name"]
    budget = resource("PodDisruptionBudget")["spec"]
    assert budget["selector"] == deployment["spec"]["selector"]
    assert budget["maxUnavailable"] >= 1  # else one worker would block the drain of its node


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ScaledObject", "TriggerAuthentication"])
def test_keda_knows_every_field(kind: str) -> None:
    keda = needs("cloudcoil.models.keda.v1alpha1")
    resource_fields = resource(kind)
    read = getattr(keda, kind).model_validate(resource_fields)
    # An unknown field is dropped, a wrong type refused.
    assert read.model_dump(mode="json", by_alias=True, exclude_unset=True)["spec"] == resource_fields["spec"]


def test_the_autoscaling_query_is_correct_and_cheap(engine: Engine) -> None:
    query = resource("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]

    def age() -> int:
        with Session(engine) as session:
            return int(session.execute(text(query)).scalar_one())

    def add(age_seconds: int, count: int, *, queue: str = "default", key: str = "", priority: int = 0) -> int:
        with Session(engine) as session, session.begin():
            enqueue_many(session, [Job("x", queue=queue, fairness_key=key, priority=priority) for _ in range(count)])
            session.execute(text(_LATER), {"age": age_seconds, "queue": queue, "key": key, "priority": priority})
        return age()

    assert age() == 0
    assert add(-600, 50) == 0  # not due yet
    assert add(900, 50, queue="other") == 0
    assert 90 <= add(90, 2000, priority=3) < 120
    assert 300 <= add(300, 2000, key="tenant 1", priority=-9) < 330
    assert 600 <= add(600, 1, key="tenant 2", priority=9) < 630

    def paused(change: Callable[..., Any], key: str) -> int:
        call(engine, change, ["default"], fairness_key=key)
        return age()

    assert 300 <= paused(pause_queues, "tenant 2") < 330
    assert paused(pause_queues, "") == 0  # more workers would not start its jobs
    assert 300 <= paused(resume_queues, "") < 330
    assert 600 <= paused(resume_queues, "tenant 2") < 630
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE job"))
        plan = "\n".join(connection.execute(text(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) {query}")).scalars())
    assert "ix_job_claim" in plan, plan
    assert "Seq Scan on job" not in plan, plan
    (hit,) = re.findall(r"shared hit=(\d+)", plan)[:1]
    assert int(hit) < 200, plan


def test_an_observer_may_run_the_query_that_scales(engine: Engine) -> None:
    name = f"t{secrets.token_hex(5)}"
    url = engine.url.render_as_string(hide_password=False)
    result = CliRunner().invoke(main, ["grants", "--roles", name, "--apply"], env={"SA_JOBQUEUE_URL": url})
    assert result.exit_code == 0, result.output
    try:
        with engine.begin() as connection:
            connection.execute(text(f"SET LOCAL ROLE {name}_observer"))
            query = resource("ScaledObject")["spec"]["triggers"][0]["metadata"]["query"]
            assert connection.execute(text(query)).scalar_one() == 0
    finally:
        with engine.begin() as connection:
            for role in RIGHTS:
                connection.execute(text(f"DROP OWNED BY {name}_{role}; DROP ROLE {name}_{role}"))


def test_prometheus_reads_its_configuration_and_rules(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "rules.yml").write_text(dashboards.read("rules.yml"), encoding="utf-8")
    shutil.copy(DEPLOY / "prometheus.yml", tmp_path)
    assert re.search(r"1 rule files found", promtool("check", "config", "prometheus.yml", within=tmp_path))


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    if (analyze := shutil.which("systemd-analyze")) is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "shop-worker.service"
    unit_text = (DEPLOY / "shop-worker.service").read_text(encoding="utf-8")
    unit.write_text(unit_text.replace("/srv/shop/.venv/bin/sa-jobqueue", "/bin/true"), encoding="utf-8")
    process = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert process.returncode == 0, process.stderr
    assert "shop-worker.service" not in process.stderr  # warnings of the unit


class Services:
    """Services of compose.yaml as processes on this machine: the same commands and variables, other hosts and ports."""

    def __init__(self, server: str, pooler: str) -> None:
        self.ports = {port: str(free_port()) for port in PORTS}
        self._urls = {"postgres": server, "pgbouncer": pooler}

    def here(self, word: str) -> str:
        """Return a word of a command with the ports of this machine."""
        return re.sub(rf"(?<!\d)({'|'.join(PORTS)})(?!\d)", lambda match: self.ports[match[1]], word)

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service, its hosts replaced."""
        variables = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        for key, value in services()[name]["environment"].items():
            match = re.fullmatch(r"[\w+]+://.+@(\w+):5432/shop", value)
            variables[key] = self._urls[match[1]] if match else value
        return variables

    def command(self, name: str) -> list[str]:
        """Return the command of a service, with the ports of this machine."""
        return [self.here(word) for word in words(services()[name]["command"])]

    def is_healthy(self, name: str) -> bool:
        """Run the health check of a service."""
        _, *check = services()[name]["healthcheck"]["test"]
        check = [sys.executable if word == "python" else self.here(word) for word in check]
        return subprocess.run(check, stderr=subprocess.DEVNULL, timeout=PATIENCE, check=False).returncode == 0

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a service until the block ends."""
        with subprocess.Popen(self.command(name), cwd=APPLICATION, env=self.environment(name)) as process:
            try:
                yield process
            finally:
                process.kill()

    def is_listening(self) -> bool:
        """Return whether the worker is ready and listens."""
        try:
            return bool(self.get("8080", "/readyz")["listening"])
        except urllib.error.HTTPError as error:
            if error.code == 503:
                return False
            raise

    def get(self, port: str, path: str, body: object = None) -> Any:
        """Request a path from a service by the port that it has in compose.yaml."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.ports[port]}{path}", data)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)


@pytest.mark.long
def test_the_services_of_compose_work_together(empty_database_url: str, pooler: MakePooler, tmp_path: Path) -> None:
    settings = services()["pgbouncer"]["environment"]
    prepared = int(settings["MAX_PREPARED_STATEMENTS"])
    before = make_url(pooler(pool=int(settings["DEFAULT_POOL_SIZE"]), max_prepared_statements=prepared).url)
    pooled = before.set(drivername="postgresql+psycopg", database=make_url(empty_database_url).database)
    shop = Services(empty_database_url, pooled.render_as_string(hide_password=False))
    for _ in range(2):  # as with each `docker compose up`
        migrate = shop.command("migrate")
        subprocess.run(migrate, cwd=APPLICATION, env=shop.environment("migrate"), check=True, timeout=PATIENCE)
    with ExitStack() as stack:
        _, worker, _ = (stack.enter_context(shop.running(name)) for name in ("web", "worker", "exporter"))
        for name in ("web", "worker", "exporter"):
            wait_until(lambda name=name: shop.is_healthy(name), description=name)  # type: ignore[misc]
        wait_until(shop.is_listening, description="a worker that listens beside the pooler")
        assert shop.get("8080", "/livez")["status"] == "ok"

        shop.get("8000", "/orders", {"id": 7, "item": "lamp"})
        wait_until(lambda: shop.get("8000", "/orders/7")["tracking"] == "TRACK-7", description="the order")

        (tmp_path / "rules").mkdir()
        (tmp_path / "rules" / "rules.yml").write_text(dashboards.read("rules.yml"), encoding="utf-8")
        (configuration,) = documents("prometheus.yml")
        configuration["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        for scraped in configuration["scrape_configs"]:
            for target_config in scraped.pop("dns_sd_configs", []):
                scraped["static_configs"] = [
                    {"targets": [f"{name}:{target_config['port']}" for name in target_config["names"]]}
                ]
            for targets in scraped["static_configs"]:
                targets["targets"] = [re.sub(r"^\w+", "127.0.0.1", shop.here(target)) for target in targets["targets"]]
        with serving(tmp_path, json.dumps(configuration)) as prometheus:
            prometheus.until("sa_jobqueue_up", 1)
            prometheus.until("sa_jobqueue_live_workers", 1)
            prometheus.until('sa_jobqueue_attempts_total{job_type="ship_order", outcome="completed"}', 1)
            assert {rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]} <= {
                "ok",
                "unknown",
            }

        started = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
        assert time.monotonic() - started < duration(services()["worker"]["stop_grace_period"]).total_seconds()
