"""The public API is written down, and a change that breaks it is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contracts.packages import ROOT

SCRIPT = ROOT / "scripts" / "api"
POLICY = (ROOT / "docs/explanation/stability.md").read_text(encoding="utf-8")


def test_the_stability_policy_lists_the_compared_modules() -> None:
    script = SCRIPT.read_text(encoding="utf-8")
    compared = set(re.findall(r'"([a-z_.]+)"', script[script.index("PUBLIC = (") : script.index('"""The modules')]))
    listed = {name.partition(".")[2] for name in re.findall(r"`(sa_jobqueue\.[a-z_.]+)`", POLICY)}
    assert listed == compared


CHANGES = (
    ("sa_jobqueue/__init__.py", '    "enqueue_many",\n', ""),  # no longer exported
    ("sa_jobqueue/policies/retry.py", "def __call__(self, attempt", "def __call__(self, number"),  # renamed
    ("sa_jobqueue/statements/schema.py", "def versions(", "def all_versions("),  # not public
)


def api(checkout: Path, status: int) -> str:
    """Run the script in a checkout; it must exit with `status`. Return its output."""
    command = [sys.executable, "scripts/api"]
    process = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == status, process.stdout + process.stderr
    return process.stdout + process.stderr


@pytest.mark.long
def test_a_breaking_api_change_is_detected(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("compares revisions of a repository")
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", "--no-tags", str(ROOT), str(checkout)], check=True)
    (checkout / "scripts/api").write_text(SCRIPT.read_text(encoding="utf-8"), encoding="utf-8")
    git = ["git", "-C", str(checkout), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "tag", "v0.0.1"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "After the release"], check=True)
    assert "0 breaking changes since v0.0.1" in api(checkout, 0)
    for file, before, after in CHANGES:
        text = (checkout / file).read_text(encoding="utf-8")
        assert before in text, file
        (checkout / file).write_text(text.replace(before, after), encoding="utf-8")
    changes = api(checkout, 1)
    assert "breaking changes since v0.0.1" in changes
    assert "enqueue_many" in changes
    assert "attempt" in changes
    assert "versions" not in changes

    (checkout / "changes/+many.removed.md").write_text("**Enqueueing**: `enqueue_many`.\n", encoding="utf-8")
    changes = api(checkout, 1)
    assert "enqueue_many" not in changes
    assert "1 in changes/*.removed.md" in changes
    (checkout / "changes/+backoff.removed.md").write_text(
        "**Retries**: `Backoff.__call__` and `RetryPolicy.__call__` take a number.\n", encoding="utf-8"
    )
    assert "0 breaking changes since v0.0.1" in api(checkout, 0)
