"""The model as a graph: its nodes in groups by name, and which of them train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ortrain.dashboard.layout import place

_MOST_CHILDREN = 40  # of a group; a larger group is divided into parts
_MOST_AT_FIRST = 40  # nodes and groups that are shown before the user opens any
_MOST_NODES = 20_000
_HEIGHT, _MOST_WIDTH, _CHARACTER = 44, 260, 7.5


@dataclass
class Node:
    """A node of the model, or a group of them.

    Attributes
    ----------
    key : str
        What identifies it in the graph.
    label : str
        What is shown, without the names of the groups around it.
    operator : str
        Of a node; empty for a group.
    parameters : list of dict
        Name, shape and whether it trains, of those that the node itself reads.
    children : list of Node
        Of a group.
    """

    key: str
    label: str
    operator: str = ""
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    parameters: list[dict[str, Any]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    name: str = ""

    def leaves(self) -> Iterator[Node]:
        """Yield the nodes of a group, or the node itself."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            if node.children:
                waiting.extend(reversed(node.children))
            else:
                yield node


class Graph:
    """A model as its log has it.

    Parameters
    ----------
    model : dict
        The line ``model`` of a log. What it has of the wrong type is left out.
    """

    def __init__(self, model: dict[str, Any]) -> None:
        self.parameters = _parameters(model.get("parameters"))
        self.file = str(model.get("file", ""))
        leaves = self._leaves(model.get("nodes"))
        self.root = Node("", "model", children=_divided(_grouped(leaves), ""))
        self.nodes = len(leaves)

    def _leaves(self, given: Any) -> list[Node]:
        leaves = []
        for number, entry in enumerate(given[:_MOST_NODES] if isinstance(given, list) else []):
            if not isinstance(entry, dict):
                continue
            operator, name = str(entry.get("operator", "")), str(entry.get("name", ""))
            inputs, outputs = _names(entry.get("inputs")), _names(entry.get("outputs"))
            if operator == "Constant" and not inputs:
                continue
            own = [{"name": n, **self.parameters[n]} for n in dict.fromkeys(inputs) if n in self.parameters]
            label = name or f"{operator} {number}"
            leaves.append(Node(f"n{number}", label, operator, inputs, outputs, own, name=label))
        return leaves

    def picture(self, opened: Iterable[str] | None = None) -> dict[str, Any]:
        """Return the picture: boxes and lines with their places.

        Parameters
        ----------
        opened : iterable of str, optional
            The groups that are shown as what is in them; by default those with few nodes, from outside to inside.
        """
        chosen = self._opened_at_first() if opened is None else set(opened)
        shown, groups = self._shown(chosen)
        where = {leaf.key: node.key for node in shown for leaf in node.leaves()}
        producer = {value: leaf.key for node in shown for leaf in node.leaves() for value in leaf.outputs}
        edges: dict[tuple[str, str], int] = {}
        for node in shown:
            for leaf in node.leaves():
                for value in leaf.inputs:
                    source = where.get(producer.get(value, ""))
                    if source is not None and source != node.key:
                        edges[source, node.key] = edges.get((source, node.key), 0) + 1
        sizes = {node.key: (_width(node), float(_HEIGHT)) for node in shown}
        layout = place(sizes, list(edges))
        return {
            "file": self.file,
            "nodes": self.nodes,
            "parameters": self._totals(self.root),
            "width": layout.width,
            "height": layout.height,
            "boxes": [
                {
                    **self._described(node),
                    **dict(zip(("x", "y", "width", "height"), layout.boxes[node.key], strict=True)),
                }
                for node in shown
            ],
            "lines": [
                {"from": source, "to": target, "values": count, "points": layout.lines[source, target]}
                for (source, target), count in edges.items()
            ],
            "opened": [{"key": group.key, "label": group.name or group.label} for group in groups],
        }

    def _opened_at_first(self) -> set[str]:
        opened: set[str] = set()
        visible, waiting = len(self.root.children), list(self.root.children)
        while waiting:
            node = waiting.pop(0)
            if node.children and visible + len(node.children) - 1 <= _MOST_AT_FIRST:
                opened.add(node.key)
                visible += len(node.children) - 1
                waiting.extend(node.children)
        return opened

    def _shown(self, opened: set[str]) -> tuple[list[Node], list[Node]]:
        shown, groups = [], []
        waiting = list(reversed(self.root.children))
        while waiting:
            node = waiting.pop()
            if node.children and node.key in opened:
                groups.append(node)
                waiting.extend(reversed(node.children))
            else:
                shown.append(node)
        return shown, groups

    def _totals(self, node: Node) -> dict[str, int]:
        found = {p["name"]: p for leaf in node.leaves() for p in leaf.parameters}.values()
        return {
            "parameters": len(found),
            "trained": sum(p["trained"] for p in found),
            "elements": sum(p["elements"] for p in found),
            "trained_elements": sum(p["elements"] for p in found if p["trained"]),
        }

    def _described(self, node: Node) -> dict[str, Any]:
        totals = self._totals(node)
        trains = "none"
        if totals["parameters"]:
            trains = (
                "frozen"
                if not totals["trained"]
                else "all"
                if totals["trained"] == totals["parameters"]
                else "part"
            )
        return {
            "key": node.key,
            "label": node.label,
            "name": node.name or node.label,
            "operator": node.operator,
            "group": bool(node.children),
            "nodes": sum(1 for _ in node.leaves()),
            "trains": trains,
            **totals,
            "own": node.parameters[:50],
            "inputs": node.inputs[:50],
            "outputs": node.outputs[:50],
        }


