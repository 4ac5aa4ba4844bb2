"""The training step as one model of ONNX: run by stock onnxruntime, it trains as a training session does."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts, onnxblock, step
from ortrain.artifacts.step import generate_step, write_step
from training import Training

Array = np.ndarray[Any, Any]
CROSS_ENTROPY = artifacts.LossType.CrossEntropyLoss
ADAMW, SGD = artifacts.OptimType.AdamW, artifacts.OptimType.SGD
RNG = np.random.default_rng(3)
BATCHES = [
    (RNG.normal(size=(8, 2, 9, 9)).astype(np.float32), RNG.integers(0, 5, 8).astype(np.int64))
    for _ in range(20)
]


def network(dropout: float = 0.0, normalization: bool = True, kind: type = np.float32) -> onnx.ModelProto:
    """Convolutions, batch normalization, pooling, dropout and a linear layer."""
    rng = np.random.default_rng(1)
    weights = {
        "conv.weight": rng.normal(0, 0.3, (6, 2, 3, 3)),
        "conv.bias": rng.normal(0, 0.1, 6),
        "bn.weight": np.ones(6),
        "bn.bias": np.zeros(6),
        "bn.running_mean": np.zeros(6),
        "bn.running_var": np.ones(6),
        "deep.weight": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "fc.weight": rng.normal(0, 0.3, (5, 8)),
        "fc.bias": np.zeros(5),
    }
    if not normalization:
        weights = {name: value for name, value in weights.items() if not name.startswith("bn")}
    nodes = [helper.make_node("Conv", ["x", "conv.weight", "conv.bias"], ["c1"], pads=[1, 1, 1, 1])]
    if normalization:
        nodes.append(
            helper.make_node(
                "BatchNormalization", ["c1", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"],
                ["b1", "mean", "var"], training_mode=1, momentum=0.9,
            )
        )  # fmt: skip
    nodes += [
        helper.make_node("Relu", ["b1" if normalization else "c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["p1", "deep.weight"], ["c2"], strides=[2, 2], group=2),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
    ]
    initializers = [numpy_helper.from_array(value.astype(kind), name) for name, value in weights.items()]
    features = "f"
    if dropout:
        initializers += [
            numpy_helper.from_array(np.array(dropout, np.float32), "ratio"),
            numpy_helper.from_array(np.array(True), "training"),
        ]
        nodes.append(helper.make_node("Dropout", ["f", "ratio", "training"], ["d"]))
        features = "d"
    nodes.append(helper.make_node("Gemm", [features, "fc.weight", "fc.bias"], ["scores"], transB=1))
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    graph = helper.make_graph(
        nodes, "network",
        [helper.make_tensor_value_info("x", element, ["n", 2, 9, 9])],
        [helper.make_tensor_value_info("scores", element, ["n", 5])],
        initializers,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def clipped_groups() -> onnxblock.Block:
    optim = onnxblock.optim
    return optim.AdamW(weight_decay=0.01, clip_grad=optim.ClipGradNorm(0.5), param_groups=[optim.no_decay()])


def domains(path: pathlib.Path) -> set[str]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return {entry.domain for entry in model.opset_import}


def description(path: pathlib.Path) -> dict[str, Any]:
    [entry] = [e for e in onnx.load(path).metadata_props if e.key == "ortrain.step"]
    return dict(json.loads(entry.value))


@pytest.mark.parametrize("optimizer", [ADAMW, SGD, "groups"])
def test_twenty_steps_are_those_of_a_training_session(optimizer: Any, tmp_path: pathlib.Path) -> None:
    chosen = clipped_groups() if optimizer == "groups" else optimizer
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, chosen, path)
    assert domains(path) == {""}
    here = Training(tmp_path)
    here.optimizer.set_learning_rate(0.02)
    there = step.Session(path, learning_rate=0.02)
    expected = [here.step(*batch) for batch in BATCHES]
    found = [float(there(*batch)) for batch in BATCHES]
    np.testing.assert_allclose(found, expected, 1e-5)
    assert found[-1] != pytest.approx(found[0], rel=1e-2)  # it trains
    # Normalization subtracts the convolution's bias, so its gradient is rounding alone, which AdamW follows. So does the mean.
    rounding = {"conv.bias", "bn.running_mean"} if optimizer is ADAMW else {"conv.bias"}
    for name, value in here.parameters().items():  # the running statistics too
        if name not in rounding:
            np.testing.assert_allclose(there.parameters[name], value, 1e-3, 2e-5, err_msg=name)
    assert there.step_count == 20


def test_the_inputs_and_outputs_are_paired_in_the_metadata(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, ADAMW, path, additional_output_names=["scores"])
    about, model = description(path), onnx.load(path)
    inputs, outputs = ({v.name for v in values} for values in (model.graph.input, model.graph.output))
    assert about["batch"] == ["x", "labels"]
    assert about["outputs"][1:] == ["scores"]
    assert about["state"]["fc.weight"] == "fc.weight.next"
    assert about["moments"]["fc.weight"] == ["fc.weight.momentum0", "fc.weight.momentum1"]
    assert about["state"]["bn.running_mean"] == "bn.running_mean.next"
    assert set(about["state"]) | {"x", "labels", "learning_rate"} == inputs
    assert set(about["state"].values()) | set(about["outputs"]) == outputs


def test_only_what_nothing_reads_later_may_be_written_in_place(tmp_path: pathlib.Path) -> None:
    """The gradient of a layer's input reads its weight, at a time that the runtime chooses."""
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, ADAMW, path)
    about = description(path)
    apart = set(about["state"]) - set(about["in_place"])
    assert apart == {"deep.weight", "fc.weight", "bn.weight"}
    # With separate memory for all, the bits are the same.
    model = onnx.load(path)
    [entry] = [e for e in model.metadata_props if e.key == "ortrain.step"]
    entry.value = json.dumps(about | {"in_place": []})
    onnx.save(model, tmp_path / "apart.onnx")
    sessions = [step.Session(each, learning_rate=0.02) for each in (path, tmp_path / "apart.onnx")]
    for batch in BATCHES:
        losses = [float(session(*batch)) for session in sessions]
        assert losses[0] == losses[1]
    for name, value in sessions[0].parameters.items():
        np.testing.assert_array_equal(value, sessions[1].parameters[name], err_msg=name)


