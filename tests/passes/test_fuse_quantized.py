"""Convolutions and products between DequantizeLinear and QuantizeLinear: which are computed in integers, and their values.

The oracle is the model evaluated in float by the reference evaluator of onnx.
"""

from __future__ import annotations

import pathlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from ortrain import artifacts
from ortrain.api import CheckpointState, Module

Array = NDArray[Any]


@dataclass
class Layer:
    """A convolution or product of codes x with weights, and what is around it."""

    op: str = "Conv"
    x_shape: tuple[int, ...] = (2, 4, 9, 7)
    w_shape: tuple[int, ...] = (6, 4, 3, 3)
    attributes: dict[str, Any] = field(default_factory=lambda: {"pads": [1, 1, 1, 1]})
    x_type: Any = np.uint8
    w_type: Any = np.int8
    y_type: Any = np.uint8
    x_zero: int | None = 120
    y_zero: int | None = 0
    w_axis: int | None = 0  # that of its scales; None: a single one
    w_zero: int | None = 0
    bias: str = "float"  # or "int32" or ""
    activation: str = ""  # or "Relu" or "Clip"
    quantized: bool = True  # whether the result is quantized
    also: str = ""  # another value that is an output
    opset: int = 21
    scale_input: bool = False  # the scale of x is an input of the model

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array]]:
        """Return the model and its inputs."""
        rng = np.random.default_rng(3)
        info = np.iinfo(self.x_type)
        x = rng.integers(info.min, info.max + 1, self.x_shape).astype(self.x_type)
        w_info = np.iinfo(self.w_type)
        w = rng.integers(w_info.min, w_info.max + 1, self.w_shape).astype(self.w_type)
        count = 1 if self.w_axis is None else self.w_shape[self.w_axis]
        w_scale = rng.uniform(0.001, 0.004, count).astype(np.float32)
        x_scale = np.float32(0.031)
        filters = self.filters
        k = w.size / filters
        y_scale = np.float32(0.0025 * 60 * 2 * np.sqrt(k) * 0.031 * 60 / 40)
        values: dict[str, Any] = {"x_scale": x_scale, "w": w, "y_scale": y_scale}
        values["w_scale"] = w_scale if self.w_axis is not None else w_scale[0]
        nodes: list[onnx.NodeProto] = []

        def add(op: str, inputs: list[str], output: str, **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [output], **attributes))
            return output

        def zero(name: str, value: int | None, kind: Any, shape: tuple[int, ...] = ()) -> list[str]:
            if value is None:
                return []
            values[name] = np.full(shape, value, kind)
            return [name]

        inputs = ["x", "x_scale", *zero("x_zero", self.x_zero, self.x_type)]
        operands = [add("DequantizeLinear", inputs, "x_float")]
        shape = () if self.w_axis is None else (count,)
        axis = {} if self.w_axis is None else {"axis": self.w_axis}
        inputs = ["w", "w_scale", *zero("w_zero", self.w_zero, self.w_type, shape)]
        operands.append(add("DequantizeLinear", inputs, "w_float", **axis))
        if self.bias == "float":
            values["bias"] = rng.uniform(-1, 1, filters).astype(np.float32)
            operands.append("bias")
        elif self.bias == "int32":
            values["codes"] = rng.integers(-4000, 4000, filters).astype(np.int32)
            values["bias_scale"] = (x_scale * w_scale).astype(np.float32)
            operands.append(add("DequantizeLinear", ["codes", "bias_scale"], "bias", axis=0))
        value = add(self.op, operands, "made", **self.attributes)
        if self.activation == "Relu":
            value = add("Relu", [value], "bounded")
        elif self.activation == "Clip":
            values["low"], values["high"] = np.float32(-0.7), np.float32(3.1)
            value = add("Clip", [value, "low", "high"], "bounded")
        kind = TensorProto.FLOAT
        if self.quantized:
            inputs = [value, "y_scale", *zero("y_zero", self.y_zero, self.y_type)]
            value = add("QuantizeLinear", inputs, "y")
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.y_type))
        outputs = [helper.make_tensor_value_info(value, kind, None)]
        if self.also:
            outputs.append(helper.make_tensor_value_info(self.also, TensorProto.FLOAT, None))
        given = {"x": x}
        declared = [
            helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), [None, *x.shape[1:]])
        ]
        if self.scale_input:
            given["x_scale"] = np.asarray(values.pop("x_scale"))
            declared.append(helper.make_tensor_value_info("x_scale", TensorProto.FLOAT, []))
        constants = [numpy_helper.from_array(np.asarray(v), name) for name, v in values.items()]
        graph = helper.make_graph(nodes, "layer", declared, outputs, constants)
        return (
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10),
            given,
        )

    @property
    def filters(self) -> int:
        """Return the length of the bias."""
        if self.op == "Conv" or self.attributes.get("transB"):
            return self.w_shape[0]
        return self.w_shape[-1]


