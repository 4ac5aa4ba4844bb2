"""Artifacts: their structure, that onnxruntime-training 1.19.2 runs them, and what is rejected."""

from __future__ import annotations

import json
import logging
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import OrtrainError, artifacts, onnxblock
from ortrain.api import CheckpointState, Module, Optimizer
from recorded import Fixture
from training import Training

LossType, OptimType = artifacts.LossType, artifacts.OptimType
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def generate(fixture: Fixture, folder: Path, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "requires_grad": fixture.expected["requires_grad"],
        "frozen_params": fixture.expected["frozen_params"],
        "loss": LossType[fixture.expected["loss"]],
        "optimizer": OptimType[fixture.expected["optimizer"]],
        "artifact_directory": folder,
    }
    artifacts.generate_artifacts(fixture.folder / "model.onnx", **(settings | changes))


def names(values: Iterable[Any]) -> list[str]:
    return [value.name for value in values]


def make_model(
    nodes: Sequence[onnx.NodeProto],
    tensors: dict[str, np.ndarray[Any, Any]],
    x: tuple[int, Sequence[int | str]] = (FLOAT, ["n", 3]),
    y: tuple[int, Sequence[int | str] | None] = (FLOAT, ["n", 3]),
    opset: int = 17,
    value_info: Sequence[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model from x to y."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", *y)],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
        value_info=list(value_info),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def weights(*shape: int, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


# Structure.


def test_artifacts_have_the_inputs_and_outputs_of_1_19(recorded: Fixture, tmp_path: Path) -> None:
    generate(recorded, tmp_path)
    for file in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        ours, theirs = onnx.load(tmp_path / file), onnx.load(recorded.path(file))
        assert names(ours.graph.input) == names(theirs.graph.input), file
        # The name of the loss ends in an arbitrary number.
        assert names(ours.graph.output)[1:] == names(theirs.graph.output)[1:], file
        assert [v.type for v in ours.graph.input] == [v.type for v in theirs.graph.input], file
        assert [v.type for v in ours.graph.output] == [v.type for v in theirs.graph.output], file
        given = onnx.load(recorded.path("model.onnx"), load_external_data=False)
        opsets = {o.domain: o.version for o in ours.opset_import}
        assert opsets[""] == next(o.version for o in given.opset_import if o.domain == "")
        assert ours.ir_version == given.ir_version


def test_layer_normalization_and_gelu_are_fused_as_in_1_19(tmp_path: Path) -> None:
    encoder = Fixture("encoder")
    generate(encoder, tmp_path)
    for op_type in ("LayerNormalization", "LayerNormalizationGrad", "Gelu", "GeluGrad", "SoftmaxGrad_13"):
        ours, theirs = (
            sorted(node.output[0] for node in onnx.load(path).graph.node if node.op_type == op_type)
            for path in (tmp_path / "training_model.onnx", encoder.path("training_model.onnx"))
        )
        assert len(ours) == len(theirs) > 0, op_type
        if not op_type.endswith(("Grad", "_13")):
            assert ours == theirs
    assert not any(
        node.op_type in ("Erf", "Sqrt") for node in onnx.load(tmp_path / "training_model.onnx").graph.node
    )


def test_optimizer_nodes_are_those_of_1_19(recorded: Fixture, tmp_path: Path) -> None:
    generate(recorded, tmp_path)
    (ours,), (theirs,) = (
        onnx.load(path).graph.node
        for path in (tmp_path / "optimizer_model.onnx", recorded.path("optimizer_model.onnx"))
    )
    assert (ours.domain, ours.op_type, list(ours.input)) == (
        theirs.domain,
        theirs.op_type,
        list(theirs.input),
    )
    attributes = [{a.name: helper.get_attribute_value(a) for a in node.attribute} for node in (ours, theirs)]
    assert attributes[0] == attributes[1]


def test_the_checkpoint_holds_the_weights_of_the_model(recorded: Fixture, tmp_path: Path) -> None:
    generate(recorded, tmp_path)
    given = {
        t.name: numpy_helper.to_array(t) for t in onnx.load(recorded.path("model.onnx")).graph.initializer
    }
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    listed = {*recorded.expected["requires_grad"], *(recorded.expected["frozen_params"] or [])}
    assert {name for name, _ in state.parameters} == listed
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, given[name])
        assert parameter.requires_grad == (name in recorded.expected["requires_grad"])


