"""Type checkers accept the revisions that Alembic writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Engine

from tests.fixtures.parts import needs
from tests.migrations.applications import MODELS, Application


@pytest.mark.long
@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_a_revision_that_alembic_writes_is_accepted(checker: str, tmp_path: Path, engine: Engine) -> None:
    needs(checker)
    application = Application(tmp_path, engine, MODELS)
    revision = application.autogenerate()
    application.close()
    assert revision.count("migrate_job_queue(") == 6
    if checker == "mypy":
        options = ["--strict", *map(str, application.versions.glob("*.py"))]
    else:
        (tmp_path / "pyrightconfig.json").write_text(
            json.dumps({"typeCheckingMode": "standard", "include": ["migrations/versions"]})
        )
        options = ["--project", str(tmp_path), "--pythonpath", sys.executable]
    run = subprocess.run([sys.executable, "-m", checker, *options], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
