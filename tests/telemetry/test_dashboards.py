"""The dashboard and the rules: Prometheus' own tools accept them, and they ask for nothing that we do not serve."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from sqlalchemy import Engine

from sa_jobqueue import JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.events import EventBus, JobCompleted
from sa_jobqueue.ids import uuid7
from sa_jobqueue.observe import dashboards
from sa_jobqueue.observe.health import Code, health
from sa_jobqueue.observe.metrics.database import DatabaseCollector
from sa_jobqueue.observe.metrics.workers import subscribe
from tests.fixtures.jobs import Jobs
from tests.fixtures.ports import free_port
from tests.fixtures.workers import PATIENCE, wait_until
from tests.health.application import APPLICATION
from tests.telemetry.grafana import faults
from tests.telemetry.prometheus import promtool, serving

ASKED = re.compile(r"sa_jobqueue_[a-z0-9_]+")


@pytest.fixture
def dashboard() -> Any:
    return json.loads(dashboards.read("grafana.json"))


def targets(dashboard: Any) -> Iterator[tuple[str, str]]:
    """Give every query of a dashboard, with the title of its panel or the name of its annotation."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for mark in dashboard["annotations"]["list"]:
        yield mark["name"], mark["expr"]


@pytest.mark.slow
def test_alert_rules_are_valid_and_each_fires_only_when_it_should(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["grafana", "--to", str(tmp_path)])
    assert result.exit_code == 0, result.output
    shutil.copy(Path(__file__).parent / "rules_test.yml", tmp_path)
    assert "19 rules found" in promtool("check", "rules", "rules.yml", within=tmp_path)
    promtool("test", "rules", "rules_test.yml", within=tmp_path)
    alerts = set(re.findall(r"alert: (\w+)", dashboards.read("rules.yml")))
    tested = (tmp_path / "rules_test.yml").read_text()
    assert {name for name in alerts if f"alertname: {name}" not in tested} == set()


def test_the_dashboard_and_rules_query_only_metrics_that_are_served(engine: Engine, dashboard: Any) -> None:
    registry = CollectorRegistry()
    registry.register(DatabaseCollector(lambda: health(engine)))
    bus = EventBus()
    subscribe(bus, registry, types=["test"], running=dict, slots=1)
    bus.emit(JobCompleted(uuid7(), "test", 1, timedelta(0), queue="mail"))
    served = {
        name for family in registry.collect() for name in (family.name, *(sample.name for sample in family.samples))
    } | {f"{family.name}_total" for family in registry.collect() if family.type == "counter"}
    names = {name for _, query in targets(dashboard) for name in ASKED.findall(query)}
    rules = dashboards.read("rules.yml")
    names |= {
        name for line in rules.splitlines() if not line.lstrip().startswith(("#", "- name")) for name in ASKED.findall(line)
    }
    assert len(names) > 20
    assert names - served == set()
    recorded = set(re.findall(r"record: (\S+)", rules))
    assert {name for _, query in targets(dashboard) for name in re.findall(r"sa_jobqueue:[\w:]+", query)} <= recorded
    match = re.search(r'code!~"([^"]+)"', rules)
    assert match is not None
    assert set(match[1].split("|")) <= {code.value for code in Code}


def test_every_query_of_the_dashboard_is_valid_promql(dashboard: Any, tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, (_, query) in enumerate(targets(dashboard))
    ]
    # YAML is a superset of JSON.
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", "panels.yml", within=tmp_path)


@pytest.mark.slow
def test_the_dashboard_conforms_to_grafanas_schema(dashboard: Any) -> None:
    assert faults(dashboard) == []

    def broken(change: Callable[[Any], None]) -> list[str]:
        changed = copy.deepcopy(dashboard)
        change(changed)
        return faults(changed)

    stat = next(number for number, panel in enumerate(dashboard["panels"]) if panel["type"] == "stat")
    # Possible edits by hand: the schema finds each, and names its place.
    (unknown,) = broken(lambda document: document["panels"][stat]["targets"][0].update(exprr="up"))
    assert unknown == f"$.panels[{stat}].targets[0].exprr is not known"
    for change in (
        lambda document: document.update(schemaVersion="39"),
        lambda document: document["panels"][stat]["options"].update(colorMode="loud"),
        lambda document: document["panels"][stat]["gridPos"].update(w="wide"),
        lambda document: document.update(graphTooltip=7),
    ):
        assert broken(change) != []


