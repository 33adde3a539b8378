"""The fixtures of this suite, by topic. Where PostgreSQL comes from is `sa_jobqueue.testing.plugin`'s business."""

import os
import sys

# Where it is off, each of the hundreds of processes that tests start would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest_plugins = [
    "tests.fixtures.database",
    "tests.fixtures.jobs",
    "tests.fixtures.logs",
    "tests.fixtures.chains",
    "tests.fixtures.notifications",
    "tests.fixtures.poolers",
    "tests.fixtures.spark",
    "tests.fixtures.tallies",
    "tests.fixtures.workers",
    "tests.fixtures.holders",
    "tests.fixtures.examples",
    "tests.fixtures.reports",
]
