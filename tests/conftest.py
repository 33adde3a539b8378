"""The fixtures of this suite, by topic. Where PostgreSQL comes from is `sa_jobqueue.testing.plugin`'s business."""

import gc
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

import sa_jobqueue.pipeline  # noqa: F401 - the whole suite has its tables, whatever part of it runs
from tests.fixtures.compiled import share_compiled_statements

# Where it is off, each of the hundreds of processes that tests start would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Temporary files, the servers' data above all, in memory, where there is enough of it and programs may be run from it.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 8 * 2**30
_HAS_ROOM = MEMORY.exists() and shutil.disk_usage(MEMORY).free >= ENOUGH_BYTES
if "TMPDIR" not in os.environ and _HAS_ROOM and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
    os.environ["TMPDIR"] = str(MEMORY)
    tempfile.tempdir = None

share_compiled_statements()

# Collecting makes hundreds of thousands of objects that stay: no search for garbage among them until it has ended.
gc.disable()

pytest_plugins = [
    "tests.fixtures.database",
    "tests.fixtures.jobs",
    "tests.fixtures.logs",
    "tests.fixtures.chains",
    "tests.fixtures.notifications",
    "tests.fixtures.parts",
    "tests.fixtures.poolers",
    "tests.fixtures.programs",
    "tests.fixtures.shop",
    "tests.fixtures.spark",
    "tests.fixtures.tallies",
    "tests.fixtures.workers",
    "tests.fixtures.holders",
    "tests.fixtures.examples",
    "tests.fixtures.reports",
    "tests.fixtures.claim_protocol",
    "tests.fixtures.commands",
]


RANDOM_ID = re.compile(r"(?!0{8})[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse parameters that are random: every process of `pytest -n` must collect the same tests."""
    if node_ids := [item.nodeid for item in items if RANDOM_ID.search(item.nodeid)]:
        raise pytest.UsageError(f"a random id is a parameter of {node_ids[0]}: write one that is the same in each process")


def pytest_collection_finish() -> None:
    """Leave the modules and the thousands of tests out of every later search for garbage."""
    gc.freeze()
    gc.enable()
