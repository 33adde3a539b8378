"""History is frozen: a migration an application wrote long ago replays to the byte."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

import pytest

from sa_jobqueue import ddl
from sa_jobqueue.layout import STAMPED, Unit

# A digest may be changed until the first release of its version, and never after it: then it is a new version.
DIGESTS = {
    1: "585f90d51ec2bd4f36e5c1748bb0d814016a02d7e43a4e7630b6c72c7740fd60",
}
PLACES = [
    {"schema": schema, "prefix": prefix, "id_type": id_type}
    for schema in (None, "jobs", "public")
    for prefix in ("", "mail_")
    for id_type in ("uuid", "text")
]
FOLDER = Path(ddl.__file__).parent


def rendered(version: int) -> str:
    steps = [steps[version - 1] for steps in ddl.UNITS.values()]
    runs = [run for step in steps for run in (step.upgrade, step.downgrade)]
    return "\n".join(statement for place in PLACES for run in runs for statement in run(**place))


def test_every_schema_version_has_a_recorded_digest() -> None:
    for unit, steps in ddl.UNITS.items():
        assert [step.VERSION for step in steps] == list(range(1, ddl.LATEST + 1)), unit
    assert list(DIGESTS) == list(range(1, ddl.LATEST + 1))


@pytest.mark.parametrize("version", DIGESTS)
def test_a_released_schema_version_renders_to_the_same_sql(version: int) -> None:
    digest = hashlib.sha256(rendered(version).encode()).hexdigest()
    assert digest == DIGESTS[version], "a released version never changes; one that is not released takes its new digest"


@pytest.mark.parametrize("unit", STAMPED)
@pytest.mark.parametrize("version", DIGESTS)
def test_a_migration_stamps_the_version_it_migrates_to(version: int, unit: Unit) -> None:
    step, table = ddl.UNITS[unit][version - 1], STAMPED[unit]
    assert step.upgrade(schema=None, prefix="", id_type="uuid")[-1] == (
        f"COMMENT ON TABLE {table} IS 'sa_jobqueue version={version} build={step.BUILD}'"
    )
    if version > 1:
        assert step.downgrade(schema=None, prefix="", id_type="uuid")[-1] == (
            f"COMMENT ON TABLE {table} IS '{ddl.stamp(unit, version - 1).comment}'"
        )


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*v[0-9]*.py")), ids=lambda path: path.stem)
def test_a_migration_imports_no_library_code(path: Path) -> None:
    imported: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            imported.add(node.module or "")
    assert imported <= {"__future__", "hashlib", "itertools", "re", "string", "typing", "sa_jobqueue.ddl.v0001"}
    unit = "pipeline" if path.stem.startswith("pipeline") else "queue"
    assert path.stem.endswith(f"v{ddl.UNITS[unit][int(path.stem[-4:]) - 1].VERSION:04}")