def test_gradients_alone_are_those_of_a_training_session(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "gradients.onnx"
    generate_step(network(), CROSS_ENTROPY, ADAMW, path, kind="gradients")
    here, there = Training(tmp_path), step.Session(path)
    loss, gradients = there(*BATCHES[0])
    assert float(loss) == pytest.approx(here.loss(*BATCHES[0]), rel=1e-6)
    largest = max(float(np.abs(gradient).max()) for gradient in here.gradients().values())
    for name, gradient in here.gradients().items():
        # Normalization subtracts the convolution's bias, so its gradient is rounding alone.
        scale = largest if name == "conv.bias" else max(float(np.abs(gradient).max()), 1e-2 * largest)
        np.testing.assert_allclose(gradients[name], gradient, 1e-4, 1e-5 * scale, err_msg=name)
    # An optimizer outside of the model.
    for name, gradient in gradients.items():
        there.set_parameter(name, there.parameters[name] - 0.1 * gradient)
    assert float(there(*BATCHES[0])[0]) < float(loss)


def test_an_evaluation_does_what_the_eval_model_does(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "evaluation.onnx"
    generate_step(network(dropout=0.5), CROSS_ENTROPY, ADAMW, path, kind="evaluation")
    found = float(step.Session(path)(*BATCHES[0]))
    assert found == pytest.approx(Training(tmp_path).evaluate(*BATCHES[0]), rel=1e-6)


def test_several_batches_take_one_step_with_the_mean_of_their_gradients(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, SGD, path, accumulate=4)
    assert domains(path) == {""}
    here, there = Training(tmp_path), step.Session(path, learning_rate=0.2)
    here.optimizer.set_learning_rate(0.2 / 4)  # of the sum of the gradients
    for first in range(0, 20, 4):
        batches = BATCHES[first : first + 4]
        expected = np.mean([here.loss(*batch) for batch in batches])
        here.optimizer.step()
        here.module.lazy_reset_grad()
        found = there(*(np.stack(values) for values in zip(*batches, strict=True)))
        assert float(found) == pytest.approx(expected, rel=1e-5)
    for name, value in here.parameters().items():
        np.testing.assert_allclose(there.parameters[name], value, 1e-4, 1e-5, err_msg=name)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_dropout_follows_from_the_seed(accumulate: int, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(
        network(dropout=0.25), CROSS_ENTROPY, SGD, path, accumulate=accumulate, additional_output_names=["d"]
    )
    x, labels = (np.concatenate([batch[i] for batch in BATCHES]) for i in (0, 1))
    if accumulate == 2:
        x, labels = np.stack([x, x]), np.stack([labels, labels])

    def run(seed: int) -> Array:
        return np.asarray(step.Session(path, learning_rate=0.0, seed=seed)(x, labels)[1])

    same, again, other = run(7), run(7), run(8)
    np.testing.assert_array_equal(same, again)
    # 160 rows of 8 elements each, or twice as many; the features are those after a Relu.
    reference = step.Session(path, learning_rate=0.0, seed=9)
    kept = np.mean([np.asarray(reference(x, labels)[1]) != 0 for _ in range(10)], axis=0)
    live = kept > 0
    assert abs(float(kept[live].mean()) - 0.75) < 0.02
    assert 0.2 < float(np.mean((same != 0) != (other != 0), where=live)) < 0.55  # 2 * 0.75 * 0.25 = 0.375
    if accumulate == 2:  # the two batches are equal, their masks are not
        assert 0.2 < float(np.mean((same[0] != 0) != (same[1] != 0), where=live[0])) < 0.55


def test_the_gradient_of_dropout_uses_the_mask_of_its_run(tmp_path: pathlib.Path) -> None:
    """Against central differences with the same seed."""
    path = tmp_path / "gradients.onnx"
    generate_step(network(0.5, normalization=False), CROSS_ENTROPY, path=path, kind="gradients")
    session = step.Session(path, seed=5)
    weight = session.parameters["deep.weight"]
    gradient = session(*BATCHES[0])[1]["deep.weight"]
    for at in np.argsort(np.abs(gradient), axis=None)[-3:]:
        losses = []
        for sign in (1, -1):
            moved = weight.copy()
            moved.flat[at] += sign * 1e-2
            session.set_parameter("deep.weight", moved)
            losses.append(float(session(*BATCHES[0])[0]))
        assert (losses[0] - losses[1]) / 2e-2 == pytest.approx(gradient.flat[at], rel=0.05)


def test_a_step_whose_scaled_gradients_overflow_changes_nothing(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(network(normalization=False), CROSS_ENTROPY, ADAMW, path, loss_scaling=True)
    plain = tmp_path / "plain.onnx"
    write_step(tmp_path, plain)
    scaled, unscaled = step.Session(path, loss_scale=1024.0), step.Session(plain)
    for batch in BATCHES[:5]:
        assert float(scaled(*batch)) == pytest.approx(float(unscaled(*batch)), rel=1e-5)
    before = scaled.parameters
    scaled.loss_scale = float("inf")
    scaled(*BATCHES[0])
    assert scaled.step_count == 5
    for name, value in scaled.parameters.items():
        np.testing.assert_array_equal(value, before[name])


def test_a_model_in_float16_finds_a_scale_of_the_loss(tmp_path: pathlib.Path) -> None:
    """The first scale, 65536, is infinite in float16. Cross entropy and pooling add up scattered elements."""
    path = tmp_path / "step.onnx"
    batches = [(x.astype(np.float16), labels) for x, labels in BATCHES]
    generate_step(
        network(normalization=False, kind=np.float16), CROSS_ENTROPY, ADAMW, path, loss_scaling=True
    )
    there = step.Session(path, learning_rate=0.02)
    before = there.parameters
    there(*batches[0])
    assert there.step_count == 0
    for name, value in there.parameters.items():
        np.testing.assert_array_equal(value, before[name])
    here = Training(tmp_path)
    here.optimizer.set_learning_rate(0.02)
    losses: list[float] = []
    for batch in batches:
        while len(losses) == there.step_count:
            loss = float(there(*batch))
        losses.append(loss)
    assert 1024 < there.loss_scale < 65536
    np.testing.assert_allclose(losses, [here.step(*batch) for batch in batches], 2e-2)


def test_a_run_moves_to_onnxruntime_and_back(tmp_path: pathlib.Path) -> None:
    path, first, second = tmp_path / "step.onnx", tmp_path / "first", tmp_path / "second"
    generate_step(network(), CROSS_ENTROPY, ADAMW, path)

    def start(checkpoint: str | pathlib.Path) -> Training:
        training = Training(tmp_path, checkpoint=checkpoint)
        training.optimizer.set_learning_rate(0.02)
        return training

    stayed = start("checkpoint")
    expected = [stayed.step(*batch) for batch in BATCHES]
    here = start("checkpoint")
    losses = [here.step(*batch) for batch in BATCHES[:6]]
    here.state.save_checkpoint(here.state, first, include_optimizer_state=True)
    there = step.Session(path, checkpoint=first, learning_rate=0.02)
    losses += [float(there(*batch)) for batch in BATCHES[6:13]]
    there.save_checkpoint(second)
    back = start(second)
    losses += [back.step(*batch) for batch in BATCHES[13:]]
    np.testing.assert_allclose(losses, expected, 1e-5)
    assert there.step_count == 13


def test_a_runtime_can_use_the_model_without_ortrain(tmp_path: pathlib.Path) -> None:
    """The loop that the guide shows: the outputs of a step are the inputs of the next."""
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, SGD, path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["ortrain.step"])
    names = [about["outputs"][0], *about["state"].values()]
    state: dict[str, Array] = {"step": np.array(0, np.int64)}
    losses = []
    for x, labels in BATCHES:
        feeds = {"x": x, "labels": labels, "learning_rate": np.array(0.05, np.float32), **state}
        loss, *values = session.run(names, feeds)
        state = dict(zip(about["state"], values, strict=True))
        losses.append(float(loss))
    assert int(state["step"]) == 20
    expected = step.Session(path, learning_rate=0.05)
    np.testing.assert_array_equal(losses, [float(expected(*batch)) for batch in BATCHES])


def test_everything_without_a_standard_form_is_named(tmp_path: pathlib.Path) -> None:
    model = network(normalization=False)
    model.opset_import[0].version = 20
    conv = model.graph.node[0]
    conv.op_type, conv.name = "DeformConv", "deformed"
    del conv.input[2:]
    conv.input.append("offset")
    offsets = np.zeros((8, 2 * 9, 9, 9), np.float32)
    model.graph.initializer.append(numpy_helper.from_array(offsets, "offset"))
    with pytest.raises(ValueError, match=r"deformed.*DeformConvGrad.*has no standard form"):
        generate_step(
            model, CROSS_ENTROPY, SGD, tmp_path / "step.onnx", requires_grad=["conv.weight", "fc.weight"]
        )


def test_a_model_of_an_older_opset_is_converted(tmp_path: pathlib.Path) -> None:
    model = network(normalization=False)
    model.opset_import[0].version = 14
    path = tmp_path / "step.onnx"
    generate_step(model, CROSS_ENTROPY, SGD, path)
    assert onnx.load(path).opset_import[0].version == 17
    generate_step(model, CROSS_ENTROPY, SGD, path, opset=20)
    assert onnx.load(path).opset_import[0].version == 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "train"}, "one of step, gradients, evaluation, found 'train'"),
        ({"accumulate": 0}, "1 or more, found 0"),
        ({"optimizer": None}, "a step needs an optimizer"),
        ({"opset": 12}, "17 or later, found 12"),
    ],
)
def test_wrong_settings_are_rejected(settings: dict[str, Any], words: str, tmp_path: pathlib.Path) -> None:
    given = {"loss": CROSS_ENTROPY, "optimizer": SGD, "path": tmp_path / "step.onnx", **settings}
    with pytest.raises(ValueError, match=words):
        generate_step(network(), **given)


def test_batches_have_other_sizes_from_step_to_step(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, SGD, path, additional_output_names=["scores"])
    here, there = Training(tmp_path), step.Session(path, learning_rate=0.05)
    here.optimizer.set_learning_rate(0.05)
    for rows, (x, labels) in zip((8, 3, 5, 8), BATCHES, strict=False):
        loss, scores = there(x[:rows], labels[:rows])
        assert scores.shape == (rows, 5)
        assert float(loss) == pytest.approx(here.step(x[:rows], labels[:rows]), rel=1e-5)


def test_a_batch_with_other_inputs_is_rejected(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "step.onnx"
    generate_step(network(), CROSS_ENTROPY, SGD, path)
    session = step.Session(path)
    with pytest.raises(TypeError, match="x, labels"):
        session(BATCHES[0][0])
    with pytest.raises(TypeError, match="label by name"):
        session(x=BATCHES[0][0], label=BATCHES[0][1])
    with pytest.raises(ValueError, match="expected a step model"):
        step.Session(tmp_path / "eval_model.onnx")