def test_weights_leave_the_models(recorded: Fixture, tmp_path: Path) -> None:
    generate(recorded, tmp_path)
    listed = {*recorded.expected["requires_grad"], *(recorded.expected["frozen_params"] or [])}
    for file in ("training_model.onnx", "eval_model.onnx"):
        assert not listed & set(names(onnx.load(tmp_path / file).graph.initializer))


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for folder in ("first", "second"):
        generate(Fixture("encoder"), tmp_path / folder)
    for file in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()


@pytest.mark.first_case
def test_onnxruntime_training_runs_our_artifacts(
    recorded: Fixture, tmp_path: Path, ort_training_python: str
) -> None:
    generate(recorded, tmp_path)
    expected = recorded.expected
    script = Path(__file__).parents[1] / "train_with_onnxruntime.py"
    command = [
        ort_training_python,
        script,
        tmp_path,
        recorded.path("batches.npz"),
        json.dumps(expected["learning_rates"]),
    ]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    np.testing.assert_allclose(found["train"], expected["train_losses"], rtol=1e-4)
    if "eval_losses_after" in expected:
        np.testing.assert_allclose(found["eval"], expected["eval_losses_after"], rtol=1e-4)
    assert np.isfinite(found["eval"]).all()


# Arguments.


def test_every_float_initializer_is_trained_by_default(tmp_path: Path) -> None:
    """Except those that cannot be trained: statistics, bounds, and unused values."""
    model = make_model(
        [
            helper.make_node("BatchNormalization", ["x", "scale", "shift", "mean", "var"], ["n"]),
            helper.make_node("Clip", ["n", "low"], ["c"]),
            helper.make_node("Reshape", ["c", "shape"], ["r"]),
            helper.make_node("Mul", ["r", "w"], ["y"]),
        ],
        {
            "scale": weights(3),
            "shift": weights(3),
            "mean": weights(3),
            "var": np.abs(weights(3)),
            "low": np.array(-5, np.float32),
            "shape": np.array([-1, 3]),
            "w": weights(3),
            "unused": weights(2),
        },
    )
    artifacts.generate_artifacts(
        model, loss=LossType.MSELoss, artifact_directory=tmp_path, frozen_params=["shift"]
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    assert {name: p.requires_grad for name, p in state.parameters} == {
        "scale": True,
        "w": True,
        "shift": False,
    }


def test_single_numbers_that_are_trained_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = make_model([helper.make_node("Mul", ["x", "factor"], ["y"])], {"factor": np.array(2, np.float32)})
    with caplog.at_level(logging.WARNING):
        artifacts.generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert "factor" in caplog.text


OLDER = [LossType.MSELoss, LossType.CrossEntropyLoss, LossType.BCEWithLogitsLoss, LossType.L1Loss]
# Others need other predictions than numbers (logarithms of probabilities), or several.
NEWER = [
    LossType[block.__name__]
    for block in onnxblock.loss.LOSSES.values()
    if issubclass(block, onnxblock.loss.Loss) and block is not onnxblock.loss.KLDivLoss
]
COMBINATIONS = [
    *((loss, OptimType.SGD, 17) for loss in OLDER),
    *((loss, OptimType.AdamW, opset) for loss in OLDER for opset in (12, 13, 17, 18, 21)),
    *((loss, OptimType.AdamW, opset) for loss in NEWER for opset in (12, 18)),
]


@pytest.mark.parametrize(("loss", "optimizer", "opset"), COMBINATIONS)
def test_every_loss_and_optimizer_lowers_the_loss(
    loss: LossType, optimizer: OptimType, opset: int, tmp_path: Path
) -> None:
    model = make_model(
        [helper.make_node("Gemm", ["x", "w", "b"], ["y"])], {"w": weights(3, 3), "b": weights(3)}, opset=opset
    )
    artifacts.generate_artifacts(
        model, loss=loss, optimizer=optimizer, artifact_directory=tmp_path, prefix="a_"
    )
    state = CheckpointState.load_checkpoint(tmp_path / "a_checkpoint")
    module = Module(tmp_path / "a_training_model.onnx", state, tmp_path / "a_eval_model.onnx")
    update = Optimizer(tmp_path / "a_optimizer_model.onnx", module)
    update.set_learning_rate(0.05)
    x = np.random.default_rng(5).normal(size=(8, 3)).astype(np.float32)
    target: Any = (x > 0).astype(np.float32)
    if loss is LossType.CrossEntropyLoss:
        target = x.argmax(axis=1)
    losses = []
    for _ in range(30):
        losses.append(float(module(x, target)))
        update.step()
        module.lazy_reset_grad()
    assert losses[-1] < 0.9 * losses[0]
    module.eval()
    assert float(module(x, target)) <= losses[-1]


def test_a_loss_of_ones_own_and_further_outputs(tmp_path: Path) -> None:
    class Half(onnxblock.Block):
        def __init__(self) -> None:
            super().__init__()
            self.mse, self.mul = onnxblock.loss.MSELoss(), onnxblock.blocks.Mul()
            self.half = onnxblock.blocks.Constant(0.5)

        def build(self, prediction: str) -> str:
            return str(self.mul(self.mse(prediction), self.half()))

    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"w": weights(3)})
    artifacts.generate_artifacts(
        model, loss=Half(), additional_output_names=["y"], artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, target = weights(4, 3), weights(4, 3) + 1
    for mode in (module.train, module.eval):
        mode()
        loss, y = module(x, target)
        np.testing.assert_allclose(y, x * weights(3), rtol=1e-6)
        np.testing.assert_allclose(
            float(np.squeeze(loss)), 0.5 * np.mean((x * weights(3) - target) ** 2), rtol=1e-5
        )
    assert not (tmp_path / "optimizer_model.onnx").exists()


def test_without_a_loss_the_first_output_is_the_loss(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("ReduceSum", ["z"], ["y"], keepdims=0)],
        {"w": weights(3)},
        y=(FLOAT, []),
    )
    artifacts.generate_artifacts(model, artifact_directory=tmp_path)
    assert names(onnx.load(tmp_path / "training_model.onnx").graph.output)[0] == "y"


