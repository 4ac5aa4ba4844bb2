"""Records what onnxruntime-training 1.19.2 computes for the operators of training graphs.

Run it with an interpreter that has onnxruntime-training 1.19.2; it writes cases.json and cases.npz beside itself.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper

Array = NDArray[Any]
HERE = pathlib.Path(__file__).parent
MICROSOFT = "com.microsoft"
random = np.random.default_rng(11)


def uniform(*shape: int, low: float = -1, high: float = 1) -> Array:
    return random.uniform(low, high, shape).astype(np.float32)


def log_softmax(x: Array, axis: int = -1) -> Array:
    return x - np.log(np.exp(x).sum(axis, keepdims=True))


def softmax(x: Array, axis: int = -1) -> Array:
    return np.exp(log_softmax(x, axis))


def int64(*values: int) -> Array:
    return np.array(values, np.int64)


def scalar(value: float) -> Array:
    return np.array(value, np.float32)


cases: list[dict[str, Any]] = []
data: list[bytes] = []  # the arrays of all cases, one behind the other


def record(
    op: str,
    inputs: Sequence[Array | None],
    outputs: int | Sequence[bool] = 1,
    domain: str = MICROSOFT,
    opset: int = 17,
    constants: Sequence[int] = (),
    **attributes: Any,
) -> list[Array]:
    """Runs one node and keeps its inputs, attributes and outputs. `constants` are the inputs that decide shapes."""
    wanted = [True] * outputs if isinstance(outputs, int) else list(outputs)
    names_in = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    names_out = [f"y{i}" if w else "" for i, w in enumerate(wanted)]
    node = helper.make_node(op, names_in, names_out, domain=domain, **attributes)
    given = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in given.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in names_out if name]
    graph = helper.make_graph([node], "case", infos, results)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, {name: x.copy() for name, x in given.items()})
    arrays = {**given, **dict(zip([n for n in names_out if n], map(np.asarray, found), strict=True))}
    cases.append({
        "op": op, "domain": domain, "opset": opset, "inputs": names_in, "outputs": names_out, "attributes": attributes,
        "constants": [names_in[i] for i in constants],
        "arrays": {name: [value.dtype.name, *value.shape] for name, value in arrays.items()},
    })  # fmt: skip
    data.extend(np.ascontiguousarray(value).tobytes() for value in arrays.values())
    return found


# Elementwise.
for op, attributes in [
    ("ReluGrad", {}), ("GeluGrad", {}), ("FastGeluGrad", {}), ("QuickGeluGrad", {}), ("QuickGeluGrad", {"alpha": 1.0}),
    ("SigmoidGrad", {}), ("TanhGrad", {}), ("LeakyReluGrad", {}), ("LeakyReluGrad", {"alpha": 0.3}),
]:  # fmt: skip
    record(op, [uniform(3, 5), uniform(3, 5)], **attributes)
for op in ["BiasGeluGrad_dX", "BiasFastGeluGrad_dX"]:
    record(op, [uniform(2, 3, 5), uniform(2, 3, 5), uniform(5)])
record("DivGrad", [uniform(2, 3), uniform(2, 3), uniform(3, low=0.5)], 2)
record("Scale", [uniform(2, 3), scalar(2)])
record("Scale", [uniform(2, 3), scalar(4)], scale_down=1)

# Softmax.
for axis in [0, 1, 2]:
    y = uniform(2, 3, 4)
    for op, dense in [("SoftmaxGrad", softmax), ("LogSoftmaxGrad", log_softmax)]:
        rows = dense(y.reshape(int(np.prod(y.shape[:axis])), -1)).reshape(y.shape)
        record(op, [uniform(2, 3, 4), rows], axis=axis)
        record(f"{op}_13", [uniform(2, 3, 4), dense(y, axis)], axis=axis)

# Losses.
logits, soft = uniform(2, 3, 4), np.abs(uniform(2, 3, 4))
classes, weights = random.integers(0, 4, (2, 3)), np.abs(uniform(2, 3))
for reduction in ["mean", "sum"]:
    record("SoftmaxCrossEntropy", [logits, soft], 2, reduction=reduction)
    record("SoftmaxCrossEntropyGrad", [scalar(2), log_softmax(logits), soft], reduction=reduction)
    for weight in [None, weights]:
        tail = [] if weight is None else [weight]
        record("SparseSoftmaxCrossEntropy", [logits, classes, *tail], 2, domain="", reduction=reduction)
        record(
            "SparseSoftmaxCrossEntropyGrad", [scalar(2), log_softmax(logits), classes, *tail], domain="", reduction=reduction
        )  # fmt: skip
scores, labels, of_class = uniform(3, 4, 2), random.integers(0, 4, (3, 2)), np.abs(uniform(4))
for reduction in ["mean", "sum", "none"]:
    dy = uniform(3, 2) if reduction == "none" else scalar(2)
    log_p = log_softmax(scores, 1)
    tail = [of_class, np.array(2, np.int64)]
    record("SoftmaxCrossEntropyLossGrad", [dy, log_p, labels, of_class], reduction=reduction, ignore_index=2)
    record("SoftmaxCrossEntropyLossInternal", [scores, labels, *tail], 2, reduction=reduction)
    record("SoftmaxCrossEntropyLossInternalGrad", [dy, log_p, labels, *tail], reduction=reduction)
    for op, opset in [("NegativeLogLikelihoodLossInternal", 12), ("NegativeLogLikelihoodLossInternal2", 17)]:
        record(op, [log_p, labels, *tail], opset=opset, reduction=reduction)
        record(op, [log_p, labels], opset=opset, reduction=reduction)

# Normalization.
x, statistics = uniform(2, 3, 5), [uniform(2, 3, 1), np.abs(uniform(2, 3, 1))]
record("LayerNormalizationGrad", [uniform(2, 3, 5), x, uniform(5), *statistics], 3)
record("SimplifiedLayerNormalizationGrad", [uniform(2, 3, 5), x, uniform(5), statistics[1]], 2)
image = uniform(2, 3, 4, 4)
channel = [uniform(3), uniform(3), uniform(3), np.abs(uniform(3))]
record("BatchNormInternal", [image, *channel], 5, epsilon=1e-3, momentum=0.8)
record(
    "BatchNormalizationGrad",
    [uniform(2, 3, 4, 4), image, channel[0], uniform(3), channel[3]],
    3,
    epsilon=1e-3,
)

# Convolution and pooling.
w = uniform(4, 3, 2, 2)
record(
    "ConvGrad",
    [uniform(2, 4, 3, 3), image, w],
    3,
    kernel_shape=[2, 2],
    pads=[0, 0, 0, 0],
    strides=[1, 1],
    dilations=[1, 1],
    group=1,
)

# Movement.
rows = np.array([[0, 2], [4, 2]], np.int64)
record("GatherGrad", [int64(5, 3), rows, uniform(2, 2, 3)], constants=[0])
record("GatherGrad", [int64(3, 5), rows, uniform(3, 2, 2)], constants=[0], axis=1)
record(
    "GatherElementsGrad",
    [uniform(2, 3), int64(4, 3), np.array([[0, 1, 2], [3, 1, 0]], np.int64)],
    constants=[1],
)
record("GatherNDGrad", [int64(3, 4), np.array([[0, 1], [2, 3], [0, 1]], np.int64), uniform(3)], constants=[0])
record(
    "SliceGrad",
    [uniform(2, 2), int64(4, 5), int64(1, 0), int64(3, 4), int64(0, 1), int64(1, 2)],
    constants=[1, 2, 3, 4, 5],
)
record("ReduceSumTraining", [uniform(2, 3, 4), int64(0, 2)], constants=[1])
record("ReduceSumTraining", [uniform(2, 3, 4), int64(0, 2)], constants=[1], keepdims=0)
record("ReduceSumTraining", [uniform(2, 3), np.zeros(0, np.int64)], constants=[1], noop_with_empty_axes=1)
record("SplitTraining", [uniform(6, 2), int64(2, 1, 3)], 3, constants=[1])
record("ConcatTraining", [uniform(2, 3), uniform(2, 1)], 2, axis=1)
record("BroadcastGradientArgs", [int64(2, 1, 4), int64(3, 4)], 2, constants=[0, 1])
record("Group", [uniform(2), uniform(3)])

# Dropout and quantization.
mask = random.integers(0, 2, (3, 4)).astype(bool)
record("DropoutGrad", [uniform(3, 4), mask, scalar(0.25), np.array(True)])
record("FakeQuant", [uniform(3, 4, low=-3, high=3), scalar(0.01), scalar(128)], 2)
record("FakeQuant", [uniform(3, 4, low=-3, high=3), scalar(0.1), scalar(0)], 2, quant_min=-8, quant_max=7)
record("FakeQuantGrad", [uniform(3, 4), mask])

# Optimizers.
rate, step = np.array([0.1], np.float32), np.array(3, np.int64)
w, g, m, v = uniform(3, 2), uniform(3, 2), uniform(3, 2), np.abs(uniform(3, 2))
record("SGDOptimizer", [rate, w, g], 2)
for mode in [0, 1]:
    for correct in [0, 1]:
        settings = {"do_bias_correction": correct, "weight_decay_mode": mode}
        record(
            "AdamOptimizer", [rate, step, w, g, m, v], 5,
            alpha=0.8, beta=0.95, epsilon=1e-3, **{"lambda": 0.05}, **settings,
        )  # fmt: skip

# Recurrence: the gradient's inputs are what the forward gives.
s, b, i, h = 4, 2, 3, 5
sequence = uniform(s, b, i)
lstm = [uniform(1, 4 * h, i), uniform(1, 4 * h, h), uniform(1, 8 * h)]
start = [uniform(1, b, h), uniform(1, b, h)]
peepholes = uniform(1, 3 * h)
names: dict[str, Any] = {"hidden_size": h, "direction": "forward", "input_forget": 0}
all_h, last_h, last_c, all_c, gates = record(
    "LSTMTraining", [sequence, *lstm, None, *start, peepholes], 5, **names
)
record(
    "LSTMGrad",
    [sequence, lstm[0], lstm[1], None, *start, all_h, all_c, gates,
     uniform(*all_h.shape), uniform(*last_h.shape), uniform(*last_c.shape)],
    6, **names,
)  # fmt: skip
for before in [0, 1]:
    gru = [uniform(1, 3 * h, i), uniform(1, 3 * h, h), uniform(1, 6 * h)]
    names = {"hidden_size": h, "direction": "forward", "linear_before_reset": before}
    all_h, last_h, gates = record("GRUTraining", [sequence, *gru, None, start[0]], 3, **names)
    record(
        "GRUGrad",
        [sequence, *gru, None, start[0], all_h, gates, uniform(*all_h.shape), uniform(*last_h.shape)],
        5, **names,
    )  # fmt: skip

(HERE / "cases.json").write_text(
    "[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n"
)
np.savez_compressed(HERE / "cases.npz", data=np.frombuffer(b"".join(data), np.uint8))
print(
    f"{len(cases)} cases of {len({case['op'] for case in cases})} operators by onnxruntime {onnxruntime.__version__}"
)
