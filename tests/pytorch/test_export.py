"""What :func:`ortrain.torch.export` writes, and what it leaves as it was."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import onnx
import ortrain
import ortrain.torch
import pytest
import torch
from networks import Recurrent, Tied, UNet, mlp
from onnx import numpy_helper
from ortrain import artifacts
from ortrain._frameworks.record import KEY, export_of
from torch import nn
from training import Training

IMAGES = torch.randn(3, 3, 16, 16)


def initializers(path: Any) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def run(path: Any, *inputs: torch.Tensor) -> list[np.ndarray]:
    session = ortrain.InferenceSession(path)
    names = [value.name for value in session.get_inputs()]
    return session.run(None, {name: value.numpy() for name, value in zip(names, inputs, strict=True)})


def everything_of(network: nn.Module) -> dict[str, Any]:
    """What an export must not change, as values that can be compared."""
    return {
        "values": {n: v.clone() for n, v in network.state_dict(keep_vars=True).items()},
        "memory": {n: (id(v), v.data_ptr(), v.dtype) for n, v in network.state_dict(keep_vars=True).items()},
        "requires_grad": {n: p.requires_grad for n, p in network.named_parameters()},
        "grads": {n: None if p.grad is None else p.grad.clone() for n, p in network.named_parameters()},
        "modes": [module.training for module in network.modules()],
        "attributes": [sorted(module.__dict__) for module in network.modules()],
        "hooks": [len(module._forward_hooks) for module in network.modules()],
        "random": torch.get_rng_state(),
    }


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert one == other


class Hooked(nn.Module):
    """Watches a layer from the first call on, as models of transformers do that collect hidden states."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 3), nn.Linear(3, 2)
        self.watching = False
        self.seen: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.watching:
            self.layer.register_forward_hook(lambda _module, _inputs, output: self.seen.append(output))
            self.watching = True
        self.seen.clear()
        y = self.head(torch.relu(self.layer(x)))
        return y + sum(self.seen).mean(dim=1, keepdim=True)


def test_hooks_of_the_first_call_are_undone(tmp_path: Any) -> None:
    network, x = Hooked(), torch.randn(5, 4)
    before = everything_of(network)
    ortrain.torch.export(network, x, tmp_path / "model.onnx")
    assert_same(everything_of(network), before)
    expected = network(x)
    assert len(network.seen) == 1
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x)[0], expected.detach(), rtol=1e-5, atol=1e-6)


