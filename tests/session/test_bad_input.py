"""Bad input results in an error that says what was found and expected, and leaves session and files usable."""

from __future__ import annotations

import math
import pathlib
import signal
from collections.abc import Callable

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper
from ortrain import artifacts
from ortrain.api import CheckpointState, LinearLRScheduler, Module, Optimizer
from recorded import Fixture
from system import resource


def load(fixture: Fixture) -> tuple[CheckpointState, Module, Optimizer]:
    state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
    module = Module(fixture.path("training_model.onnx"), state, fixture.path("eval_model.onnx"))
    return state, module, Optimizer(fixture.path("optimizer_model.onnx"), module)


def losses(module: Module, optimizer: Optimizer, fixture: Fixture, steps: int) -> list[float]:
    module.train()
    out = []
    for x, y in fixture.batches[:steps]:
        out.append(float(module(x, y)))
        optimizer.step()
        module.lazy_reset_grad()
    return out


# --- files -----------------------------------------------------------------------------------------------------------

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda b: b"",
    "truncated to a third": lambda b: b[: len(b) // 3],
    "without its end": lambda b: b[:-100],
    "a picture": lambda b: b"\x89PNG\r\n\x1a\n" + bytes(200),
    "text": lambda b: b"this is not a model\n" * 20,
    "zeros": lambda b: bytes(len(b)),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    "name", ["training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"]
)
def test_damaged_file_is_refused_by_name(
    mlp: Fixture, tmp_path: pathlib.Path, name: str, damage: str
) -> None:
    for other in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint"):
        (tmp_path / other).write_bytes((mlp.folder / other).read_bytes())
    (tmp_path / name).write_bytes(DAMAGE[damage]((mlp.folder / name).read_bytes()))
    with pytest.raises(ortrain.OrtrainError) as error:
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
        Optimizer(tmp_path / "optimizer_model.onnx", module)
    assert name in str(error.value)


@pytest.mark.parametrize("name", ["training_model.onnx", "checkpoint"])
def test_flipped_bits_never_crash(mlp: Fixture, tmp_path: pathlib.Path, name: str) -> None:
    whole = (mlp.folder / name).read_bytes()
    rng = np.random.default_rng(7)
    refused = 0
    for _ in range(150):
        flipped = bytearray(whole)
        for at in rng.integers(0, len(whole), 3):
            flipped[at] ^= 1 << rng.integers(8)
        (tmp_path / name).write_bytes(flipped)
        try:
            if name == "checkpoint":
                CheckpointState.load_checkpoint(tmp_path / name)
            else:
                Module(tmp_path / name, CheckpointState.load_checkpoint(mlp.path("checkpoint")))
        except (ortrain.OrtrainError, UnicodeDecodeError):
            refused += 1
    assert refused > 0


