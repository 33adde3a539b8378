"""Several groups of lanes that one claim takes from, in turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sa_jobqueue.worker.floors import NO_TRANSACTION, START, most_behind
from sa_jobqueue.worker.groups import Group, Quotas
from sa_jobqueue.worker.planning import Share
from sa_jobqueue.worker.readings import Reading

_LISTS: Final = ("queues", "priorities", "floor_at", "floor_id", "firsts", "lasts", "quotas", "types")

_NOWHERE: Final = {"xmax": NO_TRANSACTION, "xip": (), "highest_floor": START, "lanes_behind": 0}
"""Behind the floors of a group that does not look there, beside others that do."""


class Turn(NamedTuple):
    """What one group may take of a claim, and how its lanes are read: None, as of one alone, for all in order."""

    group: Group
    quota: int
    reading: Reading | None
    behind: bool = False
    """Whether it looks behind its floors; `reading` has all its lanes then."""
    shares: Sequence[Share] = ()
    """What its queues may take, as `Group.plan` has said."""


def turn_of(
    group: Group, quota: int, rooms: Mapping[str, int] | None = None, *, looks: bool, now: float | None = None
) -> Turn:
    """Return the turn of a group; with `now` lanes that have just been empty are left out, unless it looks behind."""
    shares, reading = group.plan(quota, rooms, now=None if looks else now)
    return Turn(group, quota, reading, looks, shares)


def looking_of(turns: Quotas, now: float, *, idle: bool, alike: bool = True) -> set[str]:
    """Return the names of the groups that must look behind their floors; with `alike` of all, where one must."""
    looking = {group.name for group, _ in turns if group.floors.prepare(now, idle=idle)}  # asks each of them
    return {group.name for group, _ in turns} if looking and alike else looking


def asked_of(turns: Quotas, looking: Collection[str], free: int, now: float | None) -> tuple[list[Turn], Quotas]:
    """Return the turns of one claim, and the groups that are asked only where those leave slots free.

    `looking`: the names of those that look behind their floors; the others leave out what has just been empty, with `now`.
    """
    asked: list[Turn] = []
    left = free
    for place, (group, most) in enumerate(turns):
        if left <= 0 and now is not None:
            return asked, turns[place:]
        turn = turn_of(group, min(most, free), looks=group.name in looking, now=now)
        if turn.reading is None or turn.reading.lanes:
            asked.append(turn)
        left -= turn.quota if group.has_more else 0
    return asked, []


def together(turns: Sequence[Turn]) -> dict[str, Any]:
    """Return the parameters of `claims.claim_for_groups`; each turn has a reading."""
    behind = any(turn.behind for turn in turns)
    lists = _LISTS + (("xip",) if behind else ())
    given: dict[str, Any] = {name: [] for name in lists}
    groups: dict[str, list[Any]] = {}

    def add(**values: Any) -> None:
        for name, value in values.items():
            groups.setdefault(f"group_{name}", []).append(value)

    for group, quota, reading, looks, _ in turns:
        own = group.floors.parameters(changed=looks, reading=reading) | {"types": group.types}
        before = {name: len(given[name]) for name in lists}
        own["firsts"], own["lasts"] = ([before["queues"] + place for place in own[name]] for name in ("firsts", "lasts"))
        if behind and not looks:
            own |= _NOWHERE
        for name in lists:
            given[name] += own[name]
        add(quota=quota, first_share=before["firsts"] + 1, last_share=len(given["firsts"]))
        add(first_type=before["types"] + 1, last_type=len(given["types"]))
        if behind:
            add(xmax=own["xmax"], highest_floor=own["highest_floor"], most_behind=most_behind(quota))
            add(first_xip=before["xip"] + 1, last_xip=len(given["xip"]))
            add(first_lane=before["queues"] + 1, last_lane=before["queues"] + own["lanes_behind"])
    return given | groups
