"""Networks exported by PyTorch train as they do in PyTorch, without changes to the model.

``architectures.py`` has the networks, ``export.py`` exported them and recorded what PyTorch computes; see there.
"""

from __future__ import annotations

import functools
import json
import pathlib
from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from ortrain import SessionOptions, artifacts
from ortrain.api import CheckpointState, Module, Optimizer

Array = NDArray[Any]

DATA = pathlib.Path(__file__).parent / "data"
CASES = json.loads((DATA / "cases.json").read_text())
LOSSES = {
    "cross_entropy": artifacts.LossType.CrossEntropyLoss,
    "bce": artifacts.LossType.BCEWithLogitsLoss,
    "mse": artifacts.LossType.MSELoss,
    "reconstruction": artifacts.LossType.MSELoss,
}

#: Tables of fixed positions are parameters with requires_grad=False, which no export records.
FROZEN_IN_PYTORCH = {"distilbert": ("position.weight",)}

#: The number of attention blocks of an architecture.
ATTENTION_BLOCKS = {
    "bert": 2,
    "distilbert": 2,
    "gpt2": 2,
    "llama": 2,
    "llama_builtin_norm": 2,
    "t5": 3,
    "vit": 2,
}


@functools.cache
def record_of(architecture: str) -> dict[str, Array]:
    with np.load(DATA / architecture / "record.npz") as record:
        return {key: record[key] for key in record.files}


class Export:
    """One exported model, what was recorded of it, and a training session."""

    def __init__(self, architecture: str, export: str, folder: pathlib.Path) -> None:
        case = CASES[architecture]
        self.about = case["exports"][export]
        self.path = DATA / architecture / f"{export}.onnx"
        self.folder = folder
        self.loss, self.lr, self.optimizer_kind = case["loss"], case["lr"], case["optimizer"]
        self.parameters: dict[str, dict[str, Any]] = self.about["parameters"]
        record = record_of(architecture)
        variant = self.about["variant"] + "/"
        self.record = {key[len(variant) :]: value for key, value in record.items() if key.startswith(variant)}
        self.data = {key: value for key, value in record.items() if key.startswith(("batch/", "other/"))}
        self.input_names = [
            key.removeprefix("batch/input/") for key in record if key.startswith("batch/input/")
        ]

    def make_artifacts(self, by_default: bool = False) -> artifacts.ArtifactReport:
        """Train the parameters of PyTorch, or what is trained by default."""
        optimizer = artifacts.OptimType.SGD if self.optimizer_kind == "sgd" else artifacts.OptimType.AdamW
        return artifacts.generate_artifacts(
            self.path,
            requires_grad=None if by_default else list(self.parameters),
            loss=LOSSES[self.loss],
            optimizer=optimizer,
            artifact_directory=self.folder,
            additional_output_names=["output"],
            loss_input_names=["output", "images"] if self.loss == "reconstruction" else None,
        )

    def session(self, without: str = "") -> tuple[Module, Optimizer, CheckpointState]:
        """A session; without a pass if `without` names one."""
        options = SessionOptions()
        if without:
            options.add_session_config_entry(f"ortrain.disable_pass.{without}", "1")
        state = CheckpointState.load_checkpoint(str(self.folder / "checkpoint"))
        module = Module(
            str(self.folder / "training_model.onnx"),
            state,
            str(self.folder / "eval_model.onnx"),
            session_options=options,
        )
        optimizer = Optimizer(str(self.folder / "optimizer_model.onnx"), module)
        optimizer.set_learning_rate(self.lr)
        return module, optimizer, state

    def inputs(self, which: str = "batch") -> list[Array]:
        """A batch in the form that the module accepts."""
        values = [self.data[f"{which}/input/{name}"] for name in self.input_names]
        return values if self.loss == "reconstruction" else [*values, self.data[f"{which}/target"]]

    def run_with_onnxruntime(self, path: pathlib.Path) -> Array:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        feeds = {name: self.data[f"batch/input/{name}"] for name in self.input_names}
        return np.asarray(session.run(["output"], feeds)[0])

    def expected_gradient(self, initializer: str) -> Array:
        about = self.parameters[initializer]
        gradient = self.record[f"gradient/{about['parameter']}"]
        if "transposed" in about:
            return gradient.transpose(about["transposed"])
        return gradient.reshape(about["reshaped"]) if "reshaped" in about else gradient


def exports(random: bool) -> list[Any]:
    """Every stored export, as a parameter of a test."""
    found = []
    for architecture, case in CASES.items():
        for export in case["exports"] if case["random"] == random else ():
            found.append(pytest.param(architecture, export, id=f"{architecture}-{export}"))
    return found


