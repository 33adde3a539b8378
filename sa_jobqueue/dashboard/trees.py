"""Chains that a chain waits for, as an indented tree in which equal ones are one line. Pure: no I/O, no clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sa_jobqueue.types import JobStatus

DEPTH: Final = 20
"""Maximum number of levels."""

Edge = tuple[Hashable, Hashable]
"""A chain, and one that waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A chain."""

    key: Hashable
    title: str
    status: JobStatus
    href: str = ""
    is_stuck: bool = False
    """Whether it waits for a chain that will not complete without help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """Equal chains that the chain above waits for."""

    node: Node
    """The first of them."""
    count: int
    is_resolved: bool
    branches: Sequence[Branch]
    """The chains that they wait for."""
    left_out: str = ""
    """Why `branches` are not here; empty if all are."""


def tree(nodes: Sequence[Node], edges: Mapping[Edge, bool], root: Hashable) -> list[Branch]:
    """Return the blockers of a chain, stuck ones first; each chain once. `edges`: whether each is resolved."""
    node_by_key = {node.key: node for node in nodes}
    before: dict[Hashable, dict[Hashable, bool]] = defaultdict(dict)
    for (blocker, waiting), is_resolved in edges.items():
        before[waiting][blocker] = is_resolved
    placed = {root}

    def below(keys: Sequence[Hashable], level: int) -> list[Branch]:
        groups: dict[tuple[str, JobStatus, bool, bool], dict[Hashable, Node]] = defaultdict(dict)
        for blockers in map(before.__getitem__, keys):
            for key, is_resolved in blockers.items():
                node = node_by_key[key]
                groups[node.title, node.status, node.is_stuck, is_resolved][key] = node
        branches = []
        for (_, _, _, is_resolved), group in groups.items():
            new_keys = [key for key in group if key not in placed]
            left_out = "" if new_keys or not any(map(before.get, group)) else "shown above"
            if level == DEPTH and any(map(before.get, new_keys)):
                left_out = "waits for more: open it"
            placed.update(new_keys)
            branches.append(
                Branch(
                    node=next(iter(group.values())),
                    count=len(group),
                    is_resolved=is_resolved,
                    branches=below(new_keys, level + 1) if level < DEPTH else [],
                    left_out=left_out,
                )
            )
        return sorted(branches, key=lambda branch: (not branch.node.is_stuck, branch.is_resolved))

    return below([root], 1)


def marked(nodes: Sequence[Node], edges: Mapping[Edge, bool]) -> list[Node]:
    """Return the nodes, marked where they wait, directly or not, for a chain that is dead, or for themselves."""
    node_by_key = {node.key: node for node in nodes}
    after: dict[Hashable, list[Hashable]] = defaultdict(list)
    open_counts: dict[Hashable, int] = dict.fromkeys(node_by_key, 0)
    for (start, end), is_resolved in edges.items():
        if not is_resolved and start in node_by_key and end in node_by_key:
            after[start].append(end)
            open_counts[end] += 1
    stuck = {node.key for node in nodes if node.status is JobStatus.DEAD}
    # What is left when all that waits for nothing has been taken away, again and again, waits for a circle.
    free = [key for key, count in open_counts.items() if not count]
    for key in free:  # grows
        for following in after[key]:
            open_counts[following] -= 1
            if not open_counts[following]:
                free.append(following)
    stuck |= {key for key, count in open_counts.items() if count}
    walk = list(stuck)
    for key in walk:  # grows
        new = [following for following in after[key] if following not in stuck]
        stuck |= set(new)
        walk += new
    return [
        replace(node, is_stuck=node.key in stuck and node.status in {JobStatus.BLOCKED, JobStatus.DEAD}) for node in nodes
    ]
