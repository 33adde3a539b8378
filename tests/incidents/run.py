"""Stage an incident, find it, follow its link, and end it."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.incidents.staged import INCIDENTS, Incident, Staged
from tests.incidents.world import PATIENCE, Seen, World, open_world

LOOKS = 30.0
"""Seconds that a look of a worker and the overview's next report may take: one is kept for 20 times what measuring took."""


@dataclass(frozen=True)
class Result:
    """An on-call person's view of an incident."""

    incident: Incident
    sentence: str
    fault: str
    """Its errors; empty for none."""


def run(incident: Incident, server_url: str, logs: Path) -> Result:
    """Stage one incident in a world of its own."""
    with open_world(server_url, logs) as world:
        world.worker("main")
        staged = incident.stage(world)
        return _judged(world, incident, staged, time.monotonic() - staged.since)


def storm(server_url: str, logs: Path) -> tuple[list[Result], Sequence[Seen]]:
    """Stage all incidents at once; return the view of each, and all findings."""
    with open_world(server_url, logs) as world:
        world.worker("main", concurrency=9)
        staged = [(one, one.stage(world), time.monotonic()) for one in INCIDENTS]
        world.until(
            lambda: all(world.matching(one.says) for one, _, _ in staged) or time.monotonic() > staged[-1][2] + 90,
            "the storm",
            PATIENCE * 2,
        )
        findings = world.findings()
        results = []
        for one, _, _ in staged:
            found = [seen for seen in findings if _matches(one, seen)]
            results.append(Result(one, found[0].summary if found else "", "" if found else "not found"))
        return results, findings


def _matches(incident: Incident, seen: Seen) -> bool:
    return re.search(incident.says, seen.summary) is not None


def _judged(world: World, incident: Incident, staged: Staged, began: float) -> Result:
    deadline = began + incident.threshold + LOOKS
    while not (found := world.matching(incident.says)):
        if time.monotonic() > deadline:
            return Result(incident, "; ".join(one.summary for one in world.findings()), "not found")
        time.sleep(0.25)
    (seen,) = found[:1]
    others = [one.summary for one in world.findings() if one.severity != "ok" and not _matches(incident, one)]
    fault = []
    if others:
        fault.append(f"with {others}")
    if staged.shows not in world.client.page(seen.link.partition("#")[0]):
        fault.append(f"{seen.link} does not show {staged.shows}")
    if staged.act is not None:
        try:
            staged.act(seen)
            world.until(lambda: not world.matching(incident.says), f"the end of {seen.summary!r}", PATIENCE)
        except AssertionError as error:
            fault.append(str(error))
    return Result(incident, seen.summary, "; ".join(fault))
