"""Log records of children, handled in the worker: they reach the application's handlers with the ids of their job."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from sa_jobqueue.context import ClaimedJob
from sa_jobqueue.worker.run.isolation.messages import Message

_OURS: Final = ("", "sa_jobqueue")
"""Loggers whose levels a child takes over: the root's and our own."""
_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def levels() -> dict[str, int]:
    """Return the levels that children are to have, as they are in this process."""
    return {name: logging.getLogger(name or None).level for name in _OURS}


def forward_to(send: Callable[[Message], None], given: Mapping[str, int]) -> None:
    """Send every record of this process to the worker from now on, and to no other handler of the root logger."""
    for name, level in given.items():
        logging.getLogger(name or None).setLevel(level)
    logging.getLogger().handlers = [_Forwarder(send)]


class _Forwarder(logging.Handler):
    def __init__(self, send: Callable[[Message], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(_message(record))
        except Exception:
            self.handleError(record)


def _message(record: logging.LogRecord) -> Message:
    raised = record.exc_info
    return {
        "is": "log",
        "name": record.name,
        "level": record.levelno,
        "text": record.getMessage(),
        "raised": "".join(traceback.format_exception(*raised)) if raised and raised[0] else record.exc_text,
        "created": record.created,
        "place": [record.pathname, record.lineno, record.funcName],
        "process": record.process,
        "extra": {name: _plain(value) for name, value in record.__dict__.items() if name not in _STANDARD},
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)


def replay(message: Message, job: ClaimedJob | None) -> None:
    """Handle a child's record as one of this process. Raises: KeyError, TypeError or ValueError if it is invalid."""
    name, level = str(message["name"]), int(message["level"])
    logger = logging.getLogger(name)
    if not logger.isEnabledFor(level):
        return
    path, line, function = message["place"]
    record = logging.LogRecord(name, level, str(path), int(line), str(message["text"]), (), None, str(function))
    record.created, record.process, record.exc_text = float(message["created"]), int(message["process"]), message["raised"]
    record.__dict__ |= {key: value for key, value in dict(message["extra"]).items() if key not in _STANDARD}
    if job is not None:
        record.__dict__ |= {"job_id": str(job.id), "job_attempt": job.attempt, "job_type": job.type_name}
    logger.handle(record)