class OnlyScript(nn.Module):
    """Takes a way that depends on its values, which only the older exporter can write down."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.layer = nn.Linear(4, 4)
        self.embedding = nn.Embedding(5, 4, padding_idx=0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        if x.mean() > 100:
            x = x + 1
        return self.layer(x) * self.embedding.weight.sum()


class NoExport(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = x.shape
        return (
            torch.from_numpy(np.linalg.pinv(self.norm(x).detach().numpy()))
            + torch.linalg.eigvals(x[:, :1] @ x[:1]).real
        )


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("make", "x"),
    [
        (UNet, IMAGES),
        (Tied, torch.randint(0, 50, (2, 5))),
        (lambda: Recurrent(nn.LSTM, False), torch.randint(0, 20, (2, 5))),
        (OnlyScript, torch.randn(3, 4)),
        (lambda: nn.utils.weight_norm(nn.Linear(4, 4)), torch.randn(3, 4)),
    ],
    ids=["batch normalization", "tied", "LSTM", "older exporter", "older weight_norm"],
)
@pytest.mark.filterwarnings("ignore")
def test_the_module_stays_as_it_was(make, x, training, tmp_path):
    network = make().train(training)
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(iter(network.parameters())).requires_grad_(False)
    before = everything_of(network)
    ortrain.torch.export(network, x, tmp_path / "model.onnx")
    assert_same(before, everything_of(network))


def test_the_module_stays_as_it_was_when_no_exporter_can_write_it(tmp_path):
    network, x = NoExport(), torch.randn(4, 4)
    before = everything_of(network)
    with pytest.raises(
        ValueError, match=r"exporting NoExport: no exporter(.|\n)*- torch\.export: (.|\n)*- TorchScript: "
    ):
        ortrain.torch.export(network, x, tmp_path / "model.onnx")
    assert_same(before, everything_of(network))
    assert not (tmp_path / "model.onnx").exists()


def test_the_weights_are_those_of_state_dict(tmp_path):
    network = UNet()  # its biases are zeros and its scales ones
    report = ortrain.torch.export(network, IMAGES, tmp_path / "model.onnx")
    found = initializers(tmp_path / "model.onnx")
    for name, value in network.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert np.array_equal(found[name], value.numpy()), name
    assert report.trained == tuple(name for name, _ in network.named_parameters())
    assert set(report.buffers) == {n for n, b in network.named_buffers() if b.is_floating_point()}
    assert (report.exporter, report.failures, report.unused) == ("torch.export", {}, ())


def test_the_older_exporter_is_the_fallback(tmp_path, caplog):
    network = OnlyScript()
    report = ortrain.torch.export(network, torch.randn(3, 4), tmp_path / "model.onnx")
    assert report.exporter == "TorchScript"
    assert report.failures.keys() == {"torch.export"}
    assert "torch.export could not export the network: " in str(report)
    assert "exported by TorchScript; torch.export failed: " in caplog.text
    assert any("test_export.py" in text and "Python boolean" in text for text in report.warnings)
    assert report.warnings[0] in str(report)
    assert "TorchScript" in export_of(onnx.load(tmp_path / "model.onnx")).exporter
    found = initializers(tmp_path / "model.onnx")
    for name in (
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "layer.weight",
        "layer.bias",
    ):
        assert np.array_equal(found[name], network.state_dict()[name].numpy()), name
    nodes = Counter(node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node)
    assert nodes["BatchNormalization"] == 1


def test_a_tied_weight_is_one_initializer(tmp_path):
    network = Tied()
    report = ortrain.torch.export(network, torch.randint(0, 50, (2, 5)), tmp_path / "model.onnx")
    assert report.aliases == {"head.weight": "embedding.weight"}
    assert "tied  head.weight is embedding.weight" in str(report)
    found = initializers(tmp_path / "model.onnx")
    assert "embedding.weight" in found
    assert "head.weight" not in found
    assert sum(array.size == 50 * 16 for array in found.values()) == 1


def test_what_does_not_require_a_gradient_is_frozen(tmp_path):
    network = mlp()
    network[0].requires_grad_(False)
    ortrain.torch.export(network, torch.zeros(2, 8), tmp_path / "model.onnx")
    report = artifacts.generate_artifacts(
        tmp_path / "model.onnx",
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    assert report.frozen == ["0.weight", "0.bias"]
    assert report.trained == ["3.weight", "3.bias", "5.weight", "5.bias"]
    training = Training(tmp_path)
    training.step(np.ones((2, 8), np.float32), np.ones((2, 4), np.float32))
    after = training.parameters()
    assert np.array_equal(after["0.weight"], network[0].weight.detach().numpy())
    assert not np.array_equal(after["3.weight"], network[3].weight.detach().numpy())
    explicit = artifacts.generate_artifacts(
        tmp_path / "model.onnx",
        requires_grad=["0.weight"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path / "explicit",
    )
    assert explicit.trained == ["0.weight"]


def test_a_damaged_record_is_reported(tmp_path):
    ortrain.torch.export(mlp(), torch.zeros(2, 8), tmp_path / "model.onnx")
    model = onnx.load(tmp_path / "model.onnx")
    next(entry for entry in model.metadata_props if entry.key == KEY).value = '{"trained": 3}'
    with pytest.raises(ValueError, match=r"metadata entry 'ortrain.export' is damaged"):
        artifacts.generate_artifacts(model, artifact_directory=tmp_path)


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("example", [1, 3])
def test_the_batch_is_dynamic_by_default(rows, example, tmp_path):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 2))
    ortrain.torch.export(network, IMAGES[:example], tmp_path / "model.onnx")
    x = torch.randn(rows, 3, 16, 16)
    with torch.no_grad():
        assert np.allclose(run(tmp_path / "model.onnx", x)[0], network(x).numpy(), atol=1e-5)


def test_no_dimension_is_dynamic_on_request(tmp_path):
    ortrain.torch.export(mlp(), torch.zeros(3, 8), tmp_path / "model.onnx", dynamic=None)
    dims = onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim
    assert [dim.dim_value for dim in dims] == [3, 8]


@pytest.mark.parametrize(
    "dynamic", [{"input_ids": {0: "batch", 1: "time"}}, [{0: "batch", 1: torch.export.Dim("time")}]]
)
def test_dynamic_shapes_by_argument(dynamic, tmp_path):
    network = Tied().eval()
    ortrain.torch.export(network, torch.randint(0, 50, (1, 5)), tmp_path / "model.onnx", dynamic)
    x = torch.randint(0, 50, (4, 9))
    with torch.no_grad():
        assert np.allclose(run(tmp_path / "model.onnx", x)[0], network.train()(x).numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("dynamic", "message"),
    [
        ("time", "dynamic: expected \"batch\", None or dynamic shapes by argument, found 'time'"),
        ({"x": {0: "batch"}}, "dynamic: there is no tensor x among the arguments: input"),
        ({"input": {2: "time"}}, "dynamic: input has 2 dimensions, none is 2"),
        ([{0: "a"}, {0: "a"}], "dynamic: expected at most 1 shape, found 2"),
    ],
)
def test_wrong_dynamic_shapes_are_reported(dynamic, message, tmp_path):
    with pytest.raises(ValueError, match="dynamic: ") as raised:
        ortrain.torch.export(mlp(), torch.zeros(2, 8), tmp_path / "model.onnx", dynamic)
    assert str(raised.value) == message


def test_a_fixed_dimension_is_not_called_dynamic(tmp_path):
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(24, 2)

        def forward(self, x):
            return self.layer(x.reshape(24))

    with pytest.raises(ValueError, match="dynamic=None exports the network for the shapes of args alone"):
        ortrain.torch.export(Fixed(), torch.zeros(3, 8), tmp_path / "model.onnx")


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.layer = nn.Linear(4, 2)
        self.never = nn.Linear(4, 2)

    def forward(self, ids, features=None, *, scale: float = 1.0, extra=None):
        hidden = self.embedding(ids).mean(1)
        if features is not None:
            hidden = hidden + features["a"] - features["b"][0]
        if extra is not None:
            hidden = hidden * extra
        return {"scores": self.layer(hidden) * scale, "hidden": (hidden, None), "cache": object()}


@pytest.mark.parametrize("form", ["tuple", "mapping", "kwargs"])
def test_arguments_of_all_kinds(form, tmp_path):
    network = Several()
    ids, a, b = torch.randint(0, 10, (3, 5)), np.ones((3, 4), np.float32), torch.zeros(3, 4)
    features = {"a": a, "b": [b]}
    call = {
        "tuple": {"args": (ids, features), "kwargs": {"scale": 2.0}},
        "mapping": {"args": {"features": features, "scale": 2.0, "ids": ids}},
        "kwargs": {"args": [ids], "kwargs": {"scale": 2.0, "features": features}},
    }[form]
    report = ortrain.torch.export(network, call.pop("args"), tmp_path / "model.onnx", **call)
    assert report.inputs == ("ids", "features_a", "features_b_0")
    assert report.outputs == ("scores", "hidden_0")
    assert report.unused == ("never.weight", "never.bias")
    assert "unused  never.bias: the outputs do not depend on it" in str(report)
    with torch.no_grad():
        expected = network(ids, {"a": torch.ones(3, 4), "b": [b]}, scale=2.0)
    found = run(tmp_path / "model.onnx", ids, torch.ones(3, 4), b)
    assert np.allclose(found[0], expected["scores"].numpy(), atol=1e-6)
    assert np.allclose(found[1], expected["hidden"][0].numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("module", "args", "message"),
    [
        (lambda x: x, torch.zeros(1), "module: expected a torch.nn.Module, found function"),
        (
            nn.Linear(2, 2),
            (),
            "Linear.forward(input: torch.Tensor) -> torch.Tensor cannot be called with them: missing",
        ),
        (nn.Linear(2, 2), {"input": None}, "args: expected at least one tensor, found none"),
    ],
)
def test_wrong_arguments_are_reported(module, args, message, tmp_path):
    with pytest.raises(TypeError) as raised:
        ortrain.torch.export(module, args, tmp_path / "model.onnx")
    assert message in str(raised.value)


def test_a_dictionary_as_the_only_argument_is_explained(tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, batch):
            return self.layer(batch["x"])

    x, y = torch.ones(6, 2), torch.zeros(6, 1)
    with pytest.raises(TypeError, match=r"args=\(\{\.\.\.\},\) is one argument that is a dictionary"):
        ortrain.torch.export(Net(), {"x": x}, tmp_path / "model.onnx")
    trainer = ortrain.Trainer(Net(), "mse", args=({"x": x[:2]},))
    trainer.fit({"batch_x": x, "target": y}, verbose=False)
    trainer.fit(({"batch_x": x}, y), validation=0.5, verbose=False)


def test_the_loss_is_that_of_the_first_output(tmp_path):
    x = torch.ones(3, 4)
    options = {"args": x, "loss": artifacts.LossType.MSELoss, "artifact_directory": tmp_path}
    two = nn.LSTM(4, 2, batch_first=True)
    report = artifacts.generate_artifacts(two, **options)
    assert len(report.trained) == 4
    state = ortrain.api.CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    module = ortrain.api.Module(tmp_path / "training_model.onnx", state, tmp_path / "eval_model.onnx")
    target = np.ones((3, 2), np.float32)
    with torch.no_grad():
        expected = nn.functional.mse_loss(two(x)[0], torch.ones(3, 2)).item()
    assert float(module(x.numpy(), target)) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": nn.MSELoss()}, "not MSELoss; use LossType.MSELoss"),
        ({"loss": nn.functional.cross_entropy}, "not cross_entropy; use LossType.CrossEntropyLoss"),
        ({"optimizer": torch.optim.SGD}, "not SGD; use OptimType.SGD"),
        ({"optimizer": torch.optim.AdamW([torch.zeros(1)])}, "not AdamW; use OptimType.AdamW"),
        ({"optimizer": torch.optim.Adam}, "not Adam; use OptimType.Adam"),
        ({"optimizer": torch.optim.LBFGS}, "not LBFGS; there are AdamW, SGD, "),
    ],
)
def test_a_loss_or_optimizer_of_pytorch_names_that_of_ortrain(given, message):
    with pytest.raises(TypeError, match=message):
        ortrain.Trainer(mlp(), **{"loss": "mse", **given}, args=torch.zeros(2, 8))


def test_data_of_pytorch_are_accepted_or_the_remedy_is_named():
    trainer = ortrain.Trainer(mlp(), "mse", args=torch.zeros(2, 8))
    x, y = torch.zeros(6, 8, requires_grad=True), torch.zeros(6, 4)
    trainer.fit(x, y, verbose=False)
    assert trainer.predict(x).shape == (6, 4)
    data = torch.utils.data.TensorDataset(x, y)
    with pytest.raises(
        TypeError, match=r"found TensorDataset; torch.utils.data.DataLoader\(data, .* makes batches"
    ):
        trainer.fit(data, verbose=False)
    trainer.fit(torch.utils.data.DataLoader(data, batch_size=3), verbose=False)


def test_names_of_arguments_and_weights_may_be_the_same(tmp_path):
    class Same(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.randn(4))
            self.output = nn.Parameter(torch.randn(4))

        def forward(self, x):
            return x * self.x + self.output

    network = Same()
    report = ortrain.torch.export(network, torch.ones(2, 4), tmp_path / "model.onnx")
    assert report.trained == ("x", "output")
    assert report.inputs == ("x_",)
    assert report.outputs == ("output_1",)
    found = run(tmp_path / "model.onnx", torch.ones(2, 4))[0]
    assert np.allclose(found, (network.x + network.output).detach().numpy())


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_convolutions_of_all_ranks(axes, bias, tmp_path):
    kind = getattr(nn, f"Conv{axes}d")
    network = nn.Sequential(
        kind(2, 4, 3, stride=2, padding=1, bias=bias),
        kind(4, 4, (2, 3, 1)[:axes], padding=(1, 2, 0)[:axes], dilation=2, groups=2, bias=bias),
        kind(4, 2, 3, padding="same", bias=bias),
    )
    x = torch.randn(2, 2, *(9, 8, 7)[:axes])
    for given, dynamic in ((x, "batch"), (x[0], None)):
        ortrain.torch.export(network, given, tmp_path / "model.onnx", dynamic=dynamic)
        assert np.allclose(run(tmp_path / "model.onnx", given)[0], network(given).detach().numpy(), atol=1e-5)
        nodes = onnx.load(tmp_path / "model.onnx").graph.node
        assert [len(node.input) for node in nodes if node.op_type == "Conv"] == [3 if bias else 2] * 3


def test_dropout_drops_in_training_alone(tmp_path):
    network = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)).eval()
    artifacts.generate_artifacts(
        network,
        args=torch.zeros(2, 64),
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    training = Training(tmp_path)
    x = np.ones((4, 64), np.float32)
    trained = training.module(x, np.zeros((4, 64), np.float32))[1]
    training.module.eval()
    evaluated = training.module(x, np.zeros((4, 64), np.float32))[1]
    assert 0.3 < (trained == 0).mean() < 0.7
    kept = trained != 0
    assert np.allclose(trained[kept], 2 * evaluated[kept], rtol=1e-5)


def test_running_statistics_follow_the_batches(tmp_path):
    network = UNet()
    trainer = ortrain.Trainer(network, "mse", "sgd", args=IMAGES, learning_rate=0.0)
    target = np.zeros((3, 2, 16, 16), np.float32)
    trainer.fit((IMAGES.numpy(), target), batch_size=3, verbose=False)
    wide = copy.deepcopy(network).double().train()
    wide(IMAGES.double())
    found = dict(trainer.state.parameters)
    for name, buffer in wide.named_buffers():
        if name.endswith("running_mean"):
            assert np.allclose(found[name].data, buffer.numpy(), atol=1e-5), name


@pytest.mark.parametrize("exporter", ["torch.export", "TorchScript"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_padding_and_detached_values_have_no_gradient(exporter, dtype, tmp_path, monkeypatch):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 4, padding_idx=2)
            self.layer = nn.Linear(4, 4)

        def forward(self, ids):
            rows = self.embedding(ids)
            return self.layer(rows) * rows.detach()

    from ortrain.torch import _export

    monkeypatch.setattr(_export, "_EXPORTERS", {exporter: _export._EXPORTERS[exporter]})
    network = Net().to(dtype)
    with torch.no_grad():
        network.embedding.weight.copy_(torch.randn(5, 4) * 10.0 ** torch.linspace(-6, 6, 4))
    ids = torch.tensor([[0, 2, 1], [2, 2, 4]])
    artifacts.generate_artifacts(
        network,
        args=ids,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    target = torch.zeros(2, 3, 4, dtype=dtype)
    nn.functional.mse_loss(network(ids), target).backward()
    training = Training(tmp_path)
    training.loss(ids.numpy(), target.numpy())
    found = training.gradients()
    for name, parameter in network.named_parameters():
        scale = parameter.grad.abs().max().item()
        assert np.allclose(found[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-6 * scale), name
    assert not found["embedding.weight"][2].any()


@pytest.mark.parametrize("exporter", ["torch.export", "TorchScript"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_detached_values_are_exact(exporter, dtype, tmp_path, monkeypatch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1, dtype=dtype))

        def forward(self, x):
            return (x * self.scale).detach() + 0 * self.scale

    from ortrain.torch import _export

    monkeypatch.setattr(_export, "_EXPORTERS", {exporter: _export._EXPORTERS[exporter]})
    largest = torch.finfo(dtype).max
    values = [0.1, -1 / 3, 1e-6, 2.0**60, 2.0**60 - 2.0**40, 1e30, -largest, largest, 0.0, -torch.inf]
    x = torch.tensor([values, values[::-1]], dtype=dtype)
    ortrain.torch.export(Net(), x, tmp_path / "model.onnx")
    np.testing.assert_array_equal(run(tmp_path / "model.onnx", x)[0], x.numpy())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_types_are_kept(dtype, tmp_path):
    network = nn.Linear(4, 2).to(dtype)
    ortrain.torch.export(network, torch.zeros(2, 4, dtype=dtype), tmp_path / "model.onnx")
    found = initializers(tmp_path / "model.onnx")
    assert np.array_equal(found["weight"].astype(np.float32), network.weight.detach().float().numpy())


def test_a_network_that_needs_arguments_says_so():
    with pytest.raises(TypeError, match=r"a torch.nn.Module needs args, example arguments"):
        ortrain.Trainer(mlp(), "mse")
    with pytest.raises(
        TypeError, match=r"args: expected a network with them, of PyTorch, Keras or JAX, not ModelProto"
    ):
        artifacts.generate_artifacts(onnx.ModelProto(), args=torch.zeros(1))
