"""alembic_utils beside the queue, in a process of its own: its comparison cannot be taken out of Alembic again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.fixtures.parts import needs
from tests.migrations.conftest import one_server

ROOT = Path(__file__).parents[2]

SCRIPT = """
import json, logging, sys
from pathlib import Path

from alembic import command
from alembic_utils.pg_function import PGFunction
from alembic_utils.pg_trigger import PGTrigger
from alembic_utils.replaceable_entity import register_entities, registry
from sqlalchemy import create_engine, text

from tests.migrations.applications import MODELS, NO_QUEUE, Application, commands

logging.disable(logging.WARNING)
place, url, configure = sys.argv[1:]
engine = create_engine(url)
application = Application(Path(place), engine, MODELS, configure=configure)
twice = PGFunction("public", "twice(x integer)", "returns integer language sql as $$ select x * 2 $$")
noted = PGFunction("public", "noted()", "returns trigger language plpgsql as $$ begin return new; end $$")
on_job = PGTrigger(
    schema="public",
    signature="note_job",
    on_entity="public.job",
    definition="BEFORE UPDATE ON public.job FOR EACH ROW EXECUTE FUNCTION public.noted()",
)
revisions = {}


def step(name):
    revisions[name] = commands(application.autogenerate())
    application.upgrade()
    application.check()


step("queues")
register_entities([twice, noted, on_job])
step("entities of the application")
step("nothing")
role = "role_" + engine.url.database.replace("-", "_")
with engine.begin() as connection:
    connection.execute(text(f'CREATE ROLE "{role}"'))
    connection.execute(text(f'GRANT SELECT, DELETE ON job, "order" TO "{role}"'))
revisions["grants"] = commands(application.autogenerate())
with engine.begin() as connection:
    connection.execute(text(f'DROP OWNED BY "{role}"'))
    connection.execute(text(f'DROP ROLE "{role}"'))
for path in application.versions.glob("*.py"):
    if "role_" in path.read_text():
        path.unlink()
registry.clear()
register_entities([twice, noted])
step("a trigger that the application removed")
application.edit(NO_QUEUE)
revisions["no model"] = [line for line in commands(application.autogenerate()) if "entity" in line]
print(json.dumps(revisions))
"""


@pytest.fixture
def revisions(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> dict[str, list[str]]:
    """Run the script, and give the commands of each of its revisions."""
    needs("alembic_utils")
    url = engine.url.render_as_string(hide_password=False)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), url, request.param]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    commands_by_name: dict[str, list[str]] = json.loads(run.stdout.splitlines()[-1])
    return commands_by_name


@pytest.mark.long
@one_server
@pytest.mark.parametrize("revisions", ["", "include_schemas=True"], indirect=True)
def test_alembic_utils_drops_nothing_of_a_queue(revisions: dict[str, list[str]]) -> None:
    assert any("migrate_job_queue" in command for command in revisions["queues"])
    assert sorted(revisions["entities of the application"]) == [
        "op.create_entity(public_job_note_job)",
        "op.create_entity(public_noted)",
        "op.create_entity(public_twice)",
    ]
    assert revisions["nothing"] == []
    assert sorted(command.partition("_role_")[0] for command in revisions["grants"]) == [
        "op.drop_entity(public_order",
        "op.drop_entity(public_order",
    ]
    assert revisions["a trigger that the application removed"] == ["op.drop_entity(public_job_note_job)"]
    assert revisions["no model"] == []
