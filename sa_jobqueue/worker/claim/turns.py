"""Several groups of lanes that one claim takes from, in turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sa_jobqueue.worker.claim.floors import NO_TRANSACTION, START, most_behind
from sa_jobqueue.worker.claim.groups import Group, Quotas
from sa_jobqueue.worker.claim.planning import Share
from sa_jobqueue.worker.claim.readings import Reading

_ALIKE: Final = ("queues", "fairness_keys", "priorities", "floor_at", "floor_id", "quotas")
_LISTS: Final = (*_ALIKE, "firsts", "lasts", "types")
_OF_GROUP: Final = ("group_quota", "group_first_share", "group_last_share", "group_first_type", "group_last_type")
_BEHIND: Final = (
    "group_xmax",
    "group_highest_floor",
    "group_most_behind",
    "group_first_xip",
    "group_last_xip",
    "group_first_lane",
    "group_last_lane",
)

_XMAX: Final = len(_OF_GROUP)

_NOWHERE: Final[Mapping[str, Any]] = {"xmax": NO_TRANSACTION, "xip": (), "highest_floor": START, "lanes_behind": 0}
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
    given: dict[str, Any] = {name: [] for name in (*_LISTS, "xip")}
    firsts, lasts, lanes, types, xip = (given[name] for name in ("firsts", "lasts", "queues", "types", "xip"))
    alike = [given[name] for name in _ALIKE]
    rows: list[tuple[Any, ...]] = []
    for group, quota, reading, looks, _ in turns:
        own = group.floors.parameters(changed=looks, reading=reading)
        of_lanes, of_shares, of_types, of_xip = len(lanes), len(firsts), len(types), len(xip)
        firsts += [of_lanes + place for place in own["firsts"]]
        lasts += [of_lanes + place for place in own["lasts"]]
        for name, values in zip(_ALIKE, alike, strict=True):
            values.extend(own[name])
        types += group.types
        row: tuple[Any, ...] = (quota, of_shares + 1, len(firsts), of_types + 1, len(types))
        if behind:
            told = own if looks else _NOWHERE
            xip += told["xip"]
            row += (told["xmax"], told["highest_floor"], most_behind(quota), of_xip + 1, len(xip))
            row += (of_lanes + 1, of_lanes + told["lanes_behind"])
        rows.append(row)
    if behind:
        # Of the oldest of their snapshots: to it nothing is visible that is not to another.
        given["xmax"] = min((row[_XMAX] for row in rows), key=int)
    else:
        del given["xip"]
    names = _OF_GROUP + (_BEHIND if behind else ())
    return given | dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
