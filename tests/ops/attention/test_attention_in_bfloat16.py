"""Attention in mixed precision, and keys that a mask hides: results and gradients against NumPy in double precision."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from processor import multiplies_bfloat16
from training import Training

Array = np.ndarray[Any, Any]
UNIT = 2.0**-9
"""The largest relative error of rounding to bfloat16."""
# Operands, probabilities and gradients of scores are rounded once each, the first ones for two products in a row.
MOST = {"Y": 2 * UNIT, "Q": 3 * UNIT, "K": 3 * UNIT, "V": 2 * UNIT}
HEADS, LENGTH = 4, 117
HIDDEN = {"least": np.finfo(np.float32).min, "billion": -1e9, "infinite": -np.inf}


@dataclass(frozen=True)
class Form:
    """What is computed.

    Attributes
    ----------
    separate : whether the model has separate steps, which become one node, instead of the operator Attention.
    mask : "", "causal", "window", "left" (hides the first keys from all queries) or "some" (also keys in between).
    hidden : the value of the mask where it hides a key; "bool" for a mask of that type.
    keys : heads of keys.
    """

    separate: bool = False
    mask: str = ""
    hidden: str = "least"
    size: int = 16
    keys: int = HEADS

    def seen(self) -> Array:
        """Return which keys a query sees, bool ``[LENGTH, LENGTH]``."""
        query, key = np.indices((LENGTH, LENGTH))
        rng = np.random.default_rng(8)
        return {
            "": key >= 0,
            "causal": key <= query,
            "window": (key <= query + 2) & (key >= query - 9),
            "left": key >= 31,
            "some": ((rng.random((LENGTH, LENGTH)) < 0.5) & (key <= query)) | (key == query),
        }[self.mask]


FORMS = [
    Form(),
    Form(mask="causal"),
    Form(mask="causal", hidden="billion", keys=2),
    Form(mask="causal", hidden="bool"),
    Form(mask="window", hidden="infinite", size=21),
    Form(mask="left", hidden="billion"),
    Form(mask="some", hidden="infinite"),
    Form(separate=True, mask="causal", hidden="billion"),
    Form(separate=True, mask="causal", hidden="bool"),
    Form(separate=True, mask="window", size=64),  # probabilities are kept
]


def write(form: Form, values: dict[str, Array], folder: pathlib.Path) -> None:
    """Write artifacts of ``Y = attention(x + Q, x + K, x + V)``, where Q, K and V are trained."""
    nodes = [helper.make_node("Add", ["x", name], [name.lower()]) for name in ("Q", "K", "V")]
    weights = [numpy_helper.from_array(value, name) for name, value in values.items()]
    seen, scale = form.seen(), form.size**-0.5
    boolean = form.hidden == "bool"
    mask = seen if boolean else np.where(seen, 0, np.float32(HIDDEN[form.hidden])).astype(np.float32)

    def constant(name: str, value: Any) -> str:
        nodes.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(value)))
        return name

    if form.separate:
        nodes.append(helper.make_node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]))
        nodes.append(helper.make_node("MatMul", ["q", "turned"], ["product"]))
        nodes.append(helper.make_node("Mul", ["product", constant("scale", np.float32(scale))], ["scaled"]))
        if boolean:
            lowest = constant("lowest", np.float32(HIDDEN["least"]))
            nodes.append(helper.make_node("Where", [constant("mask", mask), "scaled", lowest], ["scores"]))
        else:
            nodes.append(helper.make_node("Add", ["scaled", constant("mask", mask)], ["scores"]))
        nodes.append(helper.make_node("Softmax", ["scores"], ["shares"], axis=-1))
        nodes.append(helper.make_node("MatMul", ["shares", "v"], ["y"]))
    else:
        masks = [constant("mask", mask)] if form.mask else []
        nodes.append(helper.make_node("Attention", ["q", "k", "v", *masks], ["y"], scale=scale))
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "graph",
        [tensor("x", 1, [1])],
        [tensor("y", 1, [1, HEADS, LENGTH, form.size])],
        weights,
    )
    artifacts.generate_artifacts(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10),
        requires_grad=list(values),
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )


def exactly(form: Form, values: dict[str, Array], target: Array) -> dict[str, Array]:
    """Return the loss and the gradients of Q, K and V."""
    q, k, v = (value.astype(np.float64) for value in values.values())
    group = HEADS // form.keys
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    scale = form.size**-0.5
    scores = np.where(form.seen(), scale * q @ k.swapaxes(2, 3), -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    shares /= shares.sum(-1, keepdims=True)
    y = shares @ v
    dy = 2 * (y - target) / y.size
    slopes = dy @ v.swapaxes(2, 3)
    slopes = scale * shares * (slopes - (slopes * shares).sum(-1, keepdims=True))

    def together(gradient: Array) -> Array:
        return gradient.reshape(1, form.keys, group, LENGTH, form.size).sum(2)

    return {
        "loss": np.square(y - target).mean(),
        "Q": slopes @ k,
        "K": together(slopes.swapaxes(2, 3) @ q),
        "V": together(shares.swapaxes(2, 3) @ dy),
    }


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_results_and_gradients_are_as_exact_as_their_operands(form: Form, tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(2)
    values = {
        name: rng.normal(size=(1, heads, LENGTH, form.size)).astype(np.float32)
        for name, heads in (("Q", HEADS), ("K", form.keys), ("V", form.keys))
    }
    target = rng.normal(size=(1, HEADS, LENGTH, form.size)).astype(np.float32)
    write(form, values, tmp_path)
    exact = exactly(form, values, target)
    batch = np.zeros(1, np.float32), target
    for config, bounds in (
        ({}, dict.fromkeys(MOST, 2e-6)),
        ({"ortrain.mixed_precision": "bf16", "ortrain.bf16_products": "bf16"}, MOST),
    ):
        training = Training(tmp_path, config)
        assert training.loss(*batch) == pytest.approx(exact["loss"], rel=bounds["Y"])
        gradients = training.gradients()
        for name in values:
            apart = np.linalg.norm(gradients[name] - exact[name])
            assert apart <= bounds[name] * np.linalg.norm(exact[name]), name
            # Products in bfloat16 are not those in float32. Processors without instructions for them multiply floats.
            in_bfloat16 = bool(config) and multiplies_bfloat16()
            assert in_bfloat16 == (apart > 1e-4 * np.linalg.norm(exact[name])), name


@pytest.mark.parametrize("config", [{}, {"ortrain.mixed_precision": "bf16", "ortrain.bf16_products": "bf16"}])
def test_a_mask_hides_only_what_no_score_can_outweigh(config: dict[str, str], tmp_path: pathlib.Path) -> None:
    form = Form(mask="causal", hidden="billion")
    rng = np.random.default_rng(2)
    # Scores of keys that the mask lowers by 10^9 are up to 10^10 larger than others.
    values = {
        name: (rng.normal(size=(1, HEADS, LENGTH, form.size)) * (1e5 if name != "V" else 1)).astype(
            np.float32
        )
        for name in ("Q", "K", "V")
    }
    write(form, values, tmp_path)
    q, k, v = (value.astype(np.float64) for value in values.values())
    scores = form.size**-0.5 * q @ k.swapaxes(2, 3) + np.where(form.seen(), 0, -1e9)
    best = scores.argmax(-1)
    assert (best > np.arange(LENGTH)).mean() > 0.2
    target = np.zeros(v.shape, np.float32)
    loss = np.square(np.take_along_axis(v, best[..., None], 2)).mean()
    assert Training(tmp_path, config).loss(np.zeros(1, np.float32), target) == pytest.approx(loss, rel=2e-2)
