"""Models with shapes that depend on values, and with If, Loop and Scan, are trained like any other."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import ortrain
import pytest
from differences import central_differences
from onnx import numpy_helper
from ortrain import SessionOptions, artifacts, profiling
from ortrain.api import CheckpointState, Module, Optimizer

from benchmarks.sliding_chunks import batch_of, sliding_chunks

Array = np.ndarray[Any, Any]
Weights = Mapping[str, Array]

HEADER = '<ir_version: 8, opset_import: ["" : 17]>'

# The squared error of a prediction at the positions selected by a mask, after a layer on only the selected rows.
MASKED = (
    HEADER
    + """
    g (float[N, 4] x, float[N, 2] target, bool[N] mask) => (float loss, float[M, 2] predicted)
    <float[4, 8] w1, float[8] b1, float[8, 2] w2>
    {
      a = MatMul(x, w1)
      h = Add(a, b1)
      r = Tanh(h)
      where = NonZero(mask)
      axis = Constant<value = int64[1] {0}>()
      rows = Squeeze(where, axis)
      chosen = Gather<axis = 0>(r, rows)
      predicted = MatMul(chosen, w2)
      wanted = Compress<axis = 0>(target, mask)
      e = Sub(predicted, wanted)
      q = Mul(e, e)
      loss = ReduceMean<keepdims = 0>(q)
    }
    """
)


def masked_loss(w: Weights, x: Array, target: Array, mask: Array) -> float:
    predicted = np.tanh(x @ w["w1"] + w["b1"])[mask] @ w["w2"]
    return float(np.mean((predicted - target[mask]) ** 2))


# A recurrent layer by Scan, whose last state is refined by a Loop for a number of iterations given as input, with
# another formula if the state is large.
CONTROLLED = (
    HEADER
    + """
    g (float[T, N, 3] x, float[N, 2] target, int64 refinements) => (float loss)
    <float[3, 5] w, float[5, 5] u, float[5, 5] v, float[5, 2] head, bool yes = {1}, float limit = {0.35}>
    {
      sizes = Shape(x)
      one = Constant<value = int64[1] {1}>()
      n = Gather(sizes, one)
      width = Constant<value = int64[1] {5}>()
      state = Concat<axis = 0>(n, width)
      h0 = ConstantOfShape(state)
      h = Scan <num_scan_inputs = 1, body = step (float[N, 5] h_in, float[N, 3] x_t) => (float[N, 5] h_out) {
        a = MatMul(x_t, w)
        b = MatMul(h_in, u)
        s = Add(a, b)
        h_out = Tanh(s)
      }> (h0, x)
      z = Loop (refinements, yes, h) <
        body = refine (int64 i, bool go, float[N, 5] p) => (bool on, float[N, 5] q) {
          on = Identity(go)
          m = Abs(p)
          mean = ReduceMean<keepdims = 0>(m)
          large = Greater(mean, limit)
          q = If (large) <
            then_branch = big () => (float[N, 5] f) { e = MatMul(p, v) f = Sin(e) },
            else_branch = small () => (float[N, 5] k) { k = Add(p, h) }
          >
        }
      >
      predicted = MatMul(z, head)
      d = Sub(predicted, target)
      q2 = Mul(d, d)
      loss = ReduceMean<keepdims = 0>(q2)
    }
    """
)


def controlled_loss(w: Weights, x: Array, target: Array, refinements: Array) -> float:
    h = np.zeros((x.shape[1], 5))
    for x_t in x:
        h = np.tanh(x_t @ w["w"] + h @ w["u"])
    z = h
    for _ in range(int(refinements)):
        z = np.sin(z @ w["v"]) if np.abs(z).mean() > 0.35 else z + h
    return float(np.mean((z @ w["head"] - target) ** 2))


def model_of(text: str, shapes: Mapping[str, Sequence[int]]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """The model with random weights, and the weights."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(0, 0.7, shape).astype(np.float32) for name, shape in shapes.items()}
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model, weights


MASKED_SHAPES = {"w1": (4, 8), "b1": (8,), "w2": (8, 2)}
CONTROLLED_SHAPES = {"w": (3, 5), "u": (5, 5), "v": (5, 5), "head": (5, 2)}


def masked_batch(rng: np.random.Generator, rows: int, chosen: int) -> tuple[Array, Array, Array]:
    x = rng.normal(size=(rows, 4)).astype(np.float32)
    target = np.stack([x[:, 0] * x[:, 1], np.sin(x[:, 2])], 1)
    return x, target, rng.permutation(np.arange(rows) < chosen)


def controlled_batch(rng: np.random.Generator, length: int, refinements: int) -> tuple[Array, Array, Array]:
    x = rng.normal(size=(length, 6, 3)).astype(np.float32)
    target = np.stack([x.mean((0, 2)), x[-1, :, 0]], 1)
    return x, target, np.array(refinements, np.int64)


