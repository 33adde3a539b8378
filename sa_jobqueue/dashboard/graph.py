"""The picture of chains and what they wait for: a layered drawing, rendered as SVG. Pure: no I/O, no clock.

A node is a chain, which is a list of jobs; an edge leads from a chain to one that waits for it. Layers are longest paths
from the left; edges over several layers pass through invisible nodes; a fixed number of passes orders each layer by the mean
position of its neighbours.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from markupsafe import Markup

from sa_jobqueue.display.printable import printable
from sa_jobqueue.types import JobStatus

FOLD_ABOVE: Final = 40
"""Number of chains above which those of one status that the same chains wait for are drawn as one."""
SWEEPS: Final = 8
MAX_BENDS: Final = 5_000
"""Maximum number of invisible nodes; above it, long edges are drawn straight."""
WIDTH, HEIGHT, GAP_X, GAP_Y, MARGIN = 190, 48, 56, 14, 8
_LETTERS: Final = 24
_NAMED: Final = 5

Edge = tuple[Hashable, Hashable]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A chain, or several of one status folded into one."""

    key: Hashable
    title: str
    status: JobStatus
    href: str = ""
    note: str = ""
    is_stuck: bool = False
    """Whether it waits for a chain that will not complete without help."""
    folded: int = 0
    """Number of chains that the node represents; 0 for a single chain."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Coordinates of nodes and edges."""

    places: Mapping[Hashable, tuple[int, int]]
    lines: Mapping[Edge, Sequence[tuple[int, int]]]
    width: int
    height: int


def fold(
    nodes: Sequence[Node], edges: Mapping[Edge, bool], *, keep: Collection[Hashable] = ()
) -> tuple[list[Node], dict[Edge, bool]]:
    """Return nodes and edges with like chains folded, if there are more than `FOLD_ABOVE`. `keep`: never folded.

    An edge of folded chains is resolved if all of theirs are.
    """
    if len(nodes) <= FOLD_ABOVE:
        return list(nodes), dict(edges)
    after: dict[Hashable, set[Hashable]] = defaultdict(set)
    for start, end in edges:
        after[start].add(end)
    groups: dict[tuple[JobStatus, frozenset[Hashable]], list[Node]] = defaultdict(list)
    for node in nodes:
        if node.key not in keep and not node.is_stuck:
            groups[node.status, frozenset(after[node.key])].append(node)
    stands: dict[Hashable, Hashable] = {}
    folded_nodes: dict[Hashable, Node] = {}
    for number, ((status, _), group) in enumerate(groups.items()):
        if len(group) > 1:
            key: Hashable = ("folded", number)
            titles = {node.title for node in group}
            title = f"{len(group):,} {titles.pop() if len(titles) == 1 else 'chains'}"
            folded_nodes[key] = Node(key=key, title=title, status=status, note="folded", folded=len(group))
            stands |= dict.fromkeys((node.key for node in group), key)
    remaining = [node for node in nodes if node.key not in stands]
    moved: dict[Edge, bool] = {}
    for (start, end), is_resolved in edges.items():
        edge = stands.get(start, start), stands.get(end, end)
        if edge[0] != edge[1]:
            moved[edge] = moved.get(edge, True) and is_resolved
    return [*remaining, *folded_nodes.values()], moved


def draw(keys: Sequence[Hashable], edges: Iterable[Edge]) -> Drawing:
    """Lay out a graph; edges of unknown nodes, and those from a node to itself, are left out."""
    node_keys = set(keys)
    drawn_edges = sorted({edge for edge in edges if edge[0] != edge[1] and node_keys.issuperset(edge)}, key=str)
    layer = _layers(keys, drawn_edges)
    paths = _paths(drawn_edges, layer)
    rows = _ordered(keys, layer, paths)
    places = {
        point: (MARGIN + column * (WIDTH + GAP_X), MARGIN + place * (HEIGHT + GAP_Y))
        for column, row in enumerate(rows)
        for place, point in enumerate(row)
    }
    lines = {edge: [_anchor(places, paths[edge], index) for index in range(len(paths[edge]))] for edge in drawn_edges}
    highest = max(map(len, rows), default=0)
    return Drawing(
        places={key: places[key] for key in keys},
        lines=lines,
        width=2 * MARGIN + max(len(rows), 1) * (WIDTH + GAP_X) - GAP_X,
        height=2 * MARGIN + max(highest, 1) * (HEIGHT + GAP_Y) - GAP_Y,
    )


def _layers(keys: Sequence[Hashable], edges: Sequence[Edge]) -> dict[Hashable, int]:
    """Return the layer of each node: the length of the longest path that leads to it, without circles."""
    after: dict[Hashable, list[Hashable]] = defaultdict(list)
    before: dict[Hashable, int] = dict.fromkeys(keys, 0)
    for start, end in edges:
        after[start].append(end)
        before[end] += 1
    layer = dict.fromkeys(keys, 0)
    ready = [key for key in keys if not before[key]]
    for key in ready:  # grows
        for following in after[key]:
            layer[following] = max(layer[following], layer[key] + 1)
            before[following] -= 1
            if not before[following]:
                ready.append(following)
    return layer


