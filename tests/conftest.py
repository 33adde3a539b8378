"""The fixtures of this suite, by topic. Where PostgreSQL comes from is `sa_jobqueue.testing.plugin`'s business."""

pytest_plugins = [
    "tests.fixtures.database",
    "tests.fixtures.jobs",
    "tests.fixtures.chains",
    "tests.fixtures.notifications",
    "tests.fixtures.poolers",
    "tests.fixtures.spark",
    "tests.fixtures.tallies",
    "tests.fixtures.workers",
    "tests.fixtures.holders",
]