def assert_near(found: Array, expected: Array, rtol: float, what: str, floor: float = 0.0) -> None:
    """Equal within a fraction of the largest value (or of `floor` if that is larger)."""
    assert found.shape == expected.shape, f"{what}: shape {found.shape}, expected {expected.shape}"
    scale = max(float(np.abs(expected).max(initial=0.0)), floor)
    error = float(np.abs(found - expected).max(initial=0.0))
    assert error <= rtol * scale, f"{what}: off by {error:.3g} of {scale:.3g}"


@pytest.mark.parametrize(("architecture", "export"), exports(random=False))
def test_an_exported_network_trains_as_in_pytorch(
    architecture: str, export: str, tmp_path: pathlib.Path
) -> None:
    case = Export(architecture, export, tmp_path)
    case.make_artifacts()
    module, _, state = case.session()
    record = case.record

    # Before training: the eval model, and a batch of another shape.
    _, output = module.eval()(*case.inputs())
    assert_near(output, record["output"], 1e-4, "output of the eval model")
    module.train()
    other_loss, _ = module(*case.inputs("other"))
    assert_near(other_loss, record["other_loss"], 1e-4, "loss of a batch of other sizes")
    norms = {name: record[f"other_norm/{about['parameter']}"] for name, about in case.parameters.items()}
    largest = max(float(norm) for norm in norms.values())
    for name, norm in norms.items():
        found = np.linalg.norm(np.asarray(state.parameters[name].grad, np.float64))
        assert_near(np.float64(found), norm, 1e-4, f"norm of the gradient of {name}", 1e-3 * largest)
    module.lazy_reset_grad()
    # Running statistics follow from every batch, so training starts again from the checkpoint.
    module, optimizer, state = case.session()

    losses = []
    for step in range(len(record["losses"])):
        if step == len(record["losses"]) - 1:
            check_trained(case, module, state)
            module.train()
        loss, _ = module(*case.inputs())
        losses.append(float(loss))
        if step == 0:
            largest = max(float(np.abs(case.expected_gradient(name)).max()) for name in case.parameters)
            for name in case.parameters:
                assert_near(
                    state.parameters[name].grad, case.expected_gradient(name), 1e-4, f"gradient of {name}", 1e-3 * largest
                )  # fmt: skip
        optimizer.step()
        module.lazy_reset_grad()
    np.testing.assert_allclose(losses[0], record["losses"][0], 1e-5, err_msg="loss of the first step")
    np.testing.assert_allclose(losses, record["losses"], 2e-4, err_msg="losses")
    assert (np.diff(losses) < 0).all(), f"the loss does not fall: {losses}"


def check_trained(case: Export, module: Module, state: CheckpointState) -> None:
    """After the last step: eval model, exported model and running statistics."""
    _, output = module.eval()(*case.inputs())
    assert_near(output, case.record["trained_output"], 2e-3, "output of the eval model after training")
    exported = case.folder / "exported.onnx"
    module.export_model_for_inferencing(str(exported), ["output"])
    model = onnx.load(exported)
    onnx.checker.check_model(model, full_check=True)
    assert_near(
        case.run_with_onnxruntime(exported), output, 1e-5, "output of the exported model in onnxruntime"
    )
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for name in case.parameters:
        np.testing.assert_array_equal(
            stored[name], state.parameters[name].data, f"{name} in the exported model"
        )
    if case.about["variant"] == "train":
        for name in case.about["statistics"]:
            assert_near(
                stored[name], case.record[f"statistics/{name}"], 1e-3, f"{name} in the exported model"
            )


@pytest.mark.parametrize(("architecture", "export"), exports(random=True))
def test_an_exported_network_with_dropout_evaluates_without_it(
    architecture: str, export: str, tmp_path: pathlib.Path
) -> None:
    case = Export(architecture, export, tmp_path)
    case.make_artifacts()
    module, optimizer, _ = case.session()
    _, output = module.eval()(*case.inputs())
    assert_near(output, case.record["output"], 1e-4, "output of the eval model")

    # In training the loss differs from run to run, around the mean of PyTorch's.
    module.train()
    losses = [float(module(*case.inputs())[0]) for _ in range(400)]
    spread = float(case.record["deviation"])
    assert np.std(losses) == pytest.approx(spread, rel=0.2)
    assert np.mean(losses) == pytest.approx(
        float(case.record["mean_loss"]), abs=5 * spread * np.sqrt(2 / 400)
    )

    for _ in range(50):
        module.lazy_reset_grad()
        last, _ = module(*case.inputs())
        optimizer.step()
    assert float(last) < np.mean(losses) - 5 * spread

    _, output = module.eval()(*case.inputs())
    exported = tmp_path / "exported.onnx"
    module.export_model_for_inferencing(str(exported), ["output"])
    assert not any(
        node.op_type == "Dropout" and any(node.input[2:]) for node in onnx.load(exported).graph.node
    )
    assert_near(
        case.run_with_onnxruntime(exported), output, 1e-5, "output of the exported model in onnxruntime"
    )


