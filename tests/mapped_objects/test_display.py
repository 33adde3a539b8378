"""Commands name the objects that a job refers to by their stored identities, and load none."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from sqlalchemy.orm import Session

from sa_jobqueue import Job, JobStatus
from sa_jobqueue.cli import main
from sa_jobqueue.display.objects import objects_in
from tests.fixtures.jobs import Jobs

INPUT = {"order": {"$class": "Order", "id": 7}, "lines": [{"$class": "Line", "number": 2, "order_id": 7}], "text": "now"}


def test_objects_are_named_with_their_fields() -> None:
    assert objects_in(INPUT) == ["order: Order 7", "lines: Line number 2, order_id 7"]
    assert objects_in({"$class": "Order", "id": 7}) == ["Order 7"]
    assert objects_in({"a": {"b": {"$class": "Order", "id": 7}}}) == ["a.b: Order 7"]
    for payload in (None, 7, [7], {"$class": ["Order"]}, "(redacted)"):
        assert objects_in(payload) == []


@pytest.mark.parametrize("redact", ["", "send"])
def test_commands_name_the_objects_unless_the_payload_is_redacted(
    database_url: str, session: Session, jobs: Jobs, redact: str
) -> None:
    dead = jobs.add(JobStatus.DEAD, type_name="send", input=INPUT)
    session.add(job := Job("send", INPUT))
    session.commit()
    environment = {"SA_JOBQUEUE_URL": database_url, "SA_JOBQUEUE_REDACT": redact}
    for command in (["jobs", "show", str(job.id)], ["explain", str(job.id)], ["jobs", "show", str(dead)]):
        outcome = CliRunner().invoke(main, command, env=environment)
        assert outcome.exit_code == 0, outcome.output
        assert ("order: Order 7" in outcome.output) is not bool(redact)
    listed = CliRunner().invoke(main, ["dead-letters", "list", "--json"], env=environment)
    (letter,) = json.loads(listed.output)["dead_letters"]
    outcome = CliRunner().invoke(main, ["dead-letters", "show", letter["id"]], env=environment)
    assert ("order: Order 7" in outcome.output) is not bool(redact)