def test_the_loss_takes_the_named_inputs(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Abs", ["y"], ["other"])],
        {"w": weights(3)},
    )
    model.graph.output.append(helper.make_tensor_value_info("other", FLOAT, ["n", 3]))
    artifacts.generate_artifacts(
        model, loss=LossType.MSELoss, loss_input_names=["other"], artifact_directory=tmp_path / "one"
    )
    assert names(onnx.load(tmp_path / "one/training_model.onnx").graph.input)[:2] == ["x", "target"]
    # Both outputs: the first is compared with the second.
    artifacts.generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path / "two")
    assert names(onnx.load(tmp_path / "two/training_model.onnx").graph.input)[:2] == ["x", "w"]


def test_nominal_checkpoints_have_names_and_no_values(mlp: Fixture, tmp_path: Path) -> None:
    generate(mlp, tmp_path, nominal_checkpoint=True, prefix="p_")
    full, nominal = tmp_path / "p_checkpoint", tmp_path / "p_nominal_checkpoint"
    assert nominal.stat().st_size < full.stat().st_size / 2
    state = CheckpointState.load_checkpoint(nominal)
    assert [name for name, _ in state.parameters] == mlp.expected["requires_grad"]


def test_initializers_may_be_listed_as_inputs_as_old_models_do(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Mul", ["a", "c"], ["y"])],
        {"w": weights(3), "c": weights(3)},
    )
    model.graph.input.extend(helper.make_tensor_value_info(name, FLOAT, [3]) for name in ("w", "c"))
    artifacts.generate_artifacts(
        model, requires_grad=["w"], loss=LossType.MSELoss, artifact_directory=os.fsencode(tmp_path)
    )
    for file in ("training_model.onnx", "eval_model.onnx"):
        written = onnx.load(tmp_path / file)
        assert names(written.graph.input)[:3] == ["x", "target", "w"]
        assert "c" in names(written.graph.initializer)


