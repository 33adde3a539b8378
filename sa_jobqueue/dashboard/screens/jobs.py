"""Jobs by filters, newest or oldest first, a bounded search per page; cancel or trigger the selected ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final
from uuid import UUID

from sqlalchemy import ColumnElement, func, select, type_coerce
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.access import Permission
from sa_jobqueue.dashboard.parameters import MAX_VALUES, ParameterError, Params
from sa_jobqueue.dashboard.rendering import brief
from sa_jobqueue.dashboard.screens.base import PAGE, SEARCH_SECONDS, Act, Changes, Context, Screen, status_tabs
from sa_jobqueue.observe.health.measuring import COUNTED
from sa_jobqueue.operations import JobFilter, cancel_jobs, list_jobs, set_priority, trigger_jobs
from sa_jobqueue.operations.pages import BulkResult, collected
from sa_jobqueue.statements import jobs as statements
from sa_jobqueue.types import ENDED, INITIAL, MAX_PRIORITY, MIN_PRIORITY, JobStatus

COLUMNS: Final = (
    *("id", "type_name", "queue", "fairness_key", "status", "attempt", "max_attempts"),
    *("scheduled_at", "started_at", "completed_at", "last_error"),
)
_SEARCHED: Final = {"type": "type", "queue": "queue", "key": "fairness_key", "id": "id", "chain": "chain"}
"""The filters that a search can name, as in `queue:mail`."""
_FILTERS: Final = ("status", *_SEARCHED.values(), "created_after", "created_before", "input")
_OPEN: Final = frozenset(JobStatus) - frozenset(ENDED)
_SHORT_INPUT: Final = 1000
"""Maximum size in bytes, as stored, of an input whose start is shown."""
_SCANS: Final = 10
"""Maximum number of scans of `SCAN_LIMIT` jobs in one call of an act on all jobs that match."""


def read_filter(context: Context) -> JobFilter:
    """Return the filter of a request."""
    params = context.params
    return JobFilter(
        statuses=params.choices("status", JobStatus),
        types=params.texts("type"),
        queues=params.texts("queue"),
        fairness_keys=params.texts("fairness_key"),
        ids=params.job_ids("id", context.model),
        chain_ids=params.job_ids("chain", context.model, at_most=20),
        created_after=params.instant("created_after"),
        created_before=params.instant("created_before"),
    )


def _with_input(context: Context, where: JobFilter) -> ColumnElement[bool] | None:
    """Return the condition on the input. Raises: ParameterError if it would reveal a payload that the user may not see."""
    contains = context.params.document("input")
    if contains is None:
        return None
    if not (context.may_see_all or (where.types and all(map(context.may_see, where.types)))):
        raise ParameterError("input", "needs the filter `type`, with job types whose payloads you may see")
    return context.model.input.contains(type_coerce(contains, JSONB))


def view(context: Context) -> dict[str, Any]:
    """Return one page of jobs."""
    context = _with_search(context)
    params = context.params
    where = read_filter(context)
    matching = _with_input(context, where)
    order = params.choice("order", ("newest", "oldest"))
    limit = params.number("limit", low=1, high=200, default=PAGE)
    with context.read() as session:
        now: datetime = session.execute(select(func.now())).scalar_one()

        page = collected(
            partial(
                list_jobs,
                session,
                where=where,
                matching=matching,
                columns=COLUMNS,
                newest_first=order == "newest",
                model=context.model,
            ),
            after=params.job_id("after", context.model),
            limit=limit,
            seconds=SEARCH_SECONDS,
        )
        inputs = _inputs(context, session, page.items)
    filters, list_options = params.given(*_FILTERS), params.given("order", "limit")
    links: dict[str, Any] = filters | list_options
    types, queues = context.names_in_report()
    return {
        "heading": _heading(filters),
        "tabs": status_tabs(context, "jobs", links, _counts(context)),
        "names": sorted([f"type:{name}" for name in types] + [f"queue:{name}" for name in queues]),
        "kept": [(name, value) for name in ("status", *_SEARCHED.values()) for value in filters[name]],
        "chips": list(_chips(context, filters, list_options)),
        "jobs": [
            (job, inputs.get(job.id, ""), context.error_line(job.type_name, job.last_error), _took(job, now)) for job in page
        ],
        "filters": filters,
        "order": order,
        # Of the jobs that are there now: those enqueued after this page are not meant.
        "matching": {"matching": ["1"], "created_before": [now.isoformat()]}
        | {name: values for name, values in filters.items() if values},
        "is_filtered": any(filters.values()),
        "next_url": None if page.next is None else context.url("jobs", **links, after=page.next),
        "first_url": context.url("jobs", **links) if "after" in params else None,
        # A short page that goes on: the search stopped at its limit.
        "searched_to": _created(page.next) if page.next is not None and len(page.items) < limit else None,
        "is_short": page.next is not None and len(page.items) < limit,
    }


def _inputs(context: Context, session: Session, page: Sequence[Any]) -> dict[Any, str]:
    """Return the start of the inputs that the user may see, by job."""
    ids = [job.id for job in page if context.may_see(job.type_name)]
    parameters = {"ids": ids, "most": _SHORT_INPUT}
    rows = session.execute(statements.short_inputs(context.model), parameters) if ids else ()
    return {job_id: brief(document) for job_id, document in rows}


def _took(job: Any, now: datetime) -> timedelta | None:
    """Return how long the last attempt of a job took, or has taken."""
    if job.started_at is None or job.status in INITIAL:
        return None
    took: timedelta = (job.completed_at or now) - job.started_at
    return took


def _with_search(context: Context) -> Context:
    """Return the context with the filter that the search names: an id, `queue:mail`, or the name of a type or queue."""
    values_by_name = context.params.as_dict()
    searched = context.params.text("search")
    if searched is None:
        return context
    kind, colon, value = searched.strip().partition(":")
    if not colon or kind not in _SEARCHED:
        value = searched.strip()
        types, queues = context.names_in_report()
        kind = "id" if _is_uuid(value) else "queue" if value in queues - types else "type"
    values_by_name |= {"search": [], _SEARCHED[kind]: [*values_by_name.get(_SEARCHED[kind], []), value]}
    return replace(context, params=Params((name, text) for name, values in values_by_name.items() for text in values))


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def _heading(filters: dict[str, list[str]]) -> str:
    """Return a title such as `Dead jobs of charge_card in payments`."""
    words = [", ".join(filters["status"]), "jobs"]
    for word, name in (("of", "type"), ("in", "queue"), ("for", "fairness_key")):
        words += [word, ", ".join(filters[name])] if filters[name] else []
    text = " ".join(filter(None, words))
    return text[0].upper() + text[1:]


def _chips(context: Context, filters: dict[str, list[str]], list_options: dict[str, list[str]]) -> Iterator[tuple[str, str]]:
    """Yield each filter besides the status, with the URL of the list without it."""
    for name in _FILTERS[1:]:
        for value in filters[name]:
            parameters: dict[str, Any] = filters | list_options | {name: [text for text in filters[name] if text != value]}
            yield f"{name.replace('_', ' ')}: {value}", context.url("jobs", **parameters)


def _counts(context: Context) -> dict[str, str]:
    """Return how many jobs have each status, by the cached report; of those that ended well an estimate."""
    report = context.sample().value
    if report is None:
        return {}
    counts = {}
    if "queues" not in report.missing:
        more = "+" if any(depth.is_capped for depth in report.queues) else ""
        counts["pending"] = f"{sum(depth.due + depth.later for depth in report.queues):,}{more}"
    if "running" not in report.missing:
        counts["running"] = f"{report.running.running:,}"
    if "failures" not in report.missing:
        more = "+" if report.failures.blocked + report.failures.dead >= COUNTED else ""
        counts |= {"blocked": f"{report.failures.blocked:,}{more}", "dead": f"{report.failures.dead:,}{more}"}
    return counts | {name: f"~{n:,}" for name, n in report.statuses.items() if name in {"completed", "cancelled"}}


def _created(job_id: Any) -> datetime | None:
    """Return the time in a UUIDv7; None for any other id."""
    if not isinstance(job_id, UUID) or job_id.version != 7:
        return None
    return datetime.fromtimestamp((job_id.int >> 80) / 1000, UTC)


def _selected(context: Context, session: Session) -> tuple[list[Any], Any]:
    """Return the selected jobs, or the next ones that the form's filter finds; and where the next page begins."""
    columns = ("id", "type_name", "status", "last_error")
    if not context.params.flag("matching"):
        ids = forms.ids(context, "job")
        page = list_jobs(session, where=JobFilter(ids=ids), columns=columns, limit=len(ids), model=context.model)
        return page.items, None
    where = read_filter(context)
    # What ended needs no change; the caller's other conditions are in the filter.
    where = replace(where, statuses=[status for status in where.statuses or _OPEN if status in _OPEN])
    if not where.statuses:
        return [], None
    matching = _with_input(context, where)
    jobs: list[Any] = []
    after = context.params.job_id("after", context.model)
    for _ in range(_SCANS):
        page = list_jobs(
            session,
            where=where,
            matching=matching,
            columns=columns,
            after=after,
            limit=MAX_VALUES - len(jobs),
            newest_first=False,
            model=context.model,
        )
        jobs += page
        after = page.next
        if after is None or len(jobs) >= MAX_VALUES:
            break
    return jobs, after


