"""Models from onnxruntime's optimizers and quantizers train like the originals, and their exports run there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import InferenceSession, artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from processor import adds_byte_products_exactly

onnxruntime = pytest.importorskip("onnxruntime")

Array = npt.NDArray[Any]
MICROSOFT = "com.microsoft"
HIDDEN, WORDS, POSITIONS, CLASSES = 8, 20, 6, 3


class Model:
    """A model under construction: nodes in order, and weights that depend only on their name."""

    def __init__(self, opset: int = 17):
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def weight(self, name: str, *shape: int, around: float = 0) -> str:
        random = np.random.default_rng([*name.encode()])
        self.weights[name] = (around + 0.3 * random.normal(size=shape)).astype(np.float32)
        return name

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.weights[name] = np.array(value, dtype)
        return name

    def __call__(
        self, op: str, inputs: Sequence[str], output: str | list[str] = "", **attributes: Any
    ) -> str:
        domain = MICROSOFT if attributes.pop("microsoft", False) else ""
        output = output or f"v{len(self.nodes)}"
        outputs = [output] if isinstance(output, str) else list(output)
        self.nodes.append(
            helper.make_node(op, list(inputs), outputs, f"node{len(self.nodes)}", domain=domain, **attributes)
        )
        return outputs[0]

    def build(
        self, inputs: dict[str, tuple[int, list[int | str]]], output: str, classes: int = CLASSES
    ) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["n", classes])],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        imports = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)


def train(
    model: onnx.ModelProto,
    parameters: list[str],
    feeds: list[Array],
    folder: Path,
    steps: int = 12,
    rate: float = 0.02,
) -> list[float]:
    """The losses of some steps on one batch, and after the last one; writes the inference model to the folder."""
    folder.mkdir()
    artifacts.generate_artifacts(
        model,
        requires_grad=parameters,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(rate)
    losses = []
    for _ in range(steps):
        losses.append(float(module(*feeds)))
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()
    losses.append(float(module(*feeds)))
    module.export_model_for_inferencing(folder / "inference.onnx", [model.graph.output[0].name])
    return losses


def in_onnxruntime(path: Path, names: list[str], feeds: list[Array]) -> Array:
    options = onnxruntime.SessionOptions()
    if not adds_byte_products_exactly():
        # Makes them exact. With VNNI, where they are, it breaks models with a QGemm of signed bytes instead.
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, dict(zip(names, feeds, strict=True)))[0])


def cross_entropy(logits: Array, labels: Array) -> float:
    z = logits - logits.max(1, keepdims=True)
    return float((np.log(np.exp(z).sum(1)) - z[np.arange(len(labels)), labels]).mean())


def types(model: onnx.ModelProto) -> set[str]:
    return {node.op_type for node in model.graph.node}


# An encoder, with everything that can be fused written as separate steps or as one node.


def gelu(m: Model, x: str, tag: str) -> str:
    ratio = m("Div", [x, m.constant(f"{tag}.root", np.sqrt(2))])
    cdf = m("Add", [m("Erf", [ratio]), m.constant(f"{tag}.one", 1)])
    return m("Mul", [m("Mul", [x, cdf]), m.constant(f"{tag}.half", 0.5)])


def fast_gelu(m: Model, x: str, tag: str) -> str:
    cube = m("Mul", [m("Mul", [x, x]), m("Mul", [x, m.constant(f"{tag}.c", 0.044715)])])
    inner = m("Mul", [m("Add", [x, cube]), m.constant(f"{tag}.s", np.sqrt(2 / np.pi))])
    one = m("Add", [m("Tanh", [inner]), m.constant(f"{tag}.one", 1)])
    return m("Mul", [m("Mul", [x, one]), m.constant(f"{tag}.half", 0.5)])


def encoder(fused: bool) -> onnx.ModelProto:
    m = Model()

    def affine(name: str) -> list[str]:
        return [m.weight(f"{name}.weight", HIDDEN, around=1), m.weight(f"{name}.bias", HIDDEN)]

    tables = [
        m.weight("word", WORDS, HIDDEN),
        m.weight("position", POSITIONS, HIDDEN),
        m.weight("segment", 2, HIDDEN),
    ]
    if fused:
        inputs = ["ids", "segments", *tables, *affine("ln0")]
        x = m("EmbedLayerNormalization", inputs, ["embedded", "mask_index"], epsilon=1e-5, microsoft=True)
    else:
        places = m.constant("places", np.arange(POSITIONS), np.int64)
        parts = [m("Gather", [t, i]) for t, i in zip(tables, ["ids", places, "segments"], strict=True)]
        x = m(
            "LayerNormalization",
            [m("Add", [m("Add", [parts[0], parts[1]]), parts[2]]), *affine("ln0")],
            axis=-1,
        )

    def skip(value: str, bias: str, other: str, name: str) -> str:
        if fused:
            inputs = [value, other, *affine(name), bias]
            return m("SkipLayerNormalization", inputs, epsilon=1e-5, microsoft=True)
        return m("LayerNormalization", [m("Add", [m("Add", [value, bias]), other]), *affine(name)], axis=-1)

    def product(value: str, name: str, *shape: int) -> str:
        return m("MatMul", [value, m.weight(f"{name}.weight", *shape)])

    # Attention with one head and no projections.
    if fused:
        scores = m("FusedMatMul", [x, x], transB=1, alpha=HIDDEN**-0.5, microsoft=True)
    else:
        scores = m(
            "Mul", [m("MatMul", [x, m("Transpose", [x], perm=[0, 2, 1])]), m.constant("scale", HIDDEN**-0.5)]
        )
    context = m("MatMul", [m("Softmax", [scores], axis=-1), x])
    x = skip(product(context, "out", HIDDEN, HIDDEN), m.weight("out.bias", HIDDEN), x, "ln1")
    for number, (kind, steps) in enumerate([("BiasGelu", gelu), ("FastGelu", fast_gelu)]):
        name, bias = f"up{number}", m.weight(f"up{number}.bias", 16)
        up = product(x, name, HIDDEN, 16)
        h = m(kind, [up, bias], microsoft=True) if fused else steps(m, m("Add", [up, bias]), name)
        x = skip(
            product(h, f"down{number}", 16, HIDDEN),
            m.weight(f"down{number}.bias", HIDDEN),
            x,
            f"ln{number + 2}",
        )
    first = m("Gather", [x, m.constant("zero", 0, np.int64)], axis=1)
    pool = [first, m.weight("pool.weight", HIDDEN, HIDDEN), m.weight("pool.bias", HIDDEN)]
    tanh = {"activation": "Tanh", "microsoft": True}
    pooled = m("FusedGemm", pool, **tanh) if fused else m("Tanh", [m("Gemm", pool)])
    m("Gemm", [pooled, m.weight("head.weight", HIDDEN, CLASSES), m.weight("head.bias", CLASSES)], "logits")
    element = TensorProto.INT32
    return m.build({"ids": (element, ["n", POSITIONS]), "segments": (element, ["n", POSITIONS])}, "logits")


def encoder_batch() -> list[Array]:
    random = np.random.default_rng(3)
    ids = random.integers(0, WORDS, (16, POSITIONS)).astype(np.int32)
    return [ids, random.integers(0, 2, ids.shape).astype(np.int32), ids.sum(1).astype(np.int64) % CLASSES]


def test_an_encoder_with_fused_nodes_trains_like_its_single_steps(tmp_path: Path) -> None:
    fused, plain = encoder(True), encoder(False)
    assert {
        "EmbedLayerNormalization",
        "SkipLayerNormalization",
        "FusedMatMul",
        "BiasGelu",
        "FastGelu",
        "FusedGemm",
    } <= types(fused)
    assert not any(node.domain for node in plain.graph.node)
    feeds = encoder_batch()
    parameters = [
        i.name for i in fused.graph.initializer if "." in i.name or i.name in ("word", "position", "segment")
    ]
    losses = train(fused, parameters, feeds, tmp_path / "fused", steps=25)
    expected = train(plain, parameters, feeds, tmp_path / "plain", steps=25)
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    assert losses[-1] < 0.6 * losses[0]
    # The exported model is fused like the given one, and stock onnxruntime computes the same from both.
    inference = onnx.load(tmp_path / "fused" / "inference.onnx")
    assert types(fused) <= types(inference)
    logits = [
        in_onnxruntime(tmp_path / kind / "inference.onnx", ["ids", "segments"], feeds[:2])
        for kind in ("fused", "plain")
    ]
    np.testing.assert_allclose(logits[0], logits[1], 2e-3, 2e-3)
    assert abs(cross_entropy(logits[0], feeds[2]) - losses[-1]) < 1e-4


@pytest.mark.parametrize("level", ["ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"])
def test_a_model_that_onnxruntime_optimized_trains_like_it_did_before(level: str, tmp_path: Path) -> None:
    plain = encoder(False)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(plain.SerializeToString(), options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(tmp_path / "optimized.onnx")
    if level == "ORT_ENABLE_EXTENDED":
        assert {"SkipLayerNormalization", "FusedMatMul", "BiasGelu", "FusedGemm"} <= types(optimized)
    kept = {i.name for i in optimized.graph.initializer}
    parameters = [
        i.name for i in plain.graph.initializer if i.name in kept and "." in i.name and i.data_type == 1
    ]
    parameters = [name for name in parameters if name.endswith(("weight", "bias"))]
    assert len(parameters) > 20
    feeds = encoder_batch()
    losses = train(optimized, parameters, feeds, tmp_path / "optimized")
    expected = train(plain, parameters, feeds, tmp_path / "plain")
    np.testing.assert_allclose(losses, expected, rtol=2e-4)
    assert losses[-1] < losses[0]


# Quantization.


def classifier(m: Model, x: str, dense: Callable[[str, str, int, int], str]) -> str:
    """Three layers; `dense` multiplies with a named weight."""
    sizes = [(12, 32), (32, 32), (32, CLASSES)]
    for number, (rows, columns) in enumerate(sizes):
        x = m("Add", [dense(x, f"fc{number}", rows, columns), m.weight(f"fc{number}.bias", columns)])
        if number < 2:
            x = m("Relu", [x])
    return x


def classifier_batch() -> list[Array]:
    x = np.random.default_rng(4).normal(size=(32, 12)).astype(np.float32)
    return [x, (np.abs(x[:, :CLASSES]) * 2 + x[:, 3:6]).argmax(1)]


@pytest.mark.parametrize("activation", [np.uint8, np.int8])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("opset", [13, 17, 21])
def test_a_model_with_quantized_weights_and_activations_trains(
    activation: Any, per_channel: bool, opset: int, tmp_path: Path
) -> None:
    m = Model(opset)

    def through(value: str, name: str, scale: Any, zero: Any, dtype: Any, axis: int) -> str:
        parameters = [m.constant(f"{name}_scale", scale), m.constant(f"{name}_zero", zero, dtype)]
        attributes = {"axis": axis} if np.ndim(scale) else {}
        code = m("QuantizeLinear", [value, *parameters], **attributes)
        return m("DequantizeLinear", [code, *parameters], **attributes)

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        weight = m.weight(f"{name}.weight", rows, columns)
        steps = np.abs(m.weights[weight]).max(axis=0 if per_channel else None) / 100
        w = through(weight, f"{name}.w", steps, np.zeros_like(steps), np.int8, 1)
        return m(
            "MatMul", [through(x, f"{name}.x", 0.04, 128 if activation is np.uint8 else 0, activation, 1), w]
        )

    m("Identity", [classifier(m, "x", dense)], "logits")
    model = m.build({"x": (TensorProto.FLOAT, ["n", 12])}, "logits")
    parameters = [name for name in m.weights if name.endswith((".weight", ".bias"))]
    feeds = classifier_batch()
    losses = train(model, parameters, feeds, tmp_path / "quantized", steps=40, rate=0.01)
    assert losses[-1] < 0.6 * losses[0]
    # The exported model is quantized like the given one, and stock onnxruntime computes the loss of our eval model.
    logits = in_onnxruntime(tmp_path / "quantized" / "inference.onnx", ["x"], feeds[:1])
    assert "QuantizeLinear" in types(onnx.load(tmp_path / "quantized" / "inference.onnx"))
    # An activation on the edge between two codes may be rounded to either.
    assert abs(cross_entropy(logits, feeds[1]) - losses[-1]) < 0.01


def image_model() -> onnx.ModelProto:
    m = Model()
    x = m(
        "Relu",
        [m("Conv", ["x", m.weight("c0.weight", 4, 3, 3, 3), m.weight("c0.bias", 4)], pads=[1, 1, 1, 1])],
    )
    y = m(
        "Sigmoid",
        [m("Conv", [x, m.weight("c1.weight", 4, 4, 3, 3), m.weight("c1.bias", 4)], pads=[1, 1, 1, 1])],
    )
    x = m("LeakyRelu", [m("Mul", [m("Add", [x, y]), y])], alpha=0.1)
    x = m("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    x = m("Flatten", [m("GlobalAveragePool", [m("Concat", [x, x], axis=1)])])
    x = m("Gemm", [x, m.weight("fc.weight", 8, 6), m.weight("fc.bias", 6)])
    m("MatMul", [x, m.weight("head.weight", 6, CLASSES)], "logits")
    return m.build({"x": (TensorProto.FLOAT, ["n", 3, 8, 8])}, "logits")


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("activation", "weight"), [("QUInt8", "QInt8"), ("QInt8", "QInt8"), ("QUInt8", "QUInt8")]
)
def test_what_the_quantizer_writes_runs_as_in_onnxruntime(
    form: str, per_channel: bool, activation: str, weight: str, tmp_path: Path
) -> None:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Batches(quantization.CalibrationDataReader):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.left = [
                {"x": np.random.default_rng(i).normal(size=(4, 3, 8, 8)).astype(np.float32)} for i in range(4)
            ]

        def get_next(self) -> dict[str, Array] | None:
            return self.left.pop() if self.left else None

    onnx.save(image_model(), tmp_path / "float.onnx")
    quantization.quantize_static(
        tmp_path / "float.onnx", tmp_path / "quantized.onnx", Batches(), per_channel=per_channel,
        quant_format=quantization.QuantFormat[form], activation_type=quantization.QuantType[activation],
        weight_type=quantization.QuantType[weight],
        # Without VNNI, onnxruntime adds products of signed bytes exactly in models with QDQ alone.
        reduce_range=form == "QOperator" and not adds_byte_products_exactly(),
    )  # fmt: skip
    found_types = types(onnx.load(tmp_path / "quantized.onnx"))
    if form == "QOperator":
        assert {
            "QLinearConv",
            "QLinearAdd",
            "QLinearMul",
            "QLinearSigmoid",
            "QLinearLeakyRelu",
        } <= found_types
        assert {"QLinearConcat", "QLinearAveragePool", "QLinearGlobalAveragePool", "QGemm"} <= found_types
    x = np.random.default_rng(9).normal(size=(16, 3, 8, 8)).astype(np.float32)
    expected = in_onnxruntime(tmp_path / "quantized.onnx", ["x"], [x])
    session = InferenceSession(tmp_path / "quantized.onnx")
    found = np.asarray(session.run(None, {"x": x})[0])
    # Values on the edge between two codes may be rounded to either, so a result may differ by a code or two.
    step = np.abs(expected).max() / 100
    assert np.abs(found - expected).max() <= 2 * step
    assert np.abs(found - expected).mean() <= 0.2 * step


@pytest.mark.parametrize("bits", [4, 8])
def test_an_adapter_on_packed_weights_trains(bits: int, tmp_path: Path) -> None:
    """Weights of few bits do not change; two thin matrices beside each are trained."""
    m = Model()
    block = 16

    def dense(x: str, name: str, rows: int, columns: int) -> str:
        random = np.random.default_rng(rows + columns)
        blocks = -(-rows // block)
        codes = random.integers(0, 256, (columns, blocks, block * bits // 8)).astype(np.uint8)
        m.weights[f"{name}.codes"] = codes
        m.weights[f"{name}.scales"] = (
            random.uniform(0.01, 0.03, (columns * blocks)).astype(np.float32) * 16 / 2**bits
        )
        packed = [x, f"{name}.codes", f"{name}.scales"]
        y = m("MatMulNBits", packed, K=rows, N=columns, bits=bits, block_size=block, microsoft=True)
        thin = m("MatMul", [x, m.weight(f"{name}.a", rows, 4)])
        return m("Add", [y, m("MatMul", [thin, m.weight(f"{name}.b", 4, columns)])])

    m("Identity", [classifier(m, "x", dense)], "logits")
    model = m.build({"x": (TensorProto.FLOAT, ["n", 12])}, "logits")
    parameters = [name for name in m.weights if name.endswith((".a", ".b"))]
    feeds = classifier_batch()
    losses = train(model, parameters, feeds, tmp_path / "packed", steps=40)
    assert losses[-1] < 0.5 * losses[0]
    inference = onnx.load(tmp_path / "packed" / "inference.onnx")
    assert "MatMulNBits" in types(inference)
    logits = in_onnxruntime(tmp_path / "packed" / "inference.onnx", ["x"], feeds[:1])
    assert abs(cross_entropy(logits, feeds[1]) - losses[-1]) < 1e-3


def test_packed_weights_that_should_be_trained_are_refused_with_their_name(tmp_path: Path) -> None:
    m = Model()
    m.weights["codes"] = np.zeros((CLASSES, 1, 8), np.uint8)
    m.weight("scales", CLASSES)
    m(
        "MatMulNBits",
        ["x", "codes", "scales"],
        "logits",
        K=12,
        N=CLASSES,
        bits=4,
        block_size=16,
        microsoft=True,
    )
    model = m.build({"x": (TensorProto.FLOAT, ["n", 12])}, "logits")
    with pytest.raises(Exception, match=r'freeze "scales"'):
        train(model, ["scales"], classifier_batch(), tmp_path / "refused")


def test_all_forms_that_cannot_be_expanded_are_named_at_once(tmp_path: Path) -> None:
    m = Model()
    h = m("FusedGemm", ["x", m.weight("a", 12, 4)], activation="Cubic", microsoft=True)
    m("FusedGemm", [h, m.weight("b", 4, CLASSES)], "logits", activation="Quartic", microsoft=True)
    model = m.build({"x": (TensorProto.FLOAT, ["n", 12])}, "logits")
    with pytest.raises(Exception, match=r"(?s)node0.*Cubic.*node1.*Quartic"):
        train(model, ["a", "b"], classifier_batch(), tmp_path / "refused")
