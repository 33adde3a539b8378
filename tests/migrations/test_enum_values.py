"""Added values of enum types: when PostgreSQL lets them be used, and which a downgrade leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from sa_jobqueue.ddl import LATEST
from sa_jobqueue.layout import Layout
from sa_jobqueue.migrations import runner
from sa_jobqueue.models.base import ENUMS
from tests.migrations.applications import PLAIN_MODELS, Application
from tests.migrations.catalogs import KEPT_VALUE, catalog, without_kept_value
from tests.migrations.conftest import register_next_version

VALUES = text("SELECT e.enumlabel FROM pg_enum e WHERE e.enumtypid = CAST(:name AS regtype) ORDER BY e.enumsortorder")
USES_IT = f"op.execute(\"CREATE INDEX ix_own ON job (id) WHERE status = '{KEPT_VALUE}'\")"


@pytest.mark.slow
@pytest.mark.parametrize("name", ENUMS)
def test_each_closed_set_is_an_enum_type_with_the_members_in_order(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        runner.upgrade(connection, Layout("jobs", "mail_"))
        assert connection.scalars(VALUES, {"name": f"jobs.mail_{name}"}).all() == list(ENUMS[name])


def test_a_downgrade_leaves_an_added_value_and_an_upgrade_finds_it(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with engine.begin() as connection:
        runner.upgrade(connection, Layout())
        before = catalog(connection)
    following = register_next_version(monkeypatch)
    for _ in range(2):
        with engine.begin() as connection:
            runner.upgrade(connection, Layout())
        with engine.begin() as connection:
            runner.downgrade(connection, Layout(), to_version=following - 1)
            after = catalog(connection)
            assert connection.scalars(VALUES, {"name": "job_status"}).all()[-1] == KEPT_VALUE
        assert after != before
        assert without_kept_value(after) == before
    with engine.begin() as connection:
        runner.downgrade(connection, Layout(), to_version=0)
        assert catalog(connection)["enums"] == []


@pytest.mark.slow
@pytest.mark.parametrize("block", [False, True], ids=["in one transaction", "in an autocommit block"])
def test_a_later_revision_uses_an_added_value_only_after_an_autocommit_block(
    tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, *, block: bool
) -> None:
    application = Application(tmp_path, engine, PLAIN_MODELS)
    application.autogenerate()
    application.upgrade()
    following = register_next_version(monkeypatch)
    line = f"migrate_job_queue(from_version={LATEST}, to_version={following})"
    in_block = f"with op.get_context().autocommit_block():\n        {line}"
    application.autogenerate(edit=lambda script: script.replace(line, in_block if block else line, 1))
    application.revision(upgrade=USES_IT, downgrade="op.execute('DROP INDEX ix_own')")
    if block:
        application.upgrade()
        application.downgrade("base")
    else:
        with pytest.raises(OperationalError, match=f'unsafe use of new value "{KEPT_VALUE}" of enum type job_status'):
            application.upgrade()
