"""The picture of a model: groups, what trains, and boxes that do not cover each other."""

from __future__ import annotations

import itertools
import random
import time

import pytest
from ortrain.dashboard.graph import Graph
from ortrain.dashboard.layout import place


def node(name, inputs, outputs, operator="Gemm"):
    return {"name": name, "operator": operator, "inputs": inputs, "outputs": outputs}


def model(nodes, **parameters):
    return {
        "file": "eval_model.onnx",
        "nodes": nodes,
        "parameters": {name: {"shape": [2, 3], "trained": trained} for name, trained in parameters.items()},
    }


def blocks(count):
    """A chain of blocks of three nodes with a shortcut, as PyTorch names them."""
    nodes, value = [], "x"
    for n in range(count):
        at = f"/layers/layers.{n}"
        nodes += [
            node(f"{at}/fc/Gemm", [value, f"w{n}"], [f"a{n}"]),
            node(f"{at}/Relu", [f"a{n}"], [f"r{n}"], "Relu"),
            node(f"{at}/Add", [value, f"r{n}"], [f"x{n}"], "Add"),
        ]
        value = f"x{n}"
    return model(nodes, **{f"w{n}": n > 0 for n in range(count)})


def check(picture):
    """Boxes lie apart and within the picture; lines begin and end at their boxes."""
    boxes = {box["key"]: box for box in picture["boxes"]}
    for a, b in itertools.combinations(boxes.values(), 2):
        apart = a["x"] + a["width"] <= b["x"] + 1e-6 or b["x"] + b["width"] <= a["x"] + 1e-6
        assert apart or a["y"] + a["height"] <= b["y"] or b["y"] + b["height"] <= a["y"], (a["key"], b["key"])
    for box in boxes.values():
        assert -1e-6 <= box["x"] <= picture["width"] - box["width"] + 1e-6
        assert 0 <= box["y"] <= picture["height"] - box["height"] + 1e-6
    for line in picture["lines"]:
        for end, point in (("from", line["points"][0]), ("to", line["points"][-1])):
            box = boxes[line[end]]
            assert point[0] == pytest.approx(box["x"] + box["width"] / 2)
            assert point[1] in (pytest.approx(box["y"]), pytest.approx(box["y"] + box["height"]))


def test_what_trains_is_known_of_nodes_and_groups():
    graph = Graph(blocks(3))
    boxes = {box["name"]: box for box in graph.picture()["boxes"]}
    assert boxes["/layers/layers.0/fc/Gemm"]["trains"] == "frozen"
    assert boxes["/layers/layers.2/fc/Gemm"]["trains"] == "all"
    assert boxes["/layers/layers.1/Relu"]["trains"] == "none"
    assert boxes["/layers/layers.1/fc/Gemm"]["own"] == [
        {"name": "w1", "shape": [2, 3], "elements": 6, "trained": True}
    ]
    closed = graph.picture([])
    check(closed)
    (box,) = closed["boxes"]
    assert (box["trains"], box["nodes"], box["elements"], box["trained_elements"]) == ("part", 9, 18, 12)


def test_groups_open_and_close():
    graph = Graph(blocks(30))
    first = graph.picture()
    check(first)
    assert len(first["boxes"]) <= 40
    group = next(box for box in first["boxes"] if box["group"])
    more = graph.picture([*(entry["key"] for entry in first["opened"]), group["key"]])
    check(more)
    assert group["key"] in {entry["key"] for entry in more["opened"]}
    assert len(more["boxes"]) > len(first["boxes"])


def test_lines_follow_the_values():
    picture = Graph(
        model([node("a", ["x"], ["y", "z"]), node("b", ["y", "z", "y"], ["v"]), node("c", ["v"], [])])
    ).picture()
    check(picture)
    found = {(line["from"], line["to"]): line["values"] for line in picture["lines"]}
    assert found == {("n0", "n1"): 3, ("n1", "n2"): 1}
    assert [box["y"] for box in picture["boxes"]] == sorted(box["y"] for box in picture["boxes"])


def test_groups_that_depend_on_each_other():
    nodes = [
        node("a/1", ["x"], ["y"]),
        node("b/1", ["y"], ["z"]),
        node("a/2", ["z"], ["v"]),
        node("b/2", ["v"], ["w"]),
    ]
    picture = Graph(model(nodes)).picture([])
    check(picture)
    assert {(line["from"], line["to"]) for line in picture["lines"]} == {("ga", "gb"), ("gb", "ga")}


@pytest.mark.parametrize("names", ["none", "flat", "nested"])
def test_a_large_model_stays_small(names):
    nodes = []
    for n in range(2000):
        name = {
            "none": "",
            "flat": f"Conv_{n}",
            "nested": f"/encoder/layers.{n // 100}/part{n % 7}/Conv_{n}",
        }[names]
        nodes.append(node(name, [f"v{n - 1}", f"v{n // 2}", f"w{n}"], [f"v{n}"]))
    began = time.perf_counter()
    graph = Graph(model(nodes, **{f"w{n}": True for n in range(2000)}))
    picture = graph.picture()
    assert len(picture["boxes"]) <= 60
    assert sum(box["nodes"] for box in picture["boxes"]) == 2000
    check(picture)
    assert time.perf_counter() - began < 60  # no more than a sign of life: seconds, not hours


def test_every_node_can_be_reached_by_opening_groups():
    graph = Graph(model([node("", [f"v{n - 1}"], [f"v{n}"]) for n in range(300)]))
    opened: set[str] = set()
    while groups := [box["key"] for box in graph.picture(opened)["boxes"] if box["group"]]:
        opened.update(groups)
    assert len(graph.picture(opened)["boxes"]) == 300


def test_constants_are_left_out_and_nonsense_is_no_graph():
    picture = Graph(model([node("k", [], ["c"], "Constant"), node("a", ["c"], ["y"])])).picture()
    assert [box["name"] for box in picture["boxes"]] == ["a"]
    for wrong in (
        {},
        {"nodes": 3},
        {"nodes": [3, None, {}]},
        {"nodes": [{"inputs": {"a": 1}}], "parameters": []},
    ):
        check(Graph(wrong).picture())


def test_layouts_of_any_graph():
    rng = random.Random(0)
    for _ in range(30):
        names = [f"v{n}" for n in range(rng.randrange(1, 25))]
        sizes = {name: (rng.uniform(10, 200), 40.0) for name in names}
        edges = list(
            {(a, b) for _ in range(rng.randrange(60)) if (a := rng.choice(names)) != (b := rng.choice(names))}
        )
        layout = place(sizes, edges)
        boxes = [
            dict(zip(("x", "y", "width", "height"), box, strict=True), key=key)
            for key, box in layout.boxes.items()
        ]
        lines = [{"from": a, "to": b, "points": points} for (a, b), points in layout.lines.items()]
        assert set(layout.lines) == set(edges)
        check({"boxes": boxes, "lines": lines, "width": layout.width, "height": layout.height})
