"""Value and gradient of every loss against PyTorch.

The recorded numbers are in tests/data/losses, with the script that recorded them.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from oracle_errors import check_against_oracle
from ortrain import artifacts
from ortrain.onnxblock import loss as losses
from training import Training

Array = NDArray[Any]
DATA = pathlib.Path(__file__).parents[1] / "data" / "losses"
RECORDED = np.load(DATA / "recorded.npz")
CASES = json.loads((DATA / "cases.json").read_text())


def model_of(outputs: dict[str, Array]) -> onnx.ModelProto:
    """A model whose outputs are its parameters times an input."""
    kind = helper.np_dtype_to_tensor_dtype(next(iter(outputs.values())).dtype)
    return helper.make_model(
        helper.make_graph(
            [helper.make_node("Mul", [f"{name}_weight", "one"], [name]) for name in outputs],
            "outputs",
            [helper.make_tensor_value_info("one", kind, [1])],
            [helper.make_tensor_value_info(name, kind, value.shape) for name, value in outputs.items()],
            [numpy_helper.from_array(value, f"{name}_weight") for name, value in outputs.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )


def trained(folder: pathlib.Path, outputs: dict[str, Array], loss: Any, **settings: Any) -> Training:
    artifacts.generate_artifacts(
        model_of(outputs),
        requires_grad=[f"{name}_weight" for name in outputs],
        loss=loss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
        **settings,
    )
    return Training(folder)


def values_of(training: Training, folder: pathlib.Path, given: dict[str, Array], dtype: Any) -> list[Array]:
    """Return inputs in the order of the training model."""
    names = [value.name for value in onnx.load(folder / "training_model.onnx").graph.input]
    return [np.ones(1, dtype), *(given[name] for name in names if name in given)]


@pytest.mark.parametrize(
    ("number", "case"), list(enumerate(CASES)), ids=[f"{i}-{case['loss']}" for i, case in enumerate(CASES)]
)
def test_value_and_gradient_are_those_of_pytorch(
    tmp_path: pathlib.Path, number: int, case: dict[str, Any]
) -> None:
    for dtype, error in ((np.float64, 1e-9), (np.float32, 1e-4)):
        outputs = {f"y{i}": RECORDED[f"{number}/output{i}"].astype(dtype) for i in range(case["outputs"])}
        given = {name: RECORDED[f"{number}/input/{name}"] for name in case["inputs"]}
        given = {k: v if v.dtype == np.int64 else v.astype(dtype) for k, v in given.items()}
        block = losses.LOSSES[case["loss"]](**case["settings"])
        training = trained(tmp_path, outputs, block)
        found = training.loss(*values_of(training, tmp_path, given, dtype))
        compared = [(found, float(RECORDED[f"{number}/value"]))]
        for i in range(case["outputs"]):
            compared.append((training.gradients()[f"y{i}_weight"], RECORDED[f"{number}/gradient{i}"]))
        for mine, recorded in compared:
            check_against_oracle(
                "losses", case["loss"], dtype, mine, recorded, error, f"{case}, {np.dtype(dtype)}"
            )


def test_every_loss_has_a_recorded_case_and_a_name() -> None:
    assert {case["loss"] for case in CASES} == losses.LOSSES.keys()
    assert {member.name for member in artifacts.LossType} == {b.__name__ for b in losses.LOSSES.values()}
    assert all(block.__name__ in losses.__all__ for block in losses.LOSSES.values())


def test_several_outputs_have_a_loss_each(tmp_path: pathlib.Path) -> None:
    logits, energy = RECORDED["0/output0"].astype(np.float32), np.arange(5, dtype=np.float32)[:, None]
    training = trained(
        tmp_path, {"logits": logits, "energy": energy}, {"logits": "cross_entropy", "energy": ("mse", 0.3)}
    )
    graph = onnx.load(tmp_path / "training_model.onnx").graph
    assert [value.name for value in graph.input][:3] == ["one", "logits_target", "energy_target"]
    labels, target = np.array([0, 3, 2, 2, 1]), np.ones((5, 1), np.float32)
    found = training.loss(np.ones(1, np.float32), labels, target)
    wide = logits.astype(np.float64)
    log_p = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    entropy = -log_p[np.arange(5), labels].mean()
    assert found == pytest.approx(entropy + 0.3 * ((energy - target) ** 2).mean(), rel=1e-5)
    expected = (np.exp(log_p) - np.eye(4)[labels]) / 5
    np.testing.assert_allclose(training.gradients()["logits_weight"], expected, atol=1e-6)
    np.testing.assert_allclose(
        training.gradients()["energy_weight"], 0.3 * 2 * (energy - target) / 5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("loss", "kind", "message"),
    [
        (
            artifacts.LossType.CrossEntropyLoss,
            ValueError,
            r"CrossEntropyLoss takes a prediction and, as a last value, class indices, but it would get the outputs "
            r"logits, energy; choose with loss_input_names, or give each output its loss: "
            r"loss={'logits': 'cross_entropy', ...}",
        ),
        (
            artifacts.LossType.TripletMarginLoss,
            ValueError,
            "TripletMarginLoss takes 3 outputs of the model, but",
        ),
        ({"logit": "mse"}, LookupError, "the model has no output 'logit'; its outputs are logits, energy"),
        (
            {"logits": "mse1"},
            ValueError,
            "the loss of output 'logits' is 'mse1', expected one of cross_entropy",
        ),
        (
            {"logits": ("mse", float("nan"))},
            ValueError,
            "the weight of the loss of 'logits' must be a finite",
        ),
        ({3: "mse"}, TypeError, "expected the name of an output"),
        (
            {"logits": ("mse",)},
            TypeError,
            "the loss of output 'logits': expected a loss, or a loss and its weight",
        ),
        (
            {"logits": ("mse", "0.3")},
            TypeError,
            "the loss of output 'logits': expected a loss, or a loss and its",
        ),
    ],
)
def test_a_loss_that_does_not_fit_is_refused(
    tmp_path: pathlib.Path, loss: Any, kind: type[Exception], message: str
) -> None:
    outputs = {name: np.ones((5, 2), np.float32) for name in ("logits", "energy")}
    with pytest.raises(kind, match=message.replace("(", r"\(") if "(" in message else message):
        trained(tmp_path, outputs, loss)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: losses.HuberLoss(delta=0), "delta must be a positive number, found 0"),
        (lambda: losses.QuantileLoss(1.0), "quantile must be between 0 and 1"),
        (lambda: losses.CrossEntropyLoss(label_smoothing=2), "label_smoothing must be between 0 and 1"),
        (lambda: losses.MSELoss("most"), "reduction must be one of"),
        (lambda: losses.FocalLoss(gamma=-1), "gamma at least 0"),
        (lambda: losses.SumOfLosses({}), "needs at least one loss"),
    ],
)
def test_wrong_settings_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_an_input_with_weights_can_be_shared(tmp_path: pathlib.Path) -> None:
    block = losses.SumOfLosses(
        {
            "a": (losses.HuberLoss(sample_weights="weights"), 1.0),
            "b": (losses.LogCoshLoss(sample_weights="weights"), 1.0),
        }
    )
    outputs = {name: np.ones((5, 2), np.float32) for name in ("a", "b")}
    trained(tmp_path, outputs, block)
    graph = onnx.load(tmp_path / "training_model.onnx").graph
    assert [value.name for value in graph.input][:4] == ["one", "a_target", "weights", "b_target"]
    assert graph.input[2].type.tensor_type.elem_type == TensorProto.FLOAT
