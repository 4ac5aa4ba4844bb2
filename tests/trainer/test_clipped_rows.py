"""Gradients clipped by row against loops over single rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from ortrain import Trainer, models
from ortrain.artifacts import LoRA
from ortrain.artifacts.graph.clipped_rows import with_clipped_rows
from ortrain.trainer.clipped_rows import ClippedRows

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 20, (13, 6))  # several positions of a row look up the same row of the table


def gpt_rows() -> list[Array]:
    return [IDS, np.ones_like(IDS), RNG.integers(0, 20, IDS.shape)]


def clipped_rows(trainer: Trainer, rows: int = 64) -> ClippedRows:
    return ClippedRows(trainer.module, trainer.state, trainer.folder, rows)


def numbers(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def rows_of(name: str) -> tuple[Trainer, list[Array]]:
    classes = RNG.integers(0, 5, 13)
    if name == "mlp":
        return Trainer(models.mlp(8, 5, (7,), seed=1), "cross_entropy"), [numbers(13, 8), classes]
    if name == "squares":
        return Trainer(models.mlp(8, 3, (7,), seed=1), "mse"), [numbers(13, 8), numbers(13, 3)]
    if name == "cnn":
        return Trainer(models.cnn((2, 12, 12), 5, seed=1), "cross_entropy"), [numbers(13, 2, 12, 12), classes]
    if name == "gpt":
        return Trainer(models.gpt(20, 6, 8, 2, 1, seed=1), "token_cross_entropy"), gpt_rows()
    if name == "some_tokens":
        ids, seen, labels = gpt_rows()
        labels[RNG.uniform(size=labels.shape) < 0.4] = -100
        labels[:, 0] = 3
        return Trainer(models.gpt(20, 6, 8, 2, 1, seed=1), "token_cross_entropy"), [ids, seen, labels]
    if name == "adapters":
        lora = LoRA(r=2, seed=1, bias="lora_only")
        return Trainer(models.gpt(20, 6, 8, 2, 1, seed=1), "token_cross_entropy", adapter=lora), gpt_rows()
    if name == "tied":
        return Trainer(tied(), "token_cross_entropy"), gpt_rows()
    if name == "twice":
        return Trainer(used_twice(), "cross_entropy"), [numbers(13, 8), classes]
    if name == "grouped":
        return Trainer(convolutions(), "cross_entropy"), [numbers(13, 4, 6, 5), classes]
    assert name == "frozen"
    made = models.mlp(8, 5, (7,), seed=1)
    return Trainer(made, "cross_entropy", frozen_params=["fc1.*"]), [numbers(13, 8), classes]


def tied() -> onnx.ModelProto:
    """A language model whose embedding is the output layer too."""
    model = models.gpt(20, 6, 8, 2, 1, seed=1)
    reader = next(node for node in model.graph.node if "lm_head.weight" in node.input)
    reader.input[1] = "turned"
    turned = helper.make_node("Transpose", ["embedding.weight"], ["turned"], perm=[1, 0])
    model.graph.node.insert(list(model.graph.node).index(reader), turned)
    head = next(tensor for tensor in model.graph.initializer if tensor.name == "lm_head.weight")
    model.graph.initializer.remove(head)
    return model


def used_twice() -> onnx.ModelProto:
    """A matrix that two products apply, the second one transposed."""
    tensors = {"fc.weight": numbers(8, 8), "out.weight": numbers(8, 5)}
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["a"]),
        helper.make_node("Tanh", ["a"], ["b"]),
        helper.make_node("Gemm", ["b", "fc.weight"], ["c"], transB=1, alpha=0.5),
        helper.make_node("MatMul", ["c", "out.weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["batch", 8])],
        [helper.make_tensor_value_info("y", 1, ["batch", 5])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def convolutions() -> onnx.ModelProto:
    """Convolutions with groups, strides, dilation and without a bias, and a bias of channels that an Add adds."""
    tensors = {
        "c1.weight": numbers(6, 2, 3, 2),
        "c2.weight": numbers(3, 6, 2, 2),
        "c2.bias": numbers(3),
        "shift": numbers(1, 6, 1, 1),
        "fc.weight": numbers(3, 5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "c1.weight"], ["a"], group=2, pads=[1, 0, 1, 1], dilations=[1, 2]),
        helper.make_node("Add", ["a", "shift"], ["b"]),
        helper.make_node("Tanh", ["b"], ["c"]),
        helper.make_node("Conv", ["c", "c2.weight", "c2.bias"], ["d"], strides=[2, 1]),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["f"]),
        helper.make_node("MatMul", ["f", "fc.weight"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", 1, ["batch", 4, 6, 5])],
        [helper.make_tensor_value_info("y", 1, ["batch", 5])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def one_by_one(trainer: Trainer, columns: list[Array]) -> tuple[Array, Array]:
    """The gradient and the loss of each row, by a step of the row alone."""
    module = trainer.module.train()
    gradients = np.zeros((len(columns[0]), module.get_parameters_size(True)), np.float32)
    losses = np.zeros(len(columns[0]))
    for row, gradient in enumerate(gradients):
        module.lazy_reset_grad()
        outputs = module(*(column[row : row + 1] for column in columns))
        losses[row] = float(
            np.asarray(outputs[0] if isinstance(outputs, (tuple, list)) else outputs).ravel()[0]
        )
        module.copy_gradients_to_buffer(gradient)
    module.lazy_reset_grad()
    return gradients.astype(np.float64), losses


NAMES = ["mlp", "squares", "cnn", "gpt", "some_tokens", "adapters", "grouped", "frozen", "tied", "twice"]


@pytest.mark.parametrize(("name", "kept"), [*((name, 1 << 16) for name in NAMES), ("cnn", 0), ("grouped", 0)])
def test_sums_are_those_of_a_loop_over_rows(name: str, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ortrain.artifacts.graph.clipped_rows._KEPT", kept)
    trainer, columns = rows_of(name)
    gradients, losses = one_by_one(trainer, columns)
    norms = np.linalg.norm(gradients, axis=1)
    clip = float(np.median(norms))
    expected = (gradients * np.minimum(1, clip / norms)[:, None]).sum(0)
    clipped = clipped_rows(trainer, 4)  # 13 rows are four steps, the last of which has one row
    found = clipped.add(columns, clip)
    np.testing.assert_allclose(found[0], norms, rtol=1e-5)
    np.testing.assert_allclose(found[1], losses, rtol=1e-5)
    total = clipped.take()
    assert np.linalg.norm(total - expected) < 1e-5 * np.linalg.norm(expected)
    # Parts of the rows add up, and no rows are a sum of zeros.
    for part in (slice(0, 5), slice(5, 5), slice(5, 13)):
        clipped.add([column[part] for column in columns], clip)
    again = clipped.take()
    assert np.linalg.norm(again - expected) < 1e-5 * np.linalg.norm(expected)
    clipped.add([column[:0] for column in columns], clip)
    assert not clipped.take().any()


def test_steps_follow_the_parameters_of_the_trainer() -> None:
    trainer, columns = rows_of("mlp")
    clipped = clipped_rows(trainer, 8)
    for _ in range(3):
        gradients, _ = one_by_one(trainer, columns)
        norms, _ = clipped.add(columns, 1e9)
        np.testing.assert_allclose(norms, np.linalg.norm(gradients, axis=1), rtol=1e-5)
        trainer.module.copy_buffer_to_gradients(clipped.take() / len(columns[0]))
        trainer.optimizer.step()
        trainer.module.lazy_reset_grad()
    assert not list(trainer.folder.glob("clipped_rows_*"))


def test_networks_that_mix_rows_are_found() -> None:
    """The mean over rows that the network subtracts makes each gradient depend on the others."""
    made = models.mlp(8, 5, (7,), seed=1)
    reader = next(node for node in made.graph.node if node.op_type == "Relu")
    made.graph.node.insert(
        list(made.graph.node).index(reader),
        helper.make_node("ReduceMean", [reader.input[0]], ["centre"], axes=[0], keepdims=1),
    )
    made.graph.node.insert(
        list(made.graph.node).index(reader), helper.make_node("Sub", [reader.input[0], "centre"], ["centred"])
    )
    reader.input[0] = "centred"
    trainer = Trainer(made, "cross_entropy")
    with pytest.raises(RuntimeError, match=r"the gradient of row 0 differs .* the network mixes rows"):
        clipped_rows(trainer, 4).add([numbers(9, 8), RNG.integers(0, 5, 9)], 1.0)


def test_what_cannot_be_clipped_is_named() -> None:
    trainer, columns = rows_of("mlp")
    model = onnx.load(trainer.folder / "training_model.onnx")
    with pytest.raises(ValueError, match="rows: expected 2 or more, found 1"):
        with_clipped_rows(model, 1)
    with pytest.raises(ValueError, match="expected a training model with gradients, found none"):
        with_clipped_rows(models.mlp(8, 5, (7,), seed=1), 4)
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    next(
        v for v in wide.graph.input if "buffer" in v.name
    ).type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    with pytest.raises(ValueError, match=r"expected float gradients, found 'fc1\.weight_grad\..*' of double"):
        with_clipped_rows(wide, 4)
    weighted = Trainer(models.mlp(8, 5, (7,), seed=1), "cross_entropy", sample_weight=True)
    with pytest.raises(ValueError, match="expected a loss that is the mean of the losses of rows"):
        clipped_rows(weighted)
    recurrent = Trainer(models.gru(4, 5, 6, seed=1), "cross_entropy")
    with pytest.raises(
        ValueError, match=r"the gradient of '.*' is computed by .*; expected a matrix product"
    ):
        clipped_rows(recurrent)
    pictures = Trainer(models.resnet((3, 8, 8), 5, seed=1), "cross_entropy")
    with pytest.raises(ValueError, match="clipping by row: BatchNormInternal BatchNormalization1 mixes rows"):
        clipped_rows(pictures)
    clipped = clipped_rows(trainer, 4)
    with pytest.raises(ValueError, match="clip: expected a norm above 0, found 0"):
        clipped.add(columns, 0)
    with pytest.raises(
        ValueError, match=r"columns: expected 2 arrays of as many rows \(x, labels\), found 1 of"
    ):
        clipped.add(columns[:1], 1.0)
    broken = [columns[0].copy(), columns[1]]
    clipped.add(columns, 1.0)
    broken[0][3] = np.nan
    with pytest.raises(ValueError, match="expected a finite gradient of row 3, found the norm nan"):
        clipped.add(broken, 1.0)
