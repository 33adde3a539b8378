"""Each feature of SQLAlchemy with each writer of jobs: it works, or is refused by a sentence; the manual has the table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sa_jobqueue.testing.databases import throw_away_database
from sa_jobqueue.testing.servers import PostgresServer
from tests.fixtures.features import FEATURES, Feature, outcomes, stated
from tests.fixtures.variants import variants

PAGE = (Path(__file__).parents[2] / "docs/guides/sqlalchemy-features.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("feature", variants(FEATURES, default=FEATURES[::8]), ids=lambda feature: feature.name)
def test_a_feature_works_or_is_refused_as_the_manual_states(feature: Feature, jobqueue_server: PostgresServer) -> None:
    with throw_away_database(jobqueue_server.url) as database_url:
        found = outcomes(feature, database_url)
    assert stated(PAGE, feature.name) == found


def test_the_table_has_no_other_rows() -> None:
    rows = re.findall(r"^\| ([^|]*[^ |]) \| (?:yes|no)", PAGE, re.MULTILINE)
    assert [row for row in rows if row not in {feature.name for feature in FEATURES}] == []
