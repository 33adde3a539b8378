"""A Grafana dashboard and Prometheus rules, as files."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

NAMES: Final = ("grafana.json", "rules.yml")
"""The dashboard, to import into Grafana; recording and alerting rules, for `rule_files` of Prometheus."""


def read(name: str) -> str:
    """Return the text of one of `NAMES`."""
    return files(__name__).joinpath(name).read_text(encoding="utf-8")
