"""What is public is written down, and a change that breaks it is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.packages import ROOT

SCRIPT = ROOT / "scripts" / "api"
POLICY = (ROOT / "docs/explanation/stability.md").read_text(encoding="utf-8")


def test_the_policy_lists_the_modules_that_are_compared() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    compared = set(re.findall(r'"([a-z_.]+)"', script[script.index("PUBLIC = (") : script.index('"""The modules')]))
    listed = {name.partition(".")[2] for name in re.findall(r"`(sa_jobqueue\.[a-z_.]+)`", POLICY)}
    assert listed == compared


@pytest.mark.long
def test_a_change_that_breaks_programs_is_found(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("compares revisions of a repository")
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(checkout)], check=True)
    (checkout / "scripts/api").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    git = ["git", "-C", str(checkout), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "tag", "v0.0.1"], check=True)
    for file, before, after in (
        ("sa_jobqueue/__init__.py", '    "enqueue_many",\n', ""),  # no longer exported
        ("sa_jobqueue/policies/retry.py", "def __call__(self, attempt", "def __call__(self, number"),  # renamed
        ("sa_jobqueue/statements/schema.py", "def versions(", "def all_versions("),  # not public
    ):
        text = (checkout / file).read_text(encoding="utf-8")
        assert before in text, file
        (checkout / file).write_text(text.replace(before, after), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "scripts/api"], cwd=checkout, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "breaking changes since v0.0.1" in done.stdout
    assert "enqueue_many" in done.stdout
    assert "attempt" in done.stdout
    assert "versions" not in done.stdout
