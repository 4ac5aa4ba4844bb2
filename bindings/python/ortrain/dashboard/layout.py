"""Drawing a graph in layers: every line goes down, and few of them cross (Sugiyama, Tagawa and Toda 1981)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_BETWEEN, _BETWEEN_LAYERS, _LINE_WIDTH = 24.0, 46.0, 10.0
_SWEEPS = 8

Edge = tuple[str, str]
Vertex = str | tuple[str, str, int]  # a box, or the point at which a long line passes a layer


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes
    ----------
    boxes : dict of str to (x, y, width, height)
        The upper left corner and the size of each box.
    lines : dict of (str, str) to list of (x, y)
        From the lower side of the first box to the upper side of the second, with the points between.
    width, height : float
        Of everything.
    """

    boxes: dict[str, tuple[float, float, float, float]]
    lines: dict[Edge, list[tuple[float, float]]]
    width: float
    height: float


def place(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> Layout:
    """Place boxes and lines.

    Parameters
    ----------
    sizes : mapping of str to (width, height)
        The boxes, in the order in which they are visited.
    edges : list of (str, str)
        From box to box. There may be cycles; a line that closes one goes up.
    """
    if not sizes:
        return Layout({}, {}, 0.0, 0.0)
    closing = _closing(sizes, edges)
    down = [edge[::-1] if edge in closing else edge for edge in edges]
    layer_of = _layers(sizes, down)
    layers, neighbors = _with_passages(layer_of, down)
    layers = _ordered(layers, neighbors)
    width_of = {
        vertex: sizes[vertex][0] if isinstance(vertex, str) else _LINE_WIDTH
        for row in layers
        for vertex in row
    }
    center = _centers(layers, neighbors, width_of)
    left = min(center[vertex] - width_of[vertex] / 2 for vertex in center)
    boxes: dict[str, tuple[float, float, float, float]] = {}
    middle: dict[Vertex, float] = {}
    y = 0.0
    for row in layers:
        height = max((sizes[vertex][1] for vertex in row if isinstance(vertex, str)), default=0.0)
        for vertex in row:
            middle[vertex] = y + height / 2
            if isinstance(vertex, str):
                boxes[vertex] = (center[vertex] - width_of[vertex] / 2 - left, y, *sizes[vertex])
        y += height + _BETWEEN_LAYERS
    lines = {}
    for edge, (upper, lower) in zip(edges, down, strict=True):
        passed: list[Vertex] = [
            (upper, lower, layer) for layer in range(layer_of[upper] + 1, layer_of[lower])
        ]
        points = [(center[vertex] - left, middle[vertex]) for vertex in passed]
        points.insert(0, (boxes[upper][0] + boxes[upper][2] / 2, boxes[upper][1] + boxes[upper][3]))
        points.append((boxes[lower][0] + boxes[lower][2] / 2, boxes[lower][1]))
        lines[edge] = points if edge == (upper, lower) else points[::-1]
    width = max(center[vertex] + width_of[vertex] / 2 for vertex in center) - left
    return Layout(boxes, lines, width, y - _BETWEEN_LAYERS)


def _closing(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> set[Edge]:
    """Return edges without which there is no cycle: edges to a vertex whose followers a depth-first search is still visiting."""
    followers: dict[str, list[str]] = {vertex: [] for vertex in sizes}
    for source, target in edges:
        followers[source].append(target)
    closing: set[Edge] = set()
    state: dict[str, int] = {}  # 1 while the followers of a vertex are visited, 2 afterwards
    for first in sizes:
        if first in state:
            continue
        state[first] = 1
        path = [(first, iter(followers[first]))]
        while path:
            vertex, rest = path[-1]
            for target in rest:
                if state.get(target) == 1:
                    closing.add((vertex, target))
                elif target not in state:
                    state[target] = 1
                    path.append((target, iter(followers[target])))
                    break
            else:
                state[vertex] = 2
                path.pop()
    return closing


def _layers(sizes: Mapping[str, tuple[float, float]], edges: Sequence[Edge]) -> dict[str, int]:
    """Return the layer of each box: below all boxes that lead to it.

    A box to which no box leads is right above its first follower.
    """
    before: dict[str, set[str]] = {vertex: set() for vertex in sizes}
    after: dict[str, set[str]] = {vertex: set() for vertex in sizes}
    for source, target in edges:
        before[target].add(source)
        after[source].add(target)
    layer = dict.fromkeys(sizes, 0)
    missing = {vertex: len(before[vertex]) for vertex in sizes}
    ready = [vertex for vertex in sizes if not missing[vertex]]
    for vertex in ready:
        for target in after[vertex]:
            layer[target] = max(layer[target], layer[vertex] + 1)
            missing[target] -= 1
            if not missing[target]:
                ready.append(target)
    for vertex in sizes:
        if not before[vertex] and after[vertex]:
            layer[vertex] = min(layer[target] for target in after[vertex]) - 1
    return layer


def _with_passages(
    layer_of: Mapping[str, int], edges: Sequence[Edge]
) -> tuple[list[list[Vertex]], dict[Vertex, tuple[list[Vertex], list[Vertex]]]]:
    """Return the vertices of each layer, and the neighbors of each above and below it."""
    layers: list[list[Vertex]] = [[] for _ in range(max(layer_of.values()) + 1)]
    neighbors: dict[Vertex, tuple[list[Vertex], list[Vertex]]] = {}
    for vertex, layer in layer_of.items():
        layers[layer].append(vertex)
        neighbors[vertex] = ([], [])
    for upper, lower in dict.fromkeys(edges):
        above: Vertex = upper
        for layer in range(layer_of[upper] + 1, layer_of[lower]):
            passage: Vertex = (upper, lower, layer)
            layers[layer].append(passage)
            neighbors[passage] = ([above], [])
            neighbors[above][1].append(passage)
            above = passage
        neighbors[above][1].append(lower)
        neighbors[lower][0].append(above)
    return layers, neighbors


def _ordered(
    layers: list[list[Vertex]], neighbors: Mapping[Vertex, tuple[list[Vertex], list[Vertex]]]
) -> list[list[Vertex]]:
    """Sort each layer by the mean place of the neighbors, downward and upward in turn."""
    place_of = {vertex: float(index) for row in layers for index, vertex in enumerate(row)}
    for sweep in range(_SWEEPS):
        side = sweep % 2
        for row in layers if side == 0 else reversed(layers):
            mean = {
                vertex: sum(place_of[other] for other in near) / len(near)
                if (near := neighbors[vertex][side])
                else place_of[vertex]
                for vertex in row
            }
            row.sort(key=mean.__getitem__)
            for index, vertex in enumerate(row):
                place_of[vertex] = index - len(row) / 2
    return layers


def _centers(
    layers: list[list[Vertex]],
    neighbors: Mapping[Vertex, tuple[list[Vertex], list[Vertex]]],
    width_of: Mapping[Vertex, float],
) -> dict[Vertex, float]:
    """Return the center of each vertex: near its neighbors, in the order of its layer, and without overlap."""
    center: dict[Vertex, float] = {}
    for row in layers:
        x = -sum(width_of[vertex] + _BETWEEN for vertex in row) / 2
        for vertex in row:
            center[vertex] = x + width_of[vertex] / 2
            x += width_of[vertex] + _BETWEEN
    for sweep in range(_SWEEPS):
        for row in layers if sweep % 2 == 0 else reversed(layers):
            wanted = []
            for vertex in row:
                above, below = neighbors[vertex]
                near = (above, below)[sweep % 2] or above or below
                wanted.append(sum(center[other] for other in near) / len(near) if near else center[vertex])
            for vertex, x in zip(row, _apart(wanted, [width_of[vertex] for vertex in row]), strict=True):
                center[vertex] = x
    return center


def _apart(wanted: list[float], widths: list[float]) -> list[float]:
    """Return the places nearest to the wanted ones (least squares) that keep order and distances: pool adjacent violators."""
    offsets, total = [], 0.0
    for index, width in enumerate(widths):
        total += (widths[index - 1] + width) / 2 + _BETWEEN if index else 0.0
        offsets.append(total)
    # of vertices that move together: the sum of their places, and their number
    blocks: list[tuple[float, int]] = []
    for value in (want - offset for want, offset in zip(wanted, offsets, strict=True)):
        blocks.append((value, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            (upper, count), (lower, more) = blocks[-2:]
            blocks[-2:] = [(upper + lower, count + more)]
    moved = [total / count for total, count in blocks for _ in range(count)]
    return [x + offset for x, offset in zip(moved, offsets, strict=True)]
