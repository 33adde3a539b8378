"""A file that grows past a page of thought is split: aim at 150 lines, stop at 400; tests at 600."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contracts.packages import ROOT, SOURCE, TESTS

LIMITS = {SOURCE: 400, TESTS: 600}
FILES = [(path, limit) for folder, limit in LIMITS.items() for path in sorted(folder.rglob("*.py"))]


def test_there_are_files_to_measure() -> None:
    assert len(FILES) > 60


@pytest.mark.parametrize(
    ("path", "limit"), FILES, ids=lambda part: str(part.relative_to(ROOT)) if isinstance(part, Path) else ""
)
def test_a_file_stays_within_its_limit(path: Path, limit: int) -> None:
    assert len(path.read_text().splitlines()) <= limit
