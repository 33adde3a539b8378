"""The drawn state machine is the enforced one."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sa_jobqueue.types import INITIAL, TRANSITIONS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "state-machine.md"


def test_diagram_shows_exactly_the_legal_transitions() -> None:
    arrows = re.findall(r"^    (\S+) --> (\S+?)(?::|$)", PAGE.read_text(), re.MULTILINE)
    assert {(old, new) for old, new in arrows if "[*]" not in (old, new)} == TRANSITIONS
    assert {new for old, new in arrows if old == "[*]"} == INITIAL


def test_concepts_draw_a_part_of_the_legal_transitions() -> None:
    text = (ROOT / "docs" / "concepts.md").read_text()
    arrows = re.findall(r"^    (\S+) --> (\S+?)(?::|$)", text, re.MULTILINE)
    assert len(arrows) > 5
    assert {(old, new) for old, new in arrows if old != "[*]"} <= TRANSITIONS
    assert {new for old, new in arrows if old == "[*]"} == INITIAL


@pytest.mark.long
def test_the_state_diagram_page_is_generated_by_its_script() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "state_diagram"), "--check"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert process.returncode == 0, process.stderr
