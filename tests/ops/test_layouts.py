"""Values stay in the layouts of the convolution library between operators; results must not depend on it.

Each network runs in float, where layouts are chosen, and in double, where everything is row-major, and both
must agree: values and gradients. Channel counts fill blocks of 8 and 16 exactly, partly, and not at all.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

import numpy as np
import ortrain
import pytest
from helpers import gradient_model, run_model
from onnx import TensorProto, helper, numpy_helper

Nodes = list[tuple[str, list[str], list[str], dict[str, object]]]


def stem(c: int) -> Nodes:
    return [("Conv", ["x", "w1", "b1"], ["c1"], {"pads": [1, 1, 1, 1]})]


def tail(last: str) -> Nodes:
    """One more convolution after the operator under test, so that gradients arrive in a blocked layout, then a loss."""
    return [
        ("Conv", [last, "w2"], ["c2"], {"pads": [1, 1, 1, 1]}),
        ("Mul", ["c2", "c2"], ["squares"], {}),
        ("ReduceMean", ["squares"], ["loss"], {"keepdims": 0}),
    ]


BODIES: dict[str, Callable[[int], Nodes]] = {
    "relu": lambda c: [("Relu", ["c1"], ["z"], {})],
    "exp: not zero at zero": lambda c: [
        ("Tanh", ["c1"], ["t"], {}),
        ("Exp", ["t"], ["e"], {}),
        ("Sigmoid", ["e"], ["z"], {}),
    ],
    "residual": lambda c: [("Relu", ["c1"], ["r"], {}), ("Add", ["r", "c1"], ["z"], {})],
    "batch normalization": lambda c: [
        (
            "BatchNormalization",
            ["c1", "scale", "shift", "mean", "var"],
            ["n", "m1", "v1"],
            {"training_mode": 1},
        ),
        ("Relu", ["n"], ["z"], {}),
    ],
    "per-channel scale": lambda c: [("Mul", ["c1", "per_channel"], ["z"], {})],
    "max pool": lambda c: [("MaxPool", ["c1"], ["z"], {"kernel_shape": [2, 2], "strides": [2, 2]})],
    "overlapping pool": lambda c: [
        ("MaxPool", ["c1"], ["z"], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})
    ],
    "average pool": lambda c: [("AveragePool", ["c1"], ["z"], {"kernel_shape": [2, 2], "strides": [2, 2]})],
    "concat and split": lambda c: [
        ("Relu", ["c1"], ["r"], {}),
        ("Concat", ["c1", "r"], ["both"], {"axis": 2}),
        ("Split", ["both"], ["first", "second"], {"axis": 2}),
        ("Add", ["first", "second"], ["z"], {}),
    ],
    "parts of the channels": lambda c: [
        ("Relu", ["c1"], ["r"], {}),
        ("Concat", ["r", "c1", "r"], ["three"], {"axis": 1}),
        ("Split", ["three", "parts"], ["one", "others", "rest"], {"axis": 1}),
        ("Concat", ["others", "one"], ["rotated"], {"axis": 1}),
        ("Split", ["rest"], ["first", "second"], {"axis": 1}),
        ("Mul", ["first", "rotated"], ["product"], {}),
        ("Add", ["product", "second"], ["z"], {}),
    ],
    "parts of the batch": lambda c: [
        ("Relu", ["c1"], ["r"], {}),
        ("Concat", ["r", "c1"], ["both"], {"axis": 0}),
        ("Split", ["both"], ["first", "second"], {"axis": 0}),
        ("Mul", ["first", "second"], ["z"], {}),
    ],
    "mean of all points": lambda c: [
        ("GlobalAveragePool", ["c1"], ["g"], {}),
        ("Shape", ["c1"], ["s"], {}),
        ("Expand", ["g", "s"], ["e"], {}),
        ("Mul", ["c1", "e"], ["z"], {}),
    ],
    "mean of points and of channels": lambda c: [
        ("ReduceMean", ["c1"], ["points"], {"axes": [2, 3]}),
        ("ReduceMax", ["c1"], ["channels"], {"axes": [1]}),
        ("ReduceMean", ["c1"], ["lines"], {"axes": [0, 3]}),
        ("Mul", ["c1", "points"], ["p"], {}),
        ("Mul", ["p", "channels"], ["q"], {}),
        ("Add", ["q", "lines"], ["z"], {}),
    ],
    "sums without the axes": lambda c: [
        ("ReduceSum", ["c1", "axes_two_and_three"], ["points"], {"keepdims": 0}),
        ("ReduceL2", ["c1"], ["channels"], {"axes": [1], "keepdims": 0}),
        ("Unsqueeze", ["points", "axes_two_and_three"], ["p"], {}),
        ("Unsqueeze", ["channels", "axis_one"], ["q"], {}),
        ("Mul", ["c1", "p"], ["r"], {}),
        ("Mul", ["r", "q"], ["z"], {}),
    ],
    "gates of channels and of points": lambda c: [
        ("GlobalAveragePool", ["c1"], ["g"], {}),
        ("Sigmoid", ["g"], ["gate"], {}),
        ("Mul", ["gate", "c1"], ["p"], {}),
        ("ReduceMax", ["p"], ["points"], {"axes": [1]}),
        ("Div", ["p", "one_per_batch"], ["q"], {}),
        ("Add", ["q", "points"], ["r"], {}),
        ("Sub", ["of_place", "r"], ["s"], {}),
        ("Mul", ["s", "of_columns"], ["z"], {}),
    ],
    "a border": lambda c: [
        ("Pad", ["c1", "borders"], ["wide"], {"mode": "reflect"}),
        ("Slice", ["wide", "starts", "ends", "axes_two_and_three", "steps"], ["some"], {}),
        ("Pad", ["some", "cuts", "minus"], ["z"], {}),
    ],
    "gathered lines, columns and channels": lambda c: [
        ("Gather", ["c1", "places"], ["lines"], {"axis": 2}),
        ("Gather", ["lines", "places"], ["columns"], {"axis": -1}),
        ("Gather", ["columns", "some_channels"], ["z"], {"axis": 1}),
    ],
    "instance normalization": lambda c: [("InstanceNormalization", ["c1", "scale", "shift"], ["z"], {})],
    "group normalization": lambda c: [
        ("GroupNormalization", ["c1", "scale", "shift"], ["n"], {"num_groups": max(1, c // 4)}),
        ("Sigmoid", ["n"], ["s"], {}),
        ("Mul", ["n", "s"], ["z"], {}),
    ],
    "group normalization scaled by group": lambda c: [
        ("GroupNormalization", ["c1", "unit", "zero"], ["n"], {"num_groups": 1}),
        ("Mul", ["n", "per_channel"], ["z"], {}),
    ],
    "a border of zeros": lambda c: [
        ("Pad", ["c1", "borders"], ["wide"], {}),
        ("Slice", ["wide", "starts", "ends", "axes_two_and_three", "steps"], ["some"], {}),
        ("Pad", ["some", "cuts"], ["z"], {}),
    ],
    "resized": lambda c: [
        (
            "Resize",
            ["c1", "", "larger"],
            ["u"],
            {"mode": "linear", "coordinate_transformation_mode": "half_pixel"},
        ),
        ("Resize", ["u", "", "smaller"], ["z"], {"mode": "nearest"}),
    ],
    "transposed twice": lambda c: [
        ("Transpose", ["c1"], ["t"], {"perm": [0, 2, 3, 1]}),
        ("Softmax", ["t"], ["s"], {"axis": -1}),
        ("Transpose", ["s"], ["z"], {"perm": [0, 3, 1, 2]}),
    ],
    "transposed beside values that are read again": lambda c: [
        ("Transpose", ["c1"], ["t"], {"perm": [0, 2, 3, 1]}),
        ("Tanh", ["t"], ["s"], {}),
        ("Mul", ["s", "t"], ["p"], {}),
        ("Transpose", ["p"], ["q"], {"perm": [0, 3, 1, 2]}),
        ("Transpose", ["q"], ["lines"], {"perm": [0, 2, 1, 3]}),
        ("Transpose", ["lines"], ["r"], {"perm": [0, 2, 1, 3]}),
        ("Add", ["r", "c1"], ["z"], {}),
    ],
    "points as rows": lambda c: [
        ("Reshape", ["c1", "rows_of_points"], ["rows"], {}),
        ("Transpose", ["rows"], ["t"], {"perm": [0, 2, 1]}),
        ("Softmax", ["t"], ["s"], {"axis": -1}),
        ("Transpose", ["s"], ["u"], {"perm": [0, 2, 1]}),
        ("Shape", ["c1"], ["shape"], {}),
        ("Reshape", ["u", "shape"], ["z"], {}),
    ],
    "reshaped": lambda c: [
        ("Flatten", ["c1"], ["flat"], {}),
        ("Tanh", ["flat"], ["t"], {}),
        ("Shape", ["c1"], ["s"], {}),
        ("Reshape", ["t", "s"], ["z"], {}),
    ],
    "gated by its mean": lambda c: [
        ("GlobalAveragePool", ["c1"], ["g"], {}),
        ("Sigmoid", ["g"], ["gate"], {}),
        ("Mul", ["c1", "gate"], ["z"], {}),
    ],
    "read by convolutions of different strides": lambda c: [
        ("Relu", ["c1"], ["r"], {}),
        ("Conv", ["r", "w3"], ["p"], {"pads": [1, 1, 1, 1]}),
        ("Conv", ["r", "w4"], ["q"], {}),
        ("Add", ["p", "q"], ["z"], {}),
    ],
    "hard swish": lambda c: [("HardSwish", ["c1"], ["z"], {})],
    "clipped": lambda c: [("Clip", ["c1", "minus", "plus"], ["z"], {})],
    "masks": lambda c: [
        ("GreaterOrEqual", ["c1", "minus"], ["above"], {}),
        ("Less", ["c1", "plus"], ["below"], {}),
        ("And", ["above", "below"], ["inside"], {}),
        ("Not", ["inside"], ["outside"], {}),
        ("IsNaN", ["c1"], ["undefined"], {}),
        ("Or", ["outside", "undefined"], ["other"], {}),
        ("Where", ["other", "c1", "plus"], ["chosen"], {}),
        ("CastLike", ["inside", "c1"], ["factor"], {}),
        ("Mul", ["c1", "factor"], ["kept"], {}),
        ("Add", ["chosen", "kept"], ["z"], {}),
    ],
    "masks of channels and points": lambda c: [
        ("Greater", ["c1", "per_channel"], ["above"], {}),
        ("Where", ["above", "c1", "per_channel"], ["some"], {}),
        ("Greater", ["minus", "c1"], ["below"], {}),
        ("Flatten", ["below"], ["flat"], {}),
        ("Flatten", ["some"], ["lines"], {}),
        ("Where", ["flat", "lines", "minus"], ["both"], {}),
        ("Shape", ["c1"], ["s"], {}),
        ("Reshape", ["both", "s"], ["z"], {}),
    ],
    "grouped": lambda c: [
        ("Conv", ["c1", "depthwise"], ["d"], {"group": c, "pads": [1, 1, 1, 1]}),
        ("Relu", ["d"], ["z"], {}),
    ],
}


def network(body: Nodes, channels: int, dtype: type) -> bytes:
    rng = np.random.default_rng(channels)

    def weights(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.3).astype(dtype)

    c = channels
    values = {
        "w1": weights(c, 3, 3, 3),
        "b1": weights(c),
        "w2": weights(5, c, 3, 3),
        "w3": weights(c, c, 3, 3),
        "w4": weights(c, c, 1, 1),
        "depthwise": weights(c, 1, 3, 3),
        "scale": weights(c) + 1,
        "shift": weights(c),
        "mean": np.zeros(c, dtype),
        "var": np.ones(c, dtype),
        "per_channel": weights(c, 1, 1),
        "parts": np.array([1, c - 1, 2 * c]),
        "rows_of_points": np.array([3, c, 60]),
        "axis_one": np.array([1]),
        "axes_two_and_three": np.array([2, 3]),
        "one_per_batch": weights(3, 1, 1, 1) + 2,
        "of_place": weights(1, c, 6, 10),
        "of_columns": weights(10),
        "borders": np.array([0, 1, 2, 1, 0, 1, 1, 3]),
        "starts": np.array([1, 12]),
        "ends": np.array([8, 1]),
        "steps": np.array([2, -3]),
        "cuts": np.array([0, -1, 1, 2, 0, -1, -1, 0]),
        "larger": np.array([1, 1, 2.5, 2], np.float32),
        "smaller": np.array([1, 1, 0.5, 0.75], np.float32),
        "minus": np.array(-0.4, dtype),
        "places": np.array([2, 1, 0, 1, 2, 3, 4, 5, 4, -3]),
        "some_channels": np.array([*range(c - 2), 0, 1]),
        "unit": np.ones(1, dtype),
        "zero": np.zeros(1, dtype),
        "plus": np.array(0.5, dtype),
    }
    nodes = [*stem(c), *body, *tail("z")]
    used = {name for _, inputs, _, _ in nodes for name in inputs}
    kind = TensorProto.DOUBLE if dtype is np.float64 else TensorProto.FLOAT
    graph = helper.make_graph(
        [helper.make_node(op, inputs, outputs, **attributes) for op, inputs, outputs, attributes in nodes],
        "network",
        [helper.make_tensor_value_info("x", kind, [3, 3, 6, 10])],
        [helper.make_tensor_value_info(name, kind, None) for name in ("loss", "z")],
        [numpy_helper.from_array(value, name) for name, value in values.items() if name in used],
    )
    # Version 18 of GroupNormalization has a scale for each group, version 21 one for each channel.
    versions = [18 if "unit" in inputs else 21 for op, inputs, *_ in body if op == "GroupNormalization"]
    opset = max(versions, default=17)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8
    ).SerializeToString()


@pytest.mark.parametrize("channels", [3, 8, 16, 24])
@pytest.mark.parametrize("body", BODIES)
def test_float_agrees_with_double(body: str, channels: int) -> None:
    x = np.random.default_rng(5).standard_normal((3, 3, 6, 10))
    wanted = ["x", "w1", "b1", "w2"]
    results = {}
    for dtype in (np.float32, np.float64):
        model = gradient_model(network(BODIES[body](channels), channels, dtype), wanted, "loss")
        results[dtype] = run_model(model, {"x": x.astype(dtype)}, repeat=2)
    for name in ("loss", "z", *(f"{w}_grad" for w in wanted)):
        double = results[np.float64][name]
        np.testing.assert_allclose(
            results[np.float32][name],
            double,
            rtol=2e-4,
            atol=2e-5 * max(0.1, float(np.abs(double).max())),
            err_msg=name,
        )


@pytest.mark.parametrize(
    "body",
    [
        "parts of the channels",
        "parts of the batch",
        "mean of all points",
        "gated by its mean",
        "a border",
        "a border of zeros",
        "gathered lines, columns and channels",
        "instance normalization",
        "group normalization",
        "group normalization scaled by group",
        "resized",
        "transposed twice",
    ],
)
def test_values_between_convolutions_are_not_reordered(body: str, tmp_path: pathlib.Path) -> None:
    model = gradient_model(network(BODIES[body](8), 8, np.float32), ["x", "w1", "b1", "w2"], "loss")
    options = ortrain.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "profile")
    session = ortrain.InferenceSession(model, options)
    session.run(None, {"x": np.zeros((3, 3, 6, 10), np.float32)})
    events = json.loads(pathlib.Path(session.end_profiling()).read_text())
    reordered = [event["name"] for event in events if event["args"].get("op_name") == "(layout)"]
    # The input of the first convolution, the loss, which is a sum over everything, and the results.
    between = [name for name in reordered if name not in ("c1_kernel_time", "_kernel_time")]
    assert between == []
