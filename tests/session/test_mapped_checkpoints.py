"""Mapped checkpoints: read-only states, whose sessions evaluate and export."""

from __future__ import annotations

import pathlib
import shutil
import sys
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from ortrain import OrtrainError, artifacts
from ortrain.api import CheckpointState, Module
from ortrain.onnxblock import optim
from ortrain.trainer import Trainer
from recorded import CASES, Fixture
from training import Training


def trained(fixture: Fixture, folder: pathlib.Path, optimizer: object) -> Training:
    """Artifacts of a recorded run, trained for three steps and saved to last.ckpt."""
    artifacts.generate_artifacts(
        fixture.path("model.onnx"),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=optimizer,
        artifact_directory=folder,
    )
    training = Training(folder)
    for batch in fixture.batches[:3]:
        training.step(*batch)
    CheckpointState.save_checkpoint(training.state, folder / "last.ckpt", include_optimizer_state=True)
    return training


@pytest.mark.parametrize("name", CASES)
def test_a_mapped_checkpoint_of_onnxruntime_evaluates_like_a_loaded_one(
    name: str, tmp_path: pathlib.Path
) -> None:
    fixture = Fixture(name)
    loaded = Training(fixture.folder)
    mapped = Training(fixture.folder, state=CheckpointState.map_checkpoint(fixture.path("checkpoint")))
    assert [mapped.evaluate(*b) for b in fixture.batches] == [loaded.evaluate(*b) for b in fixture.batches]
    if name.startswith("resnet"):
        return  # onnx.checker rejects what these recorded eval models export
    output = [mapped.module.output_names()[0]]
    files = [tmp_path / "loaded.onnx", tmp_path / "mapped.onnx"]
    for training, file in zip((loaded, mapped), files, strict=True):
        training.module.eval().export_model_for_inferencing(str(file), output)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize(
    "optimizer",
    [
        optim.AdamW(),
        optim.AdamW(ema=optim.WeightAverage(0.5)),
        optim.ScheduleFreeAdamW(),
        optim.Adafactor(),
    ],
    ids=["adamw", "ema", "schedule_free", "adafactor"],
)
@pytest.mark.parametrize("name", ["encoder", "lenet_adamw"])
def test_a_mapped_state_exports_what_a_loaded_one_does(
    name: str, optimizer: object, tmp_path: pathlib.Path
) -> None:
    fixture = Fixture(name)
    loaded = trained(fixture, tmp_path, optimizer)
    state = CheckpointState.map_checkpoint(tmp_path / "last.ckpt")
    mapped = Training(tmp_path, state=state)
    assert mapped.evaluate(*fixture.batches[0]) == pytest.approx(
        loaded.evaluate(*fixture.batches[0]), rel=1e-5
    )
    for training, file in ((loaded, "loaded.onnx"), (mapped, "mapped.onnx")):
        training.module.export_model_for_inferencing(str(tmp_path / file), ["output"])
    assert (tmp_path / "loaded.onnx").read_bytes() == (tmp_path / "mapped.onnx").read_bytes()
    state.properties["note"] = "kept"
    CheckpointState.save_checkpoint(state, tmp_path / "copy.ckpt", include_optimizer_state=True)
    again = Training(tmp_path, checkpoint="copy.ckpt")
    assert again.state.properties["note"] == "kept"
    assert again.step(*fixture.batches[3]) == pytest.approx(loaded.step(*fixture.batches[3]), rel=1e-5)


@pytest.mark.parametrize("name", ["encoder", "lenet_adamw"])
def test_a_mapped_state_evaluates_the_weights_or_their_average(name: str, tmp_path: pathlib.Path) -> None:
    fixture = Fixture(name)
    loaded = trained(fixture, tmp_path, optim.AdamW(ema=optim.WeightAverage(0.5)))
    mapped = Training(tmp_path, state=CheckpointState.map_checkpoint(tmp_path / "last.ckpt"))
    losses = []
    for use_average in (True, False, True):
        for training in (loaded, mapped):
            training.optimizer.use_average_weights(use_average)
        losses.append(mapped.evaluate(*fixture.batches[0]))
        assert losses[-1] == pytest.approx(loaded.evaluate(*fixture.batches[0]), rel=1e-5)
    assert losses[0] == losses[2] != losses[1]


def first_value(state: CheckpointState) -> np.ndarray:
    name, parameter = next(iter(state.parameters))
    value: np.ndarray = parameter.data
    state.parameters[name] = value
    return value


