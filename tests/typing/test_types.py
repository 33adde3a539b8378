"""What a type checker accepts and refuses of the public interface.

The modules beside this one are checked strictly. A line marked `# E: text` must be refused with that text; every other
must pass.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__")))
_ERROR = re.compile(r"(?P<path>[^:]+):(?P<line>\d+): error: (?P<text>.*)")


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, int], list[str]]:
    """Check all cases in one run, and give what was said by file and line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *map(str, CASES)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert not run.stderr, run.stderr
    assert run.returncode == 1, run.stdout
    found: dict[tuple[str, int], list[str]] = {}
    for line in run.stdout.splitlines():
        error = _ERROR.fullmatch(line)
        if error and Path(error["path"]).parent.name == HERE.name:
            found.setdefault((Path(error["path"]).name, int(error["line"])), []).append(error["text"])
    return found


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_exactly_the_marked_lines_are_refused(case: Path, errors: dict[tuple[str, int], list[str]]) -> None:
    expected = {
        number: [mark.strip() for mark in line.split("# E:")[1:]]
        for number, line in enumerate(case.read_text().splitlines(), 1)
        if "# E:" in line
    }
    said = {line: texts for (name, line), texts in errors.items() if name == case.name}
    assert said.keys() == expected.keys(), said
    for line, marks in expected.items():
        for mark in marks:
            assert any(mark in text for text in said[line]), (line, mark, said[line])
