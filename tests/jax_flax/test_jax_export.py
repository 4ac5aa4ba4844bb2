"""Networks of JAX train in ortrain as in JAX, all weights, under their paths."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import ortrain.jax
import pytest
from flax import linen as nn
from flax import nnx
from jax_networks import CLASSES, LINEN, NNX, two_layers, two_layers_params
from ortrain import artifacts
from ortrain.trainer import Trainer
from training import Training

BATCH, STEPS, RATE = 8, 10, 0.1


def batch(shape, integers=False):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 10, (BATCH, *shape)).astype(np.int32) if integers else None
    x = rng.normal(size=(BATCH, *shape)).astype(np.float32) if x is None else x
    return x, rng.integers(0, CLASSES, BATCH)


def cross_entropy(logits, y):
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(BATCH), y])


def by_path(tree):
    """The leaves of a tree of parameters by their paths, without Flax's collections."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {
        "/".join(str(getattr(k, "key", getattr(k, "idx", None))) for k in path): np.asarray(leaf)
        for path, leaf in leaves
    }


def train_here(folder, x, y):
    """The first loss, its gradients, the losses of all steps, and the weights afterwards."""
    report = artifacts.generate_artifacts(
        folder / "model.onnx",
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    training = Training(folder)
    training.loss(x, y)
    gradients = training.gradients()
    training = Training(folder)
    training.optimizer.set_learning_rate(RATE)
    losses = [training.step(x, y) for _ in range(STEPS)]
    training.state.save_checkpoint(training.state, str(folder / "trained.ckpt"))
    return report, gradients, losses, training.parameters()


def check(found, gradients, losses, weights):
    report, ours, our_losses, after = found
    assert set(report.trained) == set(gradients) == set(ours)
    scale = max(float(np.abs(g).max()) for g in gradients.values())
    for name, expected in gradients.items():
        np.testing.assert_allclose(ours[name], expected, rtol=1e-4, atol=1e-5 * scale, err_msg=name)
    np.testing.assert_allclose(our_losses, losses, rtol=2e-6)
    assert losses[-1] < losses[0]
    assert weights.keys() == after.keys()
    for name, expected in weights.items():
        np.testing.assert_allclose(after[name], expected, rtol=1e-4, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("name", LINEN)
def test_a_module_of_linen_trains_as_in_jax(name, tmp_path):
    make, shape, arguments = LINEN[name]
    network = make()
    x, y = batch(shape, integers=name == "embedding")
    still = dict.fromkeys(arguments, False)
    variables = jax.jit(lambda key: network.init(key, x, **still))(jax.random.key(0))
    report = ortrain.jax.export(network, variables, x[:2], tmp_path / "model.onnx", kwargs=arguments)
    assert set(report.trained) == set(by_path(variables["params"]))
    found = train_here(tmp_path, x, y)

    def loss_of(params, others):
        # The second BatchNorm of the CNN does not update its statistics.
        logits, updates = network.apply({"params": params, **others}, x, **arguments, mutable=list(others))
        return cross_entropy(logits, y), updates

    params = variables["params"]
    others = {key: value for key, value in variables.items() if key != "params"}
    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    (_, _), first = step(params, others)
    losses = []
    for _ in range(STEPS):
        (loss, updates), gradients = step(params, others)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
        others = {**others, **updates}
        losses.append(float(loss))
    weights = by_path(params)
    if "batch_stats" in others:
        weights |= by_path(others["batch_stats"])
    check(found, by_path(first), losses, weights)

    changed = jax.tree.map(lambda value: value + 1, variables)
    loaded, unmatched = ortrain.jax.load_params(changed, tmp_path / "trained.ckpt")
    assert unmatched == ([], [])
    assert jax.tree.structure(loaded) == jax.tree.structure(variables)
    for collection in loaded.values():
        for path, value in by_path(collection).items():
            np.testing.assert_array_equal(value, found[3][path])


@pytest.mark.parametrize("name", NNX)
def test_a_module_of_nnx_trains_as_in_jax(name, tmp_path):
    make, shape = NNX[name]
    x, y = batch(shape)
    network = make(nnx.Rngs(0))
    report = ortrain.jax.export(network, None, x[:2], tmp_path / "model.onnx")
    found = train_here(tmp_path, x, y)

    def params():
        return {
            "/".join(map(str, p)): np.asarray(v[...])
            for p, v in nnx.to_flat_state(nnx.state(network, nnx.Param))
        }

    assert set(report.trained) == set(params())
    first, losses = None, []
    step = nnx.jit(nnx.value_and_grad(lambda n: cross_entropy(n(x), y)))
    for _ in range(STEPS):
        loss, gradients = step(network)
        if first is None:
            first = {"/".join(map(str, p)): np.asarray(v[...]) for p, v in nnx.to_flat_state(gradients)}
        state = nnx.state(network, nnx.Param)
        nnx.update(network, jax.tree.map(lambda p, g: p - RATE * g, state, gradients))
        losses.append(float(loss))
    statistics = nnx.to_flat_state(nnx.state(network, nnx.BatchStat))
    check(found, first, losses, params() | {"/".join(p): np.asarray(v[...]) for p, v in statistics})

    other = make(nnx.Rngs(1))
    assert ortrain.jax.load_into(other, tmp_path / "trained.ckpt") == ([], [])
    network.eval()
    other.eval()
    np.testing.assert_allclose(other(x), network(x), rtol=1e-4, atol=1e-5)


def test_a_function_of_parameters_trains_as_in_jax(tmp_path):
    params = two_layers_params()
    x, y = batch((5,))
    ortrain.jax.export(two_layers, params, x[:2], tmp_path / "model.onnx")
    found = train_here(tmp_path, x, y)
    loss_of = jax.jit(jax.value_and_grad(lambda p: cross_entropy(two_layers(p, x), y)))
    first, losses = by_path(loss_of(params)[1]), []
    for _ in range(STEPS):
        loss, gradients = loss_of(params)
        params = jax.tree.map(lambda p, g: p - RATE * g, params, gradients)
        losses.append(float(loss))
    check(found, first, losses, by_path(params))


class Dropped(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dropout(0.5, deterministic=not train)(nn.Dense(64)(x))


@pytest.mark.parametrize("train", [True, False])
def test_dropout_drops_in_training_alone(train, tmp_path):
    network, x = Dropped(), np.ones((4, 5), np.float32)
    variables = network.init(jax.random.key(0), x, train=False)
    ortrain.jax.export(network, variables, x, tmp_path / "model.onnx", kwargs={"train": train})
    report = artifacts.generate_artifacts(
        tmp_path / "model.onnx",
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
        additional_output_names=["output"],
    )
    training = Training(tmp_path)
    expected = np.asarray(network.apply(variables, x, train=False))
    _, evaluated = (training.module.eval(), training.module(x, expected))[1]
    np.testing.assert_allclose(evaluated, expected, rtol=1e-5, atol=1e-6)
    _, output = (training.module.train(), training.module(x, expected))[1]
    zeros = float(np.mean(output == 0))
    assert (0.3 < zeros < 0.7) if train else zeros == 0
    assert len(report.trained) == 2


def test_the_batch_is_free_unless_it_is_fixed(tmp_path):
    network, x = LINEN["MLP"][0](), np.zeros((4, 5), np.float32)
    variables = network.init(jax.random.key(0), x)
    for dynamic, expected in (("batch", "batch"), (None, "")):
        ortrain.jax.export(network, variables, x, tmp_path / "model.onnx", dynamic)
        dim = onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim[0]
        assert (dim.dim_param, dim.dim_value) == (expected, 0 if expected else 4)


def test_what_is_wrong_is_said(tmp_path):
    network, x = LINEN["MLP"][0](), np.zeros((4, 5), np.float32)
    variables = network.init(jax.random.key(0), x)
    path = tmp_path / "model.onnx"
    with pytest.raises(TypeError, match=r"network: expected a flax.linen.Module"):
        ortrain.jax.export(3, variables, x, path)
    with pytest.raises(TypeError, match=r"params: expected what init returns"):
        ortrain.jax.export(network, None, x, path)
    with pytest.raises(TypeError, match=r"has its own parameters"):
        ortrain.jax.export(NNX["nnx MLP"][0](nnx.Rngs(0)), variables, x, path)
    with pytest.raises(TypeError, match=r"args: expected arrays, found str"):
        ortrain.jax.export(network, variables, ("x",), path)
    with pytest.raises(ValueError, match=r"jax2onnx .* cannot write the network 'eigen' as ONNX: .*eig"):

        def eigen(params, x):
            return jnp.linalg.eigvals(x @ params).real

        ortrain.jax.export(eigen, jnp.eye(5), np.zeros((5, 5), np.float32), path, None)
    assert not path.exists()
    with pytest.raises(ValueError, match=r"shapes of weights differ: Dense_0/bias is .7., expected .3."):
        ortrain.jax.load_params(variables, {"Dense_0/bias": np.zeros(7)})
    with pytest.raises(ValueError, match=r"no weight has the same name on both sides, such as 'other'"):
        ortrain.jax.load_params(variables, {"other": np.zeros(7)})


class KeywordOnly(nn.Module):
    @nn.compact
    def __call__(self, x, *, train=False):
        return nn.Dense(CLASSES)(nn.Dropout(0.5, deterministic=not train)(nn.relu(nn.Dense(8)(x))))


def test_a_trainer_takes_a_module_of_linen_with_its_variables(tmp_path):
    network, (x, y) = LINEN["CNN"][0](), batch((8, 8, 2))
    variables = jax.jit(lambda key: network.init(key, x, train=False))(jax.random.key(0))
    trainer = Trainer(network, loss="cross_entropy", args=(variables, x[:2], True), metrics=["accuracy"])
    assert trainer.inputs.names == ["x", "labels"]
    trainer.fit(x, y, epochs=3, batch_size=4, verbose=False)
    trained, unmatched = ortrain.jax.load_params(variables, trainer)
    assert unmatched == ([], [])
    assert not np.array_equal(trained["batch_stats"]["BatchNorm_0"]["mean"], np.zeros(4))
    expected = network.apply(trained, x, train=False)
    np.testing.assert_allclose(trainer.predict(x), expected, rtol=1e-4, atol=1e-5)

    # Such as after an epoch in JAX, which does not change the statistics of BatchNorm_1.
    further = {**trained, "params": jax.tree.map(lambda value: value * 1.5, trained["params"])}
    assert ortrain.jax.update_checkpoint(trainer, further) == ([], [])
    expected = network.apply(further, x, train=False)
    np.testing.assert_allclose(trainer.predict(x[:3]), expected[:3], rtol=1e-4, atol=1e-5)
    trainer.fit(x, y, batch_size=3, verbose=False)


def test_a_trainer_takes_a_module_of_nnx(tmp_path):
    network, (x, y) = NNX["nnx MLP"][0](nnx.Rngs(0)), batch((5,))
    trainer = Trainer(network, loss="cross_entropy", args=x[:2])
    trainer.fit(x, y, epochs=3, batch_size=4, verbose=False)
    assert ortrain.jax.load_into(network, trainer) == ([], [])
    network.eval()
    np.testing.assert_allclose(trainer.predict(x), network(x), rtol=1e-4, atol=1e-5)


def test_the_classes_are_in_the_last_dimension():
    """As in the losses of JAX: the scores of six steps."""
    x, y = batch((6, 4))[0], np.random.default_rng(1).integers(0, CLASSES, (8, 6))
    network = nn.Dense(CLASSES)
    variables = network.init(jax.random.key(0), x)
    found = Trainer(network, loss="cross_entropy", args=(variables, x[:2]), metrics=["accuracy"]).evaluate(
        x, y
    )
    scores = network.apply(variables, x)
    expected = -np.take_along_axis(np.asarray(jax.nn.log_softmax(scores)), y[..., None], -1).mean()
    accuracy = float((scores.argmax(-1) == y).mean())
    assert found == {"loss": pytest.approx(expected, rel=1e-5), "accuracy": pytest.approx(accuracy)}


@pytest.mark.parametrize("function", [two_layers, jax.jit(two_layers)])
def test_artifacts_are_made_of_a_function(function, tmp_path):
    params, (x, _) = two_layers_params(), batch((5,))
    report = artifacts.generate_artifacts(
        function, loss=artifacts.LossType.CrossEntropyLoss, artifact_directory=tmp_path, args=(params, x[:2])
    )
    assert set(report.trained) == set(by_path(params))
    assert ortrain.jax.load_params(params, report)[1] == ([], [])


@pytest.mark.parametrize("how", ["module", "apply"])
def test_arguments_are_given_by_name(how, tmp_path, caplog):
    network, (x, y) = KeywordOnly(), batch((5,))
    variables = network.init(jax.random.key(0), x)
    rngs = {"dropout": jax.random.key(0)}
    if how == "module":
        made = Trainer(
            network, loss="cross_entropy", args={"variables": variables, "x": x, "train": True, "rngs": rngs}
        )
    else:
        made = Trainer(
            functools.partial(network.apply, train=True, rngs=rngs),
            loss="cross_entropy",
            args=(variables, x[:2]),
        )
    assert "as in inference" not in caplog.text
    assert len(made.state.parameters) == 4
    made.fit(x, y, verbose=False)
    nodes = [node.op_type for node in onnx.load(made.folder / "training_model.onnx").graph.node]
    assert "Dropout" in nodes
    Trainer(network, loss="cross_entropy", args=(variables, x[:2]))
    assert "KeywordOnly is called as in inference" in caplog.text


class TwoInputs(nn.Module):
    @nn.compact
    def __call__(self, image, more):
        return nn.Dense(CLASSES)(jnp.concatenate([image, more["extra"], more["other"]], -1))


def test_inputs_are_named_like_arguments():
    network, x = TwoInputs(), np.zeros((4, 5), np.float32)
    args = (x, {"extra": x, "other": x})
    variables = network.init(jax.random.key(0), *args)
    trainer = Trainer(network, loss="cross_entropy", args=(variables, *args))
    assert trainer.inputs.names == ["image", "more_extra", "more_other", "labels"]


def test_what_is_wrong_with_args_is_said():
    network, x = KeywordOnly(), np.zeros((4, 5), np.float32)
    variables = network.init(jax.random.key(0), x)

    def make(model, args):
        return Trainer(model, loss="cross_entropy", args=args)

    with pytest.raises(
        TypeError, match=r"flax.linen.Module needs args, .* such as args=\(variables, inputs\[:2\]\)"
    ):
        make(network, None)
    with pytest.raises(TypeError, match=r"flax.nnx.Module needs args"):
        make(NNX["nnx MLP"][0](nnx.Rngs(0)), None)
    with pytest.raises(TypeError, match=r"jax.function needs args, .*params, inputs"):
        make(two_layers, None)
    with pytest.raises(TypeError, match=r"the parameters and an example of the inputs"):
        make(network, x)
    with pytest.raises(TypeError, match=r"args: expected variables among the arguments by name, found x"):
        make(network, {"x": x})
    with pytest.raises(TypeError, match=r"params: expected what init returns, .* found ndarray"):
        make(network, (x, variables))
    with pytest.raises(TypeError, match=r"'KeywordOnly' cannot be called with them: .*kernel.*shape"):
        make(network, (variables, x[:, :3]))
    with pytest.raises(TypeError, match=r"'CNN' cannot be called with them"):
        make(LINEN["CNN"][0](), (variables, x))
