"""Paths, components and queueing formulas, each against the definition that it computes faster. No Spark is started."""

from __future__ import annotations

from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sa_jobqueue.pipeline.spark.analytics.capacity import workers_needed
from sa_jobqueue.pipeline.spark.analytics.graphs import Node, components, shape_of
from tests.fixtures.histories import at


@st.composite
def workflows(draw: st.DrawFn) -> list[Node]:
    """Give chains of one to three jobs, each job waiting for some of the chains before its own, in no order."""
    nodes: list[Node] = []
    for chain in range(draw(st.integers(1, 6))):
        for index in range(draw(st.integers(1, 3))):
            waits = draw(st.sets(st.integers(0, chain - 1), max_size=3)) if chain else set()
            run, begin = draw(st.integers(0, 5)), draw(st.integers(0, 20))
            node = Node(
                f"{chain}{index}", f"{chain}0", index, tuple(f"{wait}0" for wait in waits), run, at(begin), at(begin + run)
            )
            nodes.append(node)
    return draw(st.permutations(nodes))


def predecessors(nodes: list[Node], node: Node) -> list[Node]:
    def last(chain: str) -> Node:
        return max((node for node in nodes if node.chain_id == chain), key=lambda node: node.chain_index)

    previous = [one for one in nodes if (one.chain_id, one.chain_index) == (node.chain_id, node.chain_index - 1)]
    return previous + [last(chain) for chain in node.waits_for]


def paths(nodes: list[Node], node: Node) -> list[list[Node]]:
    """Return every way that leads to a job's end."""
    before = predecessors(nodes, node)
    return [[*path, node] for predecessor in before for path in paths(nodes, predecessor)] or [[node]]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(workflows())
def test_the_critical_path_is_the_longest_of_all_paths(nodes: list[Node]) -> None:
    shape = shape_of(nodes)
    every = [path for node in nodes for path in paths(nodes, node)]
    longest = max(sum(node.run_micros for node in path) for path in every)
    by_id = {node.id: node for node in nodes}
    found = [by_id[job] for job in shape.path]
    assert sum(node.run_micros for node in found) == longest
    assert found in every
    assert shape.length == max(map(len, every))
    depth = {node.id: max(len(path) for path in paths(nodes, node)) for node in nodes}
    assert shape.width == max(list(depth.values()).count(level) for level in depth.values())
    moments = {node.started_at for node in nodes}
    at_once = [sum(node.started_at <= moment < node.ended_at for node in nodes) for moment in moments]  # type: ignore[operator]
    assert shape.max_parallel == max(at_once)
    assert not shape.is_cyclic


def test_jobs_in_a_cycle_are_reported_and_excluded() -> None:
    def node(name: str, *waits_for: str) -> Node:
        return Node(name, name, 0, waits_for, 1, None, None)

    shape = shape_of([node("a", "b"), node("b", "a"), node("after", "b"), node("free"), node("of another", "not here")])
    assert shape.is_cyclic
    assert shape.path == ("free",)
    assert (shape.length, shape.width, shape.max_parallel) == (1, 2, 0)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("abcdefgh"))))
def test_a_component_is_named_by_its_smallest_member(edges: list[tuple[str, str]]) -> None:
    def reached(start: str) -> set[str]:
        table, unvisited = {start}, [start]
        while unvisited:
            member = unvisited.pop()
            beside = {b for a, b in edges if a == member} | {a for a, b in edges if b == member}
            unvisited += beside - table
            table |= beside
        return table

    pairs = pa.table({name: pa.array([edge[place] for edge in edges], pa.string()) for place, name in enumerate("ab")})
    table = components(pairs)
    workflow_by_chain = dict(zip(table["chain_id"].to_pylist(), table["workflow_id"].to_pylist(), strict=True))
    assert workflow_by_chain == {member: min(reached(member)) for edge in edges for member in edge}


def test_workers_needed_matches_a_published_erlang_table() -> None:
    """A call centre's textbook case: 200 calls an hour of 3 minutes, 80 % answered within 20 s, are 14 agents."""
    assert workers_needed(10, 180, target_wait=timedelta(seconds=20), quantile=0.8) == 14