Batch = tuple[Array, Array, Array]
MASKED_BATCHES = [
    masked_batch(np.random.default_rng(k), rows, chosen)
    for k, (rows, chosen) in enumerate([(9, 4), (9, 6), (12, 12), (7, 1)])
]
CONTROLLED_BATCHES = [
    controlled_batch(np.random.default_rng(k), length, refinements)
    for k, (length, refinements) in enumerate([(4, 2), (2, 3), (4, 0), (1, 4)])
]
CASES: list[Any] = [
    pytest.param(MASKED, MASKED_SHAPES, masked_loss, MASKED_BATCHES, id="masked"),
    pytest.param(CONTROLLED, CONTROLLED_SHAPES, controlled_loss, CONTROLLED_BATCHES, id="controlled"),
]


def session(
    folder: Path, text: str, shapes: Mapping[str, Sequence[int]], **config: str
) -> tuple[Module, CheckpointState, dict[str, Array]]:
    model, weights = model_of(text, shapes)
    artifacts.generate_artifacts(
        model, requires_grad=list(shapes), optimizer=artifacts.OptimType.AdamW, artifact_directory=folder
    )
    options = SessionOptions()
    for key, value in config.items():
        options.add_session_config_entry(f"ortrain.{key}", value)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx", state, folder / "eval_model.onnx", session_options=options
    )
    return module, state, weights


def first(outputs: Any) -> float:
    return float(np.asarray(outputs[0] if isinstance(outputs, (list, tuple)) else outputs).ravel()[0])


@pytest.mark.parametrize(("text", "shapes", "loss", "batches"), CASES)
def test_gradients_are_those_of_the_formula(
    text: str,
    shapes: Mapping[str, Sequence[int]],
    loss: Callable[..., float],
    batches: Sequence[Batch],
    tmp_path: Path,
) -> None:
    module, state, weights = session(tmp_path, text, shapes)
    exact = {name: value.astype(np.float64) for name, value in weights.items()}
    for _ in range(2):
        for batch in batches:
            module.lazy_reset_grad()
            module.train()
            inputs = [part.astype(np.float64) if part.dtype == np.float32 else part for part in batch]
            assert first(module(*batch)) == pytest.approx(loss(exact, *inputs), rel=1e-5)
            for name in shapes:
                numeric = central_differences(
                    lambda moved, name=name, inputs=inputs: loss({**exact, name: moved}, *inputs), exact[name]
                )
                found = state.parameters[name].grad
                np.testing.assert_allclose(
                    found, numeric, 1e-3, 1e-5 + 1e-4 * np.abs(numeric).max(), err_msg=name
                )
            module.eval()
            assert first(module(*batch)) == pytest.approx(loss(exact, *inputs), rel=1e-5)


@pytest.mark.parametrize(("text", "shapes", "loss", "batches"), CASES)
def test_the_loss_falls(
    text: str,
    shapes: Mapping[str, Sequence[int]],
    loss: Callable[..., float],
    batches: Sequence[Batch],
    tmp_path: Path,
) -> None:
    module, _, _ = session(tmp_path, text, shapes)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.02)
    module.train()
    sums = []
    for _ in range(60):
        total = 0.0
        for batch in batches:
            total += first(module(*batch))
            optimizer.step()
            module.lazy_reset_grad()
        sums.append(total)
    assert sums[-1] < 0.3 * sums[0]


@pytest.mark.parametrize(("text", "shapes", "loss", "batches"), CASES)
def test_gradients_of_several_steps_add_up(
    text: str,
    shapes: Mapping[str, Sequence[int]],
    loss: Callable[..., float],
    batches: Sequence[Batch],
    tmp_path: Path,
) -> None:
    module, state, _ = session(tmp_path, text, shapes)
    module.train()
    expected = dict.fromkeys(shapes, np.float32(0))
    for batch in batches:
        module.lazy_reset_grad()
        module(*batch)
        expected = {name: expected[name] + state.parameters[name].grad for name in shapes}
    module.lazy_reset_grad()
    for batch in batches:
        module(*batch)
    for name in shapes:
        np.testing.assert_allclose(state.parameters[name].grad, expected[name], 1e-4, 1e-6, err_msg=name)


