"""What one thread saves or copies while another one trains belongs to one step.

All elements of all parameters have the same value after each step: they start at 0, and the gradient of each is 1. So
a file or a buffer that has parts of two steps has two values.
"""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, _ortrain, artifacts
from ortrain.api import CheckpointState, Module, Optimizer

PARAMETERS, ELEMENTS = 8, 100_000
SAVES = 40


def model() -> onnx.ModelProto:
    """Return the sum of all elements of the parameters, times the input."""
    names = [f"p{i}" for i in range(PARAMETERS)]
    nodes = [helper.make_node("ReduceSum", [name], [f"{name}_sum"], keepdims=0) for name in names]
    nodes.append(helper.make_node("Sum", [f"{name}_sum" for name in names], ["total"]))
    nodes.append(helper.make_node("Mul", ["total", "x"], ["loss"]))
    graph = helper.make_graph(
        nodes,
        "lockstep",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.zeros(ELEMENTS, np.float32), name) for name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Training:
    """A session, and a thread that takes steps with it until it is stopped."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.state = CheckpointState.load_checkpoint(folder / "checkpoint")
        self.module = Module(folder / "training_model.onnx", self.state, folder / "eval_model.onnx")
        self.optimizer = Optimizer(folder / "optimizer_model.onnx", self.module)
        self.optimizer.set_learning_rate(1.0)
        self.module.train()
        self.steps = 0
        self.failure: BaseException | None = None
        self.is_shared = False  # whether another thread uses the session, so that calls may be rejected
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        one = np.array(1, np.float32)
        try:
            while not self._stopped.is_set():
                for call in (lambda: self.module(one), self.optimizer.step, self.module.lazy_reset_grad):
                    self._call(call)
                self.steps += 1
        except BaseException as error:
            self.failure = error

    def _call(self, call: Callable[[], object]) -> None:
        while True:
            try:
                call()
            except OrtrainError as error:
                if self.is_shared and "in use by another thread" in str(error):
                    continue
                raise
            return

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("lockstep")
    artifacts.generate_artifacts(
        model(),
        requires_grad=[f"p{i}" for i in range(PARAMETERS)],
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=path,
    )
    return path


@pytest.fixture
def training(folder: pathlib.Path) -> Iterator[Training]:
    running = Training(folder)
    yield running
    running.stop()
    assert running.failure is None


def only_value(values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> float:
    """Return the value that all elements have."""
    found = np.unique(values)
    assert found.size == 1, f"values of several steps: {found}"
    return float(found[0])


def repeat(training: Training, look: Callable[[], float]) -> None:
    """Look again and again while steps are taken: what is seen never goes back."""
    seen = [look() for _ in range(SAVES)]
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] < 0
    assert training.steps >= -seen[-1] - 1


def test_a_checkpoint_has_parameters_of_one_step(training: Training, tmp_path: pathlib.Path) -> None:
    def look() -> float:
        CheckpointState.save_checkpoint(training.state, tmp_path / "checkpoint", include_optimizer_state=True)
        saved = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        value = only_value(np.concatenate([saved.parameters[f"p{i}"].data for i in range(PARAMETERS)]))
        assert _ortrain.checkpoint_get_optimizer_step_count(saved._handle) == -value
        return value

    repeat(training, look)


def test_a_buffer_has_parameters_of_one_step(training: Training) -> None:
    repeat(training, lambda: only_value(training.module.get_contiguous_parameters().numpy()))


def test_an_exported_model_has_parameters_of_one_step(training: Training, tmp_path: pathlib.Path) -> None:
    """A session takes one call at a time, so the export may also be rejected."""
    training.is_shared = True
    exported = 0
    for _ in range(50 * SAVES):
        try:
            training.module.export_model_for_inferencing(tmp_path / "model.onnx", ["loss"])
        except OrtrainError as error:
            assert "in use by another thread" in str(error)  # noqa: PT017
            continue
        weights = onnx.load(tmp_path / "model.onnx").graph.initializer
        only_value(np.concatenate([numpy_helper.to_array(weight) for weight in weights]))
        exported += 1
        if exported == 3:
            break
