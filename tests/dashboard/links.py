"""Links to every screen, for tests that visit all of them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from sa_jobqueue.dashboard.screens import SCREENS


def links(ids: Mapping[str, str]) -> dict[str, list[str]]:
    """Return links to each screen by its name, with parameters of rows: `ids` are those of `write_hostile`."""
    found = {screen.name: [screen.name] for screen in SCREENS}
    found["jobs"].append(f"jobs?queue={quote(ids['queue'], safe='')}&status=dead")
    found["job"] = [f"job?id={quote(ids[name], safe='')}" for name in ("dead", "running", "blocked")]
    found["job-type"] = [f"job-type?name={quote(ids['type'], safe='')}"]
    found["queue"] = [f"queue?name={quote(ids['queue'], safe='')}{more}" for more in ("", "&fairness_key=a")]
    found["fairness-keys"] = [f"fairness-keys?key={quote(ids['queue'], safe='')}"]
    found["queues"].append(f"queues?name={quote(ids['queue'], safe='')}")
    found["chain"] = [f"chain?id={quote(ids[name], safe='')}" for name in ("dead", "blocked")]
    found["schedules"].append(f"schedules?name={quote(ids['schedule'], safe='')}")
    found["events"].append(f"events?name={quote(ids['event'], safe='')}")
    found["workers"].append(f"workers?queue={quote(ids['queue'], safe='')}")
    return found
