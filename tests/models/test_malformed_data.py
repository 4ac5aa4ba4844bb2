"""Values that say where or how much are checked before they are used, also if only a run brings them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from malformed import Array, check_refused, check_taken
from onnx import helper

F32, I64 = np.float32, np.int64
IMAGE = np.ones((1, 1, 4, 4), F32)


def resize(**attributes: Any) -> Any:
    return helper.make_node("Resize", ["x", "roi", "scales"], ["y"], "bad", **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30, -1e30])
def test_a_region_of_resize_that_is_no_place_is_refused(mode: str, value: float) -> None:
    roi = np.array([0, 0, value, 0, 1, 1, 1, 1], F32)
    check_refused(
        resize(mode=mode, coordinate_transformation_mode="tf_crop_and_resize"),
        {"x": IMAGE, "roi": roi, "scales": np.ones(4, F32)},
        'node "bad" (Resize)', "roi must be in",
    )  # fmt: skip


CASES: dict[str, tuple[Any, dict[str, Array], str]] = {
    "Resize to more than a table holds": (
        helper.make_node("Resize", ["x", "", "scales"], ["y"], "bad", mode="linear"),
        {"x": np.ones((1, 1, 1, 1), F32), "scales": np.array([1, 1, 1, 3e9], F32)},
        "",
    ),
    "Resize by sizes with a policy": (
        helper.make_node(
            "Resize", ["x", "", "", "sizes"], ["y"], "bad", keep_aspect_ratio_policy="not_smaller"
        ),
        {"x": np.ones((1, 1, 1, 4), F32), "sizes": np.array([1, 1, 2**62, 4], I64)},
        "too long",
    ),
    "RoiAlign of a region without end": (
        helper.make_node("RoiAlign", ["x", "rois", "i"], ["y"], "bad"),
        {"x": IMAGE, "rois": np.array([[0, 0, 9e5, 9e5]], F32), "i": np.zeros(1, I64)},
        "bins of",
    ),
    "RoiAlign of NaN": (
        helper.make_node("RoiAlign", ["x", "rois", "i"], ["y"], "bad"),
        {"x": IMAGE, "rois": np.full((1, 4), np.nan, F32), "i": np.zeros(1, I64)},
        "beyond any image",
    ),
    "MaxRoiPool of NaN": (
        helper.make_node("MaxRoiPool", ["x", "rois"], ["y"], "bad", pooled_shape=[1, 1]),
        {"x": IMAGE, "rois": np.full((1, 5), np.nan, F32)},
        "rois[0]",
    ),
    "Pad by the smallest number": (
        helper.make_node("Pad", ["v", "pads"], ["y"], "bad"),
        {"v": np.ones(4, F32), "pads": np.array([-(2**63), -(2**63)], I64)},
        "too large",
    ),
    "Pad without end, reflected": (
        helper.make_node("Pad", ["v", "pads"], ["y"], "bad", mode="reflect"),
        {"v": np.ones(4, F32), "pads": np.array([2**32, 2**32], I64)},
        "longer than",
    ),
    "MelWeightMatrix with more bins than numbers": (
        helper.make_node("MelWeightMatrix", ["bins", "length", "rate", "low", "high"], ["y"], "bad"),
        {
            "bins": np.int64(2**63 - 1),
            "length": np.int64(8),
            "rate": np.int64(8),
            "low": F32(0),
            "high": F32(4),
        },
        "at most",
    ),
    "MelWeightMatrix with an edge beyond every bin": (
        helper.make_node("MelWeightMatrix", ["bins", "length", "rate", "low", "high"], ["y"], "bad"),
        {
            "bins": np.int64(2),
            "length": np.int64(2**30),
            "rate": np.int64(1),
            "low": F32(0),
            "high": F32(3e38),
        },
        "upper edge",
    ),
    "DFT of more points than memory": (
        helper.make_node("DFT", ["signal", "n"], ["y"], "bad"),
        {"signal": np.ones((1, 4, 1), F32), "n": np.int64(2**39)},
        "session.max_",
    ),
    "Col2Im of windows that overflow": (
        helper.make_node("Col2Im", ["c", "image", "block"], ["y"], "bad", dilations=[2**31 - 1, 1]),
        {"c": np.ones((1, 0, 1), F32), "image": np.array([4, 4], I64), "block": np.array([2**33, 1], I64)},
        "does not fit",
    ),
    "CenterCropPad to more than memory": (
        helper.make_node("CenterCropPad", ["v", "n"], ["y"], "bad"),
        {"v": np.ones(4, F32), "n": np.array([2**42], I64)},
        "session.max_",
    ),
    "Expand to more than memory": (
        helper.make_node("Expand", ["one", "n"], ["y"], "bad"),
        {"one": np.ones(1, F32), "n": np.array([2**39], I64)},
        "session.max_bytes",
    ),
    "Tile to more than memory": (
        helper.make_node("Tile", ["v", "n"], ["y"], "bad"),
        {"v": np.ones(4, F32), "n": np.array([2**37], I64)},
        "session.max_bytes",
    ),
    "ConstantOfShape of more than memory": (
        helper.make_node("ConstantOfShape", ["n"], ["y"], "bad"),
        {"n": np.array([2**20, 2**19], I64)},
        "session.max_bytes",
    ),
    "ConstantOfShape of a size hidden by a zero": (
        helper.make_node("ConstantOfShape", ["n"], ["y"], "bad"),
        {"n": np.array([0, 2**62, 2**62], I64)},
        "cannot be represented",
    ),
    "Range to more than memory": (
        helper.make_node("Range", ["from", "to", "step"], ["y"], "bad"),
        {"from": F32(0), "to": F32(1e18), "step": F32(1)},
        "elements",
    ),
    "Range to NaN": (
        helper.make_node("Range", ["from", "to", "step"], ["y"], "bad"),
        {"from": F32(0), "to": F32(np.nan), "step": F32(1)},
        "no finite number",
    ),
    "OneHot of more than memory": (
        helper.make_node("OneHot", ["i", "n", "values"], ["y"], "bad"),
        {"i": np.zeros(4, I64), "n": np.float32(2**50), "values": np.array([0, 1], F32)},
        "session.max_",
    ),
    "OneHot of NaN": (
        helper.make_node("OneHot", ["i", "n", "values"], ["y"], "bad"),
        {"i": np.zeros(4, I64), "n": np.float32(np.nan), "values": np.array([0, 1], F32)},
        "depth",
    ),
    "TopK of too many": (
        helper.make_node("TopK", ["v", "n"], ["y", "z"], "bad"),
        {"v": np.ones(4, F32), "n": np.array([2**62], I64)},
        "between 0 and the size",
    ),
    "Reshape to 10000 axes": (
        helper.make_node("Reshape", ["v", "n"], ["y"], "bad"),
        {"v": np.ones(4, F32), "n": np.array([4] + [1] * 9999, I64)},
        "dimensions",
    ),
    "SliceGrad of a negative shape": (
        helper.make_node("SliceGrad", ["v", "n", "a", "b"], ["y"], "bad", domain="com.microsoft"),
        {"v": np.ones(4, F32), "n": np.array([-4], I64), "a": np.zeros(1, I64), "b": np.ones(1, I64)},
        "cannot be represented",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_cannot_be_is_refused(name: str) -> None:
    node, values, part = CASES[name]
    check_refused(node, {key: np.asarray(value) for key, value in values.items()}, 'node "bad"', part)


def test_scores_that_are_no_numbers_come_last() -> None:
    boxes = np.tile(np.array([[0, 0, 1, 1]], F32), (1, 40, 1))
    boxes += np.arange(40, dtype=F32)[None, :, None] * 2
    scores = np.full((1, 1, 40), np.nan, F32)
    scores[0, 0, 7] = 1
    node = helper.make_node("NonMaxSuppression", ["boxes", "scores", "n"], ["y"])
    check_taken(node, {"boxes": boxes, "scores": scores, "n": np.array(3, I64)})


@pytest.mark.parametrize("values", [[np.inf, 1], [-np.inf, 1], [-3e38, 3e38], [np.nan, 1]])
def test_values_without_a_finite_range_are_quantized(values: list[float]) -> None:
    check_taken(
        helper.make_node("DynamicQuantizeLinear", ["x"], ["y", "s", "z"]), {"x": np.array(values, F32)}
    )


def test_integers_wrap_around() -> None:
    big = np.full(4, 2**62, I64)
    for node in (
        helper.make_node("CumSum", ["x", "axis"], ["y"]),
        helper.make_node("CumProd", ["x", "axis"], ["y"]),
        helper.make_node("Pow", ["x", "two"], ["y"]),
        helper.make_node("Pow", ["x", "three"], ["y"]),
    ):
        opset = 26 if node.op_type == "CumProd" else 17
        values = {"x": big, "axis": np.array(0, I64), "two": np.array(2, I64), "three": np.array(3, I64)}
        check_taken(node, {name: values[name] for name in node.input}, opset)


@pytest.mark.parametrize("step", [np.inf, 1e300, np.nan, 0])
def test_a_step_that_is_no_count_is_refused(step: float) -> None:
    nodes = [helper.make_node("SequenceConstruct", ["x"], [name]) for name in "wgmv"]
    update = helper.make_node(
        "AdamWOptimizer", ["rate", "step", *"wgmv"], ["done", "y"], "bad", domain="com.microsoft"
    )
    nodes += [update, helper.make_node("SequenceAt", ["y", "i"], ["z"])]
    values = {
        "x": np.ones(2, F32),
        "rate": np.asarray(F32(0.1)),
        "step": np.asarray(np.float64(step)),
        "i": np.asarray(I64(0)),
    }
    check_refused(nodes, values, 'node "bad"', "the step")
