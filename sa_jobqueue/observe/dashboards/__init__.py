"""What to look at and when to wake somebody: a dashboard for Grafana, and rules for Prometheus, as files."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

NAMES: Final = ("grafana.json", "rules.yml")
"""The dashboard, to be imported into Grafana; recording and alerting rules, for `rule_files` of Prometheus."""


def read(name: str) -> str:
    """Return the text of one of `NAMES`."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
