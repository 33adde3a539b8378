"""Storage and vacuum: who holds back the xmin horizon, dead rows against autovacuum's threshold, waste, the server."""

from __future__ import annotations

from typing import Any

from sa_jobqueue.dashboard.screens.base import Context, Screen
from sa_jobqueue.observe.health.figures import Code
from sa_jobqueue.observe.health.findings import described


def view(context: Context) -> dict[str, Any]:
    """Return the figures of the cached report."""
    sample = context.sample()
    report = sample.value
    codes = {
        *(Code.HORIZON, Code.DEAD_TUPLES, Code.AUTOVACUUM_OFF, Code.BLOAT, Code.INVALID_INDEX),
        *(Code.WRAPAROUND, Code.CONNECTIONS, Code.CANNOT_SEE, Code.NOT_MEASURED, Code.LOCKED, Code.REPLICA),
    }
    findings = [finding for finding in report.findings if finding.code in codes] if report else []
    # Below its threshold there is nothing to do about a holder.
    advice = {
        (finding.evidence["xmin"], finding.evidence["name"]): finding.advice
        for finding in findings
        if finding.code is Code.HORIZON
    }
    holders = report.horizon.holders if report else []
    return {
        "sample": sample,
        "report": report,
        "holders": [(holder, described(holder), advice.get((holder.xmin, holder.name), "")) for holder in holders],
        "findings": findings,
    }


SCREEN = Screen(name="storage", title="Storage", view=view, group="System", refresh=15)
