"""Parameter groups: the optimizer updates parameters with the settings of their group. The oracle is AdamW in NumPy."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ortrain import artifacts
from ortrain.api import CheckpointState, LinearLRScheduler
from ortrain.onnxblock import optim
from training import Training

Array = NDArray[Any]
BATCHES = 4


def model() -> onnx.ModelProto:
    """A network of two layers with a normalization: weights and vectors take turns."""
    rng = np.random.default_rng(11)
    weights = {
        "fc1.weight": rng.normal(size=(5, 7)),
        "fc1.bias": rng.normal(size=7),
        "norm.weight": np.ones(7),
        "norm.bias": np.zeros(7),
        "fc2.weight": rng.normal(size=(7, 3)),
        "fc2.bias": rng.normal(size=3),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["h"]),
        helper.make_node("LayerNormalization", ["h", "norm.weight", "norm.bias"], ["n"]),
        helper.make_node("Gemm", ["n", "fc2.weight", "fc2.bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def batch(i: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(100 + i)
    return rng.normal(size=(6, 5)).astype(np.float32), rng.normal(size=(6, 3)).astype(np.float32)


def make(folder: pathlib.Path, optimizer: Any) -> pathlib.Path:
    artifacts.generate_artifacts(
        model(), optimizer=optimizer, loss=artifacts.LossType.MSELoss, artifact_directory=folder
    )
    return folder


class AdamW:
    """The form of AdamW in which the weights decay after the update, with settings for each parameter."""

    def __init__(self, **settings: dict[str, float]) -> None:
        self.settings = settings
        self.first: dict[str, Array] = {}
        self.second: dict[str, Array] = {}
        self.t = 0

    def step(
        self, weights: dict[str, Array], gradients: dict[str, Array], rate: float, clip: float | None = None
    ) -> dict[str, Array]:
        self.t += 1
        scale = 1.0
        if clip is not None:
            norm = np.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
            scale = min(1.0, clip / (norm + 1e-6))
        updated = {}
        for name, weight in weights.items():
            s = {"factor": 1.0, "decay": 0.0, "alpha": 0.9, "beta": 0.999, "eps": 1e-6}
            s |= self.settings.get(name, {})
            g = gradients[name].astype(np.float64) * scale
            m = self.first[name] = s["alpha"] * self.first.get(name, 0.0) + (1 - s["alpha"]) * g
            v = self.second[name] = s["beta"] * self.second.get(name, 0.0) + (1 - s["beta"]) * g * g
            lr = rate * s["factor"]
            step = lr * np.sqrt(1 - s["beta"] ** self.t) / (1 - s["alpha"] ** self.t)
            moved = weight.astype(np.float64) - step * m / (np.sqrt(v) + s["eps"])
            updated[name] = (moved * (1 - lr * s["decay"])).astype(np.float32)
        return updated


def check(training: Training, reference: AdamW, rate: float, clip: float | None, batches: range) -> None:
    """Train, and compare the parameters with the reference after each step."""
    for i in batches:
        before = training.parameters()
        training.module.train()
        training.module(*batch(i))
        expected = reference.step(before, training.gradients(), rate, clip)
        training.optimizer.step()
        training.module.lazy_reset_grad()
        for name, value in training.parameters().items():
            np.testing.assert_allclose(
                value, expected[name], rtol=2e-6, atol=2e-7, err_msg=f"{name}, step {i}"
            )


VECTORS = ("fc1.bias", "norm.weight", "norm.bias", "fc2.bias")


@pytest.mark.parametrize("clip", [None, 0.5])
def test_every_group_has_its_own_settings_and_clipping_is_global(
    tmp_path: pathlib.Path, clip: float | None
) -> None:
    head = optim.ParamGroup("head", ["fc2.*"], lr_factor=0.1, weight_decay=0.5, betas=(0.8, 0.95), eps=1e-4)
    adamw = optim.AdamW(
        weight_decay=0.1,
        clip_grad=None if clip is None else optim.ClipGradNorm(clip),
        param_groups=[head, optim.no_decay()],
    )
    training = Training(make(tmp_path, adamw))
    groups = training.optimizer.param_groups
    assert [name for name, _ in groups] == ["group0", "head", "no_decay"]
    assert groups["group0"].parameters == ["fc1.weight"]
    assert groups["head"].parameters == ["fc2.weight", "fc2.bias"]  # the first group that matches has it
    assert groups["no_decay"].parameters == ["fc1.bias", "norm.weight", "norm.bias"]
    training.optimizer.set_learning_rate(0.01)
    own = {"factor": 0.1, "decay": 0.5, "alpha": 0.8, "beta": 0.95, "eps": 1e-4}
    settings = {"fc1.weight": {"decay": 0.1}, "fc2.weight": own, "fc2.bias": own}
    check(training, AdamW(**settings), 0.01, clip, range(BATCHES))


def test_settings_change_while_training_and_are_saved(tmp_path: pathlib.Path) -> None:
    folder = make(tmp_path, optim.AdamW(weight_decay=0.1, param_groups=[optim.no_decay()]))
    training = Training(folder)
    training.optimizer.set_learning_rate(0.02)
    group = training.optimizer.param_groups["no_decay"]
    assert group.weight_decay == 0
    group.weight_decay = 0.25
    group.learning_rate = 0.004
    group.alpha, group.beta, group.epsilon = 0.5, 0.75, 1e-3
    assert group.learning_rate_factor == pytest.approx(0.2)
    own = {"factor": 0.2, "decay": 0.25, "alpha": 0.5, "beta": 0.75, "eps": 1e-3}
    reference = AdamW(
        **{name: own for name in VECTORS}, **{"fc1.weight": {"decay": 0.1}, "fc2.weight": {"decay": 0.1}}
    )
    check(training, reference, 0.02, None, range(2))

    CheckpointState.save_checkpoint(training.state, tmp_path / "later", include_optimizer_state=True)
    resumed = Training(folder, checkpoint="later")
    settings = {
        n: getattr(resumed.optimizer.param_groups["no_decay"], n) for n in ("weight_decay", "alpha", "beta")
    }
    assert settings == {"weight_decay": 0.25, "alpha": 0.5, "beta": 0.75}
    check(resumed, reference, 0.02, None, range(2, BATCHES))
    # Both go on alike, to the bit.
    check_twin = Training(folder, checkpoint="later")
    for i in range(2, BATCHES):
        training.step(*batch(i))
        check_twin.step(*batch(i))
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(value, check_twin.parameters()[name])

    CheckpointState.save_checkpoint(training.state, tmp_path / "weights", include_optimizer_state=False)
    fresh = Training(folder, checkpoint="weights")
    assert fresh.optimizer.param_groups["no_decay"].weight_decay == 0  # again what the model says


def test_the_rate_of_a_group_follows_a_schedule(tmp_path: pathlib.Path) -> None:
    group = optim.ParamGroup("head", ["fc2.weight"], lr_factor=0.5)
    training = Training(make(tmp_path, optim.SGD(param_groups=[group])))
    optimizer = training.optimizer
    LinearLRScheduler(optimizer, 0, 4, 0.1)
    for i in range(3):
        before = training.parameters()
        training.module.train()
        training.module(*batch(i))
        gradients = training.gradients()
        rate = optimizer.get_learning_rate()
        assert optimizer.param_groups["head"].learning_rate == pytest.approx(rate / 2)
        optimizer.step()
        training.module.lazy_reset_grad()
        for name, value in training.parameters().items():
            own = rate * (0.5 if name == "fc2.weight" else 1)
            np.testing.assert_allclose(value, before[name] - own * gradients[name], rtol=1e-6, atol=1e-7)


def test_an_optimizer_model_without_groups_has_one(tmp_path: pathlib.Path) -> None:
    training = Training(make(tmp_path, artifacts.OptimType.AdamW))
    groups = training.optimizer.param_groups
    assert [name for name, _ in groups] == ["group0"]
    assert len(groups) == 1
    assert "no_decay" not in groups
    assert len(groups["group0"].parameters) == 6
    assert training.optimizer.get_parameter_group("fc1.bias") == "group0"
    groups["group0"].weight_decay = 0.125
    training.optimizer.set_learning_rate(0.01)
    check(training, AdamW(**{n: {"decay": 0.125} for n in training.parameters()}), 0.01, None, range(2))
    assert repr(groups["group0"]).startswith(
        "ParameterGroup('group0', 6 parameters, learning_rate=0.01, weight_decay=0.125"
    )
    node = onnx.load(tmp_path / "optimizer_model.onnx").graph.node
    assert [n.op_type for n in node] == ["AdamWOptimizer"]
    assert not {"group", "parameters", "learning_rate_factor"} & {a.name for a in node[0].attribute}


def test_wrong_groups_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match="parameter group 'head': no trainable parameter matches 'fc3"):
        make(tmp_path, optim.AdamW(param_groups=[optim.ParamGroup("head", ["fc3.*"])]))
    with pytest.raises(TypeError, match="SGD has no betas"):
        optim.SGD(param_groups=[optim.ParamGroup("head", ["fc2.*"], betas=(0.9, 0.9))])
    with pytest.raises(ValueError, match="two parameter groups are named 'no_decay'"):
        optim.AdamW(param_groups=[optim.no_decay(), optim.no_decay()])
    with pytest.raises(ValueError, match="betas must be two values"):
        optim.AdamW(param_groups=[optim.ParamGroup("head", ["fc2.*"], betas=(1.0, 0.9))])
    with pytest.raises(TypeError, match="must be a list of names"):
        optim.ParamGroup("head", "fc2.weight")

    training = Training(make(tmp_path, optim.AdamW(param_groups=[optim.no_decay()])))
    groups = training.optimizer.param_groups
    with pytest.raises(KeyError):
        groups["head"]
    for name, value in {"alpha": 1.0, "beta": -0.1, "epsilon": -1.0, "weight_decay": float("nan")}.items():
        with pytest.raises(ortrain.InvalidArgumentError, match=f'group "no_decay": {name} should be'):
            setattr(groups["no_decay"], name, value)
    with pytest.raises(ortrain.InvalidArgumentError, match='no parameter "fc9"'):
        training.optimizer.get_parameter_group("fc9")
    training.optimizer.set_learning_rate(0)
    with pytest.raises(ortrain.InvalidArgumentError, match="set learning_rate_factor"):
        groups["no_decay"].learning_rate = 0.1
    training.optimizer.set_learning_rate(0.1)
    groups["no_decay"].weight_decay = 0.5
    CheckpointState.save_checkpoint(training.state, tmp_path / "later", include_optimizer_state=True)
    make(tmp_path, optim.AdamW())
    with pytest.raises(
        ortrain.InvalidArgumentError, match='no parameter group "no_decay"; its groups are "group0"'
    ):
        Training(tmp_path, checkpoint=tmp_path / "later")


def edited(folder: pathlib.Path, **attributes: Any) -> None:
    """Set attributes of the last node of the optimizer model; None removes one."""
    loaded = onnx.load(folder / "optimizer_model.onnx")
    node = loaded.graph.node[-1]
    kept = [a for a in node.attribute if a.name not in attributes]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(k, v) for k, v in attributes.items() if v is not None)
    onnx.save(loaded, folder / "optimizer_model.onnx")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"parameters": ["fc1.bias", "fc9"]}, '"no_decay" names "fc9", which is not a trainable parameter'),
        ({"parameters": None}, "2 optimizer nodes without the attribute 'parameters'"),
        ({"group": "group0"}, 'there is another parameter group "group0"'),
        ({"parameters": "fc1.bias"}, "'parameters' should be a list of names"),
    ],
)
def test_optimizer_models_with_wrong_groups_are_refused(
    tmp_path: pathlib.Path, attributes: dict[str, Any], message: str
) -> None:
    make(tmp_path, optim.AdamW(param_groups=[optim.no_decay()]))
    edited(tmp_path, **attributes)
    with pytest.raises(ortrain.OrtrainError) as caught:
        Training(tmp_path)
    assert message in str(caught.value)


def test_a_forward_session_refuses_groups(tmp_path: pathlib.Path) -> None:
    make(tmp_path, optim.AdamW(param_groups=[optim.no_decay()]))
    with pytest.raises(ortrain.OrtrainError, match="only a training session has groups"):
        ortrain.InferenceSession(tmp_path / "optimizer_model.onnx")
