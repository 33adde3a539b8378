"""Graph algorithms for workflows and connected components, in plain Python: run on executors, tested without Spark."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class Node:
    """A job of a workflow."""

    id: str
    chain_id: str
    chain_index: int
    waits_for: Sequence[str]
    """The chains that it waits or waited for."""
    run_micros: int
    """Run time of all its attempts, in microseconds."""
    started_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Shape:
    """Measures of the shape and duration of a workflow."""

    length: int
    """Number of jobs in the longest sequence."""
    width: int
    """Maximum number of jobs at the same depth, which could run together."""
    max_parallel: int
    """Maximum number of jobs whose last attempts ran at the same moment."""
    path: tuple[str, ...]
    """The critical path: the sequence of jobs, each waiting for the one before, with the longest total run time. Ties are
    broken by the larger number of jobs, then by the smallest ids, compared from the end."""
    is_cyclic: bool
    """Whether jobs wait for each other in a cycle. They never run; they and the jobs that wait for them are excluded from
    the lengths and the path."""


def shape_of(nodes: Sequence[Node]) -> Shape:
    """Measure one workflow. A job waits for the job before it in its chain, and for the last jobs of its blockers.

    Linear in jobs and edges, except for sorting the jobs. Blockers that are not among the nodes are ignored.
    Source: the longest path of a directed acyclic graph in topological order, as Kelley and Walker, Critical-Path Planning
    and Scheduling (1959); the order as Kahn, Topological sorting of large networks (1962).
    """
    by_id = {node.id: node for node in sorted(nodes, key=lambda node: node.id)}
    preference = {job: -place for place, job in enumerate(by_id)}
    before = _predecessors(by_id)
    after: dict[str, list[str]] = defaultdict(list)
    for job, earlier in before.items():
        for predecessor in earlier:
            after[predecessor].append(job)
    predecessors_left = {job: len(earlier) for job, earlier in before.items()}
    ready = [job for job, count in predecessors_left.items() if not count]
    depth: dict[str, int] = {}
    # The longest path up to each job: its run time and number of jobs, and the job before.
    cost: dict[str, tuple[int, int]] = {}
    over: dict[str, str | None] = {}
    for job in ready:  # grows in the loop
        best = max(before[job], key=lambda earlier: (*cost[earlier], preference[earlier]), default=None)
        time, count = cost[best] if best is not None else (0, 0)
        cost[job], over[job] = (time + by_id[job].run_micros, count + 1), best
        depth[job] = max((depth[predecessor] for predecessor in before[job]), default=0) + 1
        for successor in after[job]:
            predecessors_left[successor] -= 1
            if not predecessors_left[successor]:
                ready.append(successor)
    path: list[str] = []
    step = max(cost, key=lambda job: (*cost[job], preference[job]), default=None)
    while step is not None:
        path.append(step)
        step = over[step]
    widths: dict[int, int] = defaultdict(int)
    for level in depth.values():
        widths[level] += 1
    return Shape(
        length=max(depth.values(), default=0),
        width=max(widths.values(), default=0),
        max_parallel=_most_at_once(nodes),
        path=tuple(reversed(path)),
        is_cyclic=len(cost) < len(by_id),
    )


def components(edges: pa.Table) -> pa.Table:
    """Return each node of an edge with the smallest node of its connected component.

    `edges`: pairs `a`, `b` of texts. Shape: `chain_id`, `workflow_id`.
    Source: union-find with path halving; Tarjan and van Leeuwen, Worst-case Analysis of Set Union Algorithms (1984).
    """
    nodes = pc.unique(pa.chunked_array([*edges["a"].chunks, *edges["b"].chunks], pa.string()))
    nodes = nodes.take(pc.sort_indices(nodes))
    parent = list(range(len(nodes)))  # numbers, because they take a tenth of the memory of texts

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for ends in zip(*(pc.index_in(edges[name], nodes).to_pylist() for name in ("a", "b")), strict=True):
        first, second = sorted(map(root, ends))
        parent[second] = first
    smallest = nodes.take(pa.array(map(root, range(len(parent))), pa.int64()))
    return pa.table({"chain_id": nodes, "workflow_id": smallest})


def _predecessors(by_id: Mapping[str, Node]) -> dict[str, set[str]]:
    chains: dict[str, list[Node]] = defaultdict(list)
    for node in by_id.values():
        chains[node.chain_id].append(node)
    before: dict[str, set[str]] = {job: set() for job in by_id}
    for chain in chains.values():
        chain.sort(key=lambda node: node.chain_index)
        for earlier, later in pairwise(chain):
            before[later.id].add(earlier.id)
    for node in by_id.values():
        before[node.id] |= {chains[chain][-1].id for chain in node.waits_for if chain in chains}
    return before


def _most_at_once(nodes: Sequence[Node]) -> int:
    moments: list[tuple[datetime, int]] = []
    for node in nodes:
        if node.started_at is not None and node.ended_at is not None:
            moments += [(node.started_at, 1), (node.ended_at, -1)]
    running = most = 0
    for _, change in sorted(moments):  # ends come before starts of the same moment
        running += change
        most = max(most, running)
    return most
