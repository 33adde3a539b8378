"""The tree of the blockers of a chain: equal chains on one line, stuck ones first, circles, depth."""

from __future__ import annotations

import itertools

from sa_jobqueue.dashboard.trees import DEPTH, Branch, Edge, Node, marked, tree
from sa_jobqueue.types import JobStatus


def node(key: object, status: JobStatus = JobStatus.COMPLETED, title: str = "") -> Node:
    return Node(key=str(key), title=title or f"chain {key}", status=status, href=f"/chain?id={key}")


def lines(branches: list[Branch], indent: int = 0) -> list[str]:
    """Return a tree as text."""
    text_lines = []
    for branch in branches:
        text_lines.append(f"{' ' * indent}{branch.count} {branch.node.title} {branch.left_out}".rstrip())
        text_lines += lines(list(branch.branches), indent + 1)
    return text_lines


def test_equal_blockers_are_one_line_and_what_they_wait_for_stands_below_once() -> None:
    adds = [node(index, title="add_up") for index in range(300)]
    failed = node("failed", JobStatus.DEAD, title="add_up")
    source, last = node("source"), node("last", JobStatus.BLOCKED)
    edges: dict[Edge, bool] = {(add.key, last.key): True for add in adds}
    edges |= {(source.key, add.key): True for add in adds}
    edges |= {(failed.key, last.key): False, (source.key, last.key): True}
    nodes = marked([*adds, failed, source, last], edges)
    assert lines(tree(nodes, edges, "last")) == [
        "1 add_up",
        "300 add_up",
        " 1 chain source",
        "1 chain source",
    ]
    assert tree(nodes, edges, "last")[0].node.is_stuck


def test_a_circle_and_a_diamond_end_where_they_were_shown() -> None:
    nodes = [node(key) for key in "abcd"]
    edges: dict[Edge, bool] = {("a", "b"): True, ("b", "a"): True, ("c", "a"): True, ("c", "b"): True, ("d", "c"): True}
    assert lines(tree(nodes, edges, "a")) == [
        "1 chain b",
        " 1 chain a shown above",
        " 1 chain c",
        "  1 chain d",
        "1 chain c shown above",
    ]


def test_a_line_of_chains_longer_than_the_stack_is_cut() -> None:
    keys = [str(index) for index in range(5000)]
    edges: dict[Edge, bool] = dict.fromkeys(itertools.pairwise(keys), False)
    nodes = marked([node(key, JobStatus.BLOCKED) for key in keys], edges)
    text_lines = lines(tree(nodes, edges, keys[-1]))
    assert len(text_lines) == DEPTH
    assert text_lines[-1].strip() == f"1 chain {4999 - DEPTH} waits for more: open it"


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
