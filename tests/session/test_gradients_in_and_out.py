"""Gradients as one buffer and by name, out of a session and into it."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from system import needs_proc
from training import Training

Array = NDArray[Any]
RNG = np.random.default_rng(5)
LEARNING_RATE = 0.5
OFF = {"ortrain.disable_pass.keep_convolution_weights": "1"}


def linear(folder: pathlib.Path, dtypes: tuple[Any, Any] = (np.float32, np.float32)) -> None:
    """Write artifacts of y = cast(x w) + b with a mean squared error and SGD; ``fixed`` scales and is frozen."""
    wide, narrow = (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)) for dtype in dtypes)
    weights = {
        "w": RNG.standard_normal((3, 2)).astype(dtypes[0]),
        "b": RNG.standard_normal(2).astype(dtypes[1]),
        "fixed": np.array([2], dtypes[0]),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Mul", ["h", "fixed"], ["s"]),
        helper.make_node("Cast", ["s"], ["c"], to=narrow),
        helper.make_node("Add", ["c", "b"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "linear",
        [helper.make_tensor_value_info("x", wide, ["n", 3])],
        [helper.make_tensor_value_info("y", narrow, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["w", "b"],
        frozen_params=["fixed"],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("linear")
    linear(made)
    return made


@pytest.fixture
def session(folder: pathlib.Path) -> Training:
    made = Training(folder)
    made.optimizer.set_learning_rate(LEARNING_RATE)
    return made


def batch(
    seed: int, rows: int = 4, dtypes: tuple[Any, Any] = (np.float32, np.float32)
) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((rows, 3)).astype(dtypes[0]), rng.standard_normal((rows, 2)).astype(dtypes[1])


def expected(session: Training, x: Array, target: Array) -> dict[str, Array]:
    """Return the gradients of the mean squared error, by its formula."""
    w, b, fixed = (session.state.parameters[name].data.astype(np.float64) for name in ("w", "b", "fixed"))
    slope = 2 * (x @ w * fixed + b - target) / target.size
    return {"w": fixed * (x.T @ slope), "b": slope.sum(0)}


def gradients(session: Training) -> dict[str, Array]:
    return {name: session.state.parameters[name].grad.copy() for name in ("w", "b")}


def flat(values: dict[str, Array]) -> Array:
    return np.concatenate([values[name].ravel() for name in ("w", "b")])


def buffer_of(session: Training, dtype: Any = np.float32) -> Array:
    buffer = np.full(session.module.get_parameters_size(True), np.nan, dtype)
    session.module.copy_gradients_to_buffer(buffer)
    return buffer


def test_the_buffer_holds_the_gradients_end_to_end(session: Training) -> None:
    x, target = batch(1)
    session.loss(x, target)
    want = expected(session, x, target)
    np.testing.assert_allclose(buffer_of(session), flat(want), rtol=1e-5)
    np.testing.assert_allclose(session.module.get_gradient_norm(), np.linalg.norm(flat(want)), rtol=1e-6)
    for name, value in gradients(session).items():
        np.testing.assert_allclose(value, want[name], rtol=1e-5)


def test_the_optimizer_uses_what_was_written(session: Training) -> None:
    before = {name: session.state.parameters[name].data for name in ("w", "b")}
    written = {"w": RNG.standard_normal((3, 2)).astype(np.float32), "b": np.array([1, 2], np.float32)}
    session.loss(*batch(1))
    session.module.copy_buffer_to_gradients(flat(written))
    session.optimizer.step()
    for name, value in before.items():
        step = value - np.float32(LEARNING_RATE) * written[name]
        np.testing.assert_allclose(session.state.parameters[name].data, step, rtol=1e-6)
    np.testing.assert_array_equal(buffer_of(session), flat(written))
    np.testing.assert_allclose(session.module.get_gradient_norm(), np.linalg.norm(flat(written)), rtol=1e-6)


def test_gradients_are_zeros_from_the_session_to_its_first_step(tmp_path: pathlib.Path) -> None:
    linear(tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    with pytest.raises(ortrain.OrtrainError, match="no session was created"):
        _ = state.parameters["w"].grad
    module = Module(tmp_path / "training_model.onnx", state)
    for name in ("w", "b"):
        parameter = state.parameters[name]
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.data.dtype
        np.testing.assert_array_equal(parameter.grad, np.zeros_like(parameter.data))
    x, target = batch(1)
    with pytest.raises(ValueError, match="dimension"):
        module(x[:, :2], target)
    module(x, target)
    assert np.any(state.parameters["w"].grad)


def test_a_gradient_is_assigned_by_name(session: Training) -> None:
    x, target = batch(2)
    session.loss(x, target)
    before, new = gradients(session), np.array([3, -4], np.float32)
    session.state.parameters["b"].grad = new
    np.testing.assert_array_equal(session.state.parameters["b"].grad, new)
    np.testing.assert_array_equal(session.state.parameters["w"].grad, before["w"])
    new[:] = 0  # it was copied
    np.testing.assert_array_equal(session.state.parameters["b"].grad, [3, -4])


def test_what_is_read_cannot_be_written_to(session: Training) -> None:
    session.loss(*batch(2))
    gradient = session.state.parameters["w"].grad
    with pytest.raises(ValueError, match="read-only"):
        gradient[...] = 0
    with pytest.raises(ValueError, match="read-only"):
        session.state.parameters["w"].grad *= 0


def test_average_of_two_halves_is_the_gradient_of_the_whole(folder: pathlib.Path) -> None:
    x, target = batch(3, 8)
    halves = [Training(folder) for _ in range(2)]
    parts = []
    for i, half in enumerate(halves):
        half.loss(x[4 * i : 4 * i + 4], target[4 * i : 4 * i + 4])
        parts.append(buffer_of(half))
    mean = (parts[0] + parts[1]) / 2
    whole = expected(halves[0], x, target)
    for half in halves:
        half.module.copy_buffer_to_gradients(mean)
        np.testing.assert_allclose(buffer_of(half), flat(whole), rtol=1e-5)
        half.optimizer.step()
    for name in ("w", "b"):
        one, other = (half.state.parameters[name].data for half in halves)
        np.testing.assert_array_equal(one, other)


# ---- lazy reset ----


def test_steps_add_to_gradients_that_were_written(session: Training) -> None:
    x, target = batch(4)
    written = np.arange(8, dtype=np.float32)
    session.loss(x, target)
    session.module.lazy_reset_grad()
    session.module.copy_buffer_to_gradients(written)  # it takes the place of the reset
    session.loss(x, target)
    np.testing.assert_allclose(buffer_of(session), written + flat(expected(session, x, target)), rtol=1e-5)


def test_one_gradient_written_after_a_reset_leaves_the_others_zero(session: Training) -> None:
    x, target = batch(5)
    session.loss(x, target)
    session.module.lazy_reset_grad()
    session.state.parameters["b"].grad = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(buffer_of(session), [0] * 6 + [1, 2])
    session.state.parameters["w"].grad = np.ones((3, 2), np.float32)  # the reset is done by now
    np.testing.assert_array_equal(buffer_of(session), [1] * 6 + [1, 2])
    session.loss(x, target)
    want = np.array([1] * 6 + [1, 2]) + flat(expected(session, x, target))
    np.testing.assert_allclose(buffer_of(session), want, rtol=1e-5)


def test_a_reset_after_writing_lets_the_next_step_overwrite(session: Training) -> None:
    x, target = batch(6)
    session.loss(x, target)
    session.module.copy_buffer_to_gradients(np.arange(8, dtype=np.float32))
    session.module.lazy_reset_grad()
    session.loss(x, target)
    np.testing.assert_allclose(buffer_of(session), flat(expected(session, x, target)), rtol=1e-5)


def test_gradients_can_be_written_before_any_step(session: Training) -> None:
    before = {name: session.state.parameters[name].data for name in ("w", "b")}
    session.state.parameters["b"].grad = np.array([1, 2], np.float32)
    session.optimizer.step()
    np.testing.assert_array_equal(session.state.parameters["w"].data, before["w"])
    moved = before["b"] - np.float32(LEARNING_RATE) * np.array([1, 2], np.float32)
    np.testing.assert_allclose(session.state.parameters["b"].data, moved, rtol=1e-6)
    x, target = batch(7)
    session.loss(x, target)
    want = np.array([0] * 6 + [1, 2]) + flat(expected(session, x, target))
    np.testing.assert_allclose(buffer_of(session), want, rtol=1e-5)


def test_a_failed_step_leaves_nothing_of_the_gradients_that_were_written(session: Training) -> None:
    """An input of the wrong type is refused before anything is computed; the gradients stay."""
    session.module.copy_buffer_to_gradients(np.arange(8, dtype=np.float32))
    with pytest.raises(ortrain.InvalidArgumentError):
        session.module(np.zeros((4, 3), np.float64), np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(buffer_of(session), np.arange(8))


# ---- refusals ----


def test_a_frozen_parameter_has_no_gradient(session: Training) -> None:
    session.loss(*batch(1))
    assert session.state.parameters["fixed"].grad is None
    with pytest.raises(ortrain.InvalidArgumentError, match=r'"fixed".*frozen'):
        session.state.parameters["fixed"].grad = np.zeros(1, np.float32)


def test_what_does_not_fit_is_refused(session: Training, folder: pathlib.Path) -> None:
    with pytest.raises(ortrain.OrtrainError, match="run a train step first"):
        buffer_of(session)
    with pytest.raises(ortrain.OrtrainError, match="run a train step first"):
        session.module.get_gradient_norm()
    session.loss(*batch(1))
    before = buffer_of(session)
    for wrong in (np.zeros(7, np.float32), np.zeros(9, np.float32), np.zeros(8)):
        with pytest.raises(ortrain.InvalidArgumentError, match="8 elements of type float32"):
            session.module.copy_buffer_to_gradients(wrong)
        with pytest.raises(ortrain.InvalidArgumentError, match="8 elements of type float32"):
            session.module.copy_gradients_to_buffer(wrong)
    for unwritable in (np.zeros(16, np.float32)[::2], np.frombuffer(bytes(32), np.float32)):
        with pytest.raises(ortrain.InvalidArgumentError, match="can be written to"):
            session.module.copy_gradients_to_buffer(unwritable)
    for value, found in ((np.zeros(6, np.float32), "6"), (np.zeros((3, 2)), "float64")):
        with pytest.raises(ortrain.InvalidArgumentError, match=rf'"w".*float32\[3, 2\].*{found}'):
            session.state.parameters["w"].grad = value
    with pytest.raises(TypeError, match="NoneType"):
        session.state.parameters["w"].grad = None
    np.testing.assert_array_equal(buffer_of(session), before)
    alone = CheckpointState.load_checkpoint(folder / "checkpoint")
    with pytest.raises(ortrain.OrtrainError, match="create a training session"):
        alone.parameters["w"].grad = np.zeros((3, 2), np.float32)


# ---- orders and types ----


def convolutions(folder: pathlib.Path) -> None:
    """Write artifacts of a network whose weights convolutions keep in another order."""

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        value = RNG.normal(0, max(1, int(np.prod(shape[1:]))) ** -0.5, shape)
        return numpy_helper.from_array(value.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "second"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"]),
        helper.make_node("Flatten", ["d"], ["e"]),
        helper.make_node("Gemm", ["e", "dense"], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", 1, ["n", 16, 8, 8])],
        [helper.make_tensor_value_info("y", 1, ["n", 10])],
        [weight("first", 32, 16, 3, 3), weight("second", 32, 32, 3, 3), weight("dense", 10, 32)],
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        requires_grad=["first", "second", "dense"],
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )


def test_gradients_are_row_major_in_whatever_order_they_are_stored(tmp_path: pathlib.Path) -> None:
    convolutions(tmp_path)
    x, labels = RNG.standard_normal((4, 16, 8, 8)).astype(np.float32), np.array([1, 5, 0, 9])
    names = ["first", "second", "dense"]
    stored, plain = Training(tmp_path), Training(tmp_path, OFF)
    buffers = []
    for session in (stored, plain):
        session.loss(x, labels)
        buffers.append(buffer_of(session))
        parts = [session.state.parameters[name].grad.ravel() for name in names]
        np.testing.assert_array_equal(buffers[-1], np.concatenate(parts))
    np.testing.assert_allclose(buffers[0], buffers[1], rtol=1e-3, atol=1e-6)
    written = RNG.standard_normal(buffers[0].size).astype(np.float32)
    for session in (stored, plain):
        before = session.module.get_contiguous_parameters(True).numpy().copy()
        session.module.copy_buffer_to_gradients(written)
        np.testing.assert_array_equal(buffer_of(session), written)
        session.state.parameters["second"].grad = -session.state.parameters["second"].grad
        size = session.state.parameters["first"].data.size
        written_now = written.copy()
        written_now[size : size + 32 * 32 * 9] *= -1
        np.testing.assert_array_equal(buffer_of(session), written_now)
        session.optimizer.set_learning_rate(LEARNING_RATE)
        session.optimizer.step()
        after = session.module.get_contiguous_parameters(True).numpy()
        np.testing.assert_allclose(
            after, before - np.float32(LEARNING_RATE) * written_now, rtol=1e-6, atol=1e-6
        )


@pytest.mark.parametrize(
    "dtypes",
    [(np.float16, np.float16), (ml_dtypes.bfloat16, ml_dtypes.bfloat16), (np.float32, np.float16)],
    ids=["float16", "bfloat16", "mixed"],
)
def test_gradients_of_16_bits_are_floats_in_the_buffer(
    tmp_path: pathlib.Path, dtypes: tuple[Any, Any]
) -> None:
    linear(tmp_path, dtypes)
    session = Training(tmp_path)
    session.loss(*batch(1, dtypes=dtypes))
    buffer = buffer_of(session)
    np.testing.assert_array_equal(
        buffer, flat({n: g.astype(np.float32) for n, g in gradients(session).items()})
    )
    written = RNG.standard_normal(8).astype(np.float32)
    session.module.copy_buffer_to_gradients(written)
    for name, dtype, part in (("w", dtypes[0], written[:6].reshape(3, 2)), ("b", dtypes[1], written[6:])):
        np.testing.assert_array_equal(session.state.parameters[name].grad, part.astype(dtype))
    session.state.parameters["b"].grad = np.ones(2, dtypes[1])
    np.testing.assert_array_equal(buffer_of(session)[6:], [1, 1])


def test_gradients_of_doubles_are_doubles_in_the_buffer(tmp_path: pathlib.Path) -> None:
    linear(tmp_path, (np.float64, np.float64))
    session = Training(tmp_path)
    x, target = batch(1, dtypes=(np.float64, np.float64))
    session.loss(x, target)
    np.testing.assert_allclose(buffer_of(session, np.float64), flat(expected(session, x, target)), rtol=1e-12)
    with pytest.raises(ortrain.InvalidArgumentError, match="8 elements of type float64"):
        buffer_of(session)


# ---- memory ----


def resident() -> int:
    """Return the memory of the process in bytes."""
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096


@needs_proc
def test_ten_thousand_calls_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    convolutions(tmp_path)
    session = Training(tmp_path)
    session.loss(np.ones((2, 16, 8, 8), np.float32), np.array([1, 5]))
    buffer = buffer_of(session)
    parameter = session.state.parameters["first"]
    given = np.ascontiguousarray(parameter.grad)

    def calls(times: int) -> None:
        for _ in range(times):
            session.module.copy_gradients_to_buffer(buffer)
            session.module.copy_buffer_to_gradients(buffer)
            parameter.grad = given
            _ = parameter.grad
            session.module.get_gradient_norm()

    calls(200)
    blocks, grown = sys.getallocatedblocks(), []
    for _ in range(3):
        memory = resident()
        calls(4_000)
        grown.append(resident() - memory)
    assert sys.getallocatedblocks() - blocks < 50
    # A leak grows each time, one gradient a call by 74 MB. Pages that the rest of the process touches do not.
    assert min(grown) < 1 << 18, grown


def test_a_module_and_its_optimizer_need_no_reading_of_gradients(folder: pathlib.Path) -> None:
    """Writing them is enough for a loop that gets its gradients from elsewhere."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state)
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(LEARNING_RATE)
    before = module.get_contiguous_parameters(True).numpy().copy()
    for _ in range(3):
        module.copy_buffer_to_gradients(np.ones(8, np.float32))
        optimizer.step()
    after = module.get_contiguous_parameters(True).numpy()
    np.testing.assert_allclose(after, before - 3 * LEARNING_RATE, rtol=1e-5)


