"""ortrain.mixed_precision = bf16: as good as float32 within bfloat16's accuracy, and float32 wherever a user looks."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import onnx
import pytest
import training
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, SessionOptions, artifacts
from ortrain.api import CheckpointState
from processor import flags, multiplies_bfloat16
from recorded import Fixture

DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples/digits"
STEPS = 200

# Products in float32 of operands that are stored in bfloat16, and products of bfloat16 operands.
PRODUCTS = ["fp32", "bf16"]


class Training(training.Training):
    """A session in mixed precision, or in float32 if `products` is None."""

    def __init__(
        self, folder: pathlib.Path, products: str | None, checkpoint: pathlib.Path | str = "checkpoint"
    ):
        mixed = {"ortrain.mixed_precision": "bf16", "ortrain.bf16_products": products}
        super().__init__(folder, {k: v for k, v in mixed.items() if v and products}, checkpoint=checkpoint)

    def gradients_of(self, x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
        """Return the gradients of one train step."""
        self.module.train()
        self.loss(x, y)
        return self.gradients()


@pytest.mark.parametrize("products", PRODUCTS)
def test_losses_are_those_of_float32_within_one_percent(recorded: Fixture, products: str) -> None:
    # Another test checks that float32 reproduces the recorded losses; here no schedule runs.
    exact, mixed = Training(recorded.folder, None), Training(recorded.folder, products)
    batches = recorded.batches
    np.testing.assert_allclose(
        [mixed.step(x, y) for x, y in batches], [exact.step(x, y) for x, y in batches], rtol=1e-2
    )
    np.testing.assert_allclose(
        [mixed.evaluate(x, y) for x, y in batches[:3]],
        [exact.evaluate(x, y) for x, y in batches[:3]],
        rtol=1e-2,
    )


class Weights:
    """The initializers of a network."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(4)
        self.tensors: list[onnx.TensorProto] = []
        self.trainable: list[str] = []

    def __call__(self, name: str, *shape: int, frozen: bool = False, value: float | None = None) -> str:
        fan_in = max(1, int(np.prod(shape[1:])))
        data = (
            self.rng.normal(0, fan_in**-0.5, shape)
            if value is None
            else self.rng.uniform(0.5, 1.5, shape)
            if value
            else self.rng.normal(0, 0.3, shape)
        )
        self.tensors.append(numpy_helper.from_array(data.astype(np.float32), name))
        if not frozen:
            self.trainable.append(name)
        return name


node = helper.make_node