@pytest.mark.parametrize("kind", ["proto", "str", "path", "external data"])
def test_models_and_paths_of_every_kind(kind: str, mlp: Fixture, tmp_path: Path) -> None:
    source: Any = mlp.folder / "model.onnx"
    if kind == "proto":
        source = onnx.load(source)
    elif kind == "str":
        source = str(source)
    elif kind == "external data":
        onnx.save(
            onnx.load(source),
            tmp_path / "m.onnx",
            save_as_external_data=True,
            size_threshold=0,
            location="m.data",
        )
        source = tmp_path / "m.onnx"
    before = source.SerializeToString() if kind == "proto" else None
    artifacts.generate_artifacts(
        source,
        mlp.expected["requires_grad"],
        loss=LossType.CrossEntropyLoss,
        artifact_directory=str(tmp_path / "out"),
    )
    assert before is None or source.SerializeToString() == before
    generate(mlp, tmp_path / "expected")
    for file in ("training_model.onnx", "eval_model.onnx", "checkpoint"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "expected" / file).read_bytes()


@pytest.mark.parametrize("free", [-1, "?"])
def test_free_dimensions_of_paddle_may_differ(free: int | str, tmp_path: Path) -> None:
    """Paddle's exporter writes the size -1, or the name "?" for all free dimensions."""
    pool = helper.make_node("ReduceMean", ["x"], ["pooled"], axes=[2, 3], keepdims=0)
    nodes = [pool, helper.make_node("MatMul", ["pooled", "w"], ["y"])]
    shapes = (FLOAT, [free, 3, free, free]), (FLOAT, [free, 2])
    model = make_model(nodes, {"w": weights(3, 2)}, *shapes)
    before = model.SerializeToString()
    report = artifacts.generate_artifacts(
        model, loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    assert report.fixed_batch is None
    assert model.SerializeToString() == before
    training = Training(tmp_path)
    rng = np.random.default_rng(2)
    for rows, height, width in ((2, 4, 5), (3, 6, 2)):
        pictures = rng.normal(size=(rows, 3, height, width)).astype(np.float32)
        assert np.isfinite(training.step(pictures, np.arange(rows) % 2))


def test_functions_of_a_model_are_inlined(tmp_path: Path) -> None:
    body = [helper.make_node("Mul", ["a", "b"], ["c"]), helper.make_node("Relu", ["c"], ["d"])]
    function = helper.make_function("own", "MulRelu", ["a", "b"], ["d"], body, [helper.make_opsetid("", 17)])
    model = make_model([helper.make_node("MulRelu", ["x", "w"], ["y"], domain="own")], {"w": weights(3)})
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.functions.append(function)
    artifacts.generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    for file in ("training_model.onnx", "eval_model.onnx"):
        written = onnx.load(tmp_path / file)
        assert "Relu" in {node.op_type for node in written.graph.node}
        assert not written.functions


def test_a_model_of_other_operators_alone_trains(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [
            helper.make_node("BiasGelu", ["x", "b"], ["h"], domain="com.microsoft"),
            helper.make_node("FusedMatMul", ["h", "w"], ["y"], domain="com.microsoft"),
        ],
        "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", FLOAT, ["n", 2])],
        [
            numpy_helper.from_array(np.full(3, 0.5, np.float32), "b"),
            numpy_helper.from_array(np.ones((3, 2), np.float32), "w"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("com.microsoft", 1)], ir_version=8)
    artifacts.generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=OptimType.AdamW, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    x, target = np.ones((4, 3), np.float32), np.zeros((4, 2), np.float32)
    losses = []
    for _ in range(5):
        losses.append(float(module(x, target)))
        optimizer.step()
        module.lazy_reset_grad()
    assert losses[-1] < losses[0]