def _changes(
    context: Context, session: Session, change: Callable[..., BulkResult[Any]], statuses: frozenset[JobStatus]
) -> Changes:
    """Change those of the jobs that have one of the statuses; name them, and why the others stay as they are."""
    jobs, following = _selected(context, session)
    before = {job.id: job.status for job in jobs}
    lines = {
        job.id: (job.type_name, job.id, f"({job.status}) {context.error_line(job.type_name, job.last_error)}".strip())
        for job in jobs
    }
    result = change(session, [job_id for job_id, status in before.items() if status in statuses], **context.change)
    changed = set(result)
    details = forms.folded(line for job_id, line in lines.items() if job_id in changed)
    if unchanged_statuses := [status for job_id, status in before.items() if job_id not in changed]:
        stay = "stays as it is" if len(unchanged_statuses) == 1 else "stay as they are"
        details.append(
            f"{len(unchanged_statuses)} of the selected jobs {stay}: {', '.join(sorted(set(unchanged_statuses)))}"
        )
    if not context.params.flag("matching") and (missing := len(forms.ids(context, "job")) - len(jobs)):
        details.append(f"{missing} of the selected jobs no longer exist")
    return Changes(count=result.changed, details=details, ids=result.ids, after=following)


def _set_priority(context: Context, session: Session) -> Changes:
    priority = context.params.number("priority", low=MIN_PRIORITY, high=MAX_PRIORITY, default=0)

    def change(session: Session, ids: list[Any], **how: Any) -> BulkResult[Any]:
        return set_priority(session, priority, where=JobFilter(ids=ids), **how) if ids else BulkResult([], 0)

    effect = f"They get priority {priority}; larger runs first. Workers apply it from their next claim on."
    return replace(_changes(context, session, change, frozenset(INITIAL)), effect=effect)


SCREEN = Screen(
    name="jobs",
    title="Jobs",
    view=view,
    acts=(
        Act(
            Permission.CANCEL_JOBS,
            "Cancel jobs",
            partial(_changes, change=cancel_jobs, statuses=_OPEN),
            "cancelled",
            "They will not run again. Workers stop those that are running, and roll back what their handlers wrote.",
        ),
        Act(
            Permission.TRIGGER_JOBS,
            "Run jobs now",
            partial(_changes, change=trigger_jobs, statuses=frozenset(INITIAL)),
            "made due now",
            "They become due now. Blocked jobs still wait for their blockers.",
        ),
        Act(Permission.SET_PRIORITY, "Set the priority", _set_priority, "set to the new priority"),
    ),
)