@pytest.mark.parametrize(("text", "shapes", "loss", "batches"), CASES)
def test_the_exported_model_runs_elsewhere(
    text: str,
    shapes: Mapping[str, Sequence[int]],
    loss: Callable[..., float],
    batches: Sequence[Batch],
    tmp_path: Path,
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    module, _, _ = session(tmp_path, text, shapes)
    module.eval()
    module.export_model_for_inferencing(tmp_path / "inference.onnx", ["loss"])
    other = onnxruntime.InferenceSession(tmp_path / "inference.onnx", providers=["CPUExecutionProvider"])
    names = [value.name for value in other.get_inputs()]
    for batch in batches:
        expected = other.run(None, dict(zip(names, batch, strict=True)))[0]
        assert first(module(*batch)) == pytest.approx(float(expected), rel=1e-5)


def test_mixed_precision_and_a_memory_budget_hold(tmp_path: Path) -> None:
    text, shapes, _, batches = CASES[1].values
    module, state, _ = session(tmp_path / "plain", text, shapes)
    module.train()
    expected = [first(module(*batch)) for batch in batches]
    budget, _, _ = session(tmp_path / "budget", text, shapes, memory_budget="1M")
    mixed, mixed_state, _ = session(tmp_path / "mixed", text, shapes, mixed_precision="bf16")
    for other, tolerance in ((budget, 0.0), (mixed, 3e-2)):
        other.train()
        assert [first(other(*batch)) for batch in batches] == pytest.approx(expected, rel=tolerance)
    for name in shapes:
        exact = state.parameters[name].grad
        np.testing.assert_allclose(mixed_state.parameters[name].grad, exact, 0.1, 0.05 * np.abs(exact).max())


def test_a_profile_shows_the_kernels_of_subgraphs(tmp_path: Path) -> None:
    text, shapes, _, batches = CASES[1].values
    module, _, _ = session(tmp_path, text, shapes)
    module.train()
    module(*batches[0])
    given = dict(zip(("x", "target", "refinements"), batches[0], strict=True))
    trace = profiling.record(tmp_path, steps=2, batch=6, given=given)
    operators = {e["name"] for e in trace["traceEvents"] if e["cat"] == "train step"}
    assert {"Tanh", "Sin", "MatMul"} <= operators | {"MatMul" if "FusedMatMul" in operators else ""}


def test_an_error_after_the_first_segment_leaves_no_half_made_gradients(tmp_path: Path) -> None:
    text, shapes, _, batches = CASES[0].values
    module, _, _ = session(tmp_path, text, shapes)
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    module.train()
    module(*batches[0])
    x, target, mask = batches[0]
    with pytest.raises(ortrain.OrtrainError):
        module(x, target[:-1], mask)
    with pytest.raises(ortrain.OrtrainError):
        module(x[:5], target[:5], mask)
    module(*batches[1])
    optimizer.step()


TORCH = Path(__file__).parents[1] / "data" / "torch_control_flow"


@pytest.mark.parametrize("name", sorted(path.stem for path in TORCH.glob("*.onnx")))
def test_models_exported_by_torch_have_its_loss_and_gradients(name: str, tmp_path: Path) -> None:
    recorded = np.load(TORCH / f"{name}.npz")
    parameters = [key.removesuffix("_grad0") for key in recorded.files if key.endswith("_grad0")]
    model = onnx.load(TORCH / f"{name}.onnx")
    artifacts.generate_artifacts(model, requires_grad=parameters, artifact_directory=tmp_path)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    given = {value.name for value in model.graph.input}
    for k in (0, 1, 0):
        inputs = [recorded[f"{key}{k}"] for key in ("x", "mask", "target") if key in given]
        module.lazy_reset_grad()
        module.train()
        assert first(module(*inputs)) == pytest.approx(float(recorded[f"loss{k}"]), rel=1e-5)
        for parameter in parameters:
            np.testing.assert_allclose(
                state.parameters[parameter].grad,
                recorded[f"{parameter}_grad{k}"],
                1e-4,
                1e-6,
                err_msg=parameter,
            )
        module.eval()
        assert first(module(*inputs)) == pytest.approx(float(recorded[f"loss{k}"]), rel=1e-5)


@pytest.mark.parametrize("seeds", [(0, 1, 2), (2, 1, 0, 2)])
def test_a_graph_of_thousands_of_small_nodes_with_masks_trains(seeds: Sequence[int], tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = sliding_chunks(layers=1, chunks=3, width=4)
    trained = [weight.name for weight in model.graph.initializer]
    artifacts.generate_artifacts(
        model, requires_grad=trained, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    other = onnxruntime.InferenceSession(model.SerializeToString())
    double = sliding_chunks(layers=1, chunks=3, width=4, dtype=np.float64)
    for (
        weight
    ) in double.graph.initializer:  # one session takes all values of the weights, which are also inputs
        double.graph.input.append(
            onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        )
    exact = onnxruntime.InferenceSession(double.SerializeToString())
    rng = np.random.default_rng(1)
    for seed in seeds:
        given = batch_of(model, 2, seed)
        [y] = other.run(None, {name: given[name] for name in ("x", "attended")})
        expected = float(np.mean((y - given["target"]) ** 2))
        module.eval()
        assert first(module(*given.values())) == pytest.approx(expected, rel=1e-5)
        module.train()
        for added in (1, 2):  # overwriting the gradients, then adding to them
            assert first(module(*given.values())) == pytest.approx(expected, rel=1e-5)
            for weight in double.graph.initializer:
                value, at = numpy_helper.to_array(weight), tuple(rng.integers(0, weight.dims))
                found = state.parameters[weight.name].grad[at] / added
                numeric = central_differences(
                    functools.partial(loss_of, exact, given, weight.name), value.copy(), 1e-6, [at]
                )[at]
                assert found == pytest.approx(numeric, rel=1e-3, abs=1e-6), weight.name
        module.lazy_reset_grad()


def loss_of(session: Any, given: Mapping[str, Array], name: str, value: Array) -> float:
    """Return the squared error that stock onnxruntime computes with another value of a weight."""
    feed = {"x": given["x"].astype(np.float64), "attended": given["attended"], name: value}
    [y] = session.run(None, feed)
    return float(np.mean((y - given["target"]) ** 2))
