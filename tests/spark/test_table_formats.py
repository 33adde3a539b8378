"""The recipes for Delta Lake and Iceberg run as they are on their page, with the real packages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import Engine, text

from sa_jobqueue import JobStatus
from sa_jobqueue.pipeline.archive import archive
from tests.archive.sample_data import fill
from tests.fixtures.jobs import Jobs
from tests.fixtures.parts import needs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

deltalake = needs("deltalake")
needs("pyiceberg")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "table-formats.md"
OURS = re.compile(r"<!-- not run: tests/spark/test_table_formats\.py [^\n]*-->\n```python\n(.*?)\n```", re.DOTALL)

pytestmark = pytest.mark.timeout(600)


def run(blocks: list[str], names: dict[str, Any], folder: Path) -> None:
    """Run blocks of the page, with its paths below a folder."""
    for block in blocks:
        code = ast.parse(block, str(PAGE))
        for node in ast.walk(code):
            if isinstance(node, ast.Constant) and str(node.value).startswith("lake/"):
                node.value = str(folder / str(node.value))
        exec(compile(code, str(PAGE), "exec"), names)


def blocks(*containing: str) -> list[str]:
    marks = OURS.findall(PAGE.read_text())
    return [block for block in marks if any(words in block for words in containing)] if containing else marks


@pytest.fixture
def names() -> Iterator[dict[str, Any]]:
    """Give the names of the page's blocks, and close its catalog afterwards, which is a database of SQLite."""
    names: dict[str, Any] = {}
    yield names
    names["catalog"].close()


def test_each_archive_run_appends_its_files_to_an_iceberg_table(
    engine: Engine, tmp_path: Path, names: dict[str, Any]
) -> None:
    fill(engine)
    names |= {"DataFrame": None, "ended": None, "COLUMNS": ()}
    (catalog,) = blocks("load_catalog")
    run([catalog.partition("\ndef merge")[0], *blocks("def publish")], names, tmp_path)
    folder = str(tmp_path / "archive")
    first = archive(engine, folder, before=timedelta(days=41, hours=12))
    assert 0 < first.jobs < 9
    assert names["publish"](engine, folder) > 0
    assert names["publish"](engine, folder) == 0
    second = archive(engine, folder, before=timedelta(days=30))
    assert names["publish"](engine, folder) > 0
    table = names["catalog"].load_table("queue.archived_jobs")
    rows = table.scan(selected_fields=("id", "application", "xid")).to_arrow()
    assert rows.num_rows == first.jobs + second.jobs == len(set(rows["id"].to_pylist()))
    assert sum(table.inspect.files()["record_count"].to_pylist()) == rows.num_rows


@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
def test_the_stream_of_ended_jobs_is_merged_by_id_and_transaction(
    plainly: SparkSession, database_url: str, engine: Engine, jobs: Jobs, tmp_path: Path, names: dict[str, Any]
) -> None:
    ended = [jobs.add(JobStatus.COMPLETED, input={"customer": "ada"}), jobs.add(JobStatus.DEAD)]
    jobs.add(JobStatus.PENDING)
    names["url"] = database_url
    run(blocks(), names, tmp_path)
    delta, iceberg = str(tmp_path / "lake/delta/jobs"), names["catalog"].load_table("queue.jobs")

    def in_delta(column: str) -> dict[str, Any]:
        rows = deltalake.DeltaTable(delta).to_pyarrow_table().to_pylist()
        return {row["id"]: row[column] for row in rows}

    assert in_delta("status") == {str(ended[0]): "completed", str(ended[1]): "dead"}
    older = plainly.createDataFrame(deltalake.DeltaTable(delta).to_pyarrow_table())
    # A newer state of one job, with a column that a later version of the query selects; then an older state again.
    newer = older.where(f"id = '{ended[1]}'").selectExpr(
        *(name for name in older.columns if name not in {"status", "xid"}),
        "'cancelled' AS status",
        "xid + 5 AS xid",
        "get_json_object(input, '$.customer') AS customer",
    )
    for number, batch in enumerate((newer, older, newer)):
        names["merge_into_delta"](batch, number)
    names["merge_into_iceberg"](newer, 1)
    assert in_delta("status") == {str(ended[0]): "completed", str(ended[1]): "cancelled"}
    assert set(in_delta("customer").values()) == {None}
    iceberg = names["catalog"].load_table("queue.jobs")
    assert {row["id"]: row["status"] for row in iceberg.scan().to_arrow().to_pylist()} == in_delta("status")
    assert "customer" in iceberg.schema().column_names
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM job")).scalar_one() == 3
