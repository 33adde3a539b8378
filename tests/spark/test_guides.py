"""The code of guides that need a Spark runs as it is on the page: all blocks of one in order, with the suite's session."""

from __future__ import annotations

import ast
import re
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine

from sa_jobqueue.pipeline.archive import archive
from tests.archive.sample_data import fill

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def code_of(page: Path) -> ast.Module:
    """Return the page's Python, each line with the number that it has there."""
    cached, inside = [], False
    for line in page.read_text().splitlines():
        inside = inside and line != "```"
        cached.append(line if inside else "")
        inside = inside or line == "```python"
    return ast.parse("\n".join(cached), str(page))


def test_each_example_of_the_analytics_guide_runs(
    plainly: SparkSession, engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sa_jobqueue.pipeline.spark import analytics

    fill(engine)
    archive(engine, tmp_path / "archive", before=timedelta(days=30))
    monkeypatch.chdir(tmp_path)
    page = GUIDES / "analytics.md"
    code = code_of(page)
    for node in ast.walk(code):
        if isinstance(node, ast.Constant) and node.value == "/srv/archive":
            node.value = str(tmp_path / "archive")
    names: dict[str, Any] = {"spark": plainly, "url": database_url}
    with ExitStack() as stack:
        for statement in code.body:
            exec(compile(ast.Module([statement], []), str(page), "exec"), names)
            if isinstance(names.get("history"), AbstractContextManager):
                # As readers should: read once, for all that follows.
                names["both"] = names["history"] = stack.enter_context(names["history"])
    assert names["both"].jobs.count() == 11  # 9 of them from the archive
    assert (tmp_path / "history.html").stat().st_size > 10_000
    reference = GUIDES.parent / "reference" / "spark.md"  # has what the guide leaves out
    mentioned = {word for word in re.findall(r"\w+", page.read_text() + reference.read_text()) if word in analytics.__all__}
    assert set(analytics.__all__) - mentioned <= {"NoHistoryError", "chain_components"}
