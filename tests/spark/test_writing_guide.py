"""The guide to enqueueing with Spark: its code runs as it is on the page, in the suite's Spark; it names every option."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue.pipeline.spark.columns import COLUMNS
from sa_jobqueue.pipeline.spark.options import OPTIONS, WRITING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "enqueueing-with-spark.md"
REFERENCE = PAGE.parents[1] / "reference" / "spark.md"
RUN_HERE = re.compile(r"<!-- not run: tests/spark/test_writing_guide\.py [^\n]*-->\n```python\n(.*?)\n```", re.DOTALL)

pytestmark = pytest.mark.timeout(600)  # the first test to ask for Spark starts it


def test_the_guide_runs(
    plainly: SparkSession, engine: Engine, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text()
    (shop,) = re.findall(r"```python\n(# shop\.py\n.*?)```", page, re.DOTALL)
    (tmp_path / "shop.py").write_text(shop)
    monkeypatch.syspath_prepend(tmp_path)
    plainly.sparkContext.addPyFile(str(tmp_path / "shop.py"))
    plainly.range(3).write.parquet(str(tmp_path / "lake/orders"))
    names: dict[str, Any] = {"spark": plainly, "url": database_url}
    for block in RUN_HERE.finditer(page):
        code = ast.parse("\n" * page[: block.start(1)].count("\n") + block[1], str(PAGE))
        for node in ast.walk(code):
            if isinstance(node, ast.Constant) and str(node.value).startswith("lake/"):
                node.value = str(tmp_path / str(node.value))
        exec(compile(code, str(PAGE), "exec"), names)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT queue, type_name, count(*) FROM job GROUP BY 1, 2 ORDER BY 2")).all()
        in_order = "SELECT input->>'what' FROM job WHERE ordering_key = 'ada' ORDER BY created_at, id"
        assert connection.execute(text(in_order)).scalars().all() == ["ordered", "paid"]
    expected = [("default", "deliver", 3), ("default", "order", 3), ("default", "resize", 1_000), ("bills", "send_bill", 2)]
    assert [tuple(row) for row in rows] == expected


def test_the_guide_or_the_reference_names_every_option_and_every_column() -> None:
    """The guide has what most writes need; the reference that it links has the rest."""
    mentioned = set(re.findall(r"`(\w+)`", PAGE.read_text() + REFERENCE.read_text()))
    assert REFERENCE.name in PAGE.read_text()
    assert {option.name for option in OPTIONS if option.uses & WRITING} - mentioned == set()
    assert set(COLUMNS) - mentioned == set()
