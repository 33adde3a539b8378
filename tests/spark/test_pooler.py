"""Spark behind a real PgBouncer: refused with advice, also where its connections would silently lack their settings."""

from __future__ import annotations

import pytest

from sa_jobqueue.errors import DatabaseUnavailableError
from sa_jobqueue.pipeline.spark.connections import connect
from sa_jobqueue.pipeline.spark.options import Use, read_options
from tests.fixtures.poolers import MakePooler


@pytest.mark.parametrize(
    "settings", [{}, {"ignore_startup_parameters": "options,extra_float_digits"}], ids=["refuses", "drops"]
)
@pytest.mark.parametrize("use", [Use.READ, Use.WRITE])
def test_a_pooler_is_refused_with_advice(pooler: MakePooler, settings: dict[str, object], use: Use) -> None:
    options = read_options({"url": pooler(**settings).url}, use)
    with pytest.raises(DatabaseUnavailableError, match="give Spark the server's own address"), connect(options):
        pass
