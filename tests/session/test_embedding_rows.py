"""Steps over the rows of an embedding that batches read give the bits of steps over the whole table.

The oracle is the same session with the pass switched off that looks for such tables: its gradients are computed, added up,
measured and applied as a whole.
"""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import OrtrainError, artifacts
from ortrain.onnxblock import optim
from training import Training

Array = NDArray[Any]
ROWS, WIDTH, BATCH = 500, 19, 12  # whole vectors and a rest
DENSE = {"ortrain.disable_pass.accumulate_rows": "1"}
CLIP = optim.ClipGradNorm(0.01)
OPTIMIZERS = {
    "sgd": optim.SGD(),
    "sgd that clips": optim.SGD(clip_grad=CLIP),
    "sgd with decay": optim.SGD(weight_decay=0.1),
    "momentum": optim.SGD(momentum=0.9),
    "adagrad": optim.Adagrad(),
    "adagrad from a sum": optim.Adagrad(initial_sum=0.1),
    "adamw that clips": optim.AdamW(clip_grad=CLIP),
}


def embedding(
    folder: pathlib.Path, readers: int = 1, optimizer: Any = None, tied: bool = False
) -> pathlib.Path:
    """Write a classifier of the sum of embeddings; `tied`, the classes are the rows of the table."""
    rng = np.random.default_rng(0)
    info, make = helper.make_tensor_value_info, helper.make_node
    ids = [f"ids{i}" for i in range(readers)]
    nodes = [make("Gather", ["table", name], [f"read{i}"]) for i, name in enumerate(ids)]
    nodes.append(make("Sum", [node.output[0] for node in nodes], ["sum"]))
    weights = {"table": rng.normal(size=(ROWS, WIDTH)), "w": rng.normal(size=(WIDTH, 150))}
    if tied:
        del weights["w"]
        nodes.append(make("Transpose", ["table"], ["w"]))
    nodes.append(make("MatMul", ["sum", "w"], ["scores"]))
    nodes.append(make("SoftmaxCrossEntropyLoss", ["scores", "labels"], ["loss"]))
    graph = helper.make_graph(
        nodes,
        "net",
        [info(name, onnx.TensorProto.INT64, ["rows"]) for name in [*ids, "labels"]],
        [info("loss", onnx.TensorProto.FLOAT, [])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    artifacts.generate_artifacts(
        model, requires_grad=list(weights), optimizer=optimizer or optim.SGD(), artifact_directory=str(folder)
    )
    return folder


def batches(count: int, readers: int = 1) -> list[tuple[Array, ...]]:
    """Return batches that read some rows twice, and leave most rows unread."""
    rng = np.random.default_rng(1)
    return [
        (*(rng.integers(-40, 40, BATCH) for _ in range(readers)), rng.integers(0, 150, BATCH))
        for _ in range(count)
    ]


def state_of(training: Training) -> dict[str, bytes]:
    """Return the bits of the parameters and of their gradients."""
    found = {name: value.tobytes() for name, value in training.parameters().items()}
    return found | {f"{name}'": value.tobytes() for name, value in training.gradients().items()}


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("readers", [1, 3])
def test_every_step_has_the_bits_of_dense_gradients(tmp_path: pathlib.Path, name: str, readers: int) -> None:
    folder = embedding(tmp_path, readers, OPTIMIZERS[name])
    found = []
    for config in ({}, DENSE, {"ortrain.nonfinite_gradients": "apply"}):
        training = Training(folder, config)
        seen: list[Any] = []
        for i, batch in enumerate(batches(9, readers)):
            seen.append(training.loss(*batch))
            if i % 3 == 1:  # steps of one, of two, and of three batches
                continue
            seen += [state_of(training), training.module.get_gradient_norm()]
            training.optimizer.step()
            training.module.lazy_reset_grad()
        found.append([*seen, state_of(training)])
    assert found[0] == found[1] == found[2]


def test_shared_weights_have_dense_gradients(tmp_path: pathlib.Path) -> None:
    folder = embedding(tmp_path, tied=True)
    found = []
    for config in ({}, DENSE):
        training = Training(folder, config)
        for batch in batches(3):
            training.step(*batch)
        found.append(state_of(training))
    assert found[0] == found[1]


def test_gradients_from_outside_may_be_in_any_row(tmp_path: pathlib.Path) -> None:
    folder = embedding(tmp_path)
    given = np.random.default_rng(2).normal(size=(ROWS, WIDTH)).astype(np.float32)
    found = []
    for config in ({}, DENSE):
        training = Training(folder, config)
        first, second, third = batches(3)
        training.step(*first)
        training.loss(*second)
        training.state.parameters["table"].grad = given
        training.loss(*third)
        before = training.parameters()["table"]
        training.optimizer.step()
        assert np.all(training.parameters()["table"] != before)
        training.module.lazy_reset_grad()
        training.step(*first)
        found.append(state_of(training))
    assert found[0] == found[1]


def test_a_gradient_that_is_not_finite_is_found_in_its_row(tmp_path: pathlib.Path) -> None:
    training = Training(embedding(tmp_path))
    batch = batches(1)[0]
    training.step(*batch)
    table = training.parameters()["table"]
    table[7] = np.inf
    training.state.parameters["table"] = table
    training.loss(np.array([7, 8]), np.array([1, 2]))
    with pytest.raises(OrtrainError, match=r'"table": of 9500 elements \d+ are NaN'):
        training.optimizer.step()


def test_lazy_steps_leave_unread_rows_and_their_moments_alone(tmp_path: pathlib.Path) -> None:
    folder = embedding(tmp_path, optimizer=optim.AdamW(weight_decay=0.1))
    lazy, dense = Training(folder, {"ortrain.lazy_rows": "1"}), Training(folder)
    first, second = (np.arange(10), np.zeros(10, np.int64)), (np.arange(5, 20), np.ones(15, np.int64))
    initial = lazy.parameters()["table"]
    for training in (lazy, dense):
        training.step(*first)
    table = [training.parameters()["table"] for training in (lazy, dense)]
    assert np.array_equal(table[0][:10], table[1][:10])
    assert np.array_equal(table[0][10:], initial[10:])
    assert np.all(table[1][10:] != initial[10:])  # by weight decay
    lazy.step(*second)
    after = lazy.parameters()["table"]
    assert np.array_equal(after[:5], table[0][:5])
    assert np.array_equal(after[20:], initial[20:])
    assert np.all(after[5:20] != table[0][5:20])


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adagrad from a sum"])
def test_lazy_steps_are_those_of_the_optimizer_if_unread_rows_do_not_move(
    tmp_path: pathlib.Path, name: str
) -> None:
    folder = embedding(tmp_path, 1, OPTIMIZERS[name])
    found = []
    for config in ({"ortrain.lazy_rows": "1"}, DENSE):
        training = Training(folder, config)
        for batch in batches(6):
            training.step(*batch)
        found.append(state_of(training))
    assert found[0] == found[1]