def test_a_parameter_that_is_used_twice_gets_the_sum_of_both_gradients(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["z"]), helper.make_node("Mul", ["z", "w"], ["y"])],
        {"w": weights(3)},
    )
    artifacts.generate_artifacts(
        model, loss=LossType.MSELoss, optimizer=OptimType.SGD, artifact_directory=tmp_path
    )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state)
    update = Optimizer(tmp_path / "optimizer_model.onnx", module)
    update.set_learning_rate(1.0)
    x, target, w = weights(4, 3).astype(np.float64), np.ones((4, 3)), weights(3).astype(np.float64)
    module(x.astype(np.float32), target.astype(np.float32))
    update.step()
    gradient = (2 * (x * w * w - target) / 12 * 2 * x * w).sum(axis=0)  # d/dw of mean((x w² - t)²)
    np.testing.assert_allclose(w - gradient, state.parameters["w"].data, rtol=1e-4, atol=1e-5)


# Rejected models.


def refusal(folder: Path, model: Any, **settings: Any) -> str:
    """The message with which the model is rejected; nothing is written."""
    arguments: dict[str, Any] = {"loss": LossType.MSELoss, "artifact_directory": folder / "out"}
    with pytest.raises(ValueError) as error:  # noqa: PT011 - the tests look at the whole message
        artifacts.generate_artifacts(model, **(arguments | settings))
    assert not (folder / "out").exists()
    return str(error.value)


def test_every_unknown_operator_is_named_with_its_node(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["a"]),
            helper.make_node("Frobnicate", ["a"], ["b"], name="first"),
            helper.make_node("Mul", ["b", "w"], ["c"]),
            helper.make_node("Wobble", ["c"], ["y"], name="second", domain="com.microsoft"),
        ],
        {"w": weights(3)},
    )
    lines = refusal(tmp_path, model).splitlines()
    (first,) = [line for line in lines if '"first"' in line]
    (second,) = [line for line in lines if '"second"' in line]
    assert all(word in first for word in ("Frobnicate", "ai.onnx", "opset 17", "not supported"))
    assert all(word in second for word in ("com.microsoft.Wobble", "opset 1", "not supported"))


def test_an_unknown_operator_beside_the_gradients_is_named_too(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Frobnicate", ["x"], ["a"], name="before"),
            helper.make_node("Mul", ["a", "w"], ["y"]),
        ],
        {"w": weights(3)},
        value_info=[helper.make_tensor_value_info("a", FLOAT, ["n", 3])],
    )
    assert '"before"' in refusal(tmp_path, model)


def test_an_unknown_operator_in_a_subgraph_is_named(tmp_path: Path) -> None:
    def branch(name: str, op_type: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(f"{name}_out", FLOAT, ["n", 3])
        return helper.make_graph([helper.make_node(op_type, ["a"], [f"{name}_out"])], name, [], [output])

    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["a"]),
            helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
            helper.make_node("Cast", ["s"], ["condition"], to=TensorProto.BOOL),
            helper.make_node(
                "If",
                ["condition"],
                ["y"],
                name="choice",
                then_branch=branch("t", "Frobnicate"),
                else_branch=branch("e", "Abs"),
            ),
        ],
        {"w": weights(3)},
    )
    message = refusal(tmp_path, model)
    assert "Frobnicate" in message
    assert '"t_out"' in message


