"""Each incident alone, and all of them at once, as an on-call person meets them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from sa_jobqueue.testing.servers import PostgresServer
from tests.incidents.run import run, storm
from tests.incidents.staged import INCIDENTS, Incident

pytestmark = pytest.mark.long


@pytest.mark.parametrize("incident", INCIDENTS, ids=lambda one: one.stage.__name__)
def test_an_incident_is_found_with_its_cause_and_its_act(
    incident: Incident, newest_server: PostgresServer, tmp_path: Path
) -> None:
    result = run(incident, newest_server.url, tmp_path)
    assert not result.fault, f"{result.sentence}: {result.fault}"


def test_all_incidents_at_once_have_one_finding_each(newest_server: PostgresServer, tmp_path: Path) -> None:
    results, findings = storm(newest_server.url, tmp_path)
    assert [(result.incident.name, result.fault) for result in results if result.fault] == []
    assert len(findings) <= len(INCIDENTS), [seen.summary for seen in findings]
    assert max(Counter(seen.summary for seen in findings).values()) == 1
