"""What type checkers accept and refuse of the public interface.

The modules beside this one are checked strictly by mypy: a line marked `# E: text` must be refused with that text; every
other must pass. Pyright must refuse the same lines, except those marked `# mypy only`, in words of its own.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.parts import needs

HERE = Path(__file__).parent
CASES = sorted(path for path in HERE.glob("*.py") if not path.name.startswith(("test_", "__")))
_ERROR = re.compile(r"(?P<path>[^:]+):(?P<line>\d+): error: (?P<text>.*)")


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, int], list[str]]:
    """Check all cases in one run, and give the messages by file and line."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", *map(str, CASES)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE.parents[1])
    assert not run.stderr, run.stderr
    assert run.returncode == 1, run.stdout
    lines_by_file: dict[tuple[str, int], list[str]] = {}
    for line in run.stdout.splitlines():
        error = _ERROR.fullmatch(line)
        if error and Path(error["path"]).parent.name == HERE.name:
            lines_by_file.setdefault((Path(error["path"]).name, int(error["line"])), []).append(error["text"])
    return lines_by_file


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_exactly_the_marked_lines_are_refused(case: Path, errors: dict[tuple[str, int], list[str]]) -> None:
    expected = {
        number: [mark.removesuffix("# mypy only").strip() for mark in line.split("# E:")[1:]]
        for number, line in enumerate(case.read_text().splitlines(), 1)
        if "# E:" in line
    }
    errors_by_line = {line: texts for (name, line), texts in errors.items() if name == case.name}
    assert errors_by_line.keys() == expected.keys(), errors_by_line
    for line, marks in expected.items():
        for mark in marks:
            assert any(mark in text for text in errors_by_line[line]), (line, mark, errors_by_line[line])


@pytest.fixture(scope="module")
def refused_by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """Check all cases by Pyright, and give its messages by file and line."""
    needs("basedpyright")
    settings = {"include": [str(HERE)], "extraPaths": [str(HERE.parents[1])], "typeCheckingMode": "standard"}
    project = tmp_path_factory.mktemp("pyright") / "pyrightconfig.json"
    project.write_text(json.dumps(settings | {"pythonVersion": "3.11"}))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        sys.executable,
        "--project",
        str(project),
    ]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    lines_by_file: dict[str, dict[int, str]] = {}
    for diagnostic in json.loads(run.stdout)["generalDiagnostics"]:
        if diagnostic["severity"] == "error":
            of_file = lines_by_file.setdefault(Path(diagnostic["file"]).name, {})
            of_file[diagnostic["range"]["start"]["line"] + 1] = diagnostic["message"]
    return lines_by_file


@pytest.mark.long
@pytest.mark.parametrize("case", CASES, ids=lambda path: path.stem)
def test_pyright_refuses_the_same_lines(case: Path, refused_by_pyright: dict[str, dict[int, str]]) -> None:
    lines = enumerate(case.read_text().splitlines(), 1)
    expected = {number for number, line in lines if "# E:" in line and "# mypy only" not in line}
    errors_by_line = refused_by_pyright.get(case.name, {})
    assert errors_by_line.keys() == expected, errors_by_line
