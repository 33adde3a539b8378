"""All incidents together, as an on-call person meets them: each has one finding, with its cause and what ends it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sa_jobqueue.testing.servers import PostgresServer
from tests.incidents.run import storm
from tests.incidents.staged import INCIDENTS


@pytest.mark.long
def test_all_incidents_at_once_have_one_finding_each(newest_server: PostgresServer, tmp_path: Path) -> None:
    results, findings = storm(newest_server.url, tmp_path)
    assert [(result.incident.name, result.sentence, result.fault) for result in results if result.fault] == []
    assert [summary for summary in findings if not any(re.search(incident.says, summary) for incident in INCIDENTS)] == []
    assert len(findings) == len(set(findings)) <= len(INCIDENTS)
