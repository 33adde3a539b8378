"""The check of prose finds phrases that have a plainer form."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

from tests.contracts.packages import ROOT


def check(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "scripts" / "prose", *arguments], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("page.md", "The worker is told of it.\n"),
        ("module.py", '"""Return what nobody wants."""\n'),
        ("module.py", "x = 1  # come what may\n"),
        ("module.py", 'raise ValueError("the the queue is not found")\n'),
    ],
    ids=["page", "docstring", "comment", "message"],
)
def test_a_banned_phrase_is_reported_with_file_and_line(tmp_path: Path, name: str, text: str) -> None:
    planted = tmp_path / name
    planted.write_text(text)
    result = check(str(planted))
    assert result.returncode == 1
    assert f"{planted}:1: " in result.stdout


@pytest.mark.parametrize("text", ["It fails at once.", "A task, also if it runs.", "It has a row of its own."])
def test_constructions_are_reported_in_pages_and_docstrings_for_users(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = SourceFileLoader("prose_script", str(ROOT / "scripts/prose"))
    spec = spec_from_loader("prose_script", loader)
    assert spec is not None
    script = module_from_spec(spec)
    loader.exec_module(script)
    monkeypatch.setattr(script, "ROOT", tmp_path)
    (tmp_path / "docs").mkdir()
    (tmp_path / "sa_jobqueue").mkdir()
    (tmp_path / "tests").mkdir()
    page, module, test = (tmp_path / name for name in ("docs/page.md", "sa_jobqueue/module.py", "tests/test_module.py"))
    page.write_text(text)
    module.write_text(f'"""Return a module.\n\n{text}\n"""\n\nx = 1  # {text}\n')
    test.write_text(f'"""{text}"""\n')
    reports = [
        (path.name, number)
        for path, number, line, tables in script.texts([page, module, test])
        if script.phrases(line, tables)
    ]
    assert reports == [("page.md", 1), ("module.py", 3)]  # comments and tests are for developers
