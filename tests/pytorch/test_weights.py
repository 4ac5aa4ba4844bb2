"""Trained weights go back into a network, and those of a network into a checkpoint."""

from __future__ import annotations

import copy

import numpy as np
import ortrain
import ortrain.torch
import pytest
import torch
from networks import Tied, UNet, mlp
from ortrain import artifacts
from ortrain.api import CheckpointState
from torch import nn

IMAGES = torch.randn(6, 3, 16, 16)
TARGETS = torch.randn(6, 2, 16, 16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network and a trainer that trained a copy of it."""
    torch.manual_seed(0)
    network = UNet()
    folder = tmp_path_factory.mktemp("artifacts")
    trainer = ortrain.Trainer(network, "mse", args=IMAGES, artifact_directory=folder, learning_rate=1e-2)
    trainer.fit((IMAGES, TARGETS), batch_size=3, epochs=2, verbose=False)
    trainer.save(folder / "trained.ckpt")
    return network, trainer


@pytest.mark.parametrize("source", ["trainer", "state", "path", "arrays"])
def test_a_network_computes_what_was_trained(trained, source, tmp_path):
    network, trainer = copy.deepcopy(trained[0]), trained[1]
    given = {
        "trainer": trainer,
        "state": trainer.state,
        "path": trainer.folder / "trained.ckpt",
        "arrays": {name: parameter.data for name, parameter in trainer.state.parameters},
    }[source]
    identities = [id(parameter) for parameter in network.parameters()]
    assert ortrain.torch.load_into(network, given) == ([], [])
    assert [id(parameter) for parameter in network.parameters()] == identities
    with torch.no_grad():
        assert np.allclose(trainer.predict(IMAGES), network.eval()(IMAGES).numpy(), atol=1e-5)


def test_what_does_not_match_is_returned(trained):
    class Other(UNet):
        def __init__(self) -> None:
            super().__init__()
            del self.rise
            self.more = nn.Linear(2, 2)

    unmatched = ortrain.torch.load_into(Other(), trained[1])
    assert unmatched.missing_keys == ["more.weight", "more.bias"]
    assert unmatched.unexpected_keys == ["rise.weight", "rise.bias"]


def test_other_shapes_are_rejected_and_nothing_is_changed(trained):
    network = UNet()
    network.head = nn.Conv2d(8, 5, 1)
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(
        ValueError, match=r"head.weight is \[2, 8, 1, 1\], expected \[5, 8, 1, 1\]; head.bias"
    ):
        ortrain.torch.load_into(network, trained[1])
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_batch_normalization_in_evaluation_mode_is_in_the_checkpoint():
    """A network that is built again has other statistics."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    network[1].running_mean.normal_()
    network[1].running_var.uniform_(0.5, 2.0)
    network[1].eval()
    again = copy.deepcopy(network)
    again[1].reset_running_stats()
    target = np.zeros((6, 2, 14, 14), np.float32)
    trainer = ortrain.Trainer(network, "mse", args=IMAGES, learning_rate=1e-2)
    trainer.fit((IMAGES, target), batch_size=3, verbose=False)
    assert ortrain.torch.load_into(again, trainer) == ([], [])
    assert torch.equal(again[1].running_mean, network[1].running_mean)
    with torch.no_grad():
        assert np.allclose(trainer.predict(IMAGES), again.eval()(IMAGES).numpy(), atol=1e-5)
    again[1].running_mean += 1
    assert ortrain.torch.update_checkpoint(trainer, again) == ([], [])
    with torch.no_grad():
        assert np.allclose(trainer.predict(IMAGES), again(IMAGES).numpy(), atol=1e-5)


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
def test_weights_of_a_wrapped_network_have_the_names_of_the_network(wrap, tmp_path):
    network = mlp()
    report = ortrain.torch.export(wrap(network), torch.zeros(2, 8), tmp_path / "model.onnx")
    assert list(report.trained) == [name for name, _ in network.named_parameters()]
    assert report.inputs == ("input",)
    trainer = ortrain.Trainer(wrap(network), "mse", args=torch.zeros(2, 8))
    trainer.fit(torch.ones(4, 8), torch.ones(4, 4), verbose=False)
    other = mlp()
    assert ortrain.torch.load_into(wrap(other), trainer) == ([], [])
    assert np.array_equal(other[0].weight.detach().numpy(), trainer.state.parameters["0.weight"].data)
    assert ortrain.torch.update_checkpoint(trainer, wrap(network)) == ([], [])


def test_types_are_converted(trained):
    network = UNet().bfloat16()
    ortrain.torch.load_into(network, trained[1])
    exact = dict(trained[1].state.parameters)["head.weight"].data
    assert network.head.weight.dtype == torch.bfloat16
    assert np.allclose(network.head.weight.detach().float().numpy(), exact, rtol=1e-2)


def test_a_checkpoint_with_the_other_name_of_a_tied_weight():
    network = Tied()
    values = np.ones((50, 16), np.float32)
    unmatched = ortrain.torch.load_into(network, {"head.weight": values})
    assert "embedding.weight" not in unmatched.missing_keys
    assert unmatched.unexpected_keys == []
    assert np.array_equal(network.embedding.weight.detach().numpy(), values)
    assert network.head.weight is network.embedding.weight


@pytest.mark.parametrize("target", ["state", "file", "folder", "trainer"])
def test_a_checkpoint_takes_the_weights_of_a_network(target, tmp_path):
    network, other = mlp(), mlp()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    trainer = ortrain.Trainer(network, "mse", args=torch.zeros(2, 8), artifact_directory=tmp_path)
    x = np.ones((2, 8), np.float32)
    before = trainer.predict(x)
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    given = {"state": state, "file": tmp_path / "checkpoint", "folder": tmp_path, "trainer": trainer}[target]
    assert ortrain.torch.update_checkpoint(given, other) == ([], [])
    if target in ("file", "folder"):
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    elif target == "trainer":
        state = trainer.state
        with torch.no_grad():
            assert np.allclose(trainer.predict(x), other(torch.ones(2, 8)).numpy(), atol=1e-5)
        assert not np.allclose(trainer.predict(x), before)
    for name, parameter in other.named_parameters():
        assert np.array_equal(state.parameters[name].data, parameter.detach().numpy()), name


def test_unmatched_names_of_a_checkpoint(tmp_path):
    report = artifacts.generate_artifacts(
        mlp(), args=torch.zeros(2, 8), loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    other = mlp()
    other[5] = nn.Identity()
    other.add_module("7", nn.Linear(4, 4))
    unmatched = ortrain.torch.update_checkpoint(report, other)
    assert unmatched.missing_keys == ["5.weight", "5.bias"]
    assert unmatched.unexpected_keys == ["7.weight", "7.bias"]


def test_wrong_arguments_are_reported(tmp_path):
    with pytest.raises(TypeError, match="checkpoint: expected a CheckpointState, a Trainer"):
        ortrain.torch.load_into(mlp(), 3)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at"):
        ortrain.torch.load_into(mlp(), tmp_path / "none")
    with pytest.raises(TypeError, match=r"module: expected a torch.nn.Module, found str"):
        ortrain.torch.load_into("model", tmp_path)
