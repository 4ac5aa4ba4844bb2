"""Options of TrainingParameters that trade time for memory: the numbers stay, the memory of a run shrinks."""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from legacy_models import Transformer

HERE = pathlib.Path(__file__).parent

SCRIPT = """
import json, re, sys
sys.path.insert(0, {folder!r})
import ortrain
from legacy_models import Transformer
t = Transformer(layers=6, width=64, heads=4, tokens=128, dropout={dropout})
o = ortrain.SessionOptions()
o.graph_optimization_level = ortrain.GraphOptimizationLevel({level})
s = ortrain.TrainingSession(t.model(), t.parameters(**json.loads({members!r})), o)
s.run(["loss"], t.feed(1))
def peak():  # of this process alone; ru_maxrss starts with that of the process that started it
    return int(re.search(r"VmHWM:\\s+([0-9]+) kB", open("/proc/self/status").read())[1])
before = peak()
s.run(["loss"], t.feed(24))
print((peak() - before) / 1024)
"""


def megabytes(dropout: float = 0.0, level: int = 99, **members: Any) -> float:
    """Return by how much a run with a large batch grows a process."""
    script = SCRIPT.format(folder=str(HERE), dropout=dropout, level=level, members=json.dumps(members))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300
    )
    return float(done.stdout.split()[-1])


def trained(dropout: float = 0.0, layers: int = 3, **members: Any) -> dict[str, np.ndarray]:
    ortrain.set_seed(11)
    options = ortrain.SessionOptions()
    options.graph_optimization_level = ortrain.GraphOptimizationLevel.ORT_ENABLE_BASIC
    t = Transformer(layers, dropout=dropout)
    # Adam would make much of the rounding in gradients that are zero.
    s = ortrain.TrainingSession(t.model(), t.parameters(optimizer="SGDOptimizer", **members), options)
    for k in range(3):
        s.run(["loss"], t.feed(4, k))
    return s.get_state()


OPTIONS: list[tuple[dict[str, Any], float]] = [
    ({"gelu_recompute": True}, 0.0),
    ({"attn_dropout_recompute": True}, 0.2),
    ({"transformer_layer_recompute": True}, 0.0),
    ({"transformer_layer_recompute": True, "number_recompute_layers": 1}, 0.2),
    ({"transformer_layer_recompute": True, "gelu_recompute": True, "attn_dropout_recompute": True}, 0.2),
]


@pytest.mark.parametrize(("members", "dropout"), OPTIONS)
def test_what_is_recomputed_is_the_same(members: dict[str, Any], dropout: float) -> None:
    plain = trained(dropout)
    for name, value in trained(dropout, **members).items():
        np.testing.assert_array_equal(value, plain[name], err_msg=name)


@pytest.mark.parametrize(("members", "dropout"), OPTIONS)
def test_the_graph_shows_what_is_recomputed(
    tmp_path: pathlib.Path, members: dict[str, Any], dropout: float
) -> None:
    path = tmp_path / "training.onnx"
    trained(dropout, model_with_training_graph_path=str(path), **members)
    model = onnx.load(str(path))
    onnx.checker.check_model(model)
    again = [node for node in model.graph.node if node.name.endswith("_recompute")]
    layers = {node.name.split(".")[0] for node in again}
    every = {"l0", "l1", "l2"}
    if "transformer_layer_recompute" in members:
        if len(members) < 3:
            assert layers == ({"l0"} if "number_recompute_layers" in members else {"l0", "l1"})
        assert {"MatMul", "LayerNormalization", "Softmax", "Gelu"} <= {node.op_type for node in again}
    else:
        assert layers == every
        assert {node.op_type for node in again} == (
            {"Gelu"} if "gelu_recompute" in members else {"DropoutGrad"}
        )


def test_more_layers_than_there_are_is_all_of_them(capfd: pytest.CaptureFixture[str]) -> None:
    trained(transformer_layer_recompute=True, number_recompute_layers=9)
    assert "the model has 3 transformer layers" in capfd.readouterr().err


def test_options_without_anything_to_recompute_are_harmless() -> None:
    from legacy_models import batch, feed, mlp, parameters

    p = parameters(gelu_recompute=True, attn_dropout_recompute=True, transformer_layer_recompute=True)
    ortrain.TrainingSession(mlp(), p).run(["loss"], feed(batch()))


def test_the_memory_efficient_gradient_reads_outputs(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "training.onnx"
    found = trained(use_memory_efficient_gradient=True, model_with_training_graph_path=str(path))
    kinds = {node.op_type for node in onnx.load(str(path)).graph.node}
    assert "InvertibleLayerNormalizationGrad" in kinds
    assert "LayerNormalizationGrad" not in kinds
    for name, value in trained().items():
        np.testing.assert_allclose(found[name], value, rtol=2e-3, atol=2e-5, err_msg=name)


@pytest.mark.thorough
def test_recomputing_takes_less_memory() -> None:
    plain = megabytes()
    assert megabytes(transformer_layer_recompute=True) < 0.6 * plain
    assert megabytes(gelu_recompute=True) < plain - 0.5 * 6 * 24 * 128 * 256 * 4 / 2**20
    assert megabytes(use_memory_efficient_gradient=True) < plain - 0.4 * 12 * 24 * 128 * 64 * 4 / 2**20


@pytest.mark.thorough
def test_dropped_attention_probabilities_are_not_kept() -> None:
    """Attention in one node never keeps them; where attention is not fused, the option drops one copy."""
    probabilities = 6 * 24 * 4 * 128 * 128 * 4 / 2**20
    assert megabytes(0.2, 1, attn_dropout_recompute=True) < megabytes(0.2, 1) - 0.5 * probabilities
    assert megabytes(0.2, attn_dropout_recompute=True) < probabilities + 1.1 * megabytes()
