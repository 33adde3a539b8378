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
        staged = [(incident, incident.stage(world)) for incident in INCIDENTS]
        patience = max(incident.threshold - beginning.since for incident, beginning in staged) + LOOKS
        deadline = time.monotonic() + patience
        world.until(
            lambda: all(world.matching(incident.says) for incident in INCIDENTS) or time.monotonic() > deadline,
            "the storm",
            patience + PATIENCE,
        )
        findings = [finding.summary for finding in world.findings() if finding.severity != "ok"]
        staged.sort(key=lambda pair: FIRST.index(pair[0].stage) if pair[0].stage in FIRST else len(FIRST))
        return [_judged(world, incident, beginning) for incident, beginning in staged], findings


def _judged(world: World, incident: Incident, staged: Staged) -> Result:
    deadline = time.monotonic() + LOOKS
    while not (found := world.matching(incident.says)):
        if time.monotonic() > deadline:
            return Result(incident, "", "not found")
        time.sleep(0.25)
    matching = found[0]
    fault = []
    if staged.shows not in world.client.page(matching.link.partition("#")[0]):
        fault.append(f"{matching.link} does not show {staged.shows}")
    if staged.act is not None:
        try:
            staged.act(matching)
            world.until(lambda: not world.matching(incident.says), f"the end of {matching.summary!r}", PATIENCE)
        except AssertionError as error:
            fault.append(str(error))
    return Result(incident, matching.summary, "; ".join(fault))
