"""What `format("jobqueue")` says in a Python that lacks a module."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
sys.modules["sqlalchemy"] = None
from pyspark_sa_jobqueue import DefaultSource
DefaultSource({})
"""


def test_a_python_without_the_package_is_named_with_what_to_set() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert f"in {sys.executable}: set PYSPARK_PYTHON to the Python" in ended.stderr
