"""Logging of long-running commands."""

from __future__ import annotations

import logging

from sa_jobqueue.observe.log_lines import JsonFormatter, TextFormatter, bind


def configure_logging(level: str, style: str) -> None:
    """Log to standard error, as text or JSON, unless importing the application configured logging.

    Handlers that the application configured also receive the fields of the attempt, for their formatters.
    """
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(JsonFormatter() if style == "json" else TextFormatter())
        root.addHandler(handler)
        root.setLevel(level.upper())
    for each in root.handlers:
        bind(each)
    logging.getLogger("sa_jobqueue").setLevel(level.upper())