# ---- a fraction ----


def test_scaled_sums_over_uneven_batches_are_the_gradient_of_all_rows(folder: pathlib.Path) -> None:
    x, y = batch(3, 12)
    whole, parts = Training(folder), Training(folder)
    whole.loss(x, y)
    last = 0
    for first, end in ((0, 3), (3, 8), (8, 12)):
        if last:
            parts.state.scale_gradients(last, end - first)
        parts.loss(x[first:end], y[first:end])
        last = end - first
    parts.state.scale_gradients(last, len(x))
    expected = gradients(whole)
    for name, found in gradients(parts).items():
        np.testing.assert_allclose(found, expected[name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_gradients_of_each_type_are_scaled(dtype: Any, tmp_path: pathlib.Path) -> None:
    linear(tmp_path, (dtype, dtype))
    session = Training(tmp_path)
    session.loss(*batch(5, dtypes=(dtype, dtype)))
    before = gradients(session)
    session.state.scale_gradients(3, 4)
    for name, found in gradients(session).items():
        assert found.dtype == before[name].dtype
        expected = (
            before[name] * 0.75 if dtype is np.float64 else before[name].astype(np.float32) * np.float32(0.75)
        )
        np.testing.assert_array_equal(found, expected.astype(found.dtype), err_msg=name)


def test_gradients_that_the_next_step_overwrites_are_not_scaled(session: Training) -> None:
    session.state.scale_gradients(1, 2)  # no step has run
    session.loss(*batch(6))
    before = gradients(session)
    session.module.lazy_reset_grad()
    session.state.scale_gradients(0, 1)
    for name, found in gradients(session).items():
        np.testing.assert_array_equal(found, before[name], err_msg=name)
    for numerator, denominator in ((1, 0), (-1, 2)):
        with pytest.raises(ortrain.OrtrainError, match=f"found {numerator} / {denominator}"):
            session.state.scale_gradients(numerator, denominator)
