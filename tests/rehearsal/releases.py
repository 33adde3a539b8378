"""Made-up releases of the library, as folders: copies of this checkout to which versions of the tables were added.

Until there is a release, the checkout is the one before (N-1), and a copy is the next one (N): its tables have a column, and
its enum a value, that the checkout does not know. From the first release on, the one before is its package.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.contracts.packages import ROOT

ADDED = ("ALTER TABLE ${q}job ADD COLUMN remark text", "ALTER TYPE ${q}job_attempt_outcome ADD VALUE 'suspended'")
DROPPED = ("ALTER TABLE ${q}job DROP COLUMN remark",)
_MODULE = '''"""A version of a made-up release."""

from typing import Any

from sa_jobqueue.ddl.v0001 import statements

VERSION = {version}
BUILD = "rehearsed"


def upgrade(**names: Any) -> list[str]:
    return statements({text!r}, **names)
'''


def _replace(path: Path, old: str, new: str) -> None:
    content = path.read_text(encoding="utf-8")
    assert content.count(old) == 1, (path, old)
    path.write_text(content.replace(old, new), encoding="utf-8")


def _add_version(library: Path, version: int, statements: tuple[str, ...]) -> None:
    """Add a version of the tables of both units; that of the pipeline changes only its number."""
    registry = library / "ddl/__init__.py"
    for prefix, table, changes in (("", "job", statements), ("pipeline_", "job_bulk_write", ())):
        stamp = f"COMMENT ON TABLE ${{q}}{table} IS 'sa_jobqueue version={version} build=rehearsed'"
        module = _MODULE.format(version=version, text="\n--;\n".join([*changes, stamp]))
        (library / f"ddl/{prefix}v{version:04}.py").write_text(module, encoding="utf-8")
        latest, newest = f"{prefix}v{version - 1:04}", f"{prefix}v{version:04}"
        if version == 2:  # a tuple of one
            _replace(registry, f"({latest},)", f"({latest}, {newest})")
        else:
            _replace(registry, f" {latest})", f" {latest}, {newest})")
        _replace(registry, "from sa_jobqueue.ddl import ", f"from sa_jobqueue.ddl import {newest}, ")
    _replace(registry, f"LATEST = v{version - 1:04}.VERSION", f"LATEST = v{version:04}.VERSION")


def make_release(folder: Path, *versions: tuple[str, ...], has_column: bool) -> Path:
    """Copy the library to a folder and add versions of the tables by their statements; return the folder.

    `has_column`: whether its code has the column `remark` of `job`.
    """
    library = folder / "sa_jobqueue"
    shutil.copytree(ROOT / "sa_jobqueue", library, ignore=shutil.ignore_patterns("__pycache__"))
    for version, statements in enumerate(versions, 2):
        _add_version(library, version, statements)
    last_outcome = '    SUPERSEDED = "superseded"\n'
    _replace(library / "types.py", last_outcome, f'    SUSPENDED = "suspended"\n{last_outcome}')
    if has_column:
        next_column = "    type_name: Mapped[str] = mapped_column(sa.Text, nullable=False, sort_order=-48)\n"
        column = "    remark: Mapped[str | None] = mapped_column(sa.Text, sort_order=50)\n"
        _replace(library / "models/job.py", next_column, column + next_column)
    return folder
