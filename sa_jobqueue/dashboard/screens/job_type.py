"""One job type: figures, charts, top errors, workers that serve it, and its settings."""

from __future__ import annotations

from typing import Any, Final

from sa_jobqueue.dashboard import forms
from sa_jobqueue.dashboard.parameters import ParameterError
from sa_jobqueue.dashboard.screens.activity import activity
from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.dashboard.screens.dead_letters import group_error
from sa_jobqueue.operations import list_job_types, list_workers
from sa_jobqueue.operations.explaining import Cause
from sa_jobqueue.policies.rates import RateAlgorithm
from sa_jobqueue.registry.limits import Limits, settings_of

_WORKERS: Final = 1000
_FAILURES: Final = 20


def view(context: Context) -> dict[str, Any]:
    """Return the record of a type; its queue, priority and attempts as its handler declares them."""
    name = context.params.text("name")
    if name is None:
        raise ParameterError("name", "is missing: the name of a job type")
    timeout, model = context.source.heartbeat_timeout, context.model
    with context.read() as session:
        found = list_job_types(session, names=[name], heartbeat_timeout=timeout, model=model).items
        now = context.source.now()
        live = [one for one in list_workers(session, limit=_WORKERS, model=model) if now - one.heartbeat_at <= timeout]
        serving = [one for one in live if name in one.job_types]
        shown = activity(context, session, workers=serving, type_name=name)
    report = context.sample().value
    waiting = report.waiting if report else ()
    failures = [one for one in report.latest if one.type_name == name] if report else []
    return shown | {
        "name": name,
        "heading": f"Job type {name}",
        "one": found[0] if found else None,
        "seen": forms.seen(found[0].updated_at if found else None),
        "unhandled": [one for one in waiting if one.cause == Cause.TYPE_UNKNOWN and one.type_name == name],
        "groups": [(one, group_error(context, one)) for one in report.failures.groups if one.type_name == name]
        if report
        else [],
        "now": now,
        "failures": [(one, context.error_line(name, one.error)) for one in failures[:_FAILURES]],
        "serving": serving,
        "settings": settings_of(Limits),
        "algorithms": list(RateAlgorithm),
    }


SCREEN = Screen(name="job-type", title="Job type", view=view, part_of="job-types")
