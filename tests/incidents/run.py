"""Stage incidents, find each, follow its link, and end it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.incidents.staged import FIRST, INCIDENTS, Incident, Staged
from tests.incidents.world import PATIENCE, World, open_world

LOOKS = 30.0
"""Seconds that a look of a worker and the overview's next report may take: one is kept for 20 times what measuring took."""


@dataclass(frozen=True)
class Result:
    """An on-call person's view of an incident."""

    incident: Incident
    sentence: str
    """The summary of its finding; empty if there is none."""
    fault: str
    """Its errors; empty for none."""


def storm(server_url: str, logs: Path) -> tuple[list[Result], list[str]]:
    """Stage all incidents together; return the view of each, and the summaries of all findings before any was ended."""
    with open_world(server_url, logs) as world:
        world.worker("main", concurrency=9)
        staged = [(one, one.stage(world)) for one in INCIDENTS]
        patience = max(one.threshold - beginning.since for one, beginning in staged) + LOOKS
        deadline = time.monotonic() + patience
        world.until(
            lambda: all(world.matching(one.says) for one in INCIDENTS) or time.monotonic() > deadline,
            "the storm",
            patience + PATIENCE,
        )
        findings = [seen.summary for seen in world.findings() if seen.severity != "ok"]
        staged.sort(key=lambda pair: FIRST.index(pair[0].stage) if pair[0].stage in FIRST else len(FIRST))
        return [_judged(world, one, beginning) for one, beginning in staged], findings


def _judged(world: World, incident: Incident, staged: Staged) -> Result:
    deadline = time.monotonic() + LOOKS
    while not (found := world.matching(incident.says)):
        if time.monotonic() > deadline:
            return Result(incident, "", "not found")
        time.sleep(0.25)
    seen = found[0]
    fault = []
    if staged.shows not in world.client.page(seen.link.partition("#")[0]):
        fault.append(f"{seen.link} does not show {staged.shows}")
    if staged.act is not None:
        try:
            staged.act(seen)
            world.until(lambda: not world.matching(incident.says), f"the end of {seen.summary!r}", PATIENCE)
        except AssertionError as error:
            fault.append(str(error))
    return Result(incident, seen.summary, "; ".join(fault))
