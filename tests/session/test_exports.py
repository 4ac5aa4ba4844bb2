"""An exported model is valid ONNX, whatever outputs are requested and however little the given model declares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from exported import check_exported
from onnx import helper
from ortrain import InferenceSession, artifacts
from ortrain.api import CheckpointState, Module

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(3)


def uniform(*shape: int) -> Array:
    return RNG.uniform(-1, 1, shape).astype(np.float32)


# Operators whose form is the same in all opsets.
LAYERS = """
    g (float[N, 2, 6, 6] x) => (y)
    <float[3, 2, 3, 3] kernel, float[3] scale, float[3] shift, float[3] mean, float[3] var,
     float[12, 4] w, float[4] b, float[5] never>
    {
      c = Conv<kernel_shape = [3, 3]>(x, kernel)
      n = BatchNormalization(c, scale, shift, mean, var)
      r = Relu(n)
      p = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(r)
      f = Flatten<axis = 1>(p)
      h = Gemm(f, w, b)
      t = Transpose<perm = [1, 0]>(h)
      s = Shape(t)
      y = Tanh(h)
    }
"""
LAYER_WEIGHTS = {
    "kernel": (3, 2, 3, 3),
    "scale": (3,),
    "shift": (3,),
    "mean": (3,),
    "var": (3,),
    "w": (12, 4),
    "b": (4,),
    "never": (5,),
}

CONTROL_FLOW = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[T, N, 3] x, int64 times) => (float[N, 3] y)
    <float[3, 3] w, float[3, 3] u, bool yes = {1}, float limit = {0.3}, int64[1] batch = {1}, int64[1] three = {3}>
    {
      sizes = Shape(x)
      n = Gather(sizes, batch)
      state = Concat<axis = 0>(n, three)
      h0 = ConstantOfShape(state)
      h, all = Scan <num_scan_inputs = 1, body = step (float[N, 3] h_in, float[N, 3] x_t) => (h_out, copy) {
        a = MatMul(x_t, w)
        s = Add(a, h_in)
        h_out = Tanh(s)
        copy = Identity(h_out)
      }> (h0, x)
      z = Loop (times, yes, h) <
        body = refine (int64 i, bool go, float[N, 3] p) => (on, q) {
          on = Identity(go)
          m = Abs(p)
          average = ReduceMean<keepdims = 0>(m)
          large = Greater(average, limit)
          q = If (large) <
            then_branch = big () => (e) { e = MatMul(p, u) },
            else_branch = small () => (k) { k = Add(p, h) }
          >
        }
      >
      y = Identity(z)
    }
"""

DATA_DEPENDENT = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 4] x, bool[N] mask) => (y)
    <float[4, 3] w, float[3] unread, int64[1] k = {2}, int64[1] zero = {0}, int64[2] flat = {-1, 1}>
    {
      a = MatMul(x, w)
      where = NonZero(mask)
      rows = Squeeze(where, zero)
      chosen = Gather<axis = 0>(a, rows)
      kept = Compress<axis = 0>(x, mask)
      best, places = TopK<axis = -1>(chosen, k)
      largest = ArgMax<axis = 1, keepdims = 0>(chosen)
      positive = Greater(best, chosen_limit)
      chosen_limit = ReduceMean<axes = [0, 1], keepdims = 1>(chosen)
      column = Reshape(best, flat)
      single = Cast<to = 10>(column)
      unused = Mul(unread, unread)
      y = Tanh(column)
    }
"""

CASES: dict[str, tuple[str, Mapping[str, tuple[int, ...]], dict[str, Array]]] = {
    **{
        f"opset {opset}": (
            f'<ir_version: {ir}, opset_import: ["" : {opset}]>' + LAYERS,
            LAYER_WEIGHTS,
            {"x": uniform(3, 2, 6, 6)},
        )
        for opset, ir in (
            (7, 3),
            (8, 4),
            (9, 4),
            (11, 6),
            (13, 7),
            (15, 8),
            (17, 8),
            (19, 9),
            (21, 10),
            (23, 11),
        )
    },
    "If, Loop and Scan": (
        CONTROL_FLOW,
        {"w": (3, 3), "u": (3, 3)},
        {"x": uniform(4, 2, 3), "times": np.array(3, np.int64)},
    ),
    "shapes that depend on values": (
        DATA_DEPENDENT,
        {"w": (4, 3), "unread": (3,)},
        {"x": uniform(5, 4), "mask": np.array([True, False, True, True, False])},
    ),
}


def model_of(text: str, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(5)
    for name, shape in shapes.items():
        value = rng.uniform(0.2, 0.9, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        if model.ir_version < 4:
            model.graph.input.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape))
    return model


def module_of(model: onnx.ModelProto | Path, trained: list[str], folder: Path) -> Module:
    """Return a module whose eval model declares nothing that ONNX does not require."""
    artifacts.generate_artifacts(
        model, requires_grad=trained, loss=artifacts.LossType.MSELoss, artifact_directory=folder
    )
    path = folder / "eval_model.onnx"
    evaluated = onnx.load(path)
    del evaluated.graph.value_info[:]
    for output in evaluated.graph.output:
        output.ClearField("type")
    onnx.save(evaluated, path)
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    return Module(folder / "training_model.onnx", state, path)


def every_value(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """Return what stock onnxruntime computes for each value of the given model."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    del wide.graph.output[:]
    names = [name for node in model.graph.node for name in node.output if name]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(wide.SerializeToString(), options)
    return dict(zip(names, session.run(names, feeds), strict=True))


