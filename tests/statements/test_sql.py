"""The SQL of the hot path's statements as text, a file each in `sql/`.

`SA_JOBQUEUE_UPDATE_SQL=1 pytest tests/statements/test_sql.py` rewrites the files; review the difference. To record another
statement, make an empty file of its name first. Statements without a file are tested by their effects and plans alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.fixtures.plans import DIALECT
from tests.statements.cases import CASES
from tests.statements.shapes import Case

HERE = Path(__file__).parent / "sql"
_BREAK = re.compile(
    r"(?<!FOR)(?<!KEY)(?<!LEFT)(?<!OUTER)\s(?=(?:AND|SELECT|FROM|WHERE|ORDER BY|GROUP BY|LIMIT|FOR (?:NO KEY )?UPDATE|"
    r"RETURNING|SET|UNION ALL|VALUES|JOIN|LEFT OUTER JOIN|ON CONFLICT|INSERT INTO|UPDATE|DELETE)\b)"
)


RECORDED = {path.stem for path in HERE.glob("*.sql")}


@pytest.mark.parametrize("case", [case for case in CASES if case.name in RECORDED], ids=lambda case: case.name)
def test_the_sql_of_a_statement_equals_its_file(case: Case) -> None:
    path = HERE / f"{case.name}.sql"
    text = readable(str(case.build().compile(dialect=DIALECT)))
    if os.environ.get("SA_JOBQUEUE_UPDATE_SQL"):
        path.write_text(text)
    assert text == path.read_text()


def test_every_sql_file_belongs_to_a_statement() -> None:
    assert {case.name for case in CASES} >= RECORDED


def readable(sql: str) -> str:
    """Break SQL into lines at its clauses, indented by the parentheses they stand in."""
    lines: list[str] = []
    depth = 0
    for clause in _BREAK.split(re.sub(r"\s+", " ", sql).strip()):
        words = clause.strip()
        lines.append("  " * depth + words)
        depth += words.count("(") - words.count(")")
    return "\n".join(lines) + "\n"
