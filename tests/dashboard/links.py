"""Links to every screen, for tests that visit all of them."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote

from sa_jobqueue.dashboard.screens import SCREENS


def links(ids: Mapping[str, str]) -> dict[str, list[str]]:
    """Return links to each screen by its name, with parameters of rows: `ids` are those of `write_hostile`."""
    paths_by_screen = {screen.name: [screen.name] for screen in SCREENS}
    paths_by_screen["search"] = [f"search?q={quote(ids['queue'], safe='')}"]
    paths_by_screen["jobs"].append(f"jobs?queue={quote(ids['queue'], safe='')}&status=dead")
    paths_by_screen["job"] = [f"job?id={quote(ids[name], safe='')}" for name in ("dead", "running", "blocked")]
    paths_by_screen["job-type"] = [f"job-type?name={quote(ids['type'], safe='')}"]
    paths_by_screen["queue"] = [f"queue?name={quote(ids['queue'], safe='')}{more}" for more in ("", "&fairness_key=a")]
    paths_by_screen["fairness-keys"] = [f"fairness-keys?key={quote(ids['queue'], safe='')}"]
    paths_by_screen["queues"].append(f"queues?name={quote(ids['queue'], safe='')}")
    paths_by_screen["chain"] = [f"chain?id={quote(ids[name], safe='')}" for name in ("dead", "blocked")]
    paths_by_screen["schedules"].append(f"schedules?name={quote(ids['schedule'], safe='')}")
    paths_by_screen["events"].append(f"events?name={quote(ids['event'], safe='')}")
    paths_by_screen["workers"].append(f"workers?queue={quote(ids['queue'], safe='')}")
    return paths_by_screen
