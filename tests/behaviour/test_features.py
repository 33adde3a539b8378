"""Each feature of SQLAlchemy with each writer of jobs: it works, or is refused by a sentence; the manual has the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from sa_jobqueue.testing.databases import ThrowAwayDatabase
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.features import FEATURES, WRITERS, Feature, outcomes

PAGE = (Path(__file__).parents[2] / "docs/guides/sqlalchemy-features.md").read_text()


@pytest.mark.parametrize("feature", [pytest.param(feature, id=feature.name) for feature in FEATURES])
def test_a_feature_works_or_is_refused_as_the_manual_states(feature: Feature, jobqueue_server: PostgresServer) -> None:
    with ThrowAwayDatabase(jobqueue_server.url) as database:
        found = outcomes(feature, database.url)
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {feature.name} |")]
    stated = [cell.strip() for cell in row.split("|")[2:-1]]
    assert dict(zip(WRITERS, [cell.partition(" ")[0] for cell in stated], strict=True)) == {
        name: "no" if sentence else "yes" for name, sentence in found.items()
    }
    for sentence, cell in zip(found.values(), stated, strict=True):
        if sentence:
            assert f"\n{cell.strip('no ()')}. {sentence}\n" in PAGE


def test_the_table_has_no_other_rows() -> None:
    rows = [line.split("|")[1].strip() for line in PAGE.splitlines() if line.startswith("| ") and line.count("|") > 5]
    assert [row for row in rows if row] == [feature.name for feature in FEATURES]
