"""RoiAlign, MaxRoiPool, MaxUnpool and DeformConv."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, Op, apart, check_forward, check_gradient, check_rejected, uniform

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


def test_roi_align_refuses_what_does_not_fit() -> None:
    x = uniform(1, 2, 4, 4)
    check_rejected(Op("RoiAlign"), [x, BOXES, IMAGES], r"batch_indices\[1\] must lie in \[0, 1\)")
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


@pytest.mark.parametrize("given", [None, (1, 2, 4, 6), (1, 2, 5, 8), (2, 3, 4, 6)])
def test_max_unpool_undoes_max_pool(given: tuple[int, ...] | None) -> None:
    x = uniform(1, 2, 2, 3)
    at = np.array([0, 3, 10, 12, 15, 23, 24, 33, 28, 43, 39, 47]).reshape(1, 2, 2, 3)
    op = Op("MaxUnpool", {"kernel_shape": [2, 2], "strides": [2, 2]})
    shape = None if given is None else np.array(given)
    full = np.zeros(48)
    full[at.ravel()] = x.ravel()
    expected = np.zeros(given or (1, 2, 4, 6))
    expected[:1, :2, :4, :6] = full.reshape(1, 2, 4, 6)
    check_forward(op, [x, at, shape], [expected], constants={2})
    check_gradient(op, [x, at, shape], wrt=[0], constants={2})
    back = Op("MaxUnpoolGrad", op.attributes, MICROSOFT)
    check_gradient(back, [expected, at, shape], wrt=[0], constants={2})


def test_max_unpool_refuses_indices_outside() -> None:
    op = Op("MaxUnpool", {"kernel_shape": [2]})
    check_rejected(op, [uniform(1, 1, 2), np.array([[[0, 3]]])], "index 3")
    check_rejected(
        op, [uniform(1, 1, 2), np.array([[[0, 1]]]), np.array([1, 1, 2])], "at least", constants={2}
    )


DEFORMED: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
    ((1, 2, 4, 4), (2, 2, 2, 2), {}),
    ((2, 2, 5, 4), (4, 1, 3, 2), {"group": 2, "pads": [1, 1, 1, 0], "strides": [2, 1]}),
    ((1, 4, 4, 4), (2, 4, 2, 2), {"offset_group": 2, "dilations": [2, 1]}),
    ((1, 4, 3, 3), (4, 2, 2, 2), {"group": 2, "offset_group": 4, "pads": [1, 1, 1, 1]}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((2, 2, 6), (3, 2, 3), {"pads": [1, 1]}),
    ((1, 1, 3, 3, 3), (2, 1, 2, 2, 2), {}),
]


def deformed_inputs(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], *, bias: bool, mask: bool
) -> list[Array | None]:
    axes = len(x_shape) - 2
    kernel = w_shape[2:]
    strides, dilations = attributes.get("strides", [1] * axes), attributes.get("dilations", [1] * axes)
    pads = attributes.get("pads", [0] * 2 * axes)
    out = [
        (x_shape[2 + i] + pads[i] + pads[axes + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(axes)
    ]
    taps = attributes.get("offset_group", 1) * int(np.prod(kernel))
    n = x_shape[0]
    # No point lies on a pixel, where the interpolation has a kink.
    offset = np.round(uniform(n, taps * axes, *out, low=-1.5, high=1.5) * 3) / 3 + 0.13
    return [
        uniform(*x_shape),
        uniform(*w_shape, seed=1),
        offset,
        uniform(w_shape[0], seed=2) if bias else None,
        uniform(n, taps, *out, low=0.2, seed=3) if mask else None,
    ]


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), DEFORMED)
@pytest.mark.parametrize(("bias", "mask"), [(False, False), (True, True), (False, True)])
def test_deform_conv(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any], bias: bool, mask: bool
) -> None:
    inputs = deformed_inputs(x_shape, w_shape, attributes, bias=bias, mask=mask)
    op = Op("DeformConv", attributes, opset=22)
    if len(x_shape) == 4 and min(x_shape[2:]) > 1:
        check_forward(op, inputs, rtol=1e-5)  # the reference samples in float
    check_gradient(op, inputs)


@pytest.mark.parametrize(("x_shape", "w_shape", "attributes"), DEFORMED)
def test_deform_conv_without_offsets_is_a_convolution(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], attributes: dict[str, Any]
) -> None:
    inputs = deformed_inputs(x_shape, w_shape, attributes, bias=True, mask=False)
    plain = {name: value for name, value in attributes.items() if name != "offset_group"}
    (expected,) = check_forward(Op("Conv", plain), [inputs[0], inputs[1], inputs[3]], rtol=1e-9)
    assert inputs[2] is not None
    inputs[2] = np.zeros_like(inputs[2])
    check_forward(Op("DeformConv", attributes, opset=19), inputs, [expected], rtol=1e-12)


def test_deform_conv_refuses_what_does_not_fit() -> None:
    inputs = deformed_inputs((1, 2, 4, 4), (2, 2, 2, 2), {}, bias=False, mask=False)
    inputs[2] = uniform(1, 8, 3, 2)
    check_rejected(Op("DeformConv"), inputs, "offsets must be")
