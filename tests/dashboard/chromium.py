"""A browser, and the rules of accessibility that pages obey."""

from __future__ import annotations

import shutil
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SKIPPED = "there is no Chromium to open the page with: apt-get install chromium, or put a chrome on the path"
AXE = Path(__file__).parent / "vendored" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
CHECK = """async (rules) => (await axe.run(document, {runOnly: rules})).violations.map(
    (one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.html).join(" ")}`)"""