def convolutions(kind: str, weight: Weights) -> list[onnx.NodeProto]:
    """Return the nodes of a convolutional network, with one more kind of layer."""
    nodes = [
        node("Conv", ["x", weight("w1", 32, 3, 3, 3), weight("b1", 32, value=0)], ["c1"], pads=[1, 1, 1, 1])
    ]
    last = "c1"
    if kind == "batch_norm":
        state = [weight("m", 32, frozen=True, value=0), weight("v", 32, frozen=True, value=1)]
        nodes.append(
            node(
                "BatchNormalization",
                ["c1", weight("g", 32, value=1), weight("h", 32, value=0), *state],
                ["n1", "rm", "rv"],
                training_mode=1,
            )
        )
        last = "n1"
    nodes += [
        node("Tanh", [last], ["t1"]),
        node("Conv", ["t1", weight("w2", 32, 32, 3, 3)], ["c2"], strides=[2, 2], pads=[1, 1, 1, 1]),
        node("Sigmoid", ["c2"], ["t2"]),
    ]
    last = "t2"
    if kind == "pool":
        nodes.append(node("AveragePool", [last], ["p"], kernel_shape=[2, 2], strides=[2, 2]))
        nodes.append(node("Conv", ["p", weight("w3", 32, 32, 1, 1)], ["c3"]))
        nodes.append(node("Add", ["c3", "p"], ["s3"]))
        last = "s3"
    if kind in ("depthwise", "transposed"):
        if kind == "depthwise":
            nodes.append(node("Conv", [last, weight("w3", 32, 1, 3, 3)], ["d3"], group=32, pads=[1, 1, 1, 1]))
        else:
            parts = [weight("w3", 32, 32, 3, 3), weight("b3", 32, value=0)]
            nodes.append(node("ConvTranspose", [last, *parts], ["d3"], strides=[2, 2]))
        nodes.append(node("Tanh", ["d3"], ["t3"]))
        last = "t3"
    nodes += [
        node("GlobalAveragePool", [last], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", weight("w4", 10, 32), weight("b4", 10, value=0)], ["y"], transB=1),
    ]
    return nodes


def attention(weight: Weights) -> list[onnx.NodeProto]:
    """Return the nodes of a layer of a transformer."""
    heads = numpy_helper.from_array(np.array([0, 0, 4, 16], np.int64), "heads")
    merged = numpy_helper.from_array(np.array([0, 0, 64], np.int64), "merged")
    weight.tensors += [heads, merged, numpy_helper.from_array(np.float32(4), "root")]
    nodes = [
        node(
            "LayerNormalization",
            ["x", weight("g", 64, value=1), weight("h", 64, value=0)],
            ["n"],
        )
    ]
    for part in ("q", "k", "v"):
        nodes += [
            node("MatMul", ["n", weight(f"w{part}", 64, 64)], [f"{part}0"]),
            node("Add", [f"{part}0", weight(f"b{part}", 64, value=0)], [f"{part}1"]),
            node("Reshape", [f"{part}1", "heads"], [f"{part}2"]),
            node("Transpose", [f"{part}2"], [part], perm=[0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        node("MatMul", ["q", "k"], ["a"]),
        node("Div", ["a", "root"], ["a1"]),
        node("Softmax", ["a1"], ["a2"], axis=-1),
        node("MatMul", ["a2", "v"], ["o"]),
        node("Transpose", ["o"], ["o1"], perm=[0, 2, 1, 3]),
        node("Reshape", ["o1", "merged"], ["o2"]),
        node("MatMul", ["o2", weight("wo", 64, 64)], ["o3"]),
        node("Add", ["o3", "x"], ["r"]),
        node(
            "LayerNormalization",
            ["r", weight("g2", 64, value=1), weight("h2", 64, value=0)],
            ["r1"],
        ),
        node("MatMul", ["r1", weight("wf", 64, 96)], ["f"]),
        node("Tanh", ["f"], ["f1"]),
        node("ReduceMean", ["f1"], ["mean"], axes=[1], keepdims=0),
        node("Gemm", ["mean", weight("wy", 10, 96), weight("by", 10, value=0)], ["y"], transB=1),
    ]
    return nodes


def products(weight: Weights) -> list[onnx.NodeProto]:
    """Return the nodes of a network of matrix products."""
    return [
        node("Gemm", ["x", weight("w1", 64, 48), weight("b1", 64, value=0)], ["a"], transB=1),
        node("Tanh", ["a"], ["a1"]),
        node("MatMul", ["a1", weight("w2", 64, 64)], ["b"]),
        node("Add", ["b", weight("b2", 64, value=0)], ["b1_"]),
        node("Sigmoid", ["b1_"], ["b2_"]),
        node("Mul", ["b2_", "a1"], ["c"]),
        node("Sub", ["c", "b"], ["c1"]),
        node("Gemm", ["c1", weight("w3", 10, 64), weight("b3", 10, value=0)], ["y"], transB=1),
    ]


def few_bits(weight: Weights) -> list[onnx.NodeProto]:
    """Return the nodes of a network whose layers in the middle get weights of 4 bits, with and without a bias."""
    return [
        node("Gemm", ["x", weight("w1", 64, 48), weight("b1", 64, value=0)], ["a"], transB=1),
        node("Tanh", ["a"], ["a1"]),
        node("MatMul", ["a1", weight("up.weight", 64, 300, frozen=True)], ["b"], "up"),
        node("Add", ["b", weight("b2", 300, value=0)], ["b1_"]),
        node("Sigmoid", ["b1_"], ["b2_"]),
        node("MatMul", ["b2_", weight("down.weight", 300, 64, frozen=True)], ["c"], "down"),
        node("Add", ["c", "a1"], ["c1"]),
        node("Gemm", ["c1", weight("w3", 10, 64), weight("b3", 10, value=0)], ["y"], transB=1),
    ]


def network(kind: str) -> tuple[onnx.ModelProto, list[str], tuple[int, ...]]:
    """Create a small network without kinks: if rounding moves a value across one, gradients differ by more."""
    weight = Weights()
    shape: tuple[int, ...]
    if kind in ("conv", "batch_norm", "pool", "depthwise", "transposed"):
        shape, nodes = (8, 3, 12, 12), convolutions(kind, weight)
    elif kind == "attention":
        shape, nodes = (4, 24, 64), attention(weight)
    elif kind == "few_bits":
        shape, nodes = (40, 48), few_bits(weight)
    else:
        shape, nodes = (32, 48), products(weight)
    graph = helper.make_graph(
        nodes,
        kind,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", *shape[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 10])],
        weight.tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model, weight.trainable, shape


def make_artifacts(kind: str, folder: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Write the artifacts of a network; returns a batch for it."""
    model, trainable, shape = network(kind)
    if kind == "few_bits":
        model = artifacts.quantize_weights(model, skip=["w1", "w3"]).model
        assert sum(node.op_type == "MatMulNBits" for node in model.graph.node) == 2
    frozen = [w.name for w in model.graph.initializer if w.name in ("m", "v")]
    artifacts.generate_artifacts(
        model,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )
    rng = np.random.default_rng(1)
    return rng.normal(size=shape).astype(np.float32), rng.integers(0, 10, shape[0])


@pytest.mark.parametrize("products", PRODUCTS)
@pytest.mark.parametrize(
    "kind", ["gemm", "conv", "pool", "batch_norm", "depthwise", "transposed", "attention", "few_bits"]
)
def test_gradients_are_those_of_float32_within_bfloat16(
    kind: str, products: str, tmp_path: pathlib.Path
) -> None:
    batch = make_artifacts(kind, tmp_path)
    exact = Training(tmp_path, None).gradients_of(*batch)
    found = Training(tmp_path, products).gradients_of(*batch)
    largest = max(float(np.linalg.norm(g)) for g in exact.values())
    for name, gradient in exact.items():
        assert found[name].dtype == np.float32
        apart = float(np.linalg.norm(found[name] - gradient))
        # bfloat16 has 8 bits: a rounding is off by up to 1/256. Gradients that are sums of nearly cancelling terms have
        # the absolute error of the others.
        assert apart <= 0.02 * float(np.linalg.norm(gradient)) + 1e-3 * largest, (name, apart)


@pytest.mark.parametrize("products", PRODUCTS)
def test_two_runs_end_in_the_same_bits(products: str, tmp_path: pathlib.Path) -> None:
    batch = make_artifacts("batch_norm", tmp_path)
    ends = []
    for _ in range(2):
        training = Training(tmp_path, products)
        losses = [training.step(*batch) for _ in range(5)]
        ends.append((losses, {name: p.data.tobytes() for name, p in training.state.parameters}))
    assert ends[0] == ends[1]


def test_what_is_saved_is_float32_and_trains_on_in_float32(tmp_path: pathlib.Path) -> None:
    batch = make_artifacts("attention", tmp_path)
    mixed = Training(tmp_path, "bf16")
    for _ in range(3):
        mixed.step(*batch)
    saved = tmp_path / "mixed"
    CheckpointState.save_checkpoint(mixed.state, saved, include_optimizer_state=True)
    mixed.module.export_model_for_inferencing(tmp_path / "inference.onnx", ["y"])
    exported = onnx.load(tmp_path / "inference.onnx")
    assert TensorProto.BFLOAT16 not in {w.data_type for w in exported.graph.initializer}
    assert "Cast" not in {n.op_type for n in exported.graph.node}

    plain = Training(tmp_path, None, saved)
    for name, parameter in plain.state.parameters:
        assert parameter.data.dtype == np.float32
        np.testing.assert_array_equal(parameter.data, mixed.state.parameters[name].data)
    # Master weights are not rounded to bfloat16: nearly all of their lower halves are nonzero.
    lower = mixed.state.parameters["wq"].data.view(np.uint32) & 0xFFFF
    assert (lower != 0).mean() > 0.9
    np.testing.assert_allclose(plain.evaluate(*batch), mixed.evaluate(*batch), rtol=1e-2)
    assert plain.step(*batch) < mixed.evaluate(*batch) * 1.1


def test_outputs_are_float32(tmp_path: pathlib.Path) -> None:
    batch = make_artifacts("conv", tmp_path)
    training = Training(tmp_path, "bf16")
    loss = training.module(*batch)
    assert np.asarray(loss).dtype == np.float32


@pytest.mark.parametrize(
    ("key", "known"),
    [
        ("ortrain.mixed_precision", "'none', 'bf16'"),
        ("ortrain.bf16_products", "'auto', 'bf16', 'fp32'"),
    ],
)
def test_an_unknown_value_is_refused_with_the_known_ones(key: str, known: str) -> None:
    chosen = SessionOptions()
    with pytest.raises(OrtrainError, match=f"{key}: expected one of {known}, found 'fp8'"):
        chosen.add_session_config_entry(key, "fp8")


TWO_SESSIONS = """
import sys
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module
for _ in range(2):
    options = SessionOptions()
    options.add_session_config_entry("ortrain.mixed_precision", "bf16")
    options.add_session_config_entry("ortrain.bf16_products", sys.argv[2])
    state = CheckpointState.load_checkpoint(sys.argv[1] + "/checkpoint")
    Module(sys.argv[1] + "/training_model.onnx", state, session_options=options)
"""


def products_are_fast() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32, according to Linux."""
    path = pathlib.Path("/proc/cpuinfo")
    intel = path.exists() and "GenuineIntel" in path.read_text()
    return multiplies_bfloat16() and ("amx_bf16" in flags() or not (intel and "avx512_fp16" in flags()))


@pytest.mark.parametrize("products", ["auto", *PRODUCTS])
def test_sessions_that_gain_no_time_give_one_warning(mlp: Fixture, products: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS, str(mlp.folder), products],
        capture_output=True,
        text=True,
        check=True,
    )
    if products_are_fast() and "ortrain.mixed_precision" not in done.stderr:
        return
    assert done.stderr.count("[warning]") == 1
    assert "ortrain.mixed_precision = bf16" in done.stderr
    assert any(reason in done.stderr for reason in ("no instructions for bfloat16", "half the rate"))


@pytest.fixture
def digits(tmp_path: pathlib.Path):
    """The demo's data, and its artifacts in `tmp_path`."""
    sys.path.insert(0, str(DIGITS))
    import data
    import model

    network, trainable, frozen = model.build_model(seed=1)
    artifacts.generate_artifacts(
        network,
        requires_grad=trainable,
        frozen_params=frozen,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    yield data.load()
    sys.path.remove(str(DIGITS))
    for name in ("model", "data"):
        sys.modules.pop(name, None)


@pytest.mark.thorough
def test_digits_are_learned_as_well_as_in_float32(digits, tmp_path: pathlib.Path) -> None:
    train, test = digits

    def loss_after(products: str | None, seed: int) -> float:
        training = Training(tmp_path, products)
        rng = np.random.default_rng(seed)
        steps = 0
        while steps < STEPS:
            for x, y in train.batches(32, rng):
                if steps < STEPS:
                    training.step(x, y)
                    steps += 1
        return training.evaluate(test.images, test.labels)

    # Training is chaotic: one run's loss moves by a few percent with any rounding, the mean of three less.
    exact, *mixed = (np.mean([loss_after(p, seed) for seed in (1, 2, 3)]) for p in (None, *PRODUCTS))
    for loss in mixed:
        np.testing.assert_allclose(loss, exact, rtol=2e-2)