@pytest.mark.parametrize(("architecture", "export"), exports(random=False) + exports(random=True))
def test_the_parameters_of_pytorch_are_trained_by_default(
    architecture: str, export: str, tmp_path: pathlib.Path
) -> None:
    case = Export(architecture, export, tmp_path)
    report = case.make_artifacts(by_default=True)
    tied = {change.initializer for change in report.changes if change.kind is artifacts.ChangeKind.TIED}
    assert tied == ({"val_137"} if (architecture, export) == ("gpt2", "dynamo_20") else set())  # the head
    assert set(report.trained) == {*case.parameters, *FROZEN_IN_PYTORCH.get(architecture, ())} - tied
    assert not set(report.trained) & {*case.about["statistics"]}
    module, optimizer, _ = case.session()
    losses = []
    for _ in range(5):
        losses.append(float(module(*case.inputs())[0]))
        optimizer.step()
        module.lazy_reset_grad()
    assert np.isfinite(losses).all()
    if "losses" in case.record:
        np.testing.assert_allclose(
            losses[0], case.record["losses"][0], 1e-5, err_msg="loss of the first step"
        )
        assert losses[-1] < losses[0]


def operators_of(module: Module, inputs: list[Array]) -> tuple[float, Counter[str]]:
    """The loss of a step, and how often each operator runs in the next."""
    loss, _ = module(*inputs)
    module.start_profiling()
    module(*inputs)
    trace = json.loads(module.end_profiling())
    return float(loss), Counter(event["name"] for event in trace["traceEvents"])


def exports_with_attention() -> list[tuple[str, str]]:
    """Those that write attention as separate steps, and not as the operator Attention of opset 23."""
    return [
        (architecture, export)
        for architecture in ATTENTION_BLOCKS
        for export in CASES[architecture]["exports"]
        if not any(
            node.op_type == "Attention"
            for node in onnx.load(DATA / architecture / f"{export}.onnx").graph.node
        )
    ]


@pytest.mark.parametrize(("architecture", "export"), exports_with_attention())
def test_every_attention_block_is_trained_as_one_node(
    architecture: str, export: str, tmp_path: pathlib.Path
) -> None:
    case = Export(architecture, export, tmp_path)
    case.make_artifacts()
    blocks = ATTENTION_BLOCKS[architecture]
    fused_names, single = {"FusedAttention", "FusedDropoutAttention"}, {"Softmax", "SoftmaxGrad_13"}
    runs = {}
    for without in ("", "fuse_attention"):
        module, _, state = case.session(without)
        module.train()
        loss, _ = module(*case.inputs())
        gradients = {
            name: np.array(parameter.grad) for name, parameter in state.parameters if parameter.requires_grad
        }
        module.lazy_reset_grad()
        trained = operators_of(module, case.inputs())[1]
        evaluated, run = operators_of(module.eval(), case.inputs())
        runs[without] = (float(loss), evaluated, gradients)
        for operators, backward in ((trained, True), (run, False)):
            counts = {
                "forward": sum(operators[name] for name in fused_names),
                "backward": operators["AttentionGrad"],
                "single": sum(operators[name] for name in single),
            }
            assert counts == (
                {"forward": 0, "backward": 0, "single": blocks * (1 + backward)}
                if without
                else {"forward": blocks, "backward": blocks * backward, "single": 0}
            )
    fused, plain = runs[""], runs["fuse_attention"]
    np.testing.assert_allclose(fused[:2], plain[:2], rtol=1e-5)
    largest = max(float(np.abs(gradient).max()) for gradient in plain[2].values())
    assert largest > 0
    for name, gradient in plain[2].items():
        assert_near(fused[2][name], gradient, 1e-4, f"gradient of {name}", 1e-2 * largest)


def test_every_opset_is_there_from_every_exporter_that_can_write_it() -> None:
    """The older exporter ends at opset 20; the newer one begins at 18, and converts some models down to 17."""
    found = {(e.split("_")[0], c["opset"]) for case in CASES.values() for e, c in case["exports"].items()}
    older = {("torchscript", opset) for opset in (14, 17, 18, 20)}
    assert found >= older | {("dynamo", opset) for opset in (17, 18, 20, 23)}
    sizes = [path.stat().st_size for path in DATA.rglob("*.onnx")]
    assert len(sizes) == sum(len(case["exports"]) for case in CASES.values())
    assert max(sizes) < 200_000