def check_runs(path: Path, names: list[str], feeds: dict[str, Array], expected: dict[str, Array]) -> None:
    """Check that stock onnxruntime and ortrain compute the expected values with an exported model."""
    model = check_exported(path)
    inputs = [value.name for value in model.graph.input]
    given = {name: value for name, value in feeds.items() if name in inputs}
    for session in (onnxruntime.InferenceSession(str(path)), InferenceSession(path)):
        assert [output.name for output in session.get_outputs()] == names
        for name, found in zip(names, session.run(None, given), strict=True):
            assert found.shape == expected[name].shape, name
            assert found.dtype == expected[name].dtype, name
            np.testing.assert_allclose(found, expected[name], 1e-5, 1e-6, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_every_value_can_be_exported(case: str, tmp_path: Path) -> None:
    text, shapes, feeds = CASES[case]
    model = model_of(text, shapes)
    trained = [name for name in ("w", "u", "kernel", "b") if name in shapes]
    module = module_of(model, trained, tmp_path)
    expected = every_value(model, feeds)
    for name in expected:
        module.export_model_for_inferencing(tmp_path / "one.onnx", [name])
        check_runs(tmp_path / "one.onnx", [name], feeds, expected)
    module.export_model_for_inferencing(tmp_path / "all.onnx", list(expected))
    check_runs(tmp_path / "all.onnx", list(expected), feeds, expected)


def test_a_value_may_be_exported_twice(tmp_path: Path) -> None:
    text, shapes, feeds = CASES["opset 17"]
    model = model_of(text, shapes)
    module = module_of(model, ["w"], tmp_path)
    module.export_model_for_inferencing(tmp_path / "twice.onnx", ["y", "h", "y"])
    exported = InferenceSession(tmp_path / "twice.onnx")
    expected = every_value(model, feeds)
    for name, found in zip(["y", "h", "y"], exported.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, expected[name], 1e-5, 1e-6)


def test_weights_outside_the_file_are_exported_with_the_model(tmp_path: Path) -> None:
    text, shapes, feeds = CASES["opset 17"]
    model = model_of(text, shapes)
    expected = every_value(model, feeds)
    (tmp_path / "given").mkdir()
    path = tmp_path / "given" / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    assert (tmp_path / "given" / "weights").stat().st_size > 0
    module = module_of(path, ["w"], tmp_path)
    exported = tmp_path / "exported.onnx"
    module.export_model_for_inferencing(exported, ["y", "r"])
    check_runs(exported, ["y", "r"], feeds, expected)


def test_dimensions_of_outputs_are_named_or_known(tmp_path: Path) -> None:
    text, shapes, _ = CASES["opset 17"]
    module = module_of(model_of(text, shapes), ["w"], tmp_path)
    module.export_model_for_inferencing(tmp_path / "m.onnx", ["r", "t", "s"])
    found = {value.name: value for value in onnx.load(tmp_path / "m.onnx").graph.output}
    dims = {
        name: [d.dim_param or d.dim_value for d in value.type.tensor_type.shape.dim]
        for name, value in found.items()
    }
    assert dims == {"r": ["N", 3, 4, 4], "t": [4, "N"], "s": [2]}
    assert found["s"].type.tensor_type.elem_type == onnx.TensorProto.INT64

    text, shapes, _ = CASES["shapes that depend on values"]
    module = module_of(model_of(text, shapes), ["w"], tmp_path)
    module.export_model_for_inferencing(tmp_path / "d.onnx", ["chosen", "single"])
    found = {value.name: value for value in onnx.load(tmp_path / "d.onnx").graph.output}
    chosen, single = (found[name].type.tensor_type for name in ("chosen", "single"))
    assert [bool(d.dim_param) for d in chosen.shape.dim] == [True, False]
    assert single.elem_type == onnx.TensorProto.FLOAT16
    assert [d.dim_value for d in single.shape.dim][1] == 1