def rewritten(
    model: onnx.ModelProto, given: dict[str, Array], folder: pathlib.Path
) -> tuple[list[str], Array]:
    """Return the operators of the model that a session runs, and its first result."""
    options = ortrain.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    session = ortrain.InferenceSession(model.SerializeToString(), options)
    (y, *_) = session.run(None, given)
    return [node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node], np.asarray(y)


def check_codes(layer: Layer, folder: pathlib.Path, fused: bool) -> None:
    model, given = layer.model()
    types, y = rewritten(model, given, folder)
    assert ("QLinearConv" in types) == fused, types
    wanted = np.asarray(ReferenceEvaluator(model).run(None, given)[0])
    assert y.dtype == wanted.dtype
    difference = np.abs(y.astype(np.int64) - wanted.astype(np.int64))
    # The bias is rounded, and sums in float are too: a value near the middle between two codes may get either.
    assert difference.max() <= 1
    assert np.mean(difference) <= 0.01
    low, high = np.iinfo(y.dtype).min, np.iinfo(y.dtype).max
    assert np.mean((wanted > low) & (wanted < high)) > 0.2  # the case is not saturated


FUSED = {
    "per channel": Layer(),
    "per tensor": Layer(w_axis=None),
    "signed": Layer(x_type=np.int8, y_type=np.int8, x_zero=-7, y_zero=5),
    "unsigned weights": Layer(w_type=np.uint8, w_zero=128),
    "asymmetric weights": Layer(w_type=np.uint8, w_zero=101, w_axis=None),
    "axis counted from the end": Layer(w_axis=-4),
    "without zero points": Layer(x_zero=None, y_zero=None, w_zero=None),
    "mixed types": Layer(x_type=np.uint8, y_type=np.int8, y_zero=-3),
    "without bias": Layer(bias=""),
    "bias of int32": Layer(bias="int32"),
    "relu at the least code": Layer(activation="Relu", y_zero=0),
    "relu inside": Layer(activation="Relu", y_type=np.int8, y_zero=-20),
    "clip": Layer(activation="Clip", y_zero=90),
    "groups": Layer(w_shape=(6, 2, 3, 3), attributes={"group": 2}, activation="Clip", y_zero=90),
    "depthwise": Layer(
        x_shape=(1, 19, 12, 11),
        w_shape=(19, 1, 3, 3),
        attributes={"group": 19, "strides": [2, 2]},
        y_zero=100,
    ),
    "pointwise": Layer(w_shape=(70, 4, 1, 1), attributes={}),
    "strides": Layer(attributes={"strides": [2, 1], "auto_pad": "SAME_UPPER"}),
    "one axis": Layer(x_shape=(2, 5, 30), w_shape=(7, 5, 4), attributes={"dilations": [2]}),
}


@pytest.mark.parametrize("case", FUSED)
def test_convolutions_of_codes(case: str, tmp_path: pathlib.Path) -> None:
    check_codes(FUSED[case], tmp_path, fused=True)


KEPT = {
    "its result is an output": Layer(also="made"),
    "its activation is an output": Layer(activation="Relu", also="bounded"),
    "the scale is an input": Layer(scale_input=True),
    "codes of 16 bits": Layer(x_type=np.int16, x_zero=3),
    "weights of 16 bits": Layer(w_type=np.int16),
    "results of 16 bits": Layer(y_type=np.uint16, y_zero=3000),
    "scales along channels": Layer(w_axis=1),
}


@pytest.mark.parametrize("case", KEPT)
def test_convolutions_that_stay_in_float(case: str, tmp_path: pathlib.Path) -> None:
    layer = KEPT[case]
    model, given = layer.model()
    types, y = rewritten(model, given, tmp_path)
    assert "QLinearConv" not in types, types
    wanted = np.asarray(ReferenceEvaluator(model).run(None, given)[0])
    assert np.abs(y.astype(np.int64) - wanted.astype(np.int64)).max() <= 1


def product(**changes: Any) -> Layer:
    settings: dict[str, Any] = {
        "op": "MatMul", "x_shape": (5, 12), "w_shape": (12, 9), "attributes": {}, "w_axis": 1, "bias": "",
        "quantized": False, **changes,
    }  # fmt: skip
    return Layer(**settings)