def _names(value: Any) -> list[str]:
    return [str(name) for name in value if name] if isinstance(value, list) else []


def _parameters(given: Any) -> dict[str, dict[str, Any]]:
    found = {}
    for name, entry in given.items() if isinstance(given, dict) else ():
        if not isinstance(entry, dict):
            continue
        shape = entry.get("shape")
        shape = [n for n in shape if isinstance(n, int)] if isinstance(shape, list) else []
        found[str(name)] = {
            "shape": shape,
            "elements": math.prod(shape),
            "trained": entry.get("trained") is True,
        }
    return found


def _grouped(leaves: list[Node]) -> list[Node]:
    """Put nodes into groups by the parts of their names: ``/layers.0/attention/MatMul``."""
    separator = "/" if any("/" in leaf.name.strip("/") for leaf in leaves) else "."
    root = Node("", "")
    groups: dict[str, Node] = {"": root}
    for leaf in leaves:
        *path, label = [part for part in leaf.name.split(separator) if part] or [leaf.label]
        leaf.label = label
        around = root
        for depth, part in enumerate(path[:32], start=1):
            key = "g" + separator.join(path[:depth])
            if key not in groups:
                groups[key] = Node(key, part, name=separator.join(path[:depth]))
                around.children.append(groups[key])
            around = groups[key]
        around.children.append(leaf)
    _join(root)
    return root.children


def _join(root: Node) -> None:
    """Replace each group that has only one child by that child, with both names."""
    waiting = [root]
    while waiting:
        group = waiting.pop()
        for index, child in enumerate(group.children):
            while len(child.children) == 1:
                (only,) = child.children
                only.label = f"{child.label}/{only.label}"
                child = group.children[index] = only
            waiting.append(child)


def _divided(children: list[Node], key: str) -> list[Node]:
    """Divide the children of a large group into parts of consecutive nodes."""
    for child in children:
        if child.children:
            child.children = _divided(child.children, child.key)
    if len(children) <= _MOST_CHILDREN:
        return children
    size = max(2, -(-len(children) // _MOST_CHILDREN))
    parts = []
    for start in range(0, len(children), size):
        part = children[start : start + size]
        if len(part) == 1:
            parts += part
            continue
        label = f"{part[0].label} … {part[-1].label}"
        own = f"{key}#{start}-{len(part)}"
        parts.append(Node(own, label, children=_divided(part, own), name=label))
    return parts


def _width(node: Node) -> float:
    return min(_MOST_WIDTH, 28 + _CHARACTER * max(len(node.label), len(node.operator) + 4, 12))