def test_missing_files_are_file_not_found(mlp: Fixture, tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CheckpointState.load_checkpoint(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.onnx"):
        Module(tmp_path / "nowhere.onnx", CheckpointState.load_checkpoint(mlp.path("checkpoint")))


def test_checkpoint_of_another_model_is_refused_with_every_difference(mlp: Fixture) -> None:
    other = CheckpointState.load_checkpoint(Fixture("lenet_adamw").path("checkpoint"))
    with pytest.raises(ortrain.OrtrainError) as error:
        Module(mlp.path("training_model.onnx"), other, mlp.path("eval_model.onnx"))
    for name in ("fc1.weight", "conv1.weight"):
        assert name in str(error.value)


def test_eval_model_of_another_network_is_refused_by_its_inputs(mlp: Fixture) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    with pytest.raises(
        ortrain.InvalidArgumentError, match=r"input 'conv1\.weight' of the eval model is neither"
    ):
        Module(mlp.path("training_model.onnx"), state, Fixture("lenet_adamw").path("eval_model.onnx"))
    Module(mlp.path("training_model.onnx"), state, mlp.path("eval_model.onnx"))


def test_model_that_is_no_training_model_is_refused(mlp: Fixture) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    with pytest.raises(ortrain.OrtrainError, match="training model"):
        Module(mlp.path("eval_model.onnx"), state)


def test_optimizer_model_that_is_none_is_refused(mlp: Fixture) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    module = Module(mlp.path("training_model.onnx"), state)
    with pytest.raises(ortrain.OrtrainError, match="Gemm"):
        Optimizer(mlp.path("eval_model.onnx"), module)


# --- graphs ----------------------------------------------------------------------------------------------------------


def float_graph(nodes: list[onnx.NodeProto], tmp_path: pathlib.Path) -> pathlib.Path:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [helper.make_tensor("w", TensorProto.FLOAT, [3], [1.0, 2.0, 3.0])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def generate(path: pathlib.Path, tmp_path: pathlib.Path) -> None:
    artifacts.generate_artifacts(
        path, requires_grad=["w"], loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path / "out"
    )


@pytest.mark.parametrize(
    ("nodes", "words"),
    [
        ([helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Mul", ["a", "w"], ["b"]),
          helper.make_node("Identity", ["b"], ["y"])], ["cycle"]),
        ([helper.make_node("Add", ["x", "ghost"], ["a"]), helper.make_node("Mul", ["a", "w"], ["y"])], ["ghost"]),
        ([helper.make_node("Mul", ["x", "w"], ["y"]), helper.make_node("Add", ["x", "w"], ["y"])], ["y"]),
        ([helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Frobnicate", ["a"], ["b"], name="first"),
          helper.make_node("Defrobnicate", ["b"], ["y"], name="second")], ["Frobnicate", "first", "Defrobnicate", "second"]),
    ],
    ids=["cycle", "missing input", "made twice", "unknown operators"],
)  # fmt: skip
def test_broken_graph_is_refused(
    nodes: list[onnx.NodeProto], words: list[str], tmp_path: pathlib.Path
) -> None:
    with pytest.raises((ortrain.OrtrainError, ValueError)) as error:
        generate(float_graph(nodes, tmp_path), tmp_path)
    for word in words:
        assert word in str(error.value)


def test_type_clash_is_refused(tmp_path: pathlib.Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Mul", ["i", "w"], ["y"], name="clash"),
    ]
    with pytest.raises(Exception, match="clash"):
        generate(float_graph(nodes, tmp_path), tmp_path)


# --- step inputs -----------------------------------------------------------------------------------------------------


def test_wrong_step_inputs_are_named_and_the_session_goes_on(mlp: Fixture) -> None:
    _, module, optimizer = load(mlp)
    reference = losses(*load(mlp)[1:], mlp, 4)
    x, y = mlp.batches[0]
    bad = [
        ((x,), "2"),
        ((x, y, y), "2"),
        ((x.astype(np.float64), y), "float64"),
        ((x, y.astype(np.int32)), "int32"),
        ((x[0], y), "rank"),
        ((x[:, :-1], y), "64"),
        ((x, y[:-1]), "batch"),
    ]
    for inputs, word in bad:
        with pytest.raises(ortrain.OrtrainError, match=word):
            module(*inputs)
    assert losses(module, optimizer, mlp, 4) == reference


def test_label_out_of_range_is_an_error_and_not_a_wrong_number(mlp: Fixture) -> None:
    _, module, optimizer = load(mlp)
    x, y = mlp.batches[0]
    for label in (10, -1, 2**40):
        wrong = y.copy()
        wrong[3] = label
        with pytest.raises(ortrain.OrtrainError, match=str(label)):
            module(x, wrong)
    assert math.isfinite(losses(module, optimizer, mlp, 1)[0])


def test_empty_batch_does_not_crash(mlp: Fixture) -> None:
    _, module, _ = load(mlp)
    x, y = mlp.batches[0]
    module.eval()
    assert math.isnan(float(module(x[:0], y[:0])))


# --- numbers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [math.nan, math.inf, -math.inf])
def test_learning_rate_must_be_finite(mlp: Fixture, rate: float) -> None:
    _, _, optimizer = load(mlp)
    before = optimizer.get_learning_rate()
    with pytest.raises(ortrain.OrtrainError, match="learning rate"):
        optimizer.set_learning_rate(rate)
    assert optimizer.get_learning_rate() == before


@pytest.mark.parametrize(
    ("warmup", "total", "rate"), [(-1, 10, 0.1), (1, -10, 0.1), (1, 10, math.nan), (1, 10, -0.1)]
)
def test_schedule_must_make_sense(mlp: Fixture, warmup: int, total: int, rate: float) -> None:
    _, _, optimizer = load(mlp)
    with pytest.raises(ortrain.OrtrainError, match="scheduler"):
        LinearLRScheduler(optimizer, warmup, total, rate)


# --- order of calls --------------------------------------------------------------------------------------------------


def test_calls_without_what_they_need_say_what_is_missing(mlp: Fixture) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    module = Module(mlp.path("training_model.onnx"), state)
    module.eval()
    with pytest.raises(ortrain.OrtrainError, match="eval model"):
        module(*mlp.batches[0])
    with pytest.raises(ortrain.OrtrainError, match="eval model"):
        module.export_model_for_inferencing("never.onnx", ["output"])
    module.train()
    optimizer = Optimizer(mlp.path("optimizer_model.onnx"), module)
    with pytest.raises(ortrain.OrtrainError, match="train step"):
        optimizer.step()
    with pytest.raises(ortrain.OrtrainError, match="nothing_like_it"):
        _, both, _ = load(mlp)
        both.export_model_for_inferencing("never.onnx", ["nothing_like_it"])


def test_unknown_names_are_key_errors(mlp: Fixture) -> None:
    state, _, _ = load(mlp)
    with pytest.raises(KeyError, match="fc9"):
        state.parameters["fc9.weight"]
    with pytest.raises(KeyError, match="epoch"):
        state.properties["epoch"]
    with pytest.raises(ortrain.OrtrainError, match=r"fc1\.weight"):
        state.parameters["fc1.weight"] = np.zeros((2, 2), np.float32)


def test_buffer_of_the_wrong_size_or_type_is_refused(mlp: Fixture) -> None:
    _, module, _ = load(mlp)
    size = module.get_parameters_size(trainable_only=True)
    for array in (np.zeros(size + 1, np.float32), np.zeros(size, np.float64), np.zeros(0, np.float32)):
        with pytest.raises(ortrain.OrtrainError):
            module.copy_buffer_to_parameters(ortrain.OrtValue.ortvalue_from_numpy(array), trainable_only=True)


def test_unavailable_device_names_those_that_are_there(mlp: Fixture) -> None:
    state = CheckpointState.load_checkpoint(mlp.path("checkpoint"))
    with pytest.raises((ortrain.OrtrainError, ValueError), match="cpu"):
        Module(mlp.path("training_model.onnx"), state, device="cuda")


# --- saving ----------------------------------------------------------------------------------------------------------


def test_full_disk_leaves_the_old_checkpoint(mlp: Fixture, tmp_path: pathlib.Path) -> None:
    """A limit on file size simulates a full disk: the write fails half-way in the same manner."""
    state, module, optimizer = load(mlp)
    path = tmp_path / "checkpoint"
    CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    before = path.read_bytes()
    reference = losses(module, optimizer, mlp, 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(ortrain.OrtrainError, match="checkpoint"):
            CheckpointState.save_checkpoint(state, path, include_optimizer_state=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint"]
    assert reference == losses(*load(mlp)[1:], mlp, 2)


def test_unwritable_path_says_why(mlp: Fixture, tmp_path: pathlib.Path) -> None:
    state, module, _ = load(mlp)
    with pytest.raises((ortrain.OrtrainError, FileNotFoundError), match="missing"):
        CheckpointState.save_checkpoint(state, tmp_path / "missing" / "checkpoint")
    with pytest.raises((ortrain.OrtrainError, FileNotFoundError), match="missing"):
        module.export_model_for_inferencing(tmp_path / "missing" / "m.onnx", ["output"])


def test_a_property_with_a_null_character_or_a_float_out_of_range_is_rejected() -> None:
    fixture = Fixture("mlp_adamw")
    state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
    with pytest.raises(ValueError, match="property_name cannot contain a null character"):
        state.properties["a\0b"] = 1
    with pytest.raises(ValueError, match="cannot contain a null character"):
        state.properties["a"] = "b\0c"
    for value in (1e39, -3.5e38):
        with pytest.raises(ortrain.InvalidArgumentError, match="a property's float has 32 bits, found"):
            state.properties["a"] = value
    assert "a" not in state.properties
    state.properties["a"] = float("inf")
    state.properties["b"] = 3.4e38
    assert state.properties["a"] == float("inf")


def test_a_second_session_over_a_state_is_rejected_while_the_first_exists() -> None:
    fixture = Fixture("mlp_adamw")
    state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
    module = Module(fixture.path("training_model.onnx"), state)
    with pytest.raises(ortrain.InvalidArgumentError, match="belongs to another training session"):
        Module(fixture.path("training_model.onnx"), state)
    module(*fixture.batches[0])
    del module
    Module(fixture.path("training_model.onnx"), state)(*fixture.batches[0])
