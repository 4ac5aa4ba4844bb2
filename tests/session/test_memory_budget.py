"""The session config entry `ortrain.memory_budget`."""

from __future__ import annotations

import pathlib
import re

import numpy as np
import ortrain
import ortrain.artifacts
import pytest
from onnx import helper, numpy_helper
from ortrain import SessionOptions, profiling
from ortrain.api import CheckpointState, Module
from ortrain.artifacts import LoRA
from ortrain.trainer.creation import make_artifacts

from benchmarks.language_shapes import Shape, Writer

DATA = pathlib.Path(__file__).parents[1] / "data" / "fixtures"


def losses(folder, budget: str | None, precision: str = "none", most: int | None = None) -> list[float]:
    options = SessionOptions()
    if most is not None:
        options.add_session_config_entry("session.max_bytes", str(most))
    options.add_session_config_entry("ortrain.mixed_precision", precision)
    if budget is not None:
        options.add_session_config_entry("ortrain.memory_budget", budget)
    module = Module(
        folder / "training_model.onnx",
        CheckpointState.load_checkpoint(folder / "checkpoint"),
        session_options=options,
    )
    rng = np.random.default_rng(3)
    # In smaller batches, what the gradient of a convolution needs while it runs is most of the memory on some processors.
    inputs = profiling.make_inputs(
        module, 64, {"input": rng.standard_normal((64, 3, 12, 12), dtype=np.float32)}
    )
    return [float(np.asarray(module(*inputs)).ravel()[0]) for _ in range(3)]


@pytest.fixture
def artifacts():
    return DATA / "resnet_bn"


def bytes_without_budget(folder) -> int:
    with pytest.raises(ortrain.OrtrainError) as refused:
        losses(folder, "1")
    named = re.search(r"(\d+) without", str(refused.value))
    assert named
    return int(named[1])


@pytest.mark.parametrize("precision", ["none", "bf16"])
def test_the_least_budget_is_named_and_keeps_the_losses(artifacts, precision):
    with pytest.raises(ortrain.OrtrainError, match=r"too few.*at least \d+ bytes") as refused:
        losses(artifacts, "1", precision)
    named = re.search(r"at least (\d+) bytes with recomputation, (\d+) without", str(refused.value))
    assert named
    least, whole = map(int, named.groups())
    assert least < whole
    expected = losses(artifacts, None, precision)
    assert losses(artifacts, f"{(least + whole) // 2048}K", precision) == expected
    assert losses(artifacts, "1G", precision) == expected


def test_an_automatic_budget_takes_less_memory_and_keeps_the_losses(artifacts):
    less = bytes_without_budget(artifacts) - 1
    with pytest.raises(ortrain.OrtrainError, match=rf"session\.max_bytes allows at most {less}"):
        losses(artifacts, None, most=less)
    assert losses(artifacts, "auto", most=less) == losses(artifacts, None)


def test_activations_are_computed_again_before_products(tmp_path):
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for layer in range(6):
        for part, shape in (("up", (64, 512)), ("down", (512, 64))):
            weights.append(
                numpy_helper.from_array(rng.normal(0, 0.05, shape).astype(np.float32), f"{part}{layer}")
            )
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"up{layer}"], [f"wide{layer}"]),
            helper.make_node("Gelu", [f"wide{layer}"], [f"active{layer}"], approximate="tanh"),
            helper.make_node("MatMul", [f"active{layer}", f"down{layer}"], [f"narrow{layer}"]),
            helper.make_node("Add", [f"narrow{layer}", f"x{layer}"], [f"x{layer + 1}"]),
        ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "layers", [value("x0", 1, ["n", 64])], [value("x6", 1, ["n", 64])], weights
    )
    ortrain.artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
        requires_grad=[weight.name for weight in weights],
        loss=ortrain.artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    inputs = {name: rng.standard_normal((256, 64), dtype=np.float32) for name in ("x0", "target")}
    again = {}
    for budget in (None, "4M"):
        config = {} if budget is None else {"ortrain.memory_budget": budget}
        events = profiling.record(tmp_path, 1, 256, inputs, 1, config)["traceEvents"]
        again[budget] = [str(event) for event in events if "_recomputed" in str(event)]
    assert again[None] == []
    assert any("Gelu" in event for event in again["4M"])
    assert not any("MatMul" in event or "Product" in event for event in again["4M"])


def test_an_automatic_budget_that_takes_more_time_stops_at_400_mib(tmp_path):
    layers, width, rows = 24, 128, 42_000
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.normal(0, 0.09, (width, width)).astype(np.float32), f"w{layer}")
        for layer in range(layers)
    ]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(layers)]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "chain", [value("x0", 1, ["n", width])], [value(f"x{layers}", 1, ["n", width])], weights
    )
    ortrain.artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9),
        requires_grad=[weight.name for weight in weights],
        loss=ortrain.artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    inputs = {name: rng.standard_normal((rows, width), dtype=np.float32) for name in ("x0", "target")}
    planned = {}
    for budget in (None, "auto"):
        config = {} if budget is None else {"ortrain.memory_budget": budget}
        trace = profiling.record(tmp_path, 1, rows, inputs, 2, config)
        planned[budget] = profiling.steps_in(trace)[0]["arena_bytes"] / 2**20
    assert planned[None] > 500
    assert 360 < planned["auto"] <= 400


TOKENS = 256


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    """Artifacts of a small language model with the nodes of Qwen2.5: weights of 4 bits, LoRA, four layers."""
    folder = tmp_path_factory.mktemp("language")
    shape = Shape(layers=4, width=128, heads=4, groups=2, inner=704, vocabulary=4096, gated=True)
    Writer(shape, True, TOKENS).write(folder / "model.onnx")
    lora = LoRA(r=8)
    make_artifacts(folder / "model.onnx", "token_cross_entropy", "adamw", folder, None, None, adapter=lora)
    return folder


# Bytes for each token that were planned when the bounds were written. In bfloat16, scores of the vocabulary in float32 would
# add 8,192 bytes; a wide activation that each layer keeps adds 5,632.
@pytest.mark.parametrize(
    ("precision", "whole", "automatic"),
    [("none", 73_000, 40_200), ("bf16", 42_000, 25_800)],
)
def test_a_language_model_takes_no_more_memory_than_planned_before(language, precision, whole, automatic):
    for budget, planned in ((None, whole), ("auto", automatic)):
        config = {
            "ortrain.optional_outputs": "0",
            "ortrain.mixed_precision": precision,
            "ortrain.bf16_products": "bf16",
        }
        if budget is not None:
            config["ortrain.memory_budget"] = budget
        trace = profiling.record(language, 1, 1, {}, 2, config)
        found = profiling.steps_in(trace)[0]["arena_bytes"] / TOKENS
        assert found <= 1.1 * planned
        assert found >= 0.7 * planned, "far less than before: lower the bounds"


def test_a_budget_does_not_lift_the_limit_of_bytes(artifacts):
    less = bytes_without_budget(artifacts) - 1
    with pytest.raises(ortrain.OrtrainError, match=rf"session\.max_bytes allows at most {less}"):
        losses(artifacts, "1G", most=less)


@pytest.mark.parametrize("text", ["much", "0", "-1", "1.5M", "3 G"])
def test_what_is_no_number_of_bytes_is_refused(artifacts, text):
    with pytest.raises(ortrain.errors.InvalidArgumentError, match=r"ortrain\.memory_budget"):
        losses(artifacts, text)