PRODUCTS = {
    "product": product(),
    "batches": product(x_shape=(2, 3, 12)),
    "per tensor": product(w_axis=None, w_type=np.uint8, w_zero=99),
    "quantized": product(quantized=True, y_zero=110),
    "gemm": product(op="Gemm", bias="float"),
    "transposed": product(
        op="Gemm",
        bias="int32",
        w_shape=(9, 12),
        w_axis=0,
        attributes={"transB": 1},
        x_type=np.int8,
        x_zero=-5,
    ),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products_of_codes(case: str, tmp_path: pathlib.Path) -> None:
    layer = PRODUCTS[case]
    model, given = layer.model()
    types, y = rewritten(model, given, tmp_path)
    assert "MatMulIntegerToFloat" in types, types
    wanted = np.asarray(ReferenceEvaluator(model).run(None, given)[0])
    if layer.quantized:
        assert np.abs(y.astype(np.int64) - wanted.astype(np.int64)).max() <= 1
    else:
        np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


KEPT_PRODUCTS = {
    "alpha": product(op="Gemm", attributes={"alpha": 2.0}),
    "transposed codes": product(op="Gemm", x_shape=(12, 5), attributes={"transA": 1}),
    "scales along rows": product(w_axis=0),
    "the scale is an input": product(scale_input=True),
}


@pytest.mark.parametrize("case", KEPT_PRODUCTS)
def test_products_that_stay_in_float(case: str, tmp_path: pathlib.Path) -> None:
    model, given = KEPT_PRODUCTS[case].model()
    types, y = rewritten(model, given, tmp_path)
    assert "MatMulIntegerToFloat" not in types, types
    wanted = np.asarray(ReferenceEvaluator(model).run(None, given)[0])
    np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-5 * np.abs(wanted).max())


def test_a_chain_of_layers_gives_what_float_gives(tmp_path: pathlib.Path) -> None:
    """A network after quantization, whose layers follow one another with channels last."""
    rng = np.random.default_rng(0)
    nodes, constants, name = [], [], "x"
    for i, (channels, filters, groups, size) in enumerate(
        [(3, 8, 1, 3), (8, 8, 8, 3), (8, 20, 1, 1), (20, 6, 1, 3)]
    ):
        w = (
            rng.standard_normal((filters, channels // groups, size, size))
            * np.sqrt(2 * groups / channels)
            / size
        )
        constants += [
            numpy_helper.from_array(w.astype(np.float32), f"w{i}"),
            numpy_helper.from_array(rng.uniform(-0.2, 0.2, filters).astype(np.float32), f"b{i}"),
        ]
        pads = [size // 2] * 4
        nodes.append(helper.make_node("Conv", [name, f"w{i}", f"b{i}"], [f"c{i}"], pads=pads, group=groups))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"]))
        name = f"r{i}"
    info = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", c, 10, 11])
        for n, c in (("x", 3), (name, 6))
    ]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    x = rng.standard_normal((2, 3, 10, 11)).astype(np.float32)
    quantized = artifacts.quantize_static(model, [{"x": x}])
    types, y = rewritten(quantized, {"x": x}, tmp_path)
    assert types.count("QLinearConv") == 3  # the result of the last is not quantized
    wanted = np.asarray(ReferenceEvaluator(quantized).run(None, {"x": x})[0])
    assert np.abs(y - wanted).max() <= 0.03 * np.abs(wanted).max()


def test_training_sessions_keep_float(tmp_path: pathlib.Path) -> None:
    """A session that trains does not see the pass: the model that it runs has the operators of the file."""
    model, given = Layer().model()
    graph = model.graph
    graph.node.append(helper.make_node("DequantizeLinear", ["y", "y_scale", "y_zero"], ["z"]))
    graph.node.append(helper.make_node("GlobalAveragePool", ["z"], ["pooled"]))
    graph.node.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    graph.node.append(helper.make_node("MatMul", ["flat", "head"], ["logits"]))
    head = np.random.default_rng(1).standard_normal((6, 3)).astype(np.float32)
    graph.initializer.append(numpy_helper.from_array(head, "head"))
    del graph.output[:]
    graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, [None, 3]))
    artifacts.generate_artifacts(
        model,
        requires_grad=["head"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    options = ortrain.SessionOptions()
    options.add_session_config_entry("ortrain.dump_graph", str(tmp_path / "graphs"))
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(
        tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx", session_options=options
    )
    target = np.zeros((2, 3), np.float32)
    module.train()
    module(given["x"], target)
    module.eval()
    module(given["x"], target)
    written = sorted((tmp_path / "graphs").glob("*.onnx"))
    assert written
    for path in written:
        types = [node.op_type for node in onnx.load(path).graph.node]
        assert "QLinearConv" not in types, path.name
        assert "Conv" in types, path.name