@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_types_that_cannot_be_trained_are_rejected_with_the_parameter(dtype: type, tmp_path: Path) -> None:
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = make_model(
        [helper.make_node("Mul", ["x", "w"], ["y"], name="product")],
        {"w": (10 * weights(3)).astype(dtype)},
        x=(element, ["n", 3]),
        y=(element, ["n", 3]),
    )
    message = refusal(tmp_path, model, requires_grad=["w"])
    assert '"w"' in message
    assert np.dtype(dtype).name in message
    assert "float32" in message


def test_a_parameter_that_the_loss_does_not_depend_on_is_named(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["y"]),
            helper.make_node("Mul", ["x", "v"], ["z"]),
            helper.make_node("Shape", ["u"], ["s"]),
        ],
        {"w": weights(3), "v": weights(3), "u": weights(3)},
    )
    model.graph.output.append(helper.make_tensor_value_info("z", FLOAT, ["n", 3]))
    message = refusal(tmp_path, model, requires_grad=["w", "v", "u"], loss_input_names=["y"])
    assert '"v"' in message
    assert '"u"' in message
    assert '"w"' not in message


def test_all_problems_are_named_at_once(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["a"]),
            helper.make_node("Frobnicate", ["a"], ["b"], name="bad"),
            helper.make_node("Mul", ["b", "w"], ["y"]),
        ],
        {"w": weights(3), "v": weights(3)},
    )
    message = refusal(tmp_path, model, requires_grad=["w", "v"], loss=None)
    for word in ('"bad"', '"v"', '"y"', "[n, 3]"):
        assert word in message


def test_operators_without_a_gradient_are_named_at_once_with_what_to_do(tmp_path: Path) -> None:
    model = make_model(
        [
            helper.make_node("Mul", ["x", "w"], ["a"]),
            helper.make_node("DivGrad", ["a", "a", "v"], ["b"], name="first", domain="com.microsoft"),
            helper.make_node("Add", ["b", "w"], ["c"]),
            helper.make_node("DivGrad", ["c", "c", "v"], ["d"], name="second", domain="com.microsoft"),
            helper.make_node("Frobnicate", ["d"], ["e"], name="third"),
            # No trained value depends on this one.
            helper.make_node("DivGrad", ["x", "x", "v"], ["f"], name="beside", domain="com.microsoft"),
            helper.make_node("Add", ["e", "f"], ["y"]),
        ],
        {"w": weights(3), "v": weights(3)},
    )
    lines = refusal(tmp_path, model, requires_grad=["w"]).splitlines()
    for name, op_type, domain, opset, advice in (
        ("first", "com.microsoft.DivGrad", "com.microsoft", 1, "has no gradient yet; freeze"),
        ("second", "com.microsoft.DivGrad", "com.microsoft", 1, "has no gradient yet; freeze"),
        ("third", "Frobnicate", "ai.onnx", 17, "is not supported. No version of ONNX has this operator"),
    ):
        (line,) = [line for line in lines if f'"{name}"' in line]
        assert line.startswith(f'node "{name}" ({op_type}), domain {domain}, opset {opset}: ')
        assert advice in line
    assert not any('"beside"' in line for line in lines)


