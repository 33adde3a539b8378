"""Several groups of lanes that one claim takes from, in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sa_jobqueue.worker.floors import Reading, most_behind
from sa_jobqueue.worker.groups import Group

_LISTS: Final = ("queues", "priorities", "floor_at", "floor_id", "firsts", "lasts", "quotas", "types")


class Turn(NamedTuple):
    """What one group may take of a claim, and how its lanes are read: None, as of one alone, for all in order."""

    group: Group
    quota: int
    reading: Reading | None


def together(turns: Sequence[Turn], *, behind: bool) -> dict[str, Any]:
    """Return the parameters of `claims.claim_for_groups`; each turn has a reading."""
    lists = _LISTS + (("xip",) if behind else ())
    given: dict[str, Any] = {name: [] for name in lists}
    groups: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for name, value in values.items():
            groups.setdefault(f"group_{name}", []).append(value)

    for group, quota, reading in turns:
        own = group.floors.parameters(changed=behind, reading=reading) | {"types": group.types}
        before = {name: len(given[name]) for name in lists}
        own["firsts"], own["lasts"] = ([before["queues"] + place for place in own[name]] for name in ("firsts", "lasts"))
        for name in lists:
            given[name] += own[name]
        add(quota=quota, first_share=before["firsts"] + 1, last_share=len(given["firsts"]))
        add(first_type=before["types"] + 1, last_type=len(given["types"]))
        if behind:
            add(xmax=own["xmax"], highest_floor=own["highest_floor"], most_behind=most_behind(quota))
            add(first_xip=before["xip"] + 1, last_xip=len(given["xip"]))
            add(first_lane=before["queues"] + 1, last_lane=before["queues"] + own["lanes_behind"])
    return given | groups