def test_the_dashboard_can_be_imported_unchanged(dashboard: Any) -> None:
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert {"uid", "title", "schemaVersion", "templating", "time"} <= dashboard.keys()
    variable, *filters = dashboard["templating"]["list"]
    queries = [query for _, query in targets(dashboard)]
    for one in filters:
        assert one["datasource"]["uid"] == f"${{{variable['name']}}}"
        assert any(f'{one["name"]}=~"${one["name"]}"' in query for query in queries), one["name"]
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24
        if panel["type"] == "row":
            continue
        # The data source of the importing Grafana, not of the exporting one.
        assert panel["datasource"]["uid"] == f"${{{variable['name']}}}"
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"]) > 0
    for area, other_area in combinations((panel["gridPos"] for panel in panels), 2):
        apart = area["x"] + area["w"] <= other_area["x"] or other_area["x"] + other_area["w"] <= area["x"]
        assert apart or area["y"] + area["h"] <= other_area["y"] or other_area["y"] + other_area["h"] <= area["y"]


def test_existing_dashboard_files_are_not_overwritten_without_force(tmp_path: Path) -> None:
    def run(*more: str) -> Any:
        return CliRunner().invoke(main, ["grafana", "--to", str(tmp_path), *more])

    assert run().exit_code == 0
    assert run().exit_code == 0  # the same again
    (tmp_path / "rules.yml").write_text("mine")
    (tmp_path / "grafana.json").unlink()
    refused = run()
    assert (refused.exit_code, "--force" in refused.output) == (1, True)
    assert [path.name for path in tmp_path.iterdir()] == ["rules.yml"]
    assert run("--force").exit_code == 0
    assert (tmp_path / "rules.yml").read_text() == dashboards.read("rules.yml")


@pytest.mark.long
def test_prometheus_scrapes_a_worker_and_the_exporter_and_fires_alerts(
    database_url: str, jobs: Jobs, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APPLICATION)
    good = [jobs.add(type_name="good") for _ in range(5)]
    bad = [jobs.add(type_name="bad", max_attempts=1) for _ in range(2)]
    jobs.add(queue="unserved")
    # At this pace: minutes become seconds. Recording and alerting are the same expressions.
    rules = re.sub(r"\[(5|10)m\]", "[1m]", re.sub(r"for: \d+m", "for: 1s", dashboards.read("rules.yml")))
    (tmp_path / "rules.yml").write_text(rules)
    environment = os.environ | {"SA_JOBQUEUE_URL": database_url, "PYTHONUNBUFFERED": "1"}

    def start(*arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "sa_jobqueue.cli", *arguments],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    port = free_port()
    exporter, worker = start("exporter", "--port", "0"), start("worker", "app:jobs", "--metrics-port", str(port))
    try:
        assert exporter.stdout is not None
        exporting = int(exporter.stdout.readline().rpartition(":")[2].partition("/")[0])
        scraped = {"exporter": exporting, "worker": port}
        configuration = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": name, "static_configs": [{"targets": [f"127.0.0.1:{number}"]}]}
                for name, number in scraped.items()
            ],
        }
        with serving(tmp_path, json.dumps(configuration)) as prometheus:
            prometheus.until('sum(up{job=~"exporter|worker"})', 2)
            wait_until(lambda: all(jobs.status(job_id) is JobStatus.COMPLETED for job_id in good))
            wait_until(lambda: all(jobs.status(job_id) is JobStatus.DEAD for job_id in bad))
            prometheus.until('sa_jobqueue_attempts_total{outcome="completed"}', 5)
            prometheus.until('sa_jobqueue_dead_letters_total{job_type="bad"}', 2)
            prometheus.until("sa_jobqueue_live_workers", 1)
            prometheus.until(
                'sum(ALERTS{alertname="JobQueueCriticalFinding", code="queue_unserved", alertstate="firing"})', 1
            )
            # Increases need figures that change while they are watched.
            jobs.add(type_name="bad", max_attempts=1)
            prometheus.until('sum(ALERTS{alertname="JobQueueJobsDie", job_type="bad", alertstate="firing"})', 1)
            wait_until(lambda: prometheus.value('sa_jobqueue:failures:ratio_rate5m{job_type="bad"}') == 1)
            health_of_rules = {rule["health"] for group in prometheus.get("rules")["groups"] for rule in group["rules"]}
            assert health_of_rules == {"ok"}
            # Only this test watches the watcher.
            exporter.send_signal(signal.SIGTERM)
            assert exporter.wait(PATIENCE) == 0
            prometheus.until('sum(ALERTS{alertname="JobQueueExporterGone", alertstate="firing"})', 1)
    finally:
        for process in (exporter, worker):
            process.terminate()
            process.communicate(timeout=PATIENCE)