def test_a_loss_that_is_no_single_number_is_rejected_with_its_shape(tmp_path: Path) -> None:
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"w": weights(3)})
    message = refusal(tmp_path, model, loss=onnxblock.loss.MSELoss("none"))
    assert "[n, 3]" in message
    assert "must be a scalar" in message


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"requires_grad": ["wieght"]}, ["'wieght'", "'weight'"]),
        ({"requires_grad": ["weight"], "frozen_params": ["weight"]}, ["weight", "both"]),
        ({"additional_output_names": ["ghost"]}, ["'ghost'"]),
        ({"loss_input_names": ["y", "x", "y2"]}, ["MSELoss", "loss_input_names"]),
    ],
)
def test_wrong_names_are_rejected(settings: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    with pytest.raises((ValueError, LookupError)) as error:
        artifacts.generate_artifacts(
            model, **({"loss": LossType.MSELoss, "artifact_directory": tmp_path / "out"} | settings)
        )
    for word in words:
        assert word in str(error.value)
    assert not (tmp_path / "out").exists()


def test_frozen_names_that_the_model_lacks_are_ignored_with_a_warning(tmp_path: Path) -> None:
    """PyTorch code freezes all named_buffers(), and the exporter leaves out some of them."""
    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    for requires_grad in (["weight"], None):
        with pytest.warns(artifacts.UnknownParameterWarning, match="'ghost', 'position_ids'"):
            report = artifacts.generate_artifacts(
                model,
                requires_grad=requires_grad,
                frozen_params=["ghost", "position_ids"],
                loss=LossType.MSELoss,
                artifact_directory=tmp_path,
            )
        assert report.trained == ["weight"]
        assert report.frozen == []


def test_a_model_without_parameters_gets_artifacts_and_a_warning(tmp_path: Path) -> None:
    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    with pytest.warns(
        artifacts.NothingToTrainWarning, match=r"no parameter.*weight \(named in frozen_params"
    ):
        artifacts.generate_artifacts(
            model, frozen_params=["weight"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    expected = np.mean((x * weights(3)) ** 2)
    np.testing.assert_allclose(module(x, y), expected, rtol=1e-6)


def test_training_blocks_accumulate_the_gradients_of_inputs() -> None:
    class Loss(onnxblock.TrainingBlock):
        def __init__(self) -> None:
            super().__init__()
            self.loss = onnxblock.loss.MSELoss()

        def build(self, prediction: str) -> str:
            return self.loss(prediction)

    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    for trained in (["weight", "x"], ["x"]):
        block = Loss()
        for name in trained:
            block.requires_grad(name)
        with onnxblock.base(model):
            block("y")
        training_model, _ = block.to_model_proto()
        onnx.checker.check_model(training_model)
        inputs = [value.name for value in training_model.graph.input]
        outputs = [value.name for value in training_model.graph.output]
        assert inputs[-1] == "lazy_reset_grad"
        assert inputs.count("lazy_reset_grad") == 1
        assert {name for name in inputs if name.endswith("buffer")} == {
            f"{name}_grad.accumulation.buffer" for name in trained
        }
        assert set(outputs[1:]) == {f"{name}_grad.accumulation.out" for name in trained}


def test_the_gradient_of_an_input_is_an_output(tmp_path: Path) -> None:
    """It is the gradient of one step; those of parameters accumulate."""
    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    report = artifacts.generate_artifacts(
        model,
        requires_grad=["x", "weight"],
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
        additional_output_names=["y"],
    )
    assert report.input_gradients == ("x_grad",)
    assert report.trained == ["weight"]
    training = onnx.load(report.training_model)
    assert [value.name for value in training.graph.output][1:] == [
        "y", "x_grad", "weight_grad.accumulation.out"
    ]  # fmt: skip
    assert "x_grad" not in [value.name for value in onnx.load(report.eval_model).graph.output]
    onnx.checker.check_model(training)

    state = CheckpointState.load_checkpoint(report.checkpoint)
    module = Module(report.training_model, state, report.eval_model)
    x, target, weight = weights(4, 3), weights(4, 3) * 2, weights(3)
    for steps in (1, 2):
        _, y, gradient = module(x, target)
        difference = 2 * (y - target) / y.size
        np.testing.assert_allclose(gradient, difference * weight, rtol=1e-5)
        np.testing.assert_allclose(
            state.parameters["weight"].grad, steps * (difference * x).sum(0), rtol=1e-5
        )


def test_the_gradient_of_an_input_needs_no_parameters(tmp_path: Path) -> None:
    """As for adversarial examples, or to show which inputs a network depends on."""
    model = make_model([helper.make_node("Mul", ["x", "weight"], ["y"])], {"weight": weights(3)})
    report = artifacts.generate_artifacts(
        model, requires_grad=["x"], loss=LossType.MSELoss, artifact_directory=tmp_path
    )
    assert report.trained == []
    assert report.left_out == ["weight"]
    state = CheckpointState.load_checkpoint(report.checkpoint)
    x, target = weights(4, 3), np.zeros((4, 3), np.float32)
    loss, gradient = Module(report.training_model, state)(x, target)
    np.testing.assert_allclose(loss, ((x * weights(3)) ** 2).mean(), rtol=1e-5)
    np.testing.assert_allclose(gradient, 2 * x * weights(3) ** 2 / x.size, rtol=1e-5)


def test_an_input_that_has_no_gradient_is_named(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Ceil", ["x"], ["c"]), helper.make_node("Mul", ["c", "weight"], ["y"])],
        {"weight": weights(3)},
    )
    with pytest.raises(ValueError, match=r'input "x".*no gradient'):
        artifacts.generate_artifacts(
            model, requires_grad=["x", "weight"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )


def test_a_name_that_the_gradient_of_an_input_needs_must_be_free(tmp_path: Path) -> None:
    model = make_model(
        [helper.make_node("Mul", ["x", "weight"], ["x_grad"]), helper.make_node("Relu", ["x_grad"], ["y"])],
        {"weight": weights(3)},
    )
    with pytest.raises((ValueError, RuntimeError), match='"x_grad" already'):
        artifacts.generate_artifacts(
            model, requires_grad=["x"], loss=LossType.MSELoss, artifact_directory=tmp_path
        )


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"loss": "mse"}, "LossType"),
        ({"optimizer": "adamw"}, "OptimType"),
        ({"optimizer": onnxblock.blocks.Add()}, "OptimType"),
        ({"model": 3}, "ModelProto"),
        ({"additional_output_names": "y"}, "additional_output_names"),
        ({"requires_grad": "w"}, "requires_grad"),
        ({"frozen_params": [1]}, "frozen_params"),
    ],
)
def test_wrong_types_are_rejected(settings: dict[str, Any], word: str, tmp_path: Path) -> None:
    model = make_model([helper.make_node("Mul", ["x", "w"], ["y"])], {"w": weights(3)})
    with pytest.raises(TypeError, match=word):
        artifacts.generate_artifacts(
            **({"model": model, "loss": LossType.MSELoss, "artifact_directory": tmp_path / "out"} | settings)
        )


