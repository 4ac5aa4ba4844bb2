"""If only one position is selected at the end of a model, its last layers compute only that position."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import InferenceSession, SessionOptions, artifacts
from training import Training

BATCH, LENGTH, WIDTH, HEADS = 3, 6, 8, 2
LAST = np.iinfo(np.int64).max

Selection = Callable[["Builder", str], str]


class Builder:
    """Nodes and weights of a model."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, npt.NDArray[np.generic]] = {}
        self.rng = np.random.default_rng(7)

    def add(self, op: str, *inputs: str, **attributes: object) -> str:
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = (0.4 * self.rng.standard_normal(shape)).astype(np.float32)
        return name

    def integers(self, values: int | list[int] | list[list[int]]) -> str:
        name = f"i{len(self.weights)}"
        self.weights[name] = np.array(values, np.int64)
        return name

    def linear(self, x: str, inside: int, outside: int) -> str:
        return self.add("Add", self.weight(outside), self.add("MatMul", x, self.weight(inside, outside)))

    def norm(self, x: str) -> str:
        return self.add("LayerNormalization", x, self.weight(WIDTH), self.weight(WIDTH), axis=-1)

    def heads(self, x: str, order: list[int], fixed_length: bool) -> str:
        if fixed_length:
            shape = self.integers([-1, LENGTH, HEADS, WIDTH // HEADS])
        else:
            parts = [self.add("Shape", x, start=0, end=2), self.integers([HEADS, -1])]
            shape = self.add("Concat", *parts, axis=0)
        return self.add("Transpose", self.add("Reshape", x, shape), perm=order)

    def layer(self, x: str, fixed_length: bool) -> str:
        """Self-attention with a causal mask, and a feed-forward part."""
        q, k, v = (self.linear(x, WIDTH, WIDTH) for _ in range(3))
        scores = self.add(
            "MatMul",
            self.heads(q, [0, 2, 1, 3], fixed_length),
            self.heads(k, [0, 2, 3, 1], fixed_length),
        )
        self.weights["mask"] = np.triu(np.full((LENGTH, LENGTH), -1e4, np.float32), 1)
        weights = self.add("Softmax", self.add("Add", scores, "mask"), axis=-1)
        mixed = self.add("MatMul", weights, self.heads(v, [0, 2, 1, 3], fixed_length))
        flat = self.add(
            "Reshape",
            self.add("Transpose", mixed, perm=[0, 2, 1, 3]),
            self.integers([0, 0, WIDTH]) if not fixed_length else self.integers([-1, LENGTH, WIDTH]),
        )
        x = self.norm(self.add("Add", x, self.linear(flat, WIDTH, WIDTH)))
        inner = self.add("Relu", self.linear(x, WIDTH, 3 * WIDTH))
        return self.norm(self.add("Add", x, self.linear(inner, 3 * WIDTH, WIDTH)))

    def model(self, outputs: list[str]) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "classifier",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", LENGTH, WIDTH])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        )


def gathered(index: int, scalar: bool = True) -> Selection:
    def select(b: Builder, x: str) -> str:
        found = b.add("Gather", x, b.integers(index if scalar else [index]), axis=1)
        return found if scalar else b.add("Reshape", found, b.integers([-1, WIDTH]))

    return select


def sliced(begin: int, end: int) -> Selection:
    def select(b: Builder, x: str) -> str:
        bounds = [b.integers([value]) for value in (begin, end, 1, 1)]
        return b.add("Reshape", b.add("Slice", x, *bounds), b.integers([-1, WIDTH]))

    return select


def classifier(select: Selection, fixed_length: bool = True) -> tuple[onnx.ModelProto, str]:
    """Return a model of two layers and the name of the output of the last layer."""
    b = Builder()
    last = b.layer(b.layer("x", fixed_length), fixed_length)
    return b.model([b.linear(select(b, last), WIDTH, 4)]), last


def make(folder: pathlib.Path, model: onnx.ModelProto, disabled: list[str], outputs: list[str]) -> set[str]:
    """Create artifacts; return the values of the training model."""
    artifacts.generate_artifacts(
        model,
        requires_grad=[t.name for t in model.graph.initializer if t.name.startswith("w")],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
        additional_output_names=outputs,
        disabled_passes=disabled,
    )
    training = onnx.load(folder / "training_model.onnx")
    return {name for node in training.graph.node for name in node.output}


def train(folder: pathlib.Path) -> tuple[list[float], dict[str, npt.NDArray[np.float32]]]:
    """Return the losses of three steps and the gradients of the first."""
    rng = np.random.default_rng(3)
    session = Training(folder)
    losses, gradients = [], {}
    for step in range(3):
        session.module.train()
        x = rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
        losses.append(session.loss(x, rng.integers(0, 4, BATCH)))
        if step == 0:
            gradients = session.gradients()
        session.optimizer.step()
        session.module.lazy_reset_grad()
    return [*losses, session.evaluate(x, np.zeros(BATCH, np.int64))], gradients


def gathered_in_a_matrix(b: Builder, x: str) -> str:
    """The index has two axes, which replace one axis in the result."""
    return b.add("Squeeze", b.add("Gather", x, b.integers([[0]]), axis=1), b.integers([1, 2]))


SELECTIONS = {
    "an index of two axes": gathered_in_a_matrix,
    "first": gathered(0),
    "last": gathered(-1),
    "inner": gathered(3),
    "inner from the end": gathered(-2),
    "first, axis kept": gathered(0, scalar=False),
    "slice of the first": sliced(0, 1),
    "slice of the last": sliced(-1, LAST),
    "slice of an inner one": sliced(2, 3),
}


@pytest.mark.parametrize("fixed_length", [True, False])
@pytest.mark.parametrize("name", SELECTIONS)
def test_training_goes_the_same_way(tmp_path: pathlib.Path, name: str, fixed_length: bool) -> None:
    model, _ = classifier(SELECTIONS[name], fixed_length)
    early = make(tmp_path / "early", model, [], [])
    late = make(tmp_path / "late", model, ["hoist_selection"], [])
    assert not any("_selected" in value for value in late)
    assert any("_selected" in value for value in early)
    found, expected = train(tmp_path / "early"), train(tmp_path / "late")
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-5)
    assert found[1].keys() == expected[1].keys()
    for parameter, gradient in expected[1].items():
        np.testing.assert_allclose(
            found[1][parameter], gradient, rtol=1e-4, atol=1e-6, err_msg=f"gradient of {parameter}"
        )


def test_only_the_last_layer_is_left_out(tmp_path: pathlib.Path) -> None:
    model, _ = classifier(gathered(0))
    make(tmp_path, model, [], [])
    training = onnx.load(tmp_path / "training_model.onnx")
    selected = [n for n in training.graph.node if n.op_type == "Gather" and "_selected" in n.output[0]]
    # The positions interact in the attention of the last layer: before it is the output of the first layer, after it
    # the mask of the single remaining query.
    assert {n.input[0] for n in selected} == {"mask", "LayerNormalization_28"}


def test_values_that_somebody_reads_stay_whole(tmp_path: pathlib.Path) -> None:
    model, last = classifier(gathered(0))
    assert not any("_selected" in value for value in make(tmp_path, model, [], [last]))


@pytest.mark.parametrize("name", SELECTIONS)
def test_inference_goes_the_same_way(name: str) -> None:
    model, _ = classifier(SELECTIONS[name])
    x = np.random.default_rng(5).standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    found = []
    for off in ("0", "1"):
        options = SessionOptions()
        options.add_session_config_entry("ortrain.disable_pass.hoist_selection", off)
        found.append(InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)


def test_a_slice_beyond_the_end_stays_empty() -> None:
    b = Builder()
    bounds = [b.integers([value]) for value in (LENGTH, LENGTH + 1, 1)]
    model = b.model([b.add("Slice", b.linear("x", WIDTH, 4), *bounds)])
    x = np.ones((BATCH, LENGTH, WIDTH), np.float32)
    assert InferenceSession(model.SerializeToString()).run(None, {"x": x})[0].shape == (BATCH, 0, 4)


def test_a_normalization_whose_scale_knows_positions_stays_whole() -> None:
    b = Builder()
    normal = b.add("LayerNormalization", b.linear("x", WIDTH, WIDTH), b.weight(LENGTH, WIDTH), axis=-1)
    model = b.model([b.add("Gather", normal, b.integers(1), axis=1)])
    x = b.rng.standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32)
    found = []
    for off in ("0", "1"):
        options = SessionOptions()
        options.add_session_config_entry("ortrain.disable_pass.hoist_selection", off)
        try:
            found.append(InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0].tolist())
        except RuntimeError as error:
            found.append(str(error))
    assert found[0] == found[1]


def test_an_unknown_pass_is_named(tmp_path: pathlib.Path) -> None:
    model, _ = classifier(gathered(0))
    with pytest.raises(
        ValueError, match=r"found 'fuse_everything'; the passes of this phase are .*hoist_selection"
    ):
        make(tmp_path, model, ["fuse_everything"], [])