def _paths(edges: Sequence[Edge], layer: Mapping[Hashable, int]) -> dict[Edge, list[Hashable]]:
    """Return the points of each edge: its ends, and between them an invisible node in each layer that it crosses."""
    paths: dict[Edge, list[Hashable]] = {}
    bends = 0
    for start, end in edges:
        low, high = sorted((layer[start], layer[end]))
        between: list[Hashable] = []
        if bends + high - low - 1 <= MAX_BENDS:
            between = [("bend", start, end, column) for column in range(low + 1, high)]
            bends += len(between)
        paths[start, end] = [start, *(between if layer[start] < layer[end] else between[::-1]), end]
    return paths


def _ordered(
    keys: Sequence[Hashable], layer: Mapping[Hashable, int], paths: Mapping[Edge, Sequence[Hashable]]
) -> list[list[Hashable]]:
    """Return the nodes of each layer in an order with few crossings."""
    rows: list[list[Hashable]] = [[] for _ in range(max(layer.values(), default=0) + 1)]
    for key in keys:
        rows[layer[key]].append(key)
    before: dict[Hashable, list[Hashable]] = defaultdict(list)
    after: dict[Hashable, list[Hashable]] = defaultdict(list)
    for (start, end), path in paths.items():
        points = list(path) if layer[start] <= layer[end] else list(path)[::-1]
        for point in points[1:-1]:
            rows[point[3]].append(point)  # type: ignore[index]
        for point, following in itertools.pairwise(points):
            after[point].append(following)
            before[following].append(point)
    place = {point: index for row in rows for index, point in enumerate(row)}
    for sweep in range(SWEEPS):
        neighbours = after if sweep % 2 else before
        for row in reversed(rows) if sweep % 2 else rows:
            means = {point: _mean(point, neighbours[point], place) for point in row}
            row.sort(key=means.__getitem__)
            place |= {point: index for index, point in enumerate(row)}
    return rows


def _mean(point: Hashable, neighbours: Sequence[Hashable], place: Mapping[Hashable, int]) -> float:
    return sum(place[neighbour] for neighbour in neighbours) / len(neighbours) if neighbours else float(place[point])


def _anchor(places: Mapping[Hashable, tuple[int, int]], path: Sequence[Hashable], index: int) -> tuple[int, int]:
    """Return where an edge meets a point of its path: the right side of its start, the left side of its end."""
    x, y = places[path[index]]
    is_forward = places[path[0]][0] <= places[path[-1]][0]
    if index not in {0, len(path) - 1}:
        return x + WIDTH // 2, y + HEIGHT // 2
    return (x + WIDTH if (index == 0) is is_forward else x), y + HEIGHT // 2


def svg(nodes: Sequence[Node], edges: Mapping[Edge, bool], *, current: Hashable = None, label: str) -> Markup:
    """Return the drawing as SVG whose nodes are links. `edges`: by start and end, whether it is resolved."""
    drawing = draw([node.key for node in nodes], edges)
    parts = [
        Markup('<svg class="graph" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="group" aria-label="{2}">').format(
            drawing.width, drawing.height, printable(label)
        ),
        Markup(
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path d="M0 0L8 4L0 8z"/></marker></defs>'
        ),
    ]
    for edge, points in drawing.lines.items():
        path = " ".join(f"{'L' if index else 'M'}{x} {y}" for index, (x, y) in enumerate(points))
        css = "edge resolved" if edges[edge] else "edge"
        parts.append(Markup('<path class="{}" d="{}" marker-end="url(#arrow)"/>').format(css, path))
    titles = {node.key: node.title for node in nodes}
    waits: dict[Hashable, list[str]] = defaultdict(list)
    for start, end in drawing.lines:
        waits[end].append(titles[start])
    for node in nodes:
        x, y = drawing.places[node.key]
        css = f"node {node.status}{' stuck' if node.is_stuck else ''}{' current' if node.key == current else ''}"
        note = " ".join(filter(None, ("stuck" if node.is_stuck else "", node.status, node.note)))
        drawn = Markup(
            '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="6"/><text x="{}" y="{}">{}</text>'
            '<text class="note" x="{}" y="{}">{}</text>'
        ).format(css, x, y, WIDTH, HEIGHT, x + 10, y + 20, _short(node.title), x + 10, y + 38, _short(note))
        words = f"{node.title}, {note}" + (f", waits for {_listed(waits[node.key])}" if waits[node.key] else "")
        group = Markup('<g role="img" aria-label="{}">{}</g>').format(printable(words), drawn)
        parts.append(Markup('<a href="{}">{}</a>').format(node.href, group) if node.href else group)
    return Markup("").join([*parts, Markup("</svg>")])


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def _short(text: str) -> str:
    printed = printable(text)
    return printed if len(printed) <= _LETTERS else f"{printed[: _LETTERS - 1]}…"


def marked(nodes: Sequence[Node], edges: Mapping[Edge, bool]) -> list[Node]:
    """Return the nodes, marked where they wait, directly or not, for a chain that is dead, or for themselves."""
    node_by_key = {node.key: node for node in nodes}
    after: dict[Hashable, list[Hashable]] = defaultdict(list)
    open_before: dict[Hashable, int] = defaultdict(int)
    for (start, end), is_resolved in edges.items():
        if not is_resolved and start in node_by_key and end in node_by_key:
            after[start].append(end)
            open_before[end] += 1
    stuck = {node.key for node in nodes if node.status is JobStatus.DEAD}
    # What is left when all that waits for nothing has been taken away, again and again, waits for a circle.
    open_counts = {key: open_before[key] for key in node_by_key}
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
