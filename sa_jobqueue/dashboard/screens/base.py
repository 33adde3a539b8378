"""Interfaces of screens and acts, and the context that is passed to them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from sqlalchemy.orm import Session

from sa_jobqueue.dashboard.access import Access, Permission
from sa_jobqueue.dashboard.parameters import Params
from sa_jobqueue.dashboard.rendering import query
from sa_jobqueue.dashboard.sampler import Sample
from sa_jobqueue.dashboard.sources import Source
from sa_jobqueue.display.redaction import REDACTED, error_line, is_redacted, is_redacting, redacted_error
from sa_jobqueue.models import JobClass
from sa_jobqueue.observe.health import Health
from sa_jobqueue.types import JobStatus

_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}.*")
PAGE: Final = 50
"""Default number of rows of a list."""
SEARCH_SECONDS: Final = 0.25
"""How long a list goes on to search for rows of a filter that no index serves."""


class Alert(NamedTuple):
    """A number beside a page of the menu."""

    number: str
    word: str
    """A severity of findings, or "unresolved"."""


@dataclass(frozen=True, kw_only=True)
class Context:
    """One request for a screen, or one act."""

    source: Source
    access: Access
    params: Params
    root: str
    """The prefix that the dashboard is mounted under."""
    trace_url: str | None = None
    """URL of a trace, with the placeholder `{trace_id}`."""

    @property
    def model(self) -> JobClass:
        """The `Job` class of the queue."""
        return self.source.model

    @property
    def is_preview(self) -> bool:
        """Whether the form of an act is not confirmed yet."""
        return not self.params.flag("confirmed")

    @property
    def change(self) -> dict[str, Any]:
        """The arguments of the operation of an act."""
        return {"by": self.access.user, "dry_run": self.is_preview, "model": self.model}

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Yield a session in a READ ONLY transaction with a statement timeout."""
        with self.source.read() as session:
            yield session

    def sample(self) -> Sample[Health]:
        """Return the cached health report with its age."""
        return self.source.sampler.sample()

    @property
    def alerts(self) -> Mapping[str, Alert]:
        """Numbers of the last report beside pages of the menu, by the names of their screens."""
        report = self.source.sampler.last
        if report is None:
            return {}
        severities = Counter(finding.severity for finding in report.findings)
        alerts = {}
        if severities:
            worst = max(severities)
            alerts["overview"] = Alert(f"{severities[worst]:,}", str(worst))
        if report.failures.unresolved:
            more = "+" if report.failures.is_capped else ""
            alerts["dead-letters"] = Alert(f"{report.failures.unresolved:,}{more}", "unresolved")
        return alerts

    def url(self, screen: str, **parameters: Any) -> str:
        """Return the link to a screen of this queue."""
        return f"{self.root}/{self.source.name}/{screen}{query(parameters.items())}"

    def trace(self, traceparent: Any) -> str | None:
        """Return the link to the trace of a W3C traceparent; None without one, or without a place that shows traces."""
        match = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
        if self.trace_url is None or match is None:
            return None
        return self.trace_url.replace("{trace_id}", match[1]).replace("{span_id}", match[2])

    def names_in_report(self) -> tuple[set[str], set[str]]:
        """Return the job types and queues of the cached report."""
        report = self.sample().value
        if report is None:
            return set(), set()
        workers = report.workers.workers
        queues = {depth.queue for depth in report.queues}
        return {name for worker in workers for name in worker.job_types}, queues.union(
            *(worker.queues for worker in workers)
        )

    def may(self, permission: str) -> bool:
        """Return whether the user has a permission and the dashboard can change this queue."""
        return permission in self.access.permissions and not self.source.is_read_only

    def payload(self, type_name: str | None, value: Any) -> Any:
        """Return a payload of a job type, or a placeholder if it is redacted."""
        if value is None:
            return None
        return value if self.may_see(type_name) else REDACTED

    def may_see(self, type_name: str | None) -> bool:
        """Return whether the user may see payloads of a job type, which may not be redacted for everybody either."""
        return self.access.may_see(type_name) and not is_redacted(type_name)

    @property
    def may_see_all(self) -> bool:
        """Whether the user may see payloads of every job type."""
        return "*" in self.access.payload_types and not is_redacting()

    def error(self, type_name: str | None, error: Any) -> Any:
        """Return a stored error of a job type; if it is redacted, only its class."""
        if error is None or self.access.may_see(type_name):
            return redacted_error(type_name, error)
        public_fields = {"type": error["type"]} if isinstance(error, dict) and "type" in error else {}
        return public_fields | {"message": REDACTED}

    def error_line(self, type_name: str | None, error: Any) -> str:
        """Return a stored error on one line, at most 200 characters."""
        return error_line(self.error(type_name, error))


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The rows that an act has changed, or in its preview would change."""

    count: int
    """Number of rows."""
    details: Sequence[str] = ()
    """Rows, and why others do not change, one line each."""
    ids: Sequence[Any] = ()
    """For the audit line."""
    has_more: bool = False
    """Whether the same act would change more rows: one call changes a limited number."""
    after: Any = None
    """Position from which the same act continues; None if it is complete."""
    effect: str = ""
    """Replaces the act's `effect`."""


@dataclass(frozen=True, slots=True)
class Act:
    """A change that a screen offers.

    `title`: an imperative, as on its button. `run`: calls the operation with `context.change`: for the preview as a dry run
    in a READ ONLY transaction, then in one of the operator engine. `effect`: sentences of the preview. `summary`: the words
    after the number of changed rows.
    """

    permission: Permission
    title: str
    run: Callable[[Context, Session], Changes]
    summary: str
    effect: str = ""
    deletes_from: str | None = None
    """The screen with the list of its rows: a page about a deleted row leads back to that list."""

    @property
    def name(self) -> str:
        """Part of its URL."""
        return self.permission.value.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Download:
    """A file that the browser saves and never shows."""

    name: str
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A page. `view` returns the variables of the template `NAME.html`."""

    name: str
    title: str
    view: Callable[[Context], dict[str, Any]]
    acts: Sequence[Act] = ()
    downloads: Mapping[str, Callable[[Context], Download]] = field(default_factory=dict)
    """Files by the name in their URL."""
    group: str = "Jobs"
    """Heading in the menu."""
    part_of: str | None = None
    """The page of the menu that it belongs to; None if it is in the menu itself."""
    refresh: int = 5
    """Seconds between two live updates while the page is visible; 0 for none."""


def status_tabs(
    context: Context, screen: str, filters: dict[str, Any], counts: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[str, str, bool, str | None]]:
    """Return a tab for each status of a list, and one for all; `filters`: the list's other ones stay as they are."""
    chosen = [[], *([status] for status in JobStatus)]
    return [
        (name, context.url(screen, **filters | {"status": among}), filters["status"] == among, counts.get(name))
        for name, among in zip(("all", *JobStatus), chosen, strict=True)
    ]
