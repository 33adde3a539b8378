"""The layout of chains and blockers: layers, circles, folding, and names for screen readers."""

from __future__ import annotations

import itertools
import random

import pytest

from sa_jobqueue.dashboard.graph import FOLD_ABOVE, Edge, Node, draw, fold, marked, svg
from sa_jobqueue.types import JobStatus


def node(key: object, status: JobStatus = JobStatus.COMPLETED) -> Node:
    return Node(key=str(key), title=f"chain {key}", status=status, href=f"/chain?id={key}")


def test_a_chain_is_drawn_to_the_right_of_its_blockers() -> None:
    edges = [("a", "b"), ("b", "d"), ("a", "d"), ("c", "d")]
    drawing = draw(["a", "b", "c", "d"], edges)
    for start, end in edges:
        assert drawing.places[start][0] < drawing.places[end][0]
        line = drawing.lines[start, end]
        assert [x for x, _ in line] == sorted(x for x, _ in line)
    # The long edge bends around the node between: it has a place of its own there.
    assert len(drawing.lines["a", "d"]) == 3
    assert len(set(drawing.places.values())) == 4
    assert max(x for x, _ in drawing.places.values()) < drawing.width
    assert max(y for _, y in drawing.places.values()) < drawing.height


def test_avoidable_edge_crossings_are_avoided() -> None:
    keys = [f"l{index}" for index in range(6)] + [f"r{index}" for index in (3, 1, 5, 0, 4, 2)]
    drawing = draw(keys, [(f"l{index}", f"r{index}") for index in range(6)])
    leaves = sorted(range(6), key=lambda index: drawing.places[f"l{index}"][1])
    assert leaves == sorted(range(6), key=lambda index: drawing.places[f"r{index}"][1])


@pytest.mark.parametrize("edges", [[("a", "a")], [("a", "b"), ("b", "a")], [("a", "b"), ("b", "c"), ("c", "a"), ("d", "a")]])
def test_a_cyclic_graph_is_drawn(edges: list[tuple[str, str]]) -> None:
    drawing = draw(["a", "b", "c", "d"], edges)
    assert len(set(drawing.places.values())) == 4
    assert set(drawing.lines) == {edge for edge in edges if edge[0] != edge[1]}


@pytest.mark.parametrize(("nodes", "edges"), [(300, 450), (500, 755), (1000, 1500)])
def test_each_chain_of_a_large_graph_has_its_own_place(nodes: int, edges: int) -> None:
    rng = random.Random(7)
    keys = [str(index) for index in range(nodes)]
    pairs = {tuple(map(str, sorted(rng.sample(range(nodes), 2)))) for _ in range(edges)}
    drawing = draw(keys, pairs)  # type: ignore[arg-type]
    assert len(set(drawing.places.values())) == nodes


def test_a_line_of_chains_longer_than_the_stack_is_drawn() -> None:
    keys = [str(index) for index in range(5000)]
    line = list(itertools.pairwise(keys))
    # Deeper than Python's recursion; and one edge over all layers, which has too many bends to be drawn with them.
    drawing = draw(keys, [*line, ("0", "4999"), ("1", "4998")])
    assert len(set(drawing.places.values())) == len(keys)


@pytest.mark.parametrize("status", [JobStatus.COMPLETED, JobStatus.PENDING])
def test_many_blockers_of_one_status_are_folded(status: JobStatus) -> None:
    blockers = [node(index, status) for index in range(FOLD_ABOVE)]
    running = node("other", JobStatus.RUNNING)
    last = node("last", JobStatus.BLOCKED)
    edges: dict[Edge, bool] = {(blocker.key, last.key): blocker is not blockers[7] for blocker in [*blockers, running]}
    nodes, drawn = fold([*blockers, running, last], edges, keep=["0"])
    titles = [("chain 0", 0), ("chain other", 0), ("chain last", 0), (f"{FOLD_ABOVE - 1} chains", FOLD_ABOVE - 1)]
    assert [(node.title, node.folded) for node in nodes] == titles
    assert nodes[-1].status is status
    assert drawn == {("0", "last"): True, ("other", "last"): True, (("folded", 0), "last"): False}
    assert fold(blockers, edges) == (blockers, edges)


def test_chains_that_wait_for_a_dead_chain_or_a_cycle_are_stuck() -> None:
    states = {"dead": JobStatus.DEAD, "done": JobStatus.COMPLETED, "runs": JobStatus.RUNNING}
    names = ("dead", "done", "runs", "after dead", "later", "after done", "after runs", "one", "other", "after one")
    nodes = [node(name, states.get(name, JobStatus.BLOCKED)) for name in names]
    edges: dict[Edge, bool] = {
        ("dead", "after dead"): False,
        ("after dead", "later"): False,
        ("done", "after done"): True,
        ("runs", "after runs"): False,
        ("one", "other"): False,
        ("other", "one"): False,
        ("one", "after one"): False,
    }
    stuck = {node.key for node in marked(nodes, edges) if node.is_stuck}
    assert stuck == {"dead", "after dead", "later", "one", "other", "after one"}


def test_the_drawing_escapes_text_and_links_its_nodes() -> None:
    hostile = Node(key="x", title='<script>"\x1b[2J', status=JobStatus.DEAD, href='/chain?id="><b>', is_stuck=True)
    drawing_text = svg([hostile, node("y")], {("y", "x"): False}, current="x", label="Chains")
    assert "<script>" not in drawing_text
    assert "\x1b" not in drawing_text
    assert "<b>" not in drawing_text
    assert drawing_text.count("<a href=") == 2
    assert "stuck dead" in drawing_text
    assert "stuck dead, waits for chain y" in drawing_text
    assert 'class="node dead stuck current"' in drawing_text
    assert "style=" not in drawing_text
