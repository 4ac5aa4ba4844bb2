"""Optimizer steps that do not read every gradient reject what they would reject if they did.

The oracle is the gradients themselves, read by name: a step is rejected if and only if one of them is not finite. All
weights are large and all batches small, so that the magnitude of the gradient follows from that of its factors.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import OrtErrorCode, OrtrainError, artifacts
from ortrain.api import CheckpointState, Module, Optimizer
from training import Training, options_of

Array = NDArray[Any]
IN, OUT, ROWS = 64, 96, 8
LARGEST = {np.float32: 3.4e38, np.float64: 1.79e308, np.float16: 65504.0, ml_dtypes.bfloat16: 3.38e38}
Inputs = tuple[Any, ...]


class Net:
    """A model under construction: inputs x, t and so on, a weight w of zeros, and nodes that make y."""

    def __init__(self, dtype: Any = np.float32) -> None:
        self.dtype = np.dtype(dtype)
        self.kind = helper.np_dtype_to_tensor_dtype(self.dtype)
        self.inputs: list[onnx.ValueInfoProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}

    def take(self, name: str, shape: list[Any], kind: int | None = None) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind or self.kind, shape))
        return name

    def weight(self, *shape: int, name: str = "w") -> str:
        self.weights[name] = np.zeros(shape, self.dtype)
        return name

    def add(self, type_: str, inputs: list[str], **attributes: Any) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(type_, inputs, [output], **attributes))
        return output

    def write(self, folder: pathlib.Path, optimizer: str = "SGD") -> pathlib.Path:
        """Write artifacts; the loss is the last node's output."""
        graph = helper.make_graph(
            self.nodes,
            "net",
            self.inputs,
            [helper.make_tensor_value_info(self.nodes[-1].output[0], self.kind, [])],
            [numpy_helper.from_array(value, name) for name, value in self.weights.items()],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        artifacts.generate_artifacts(
            model,
            requires_grad=list(self.weights),
            optimizer=artifacts.OptimType[optimizer],
            artifact_directory=str(folder),
        )
        return folder


def dense(folder: pathlib.Path, dtype: Any = np.float32, optimizer: str = "SGD", **gemm: Any) -> pathlib.Path:
    """Write a run whose loss is sum(t (x w)), so that the gradient of w is the product of x transposed and t."""
    net = Net(dtype)
    x, t = net.take("x", ["rows", IN]), net.take("t", ["rows", OUT])
    w = net.weight(IN, OUT)
    y = net.add("Gemm", [x, w], **gemm) if gemm else net.add("MatMul", [x, w])
    net.add("ReduceSum", [net.add("Mul", [y, t])], keepdims=0)
    return net.write(folder, optimizer)


def factors(x: float, t: float, rows: int = ROWS, dtype: Any = np.float32) -> tuple[Array, Array]:
    return np.full((rows, IN), x, dtype), np.full((rows, OUT), t, dtype)


def holes(value: float, other: float, in_x: bool) -> tuple[Array, Array]:
    """Factors of which one has a single element of that value."""
    x, t = factors(other, other)
    (x if in_x else t)[3, 17] = value
    return x, t


def finite(training: Training) -> bool:
    return all(np.isfinite(g.astype(np.float64)).all() for g in training.gradients().values())


def check(training: Training, expected: bool | None = None) -> bool:
    """Take an optimizer step, and compare what it does with the gradients. Return whether it was taken."""
    wanted = finite(training)
    assert expected is None or wanted == expected, "the gradients are not what this test is about"
    before = training.parameters()
    if wanted:
        training.optimizer.step()
    else:
        with pytest.raises(OrtrainError, match="are not finite") as caught:
            training.optimizer.step()
        assert caught.value.code == OrtErrorCode.ORT_RUNTIME_EXCEPTION
        for name, value in training.parameters().items():
            assert value.tobytes() == before[name].tobytes()
    return wanted


def run(training: Training, *steps: Inputs, expected: bool | None = None) -> None:
    """Accumulate train steps, check, and check that training goes on after a reset."""
    for step in steps:
        training.module(*step)
    check(training, expected)
    training.module.lazy_reset_grad()
    ones = tuple(np.zeros_like(value) for value in steps[0])
    training.module(*ones)
    check(training, True)
    training.module.lazy_reset_grad()


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
@pytest.mark.parametrize(
    ("dtype", "x", "t"),
    [
        (np.float32, 1e20, 1e20),
        (np.float32, 1e19, 2e19),  # only their sum overflows
        (np.float64, 1e160, 1e150),
        (np.float64, 1e154, 1e154),
        (np.float16, 100, 100),
        (np.float16, 300, -300),
        (ml_dtypes.bfloat16, -1e20, 1e20),
        (ml_dtypes.bfloat16, 1e19, 2e19),
    ],
)
def test_products_of_finite_values_overflow(
    tmp_path: pathlib.Path, dtype: Any, x: float, t: float, optimizer: str
) -> None:
    training = Training(dense(tmp_path, dtype, optimizer))
    run(training, factors(x, t, dtype=dtype), expected=False)


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("in_x", [True, False])
def test_one_element_of_one_factor_is_not_finite(
    tmp_path: pathlib.Path, dtype: Any, bad: float, in_x: bool
) -> None:
    training = Training(dense(tmp_path, dtype))
    x, t = holes(bad, 1, in_x)
    run(training, (x.astype(dtype), t.astype(dtype)), expected=False)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("in_x", [True, False])
def test_zero_times_infinity_is_not_finite(tmp_path: pathlib.Path, bad: float, in_x: bool) -> None:
    run(Training(dense(tmp_path)), holes(bad, 0, in_x))


def test_sums_of_accumulated_products_overflow(tmp_path: pathlib.Path) -> None:
    training = Training(dense(tmp_path))
    step = factors(1e19, 1e18, 1)  # 1e37 in each element
    run(training, *[step] * 30, expected=True)
    run(training, *[step] * 40, expected=False)
    run(training, factors(1, 1), *[step] * 40, expected=False)
    run(training, *[step] * 2, expected=True)
    step = factors(1e18, 2.5e18, 1)  # each is far from the largest float
    run(training, *[step] * 130, expected=True)
    run(training, *[step] * 140, expected=False)


@pytest.mark.parametrize("x", [1e-45, 1e-39, 1e-30, 0.0])
@pytest.mark.parametrize("t", [1e-45, 1e-39, 1e-30, 1e30, 3.4e38])
def test_tiny_factors(tmp_path: pathlib.Path, x: float, t: float) -> None:
    run(Training(dense(tmp_path)), factors(x, t), expected=True)


@pytest.mark.parametrize(("x", "t"), [(1.8e19, 1e18), (1e30, 4e7), (3.4e38, 0.1), (3.4e38, 0.0)])
def test_large_gradients_that_are_finite_are_applied(tmp_path: pathlib.Path, x: float, t: float) -> None:
    """The bound is above the largest float, the gradients are not."""
    folder = dense(tmp_path)
    training, unchecked = Training(folder), Training(folder, {"ortrain.nonfinite_gradients": "apply"})
    for each in (training, unchecked):
        each.module(*factors(x, t, 1))
    assert check(training, True)
    unchecked.optimizer.step()
    assert training.parameters()["w"].tobytes() == unchecked.parameters()["w"].tobytes()


@pytest.mark.parametrize(
    ("dtype", "alpha", "x", "t"),
    [
        (np.float32, 1e10, 1e15, 1e15),
        (np.float32, -1e10, 1e15, 1e15),
        (np.float32, 1e-10, 1e15, 1e15),
        (np.float32, 1e-30, 1e30, 1e30),
        (np.float32, 1e30, 1e-30, 1e20),
        (np.float16, 1e4, 1, 1),
        (np.float16, -1e4, 1, 1),
    ],
)
def test_products_with_a_scale(tmp_path: pathlib.Path, dtype: Any, alpha: float, x: float, t: float) -> None:
    run(Training(dense(tmp_path, dtype, alpha=alpha)), factors(x, t, dtype=dtype))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("config", [{}, {"ortrain.mixed_precision": "bf16"}])
@pytest.mark.parametrize("dtype", LARGEST)
def test_magnitudes_around_the_largest_number(
    tmp_path: pathlib.Path, dtype: Any, config: Mapping[str, str], seed: int
) -> None:
    """Random factors of one magnitude each, whose products lie on both sides of the limit, in accumulated steps."""
    rng = np.random.default_rng(seed)
    training = Training(dense(tmp_path, dtype), config)
    outcomes = set()
    for power in np.linspace(-3, 2, 12):
        steps = []
        for _ in range(rng.integers(1, 4)):
            product = np.log10(LARGEST[dtype] / ROWS) + power
            part = rng.uniform(0.25, 0.75)
            x = rng.uniform(-1, 1, (ROWS, IN)) * 10.0 ** (product * part)
            t = rng.uniform(-1, 1, (ROWS, OUT)) * 10.0 ** (product * (1 - part))
            x, t = x.astype(dtype), t.astype(dtype)
            steps.append((x, t))
        for step in steps:
            training.module(*step)
        outcomes.add(check(training))
        training.module.lazy_reset_grad()
    assert outcomes == {True, False}


def test_batches_of_other_sizes(tmp_path: pathlib.Path) -> None:
    """With many rows the gradient is read instead of its factors; either may come first."""
    training = Training(dense(tmp_path))
    good, bad = factors(1, 1), factors(1, np.nan)
    many, many_bad = factors(1, 1, 500), factors(1e20, 1e20, 500)
    for steps, expected in (
        ([good, many], True),
        ([good, many_bad], False),
        ([many_bad, good], False),
        ([bad, many], False),
        ([many, bad, good], False),
        ([many, good], True),
    ):
        run(training, *steps, expected=expected)


def test_gradients_from_outside(tmp_path: pathlib.Path) -> None:
    training = Training(dense(tmp_path))
    inside = factors(1, 1)
    outside = np.full(IN * OUT, 1, np.float32)
    for bad in (np.nan, np.inf):
        outside[IN * OUT // 2] = bad
        training.module(*inside)
        training.module.copy_buffer_to_gradients(outside)
        check(training, False)
        training.module(*inside)  # adds to them
        check(training, False)
        training.module.lazy_reset_grad()
        training.module(*inside)
        check(training, True)
        training.module(*inside)
        training.state.parameters["w"].grad = outside.reshape(IN, OUT)
        check(training, False)
        training.module.lazy_reset_grad()
        training.module(*inside)
        training.module.copy_buffer_to_gradients(outside)
        training.module.lazy_reset_grad()  # they remain until the next train step
        check(training, False)
        training.module(*inside)
        check(training, True)
        training.module.lazy_reset_grad()
        training.module.copy_buffer_to_gradients(outside)
        training.module(*inside)
        check(training, False)
        training.module.lazy_reset_grad()


def test_another_session_takes_over_the_gradients(tmp_path: pathlib.Path) -> None:
    folder = dense(tmp_path)
    training = Training(folder)
    training.module(*factors(1, 1))
    state = training.state
    del training.module, training.optimizer
    apply = Training(folder, {"ortrain.nonfinite_gradients": "apply"}, state)
    apply.module.lazy_reset_grad()
    apply.module(*factors(1, np.inf))
    del apply
    check(Training(folder, state=state), False)


def test_a_train_step_that_fails(tmp_path: pathlib.Path) -> None:
    """What it left behind is not applied, and the next one starts over."""
    net = Net()
    product = net.add("MatMul", [net.take("x", ["rows", IN]), net.weight(IN, OUT)])
    net.add("SoftmaxCrossEntropyLoss", [product, net.take("labels", ["rows"], onnx.TensorProto.INT64)])
    training = Training(net.write(tmp_path))
    x, _ = factors(1, 1)
    training.module(x, np.zeros(ROWS, np.int64))
    with pytest.raises(OrtrainError):
        training.module(x * np.inf, np.full(ROWS, OUT, np.int64))
    with pytest.raises(OrtrainError, match="there are no gradients"):
        training.optimizer.step()
    training.module(x, np.zeros(ROWS, np.int64))
    check(training, True)
    training.module(x * np.nan, np.zeros(ROWS, np.int64))
    check(training, False)


def test_an_optimizer_that_is_attached_later(tmp_path: pathlib.Path) -> None:
    folder = dense(tmp_path)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, session_options=options_of({}))
    module(*factors(1e20, 1e20))
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    with pytest.raises(OrtrainError, match="are not finite"):
        optimizer.step()


@pytest.mark.parametrize("readers", [2, 3])
def test_a_weight_with_several_readers(tmp_path: pathlib.Path, readers: int) -> None:
    """Its gradient is a sum of products, one of which can be the only one that is not finite."""
    net = Net()
    w = net.weight(IN, OUT)
    sums = []
    for i in range(readers):
        x, t = net.take(f"x{i}", ["rows", IN]), net.take(f"t{i}", ["rows", OUT])
        y = net.add("MatMul", [x, w])
        sums.append(net.add("ReduceSum", [net.add("Mul", [y, t])], keepdims=0))
    for left, right in pairwise(range(readers)):
        sums[right] = net.add("Add", [sums[left], sums[right]])
    training = Training(net.write(tmp_path))
    good, half = factors(1, 1), factors(1e19, 2.5e18)
    for i in range(readers):
        for bad in (factors(1e20, 1e20), holes(np.nan, 1, True), holes(np.inf, 1, False)):
            step = [good] * readers
            step[i] = bad
            run(training, sum(step, ()), expected=False)
    run(training, sum([half] * 2 + [good] * (readers - 2), ()), expected=False)
    run(training, sum([half] + [good] * (readers - 1), ()), expected=True)
    run(training, sum([good] * readers, ()), expected=True)


def test_an_embedding(tmp_path: pathlib.Path) -> None:
    """The gradient of a table is a sum of the gradients of the rows that were taken, also of one taken often."""
    net = Net()
    ids, t = net.take("ids", ["tokens"], onnx.TensorProto.INT64), net.take("t", ["tokens", 16])
    y = net.add("Gather", [net.weight(1000, 16), ids])
    net.add("ReduceSum", [net.add("Mul", [y, t])], keepdims=0)
    training = Training(net.write(tmp_path))
    same, others = np.full(40, 7), np.arange(40)
    large = np.full((40, 16), 1e37, np.float32)
    run(training, (same, large), expected=False)
    run(training, (others, large), expected=True)
    run(training, (others, large), (others, large * 30), expected=True)
    run(training, (others, large), (others, large * 33), (others, large), expected=False)
    for bad in (np.nan, np.inf):
        broken = np.ones((40, 16), np.float32)
        broken[39, 15] = bad
        run(training, (others, broken), expected=False)


def test_a_number_of_rows_that_depends_on_data(tmp_path: pathlib.Path) -> None:
    net = Net()
    given = net.take("x", ["rows", IN]), net.take("t", ["rows", OUT])
    which = net.take("chosen", ["rows"], onnx.TensorProto.BOOL)
    left, right = (net.add("Compress", [value, which], axis=0) for value in given)
    y = net.add("MatMul", [left, net.weight(IN, OUT)])
    net.add("ReduceSum", [net.add("Mul", [y, right])], keepdims=0)
    training = Training(net.write(tmp_path))
    for count in (1, 5, 8, 5):
        chosen = np.arange(ROWS) < count
        run(training, (*factors(1, 1), chosen), expected=True)
        run(training, (*factors(1e20, 1e20), chosen), expected=False)
        for bad in (np.nan, np.inf):
            x, t = factors(1, 1)
            t[count - 1, 5] = bad
            run(training, (x, t, chosen), expected=False)
            run(training, (*factors(1, 1), chosen), (x, t, chosen), (*factors(1, 1), chosen), expected=False)
            x, t = factors(1, 1)
            x[count:] = bad  # not chosen
            run(training, (x, t, chosen), expected=True)


@pytest.mark.parametrize("size", [4, 9])
@pytest.mark.parametrize("window", [1, 3])
def test_convolutions(tmp_path: pathlib.Path, window: int, size: int) -> None:
    channels = 64
    net = Net()
    x, t = (net.take(name, ["rows", channels, size, size]) for name in "xt")
    pads = [window // 2] * 4
    y = net.add("Conv", [x, net.weight(channels, channels, window, window)], pads=pads)
    net.add("ReduceSum", [net.add("Mul", [y, t])], keepdims=0)
    training = Training(net.write(tmp_path))

    def pair(a: float, b: float) -> tuple[Array, Array]:
        shape = (1, channels, size, size)
        return np.full(shape, a, np.float32), np.full(shape, b, np.float32)

    run(training, pair(1, 1), expected=True)
    run(training, pair(1e19, 1e16), expected=True)
    run(training, pair(1e20, 1e20), expected=False)
    run(training, *[pair(1e18, 1e18)] * 2, *[pair(1e18, 8e18)] * 5)
    for which in (0, 1):
        for bad in (np.nan, np.inf, -np.inf):
            step = pair(1, 1)
            step[which][0, 5, 1, 1] = bad
            run(training, step, expected=False)


@pytest.mark.parametrize("signs", ["same", "columns", "squares", "random"])
def test_convolutions_around_the_largest_number(tmp_path: pathlib.Path, signs: str) -> None:
    """Winograd's algorithm, whose intermediate results overflow before the gradient does."""
    channels, filters, rows, size = 16, 512, 2, 8
    net = Net()
    x, t = net.take("x", ["rows", channels, size, size]), net.take("t", ["rows", filters, size, size])
    y = net.add("Conv", [x, net.weight(filters, channels, 3, 3)], pads=[1] * 4)
    net.add("ReduceSum", [net.add("Mul", [y, t])], keepdims=0)
    folder = net.write(tmp_path)
    training, direct = Training(folder), Training(folder, {"ortrain.disable_pass.winograd": "1"})
    rng = np.random.default_rng(0)
    for each in (training, direct):
        each.module(*(rng.normal(size=(rows, n, size, size)).astype(np.float32) for n in (channels, filters)))
    assert not np.array_equal(training.gradients()["w"], direct.gradients()["w"]), (
        "it is Winograd's algorithm"
    )
    training.module.lazy_reset_grad()

    line = np.arange(size)
    pattern = {
        "same": np.ones((size, size)),
        "columns": np.where(line % 4 < 2, 1, -1) * np.ones((size, 1)),
        "squares": np.where((line[:, None] // 2 + line // 2) % 2 == 0, 1, -1),
        "random": rng.choice([-1, 1], (size, size)),
    }[signs]
    outcomes = []
    for product in np.geomspace(1e34, 1e38, 30):
        steps = [
            np.broadcast_to(pattern * np.sqrt(product), (rows, n, size, size)) for n in (channels, filters)
        ]
        training.module(*(step.astype(np.float32) for step in steps))
        outcomes.append(check(training))
        training.module.lazy_reset_grad()
    assert outcomes == sorted(outcomes, reverse=True)
    assert set(outcomes) == {True, False}


def test_a_network_trains_as_without_bounds(tmp_path: pathlib.Path) -> None:
    """Also if activations are computed twice, and bitwise."""
    rng = np.random.default_rng(0)
    net = Net()
    value = net.take("x", ["rows", IN])
    for layer, (rows, columns) in enumerate(pairwise([IN, 96, 96, 96, 96, 10])):
        weight = net.weight(rows, columns, name=f"w{layer}")
        net.weights[weight] = rng.normal(size=(rows, columns), scale=0.1).astype(np.float32)
        value = net.add("Tanh", [net.add("MatMul", [value, weight])])
    net.add("SoftmaxCrossEntropyLoss", [value, net.take("labels", ["rows"], onnx.TensorProto.INT64)])
    folder = net.write(tmp_path, "AdamW")
    configs: list[dict[str, str]] = [
        {},
        {"ortrain.disable_pass.bound_gradients": "1"},
        {"ortrain.nonfinite_gradients": "apply"},
        {"ortrain.memory_budget": "40000"},  # of 47104 without recomputation
        {"ortrain.check_finite": "1"},
    ]
    found = []
    for config in configs:
        training = Training(folder, config)
        data = np.random.default_rng(1)
        steps = [(data.normal(size=(24, IN)).astype(np.float32), data.integers(0, 10, 24)) for _ in range(4)]
        losses = [training.step(*step) for step in steps]
        found.append((losses, {name: value.tobytes() for name, value in training.parameters().items()}))
    assert all(each == found[0] for each in found[1:])