def test_a_missing_library_of_custom_operators_is_named(mlp: Fixture, tmp_path: Path) -> None:
    with pytest.raises(OrtrainError, match=r"Failed to load library .*ops\.so"):
        generate(mlp, tmp_path, custom_op_library="ops.so")


def test_a_path_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="ghost"):
        artifacts.generate_artifacts(tmp_path / "ghost.onnx", loss=LossType.MSELoss)
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    for name in ("text", "empty"):
        with pytest.raises(ValueError, match=f"{name}.onnx.* is not an ONNX model"):
            artifacts.generate_artifacts(tmp_path / f"{name}.onnx", loss=LossType.MSELoss)


def test_weights_that_lie_elsewhere_are_asked_for_by_path(mlp: Fixture, tmp_path: Path) -> None:
    onnx.save(
        onnx.load(mlp.path("model.onnx")),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        size_threshold=0,
        location="d",
    )
    model = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert "path" in refusal(tmp_path, model, loss=LossType.CrossEntropyLoss)


def test_a_failed_write_leaves_the_old_files(mlp: Fixture, tmp_path: Path) -> None:
    (tmp_path / "training_model.onnx").mkdir()  # a folder cannot be replaced by a file
    with pytest.raises(OSError, match=r"training_model\.onnx"):
        generate(mlp, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["training_model.onnx"]
