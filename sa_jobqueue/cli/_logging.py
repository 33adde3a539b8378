"""How commands that run for long write their log."""

from __future__ import annotations

import logging

from sa_jobqueue.observe.log_lines import JsonFormatter, TextFormatter, bind


def configure_logging(level: str, style: str) -> None:
    """Log to standard error, as text or JSON, unless the application configured logging when it was imported.

    The application's own handlers get the fields of the attempt all the same, for its own formatters to show.
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
