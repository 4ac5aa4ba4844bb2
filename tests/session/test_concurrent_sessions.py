"""Sessions of several Python threads, with and without the GIL."""

from __future__ import annotations

import sys
import sysconfig
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import ortrain
import pytest
from ortrain import SessionOptions
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture

THREADS = 4
Result = tuple[list[float], dict[str, np.ndarray]]


def train(fixture: Fixture, folder: Path) -> Result:
    """Train a recorded run with one thread of the library, and save; return losses and parameters of the saved checkpoint."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
    module = Module(fixture.path("training_model.onnx"), state, session_options=options)
    optimizer = Optimizer(fixture.path("optimizer_model.onnx"), module)
    losses = []
    for x, y in fixture.batches:
        losses.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    CheckpointState.save_checkpoint(state, folder / "checkpoint")
    saved = CheckpointState.load_checkpoint(folder / "checkpoint")
    return losses, {name: parameter.data.copy() for name, parameter in saved.parameters}


def in_threads(work: Callable[[int], Result]) -> list[Result]:
    """Call a function in several threads, which begin together."""
    barrier = threading.Barrier(THREADS)

    def begin(number: int) -> Result:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(begin, range(THREADS)))


@pytest.mark.parametrize("name", ["mlp_adamw", "lenet_adamw"])
def test_sessions_of_several_threads_train_as_each_alone(name: str, tmp_path: Path) -> None:
    fixture = Fixture(name)
    folders = [tmp_path / str(number) for number in range(THREADS + 1)]
    for folder in folders:
        folder.mkdir()
    losses, parameters = train(fixture, folders[THREADS])
    np.testing.assert_allclose(losses, fixture.expected["train_losses"], rtol=1e-4)
    for found_losses, found in in_threads(lambda number: train(fixture, folders[number])):
        assert found_losses == losses
        assert found.keys() == parameters.keys()
        for key, value in parameters.items():
            np.testing.assert_array_equal(found[key], value, err_msg=key)


def test_the_log_function_may_change_while_other_threads_log() -> None:
    taken: list[str] = []
    done = threading.Event()

    def log() -> None:
        """At this severity, a session that is created logs."""
        for _ in range(5):
            ortrain.InferenceSession(str(Fixture("mlp_adamw").path("model.onnx")))

    def change() -> None:
        while not done.wait(0.001):
            ortrain.set_default_logger_callback(lambda *message: taken.append(str(message)), 0)

    changing = threading.Thread(target=change)
    try:
        ortrain.set_default_logger_callback(lambda *message: taken.append(str(message)), 0)
        changing.start()
        with ThreadPoolExecutor(THREADS) as pool:
            for future in [pool.submit(log) for _ in range(THREADS)]:
                future.result()
    finally:
        done.set()
        changing.join()
        ortrain.set_default_logger_callback(None)
        ortrain.set_default_logger_severity(2)
    assert taken


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled"), reason="Python before 3.13 always has the GIL")
def test_python_without_the_gil_does_not_turn_it_on() -> None:
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        pytest.skip("this Python has the GIL")
    assert not sys._is_gil_enabled()
