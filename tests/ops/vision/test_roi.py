"""RoiAlign and MaxRoiPool, against onnx.reference, onnxruntime, formulas and finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import Array, Op, apart, check_forward, check_gradient, check_rejected, uniform

SPECIAL_POINTS = {"not in PyTorch": ["MaxRoiPool"], "not recorded": ["RoiAlign"]}

BOXES = np.array(
    [
        [0.3, 0.7, 4.1, 5.2],
        [1.0, 1.0, 2.0, 2.0],
        [-1.5, 2.0, 7.5, 9.0],
        [2.5, 3.0, 2.7, 3.1],
        [20, 20, 25, 25],
    ]
)
IMAGES = np.array([0, 1, 1, 0, 1])


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize(("ratio", "scale"), [(0, 1.0), (2, 1.0), (3, 0.5)])
def test_roi_align(mode: str, transformation: str, ratio: int, scale: float) -> None:
    attributes = {
        "mode": mode, "coordinate_transformation_mode": transformation, "sampling_ratio": ratio,
        "spatial_scale": scale, "output_height": 2, "output_width": 3,
    }  # fmt: skip
    op = Op("RoiAlign", attributes, opset=22)
    x = apart(2, 2, 6, 7)
    check_forward(op, [x, BOXES, IMAGES], rtol=1e-6 if mode == "avg" else 1e-5)
    check_gradient(op, [x, BOXES, IMAGES], wrt=[0])


def test_roi_align_of_version_10_does_not_shift() -> None:
    x = uniform(1, 2, 6, 7)
    attributes: dict[str, Any] = {"output_height": 2, "output_width": 2, "sampling_ratio": 2}
    new = Op("RoiAlign", {**attributes, "coordinate_transformation_mode": "output_half_pixel"}, opset=16)
    inputs = [x, BOXES[:2], np.array([0, 0])]
    (expected,) = check_forward(new, inputs, rtol=1e-6)
    check_forward(Op("RoiAlign", attributes, opset=12), inputs, [expected])
    check_gradient(Op("RoiAlign", attributes, opset=12), inputs, wrt=[0])


def test_roi_align_without_regions() -> None:
    inputs = [uniform(1, 2, 4, 4), np.zeros((0, 4)), np.zeros(0, np.int64)]
    check_forward(Op("RoiAlign"), inputs, [np.zeros((0, 2, 1, 1))])
    check_gradient(Op("RoiAlign"), inputs, wrt=[0])


def test_roi_align_rejects_what_does_not_fit() -> None:
    x = uniform(1, 2, 4, 4)
    check_rejected(Op("RoiAlign"), [x, BOXES, IMAGES], r"batch_indices\[1\] must be in \[0, 1\)")
    check_rejected(Op("RoiAlign"), [x, BOXES[:, :3], IMAGES], "regions must be")
    check_rejected(Op("RoiAlign"), [x, np.full((1, 4), np.nan), np.array([0])], "beyond any image")
    check_rejected(Op("RoiAlign", {"mode": "sum"}), [x, BOXES, IMAGES], "avg or max")


def max_roi_pool(x: Array, rois: Array, shape: tuple[int, int], scale: float) -> Array:
    """R. Girshick, "Fast R-CNN", 2015: bins of rounded regions."""
    y = np.zeros((len(rois), x.shape[1], *shape), x.dtype)
    for r, roi in enumerate(rois):
        corner = np.sign(roi[1:]) * np.floor(np.abs(roi[1:]) * scale + 0.5)
        for bin_ in np.ndindex(*shape):
            edges = []
            for axis in (0, 1):
                start, end = corner[1 - axis], corner[3 - axis]
                size = max(end - start + 1, 1) / shape[axis]
                low, high = start + np.floor(bin_[axis] * size), start + np.ceil((bin_[axis] + 1) * size)
                edges.append([int(np.clip(v, 0, x.shape[2 + axis])) for v in (low, high)])
            part = x[int(roi[0]), :, edges[0][0] : edges[0][1], edges[1][0] : edges[1][1]]
            y[(r, slice(None), *bin_)] = part.max(axis=(1, 2)) if part.size else 0
    return y


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (4, 4)])
def test_max_roi_pool(shape: tuple[int, int], scale: float) -> None:
    x = apart(2, 2, 6, 7)
    rois = np.concatenate([IMAGES[:, None], BOXES], axis=1)
    op = Op("MaxRoiPool", {"pooled_shape": shape, "spatial_scale": scale})
    check_forward(op, [x, rois], [max_roi_pool(x, rois, shape, scale)])
    check_gradient(op, [x, rois], wrt=[0])


def test_max_roi_pool_agrees_with_onnxruntime() -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    from helpers import make_model, run

    inputs = [apart(2, 2, 6, 7, dtype=np.float32), np.float32([[0, 0, 1, 5, 4], [1, 2, 2, 9, 5]])]
    op = Op("MaxRoiPool", {"pooled_shape": (2, 2)})
    session = onnxruntime.InferenceSession(make_model(op, inputs).SerializeToString())
    (expected,) = session.run(None, {"x0": inputs[0], "x1": inputs[1]})
    np.testing.assert_array_equal(run(op, inputs)[0], expected)