CHANGES: dict[str, Callable[[Training, Fixture], object]] = {
    "train step": lambda t, f: t.step(*f.batches[0]),
    "optimizer step": lambda t, _: t.optimizer.step(),
    "updating the parameter": lambda t, _: first_value(t.state),
    "assigning a state": lambda t, _: t.state.assign(CheckpointState.load_checkpoint(Fixture("mlp_adamw").path("checkpoint"))),
    "copying a buffer to the parameters": lambda t, _: t.module.copy_buffer_to_parameters(
        t.module.get_contiguous_parameters(), trainable_only=False
    ),
    "setting the gradient": lambda t, _: setattr(
        next(iter(t.state.parameters))[1], "grad", next(iter(t.state.parameters))[1].data
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_mapped_state_rejects_changes_and_keeps_its_values(change: str) -> None:
    fixture = Fixture("mlp_adamw")
    state = CheckpointState.map_checkpoint(fixture.path("checkpoint"))
    training = Training(fixture.folder, state=state)
    before = training.parameters()
    with pytest.raises(OrtrainError, match=f"{change}.*: the checkpoint is mapped.*load the checkpoint"):
        CHANGES[change](training, fixture)
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(value, before[name])


def test_an_eval_model_that_changes_parameters_needs_a_loaded_checkpoint(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("resnet_bn")
    checkpoint = fixture.path("checkpoint")
    model = onnx.load(fixture.path("eval_model.onnx"))
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            node.op_type, node.domain = "BatchNormInternal", "com.microsoft"
            node.output.extend([f"{node.name}_{k}" for k in range(5 - len(node.output))])
            next(a for a in node.attribute if a.name == "training_mode").i = 1
    model.opset_import.append(onnx.helper.make_opsetid("com.microsoft", 1))
    onnx.save(model, tmp_path / "eval_model.onnx")
    loaded, mapped = (
        (state, Module(fixture.path("training_model.onnx"), state, tmp_path / "eval_model.onnx").eval())
        for state in (CheckpointState.load_checkpoint(checkpoint), CheckpointState.map_checkpoint(checkpoint))
    )
    before = {name: parameter.data for name, parameter in loaded[0].parameters}
    loaded[1](*fixture.batches[0])
    assert any((parameter.data != before[name]).any() for name, parameter in loaded[0].parameters)
    with pytest.raises(
        OrtrainError, match=r'eval step, which updates the parameter ".*": the checkpoint is mapped'
    ):
        mapped[1](*fixture.batches[0])


def test_a_save_while_a_checkpoint_is_mapped_does_not_change_it(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("mlp_adamw")
    file = tmp_path / "checkpoint"
    shutil.copy(fixture.path("checkpoint"), file)
    mapped = Training(fixture.folder, state=CheckpointState.map_checkpoint(file))
    before = mapped.parameters()
    other = Training(fixture.folder)
    other.step(*fixture.batches[0])
    if sys.platform == "win32":
        with pytest.raises(OrtrainError, match="the existing file is unchanged"):
            CheckpointState.save_checkpoint(other.state, file)
    else:
        CheckpointState.save_checkpoint(other.state, file)
    for name, value in mapped.parameters().items():
        np.testing.assert_array_equal(value, before[name])
    if sys.platform == "win32":
        return
    # A state may also be saved to the file that it maps.
    CheckpointState.save_checkpoint(mapped.state, file)
    again = Training(fixture.folder, state=CheckpointState.load_checkpoint(file))
    assert mapped.evaluate(*fixture.batches[0]) == again.evaluate(*fixture.batches[0])


def test_a_file_that_is_not_a_checkpoint_is_not_mapped(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        CheckpointState.map_checkpoint(tmp_path / "nowhere")
    (tmp_path / "text").write_text("no checkpoint at all")
    with pytest.raises(OrtrainError, match="expected a checkpoint file"):
        CheckpointState.map_checkpoint(tmp_path / "text")
    whole = pathlib.Path(Fixture("mlp_adamw").path("checkpoint")).read_bytes()
    (tmp_path / "cut").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OrtrainError, match="truncated or damaged"):
        CheckpointState.map_checkpoint(tmp_path / "cut")


def test_a_read_only_trainer_predicts_and_exports_but_does_not_fit(tmp_path: pathlib.Path) -> None:
    fixture = Fixture("mlp_adamw")
    trained(fixture, tmp_path, artifacts.OptimType.AdamW)
    x, y = fixture.batches[0]
    read_only, full = (
        Trainer(tmp_path, checkpoint=tmp_path / "last.ckpt", outputs=["output"], read_only=flag)
        for flag in (True, False)
    )
    assert read_only.evaluate((x, y)) == full.evaluate((x, y))
    np.testing.assert_array_equal(read_only.predict(x), full.predict(x))
    for trainer, file in ((read_only, "a.onnx"), (full, "b.onnx")):
        trainer.export(tmp_path / file)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    with pytest.raises(ValueError, match="read_only"):
        read_only.fit((x, y))
    with pytest.raises(ValueError, match="read_only"):
        read_only.find_learning_rate((x, y))
