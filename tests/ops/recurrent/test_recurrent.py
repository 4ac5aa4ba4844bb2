"""LSTM, GRU and RNN against their equations, written down step by step and sample by sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import (
    MICROSOFT,
    Array,
    Op,
    check_forward,
    check_gradient,
    check_rejected,
    make_model,
    run,
    uniform,
)

SPECIAL_POINTS = {
    "not recorded": ["GRU", "LSTM", "RNN"],
    "not in PyTorch": ["com.microsoft.GRUTraining", "com.microsoft.LSTMTraining"],
}

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}
ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "affine": lambda x, a, b: a * x + b,
    "relu": lambda x, a, b: np.maximum(x, 0),
    "leakyrelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholdedrelu": lambda x, a, b: np.where(x > a, x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "scaledtanh": lambda x, a, b: a * np.tanh(b * x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "hardsigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * (np.exp(x) - 1), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.log1p(np.exp(x)),
}
ALPHA = {
    "affine": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "scaledtanh": 1.0,
    "hardsigmoid": 0.2,
    "elu": 1.0,
}
BETA = {"affine": 0.0, "scaledtanh": 1.0, "hardsigmoid": 0.5}


def functions(kind: str, directions: int, attributes: dict[str, Any]) -> list[Callable[[Array], Array]]:
    alphas, betas = iter(attributes.get("activation_alpha", [])), iter(attributes.get("activation_beta", []))
    clip = np.float64(np.float32(attributes.get("clip", np.inf)))

    def bind(i: int, name: str) -> Callable[[Array], Array]:
        key = name.lower()
        bound = np.inf if kind == "LSTM" and i % 3 == 2 else clip
        a = float(np.float32(next(alphas, ALPHA[key]) if key in ALPHA else 0))
        b = float(np.float32(next(betas, BETA[key]) if key in BETA else 0))
        return lambda x: ACTIVATIONS[key](np.clip(x, -bound, bound), a, b)

    names = attributes.get("activations", DEFAULTS[kind] * directions)
    return [bind(i, name) for i, name in enumerate(names)]


def expected(kind: str, inputs: list[Array | None], attributes: dict[str, Any]) -> list[Array]:
    missing: list[Array | None] = [None] * (8 - len(inputs))
    x, w, r, b, lengths, h0, c0, p = inputs + missing
    assert x is not None
    assert w is not None
    assert r is not None
    batch_first = attributes.get("layout", 0) == 1
    if batch_first:
        x = x.transpose(1, 0, 2)
        h0, c0 = (None if s is None else s.transpose(1, 0, 2) for s in (h0, c0))
    steps, batch, _ = x.shape
    directions, hidden = r.shape[0], r.shape[2]
    n = len(DEFAULTS[kind])
    acts = functions(kind, directions, attributes)
    y = np.zeros((steps, directions, batch, hidden), x.dtype)
    last_h, last_c = np.zeros((directions, batch, hidden)), np.zeros((directions, batch, hidden))
    for d in range(directions):
        f = acts[n * d : n * (d + 1)]
        wb, rb = (np.zeros(w.shape[1]),) * 2 if b is None else np.split(b[d], 2)
        back = d == 1 or attributes.get("direction") == "reverse"
        for s in range(batch):
            h = np.zeros(hidden) if h0 is None else h0[d, s]
            c = np.zeros(hidden) if c0 is None else c0[d, s]
            length = steps if lengths is None else int(lengths[s])
            for t in reversed(range(length)) if back else range(length):
                from_x, from_h = w[d] @ x[t, s] + wb, r[d] @ h + rb
                if kind == "RNN":
                    h = f[0](from_x + from_h)
                elif kind == "GRU":
                    zx, rx, hx = np.split(from_x, 3)
                    zh, rh, hh = np.split(from_h, 3)
                    z, reset = f[0](zx + zh), f[0](rx + rh)
                    if attributes.get("linear_before_reset", 0):
                        new = f[1](hx + reset * hh)
                    else:
                        new = f[1](hx + r[d][2 * hidden :] @ (reset * h) + rb[2 * hidden :])
                    h = (1 - z) * new + z * h
                else:
                    i, o, g, new = np.split(from_x + from_h, 4)
                    pi, po, pf = np.zeros((3, hidden)) if p is None else np.split(p[d], 3)
                    i = f[0](i + pi * c)
                    g = 1 - i if attributes.get("input_forget", 0) else f[0](g + pf * c)
                    c = g * c + i * f[1](new)
                    o = f[0](o + po * c)
                    h = o * f[2](c)
                y[t, d, s] = h
            last_h[d, s], last_c[d, s] = h, c
    results = [y, last_h, last_c][: 3 if kind == "LSTM" else 2]
    if batch_first:
        results = [y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in results[1:])]
    return [np.ascontiguousarray(v, x.dtype) for v in results]


def arguments(
    kind: str,
    attributes: dict[str, Any],
    given: str = "blhcp",
    steps: int = 4,
    batch: int = 3,
    width: int = 2,
    hidden: int = 3,
    dtype: Any = np.float64,
) -> list[Array | None]:
    """Inputs of a layer; `given` names the optional ones: bias, lengths, initial h and c, peepholes."""
    d = 2 if attributes.get("direction") == "bidirectional" else 1
    first = attributes.get("layout", 0) == 1
    g = GATES[kind]
    state = (batch, d, hidden) if first else (d, batch, hidden)
    lengths = np.array([(steps - i) % (steps + 1) for i in range(batch)], np.int32)
    lengths = np.roll(lengths, 1)
    values: list[Array | None] = [
        uniform(*((batch, steps, width) if first else (steps, batch, width)), low=-2, high=2, dtype=dtype),
        uniform(d, g * hidden, width, dtype=dtype, seed=1),
        uniform(d, g * hidden, hidden, dtype=dtype, seed=2),
        uniform(d, 2 * g * hidden, dtype=dtype, seed=3) if "b" in given else None,
        lengths if "l" in given else None,
        uniform(*state, dtype=dtype, seed=4) if "h" in given else None,
        uniform(*state, dtype=dtype, seed=5) if "c" in given else None,
        uniform(d, 3 * hidden, dtype=dtype, seed=6) if "p" in given else None,
    ]
    values = values[: 8 if kind == "LSTM" else 6]
    while values[-1] is None:
        values.pop()
    return values


def outputs(kind: str) -> int:
    return 3 if kind == "LSTM" else 2


def layer(kind: str, attributes: dict[str, Any], opset: int = 17) -> Op:
    return Op(kind, {"hidden_size": 3, **attributes}, opset=opset, outputs=outputs(kind))


COMMON: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({}, "blhcp"),
    ({"direction": "reverse"}, "lh"),
    ({"direction": "reverse", "layout": 1}, "blc"),
    ({"direction": "bidirectional"}, "blhcp"),
    ({"direction": "bidirectional", "layout": 1}, "blhcp"),
    ({"layout": 1}, "bhp"),
    ({"clip": 0.6}, "blhcp"),
    ({"direction": "bidirectional", "clip": 0.9}, ""),
]
OWN: list[tuple[str, dict[str, Any], str]] = [
    ("GRU", {"linear_before_reset": 1}, "blh"),
    ("GRU", {"linear_before_reset": 1, "direction": "bidirectional", "layout": 1}, "blh"),
    ("GRU", {"linear_before_reset": 1, "clip": 0.5, "direction": "reverse"}, ""),
    ("LSTM", {"input_forget": 1}, "blhcp"),
    ("LSTM", {"input_forget": 1, "direction": "bidirectional"}, ""),
]
CASES = [(kind, *case) for kind in GATES for case in COMMON] + OWN


#: Weights are packed before the first step if there are eight or more.
STEPS = [4, 8]


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("kind", "attributes", "given"), CASES)
def test_layers_follow_their_equations(
    kind: str, attributes: dict[str, Any], given: str, dtype: Any, steps: int
) -> None:
    inputs = arguments(kind, attributes, given, steps, dtype=dtype)
    rtol = 1e-5 if dtype == np.float32 else 1e-12
    check_forward(layer(kind, attributes), inputs, expected(kind, inputs, attributes), rtol)


@pytest.mark.parametrize(("kind", "attributes", "given"), [case for case in CASES if "layout" not in case[1]])
def test_layers_agree_with_onnxruntime(kind: str, attributes: dict[str, Any], given: str) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    inputs, op = arguments(kind, attributes, given, dtype=np.float32), layer(kind, attributes)
    session = onnxruntime.InferenceSession(make_model(op, inputs).SerializeToString())
    feeds = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    check_forward(op, inputs, session.run(None, feeds), 1e-5)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(("kind", "attributes", "given"), CASES)
def test_gradients_of_all_inputs(kind: str, attributes: dict[str, Any], given: str, steps: int) -> None:
    check_gradient(layer(kind, attributes), arguments(kind, attributes, given, steps), step=1e-6)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations(kind: str, name: str) -> None:
    title = {key.lower(): key for key in ("Affine", "ScaledTanh", "HardSigmoid")}.get(name, name)
    attributes: dict[str, Any] = {"activations": [title] * len(DEFAULTS[kind])}
    if name in ALPHA:
        attributes["activation_alpha"] = [0.6, 0.4, 0.8][: len(DEFAULTS[kind])]
    if name in BETA:
        attributes["activation_beta"] = [0.3, 0.7, 0.5][: len(DEFAULTS[kind])]
    inputs = arguments(kind, attributes, "blhcp")
    check_forward(layer(kind, attributes), inputs, expected(kind, inputs, attributes))
    check_gradient(layer(kind, attributes), inputs, step=1e-6)


def test_alpha_and_beta_are_consumed_by_the_functions_that_have_them() -> None:
    attributes = {
        "activations": ["HardSigmoid", "Tanh", "ScaledTanh", "Sigmoid", "LeakyRelu", "Softsign"],
        "activation_alpha": [0.3, 0.7, 0.2],
        "activation_beta": [0.4, 1.3],
        "direction": "bidirectional",
    }
    inputs = arguments("LSTM", attributes)
    check_forward(layer("LSTM", attributes), inputs, expected("LSTM", inputs, attributes))
    check_gradient(layer("LSTM", attributes), inputs, step=1e-6)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize(
    ("steps", "batch", "hidden"),
    [(1, 1, 1), (5, 1, 3), (1, 4, 3), (0, 2, 3), (3, 0, 3), (3, 2, 1), (9, 1, 1), (8, 0, 3), (8, 2, 17)],
)
def test_sizes(kind: str, steps: int, batch: int, hidden: int) -> None:
    attributes = {"direction": "bidirectional", "hidden_size": hidden}
    inputs = arguments(kind, attributes, "bhcp", steps, batch, hidden=hidden)
    check_forward(layer(kind, attributes), inputs, expected(kind, inputs, attributes))
    check_gradient(layer(kind, attributes), inputs, step=1e-6)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layers_that_are_large_enough_for_threads(kind: str, direction: str) -> None:
    attributes = {"direction": direction}
    inputs = arguments(kind, attributes, "blhcp", 12, 9, 20, 48, np.float32)
    # Recurrent weights of the usual size: with larger ones each step amplifies the rounding errors of the one before.
    inputs[2] *= np.float32(48**-0.5)
    op = Op(kind, {"hidden_size": 48, **attributes}, outputs=outputs(kind))
    check_forward(op, inputs, expected(kind, inputs, attributes), rtol=2e-5)


@pytest.mark.parametrize("opset", [12, 14, 22])
@pytest.mark.parametrize("kind", GATES)
def test_versions(kind: str, opset: int) -> None:
    inputs = arguments(kind, {})
    check_forward(layer(kind, {}, opset), inputs, expected(kind, inputs, {}))
    check_gradient(layer(kind, {}, opset), inputs, wrt=[1], step=1e-6)


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("output", [0, 1, 2])
def test_one_output_alone(kind: str, output: int) -> None:
    if output >= outputs(kind):
        pytest.skip("there is no such output")
    inputs = arguments(kind, {})
    op = Op(kind, {"hidden_size": 3}, outputs=tuple(o == output for o in range(outputs(kind))))
    check_forward(op, inputs, [expected(kind, inputs, {})[output]])
    check_gradient(op, inputs, wrt=[0, 1, 2], step=1e-6)


@pytest.mark.parametrize("kind", GATES)
def test_bad_inputs_are_rejected(kind: str) -> None:
    inputs = arguments(kind, {})

    def changed(i: int, value: Array) -> list[Array | None]:
        return [value if k == i else x for k, x in enumerate(inputs)]

    g = GATES[kind]
    check_rejected(layer(kind, {}), changed(0, uniform(4, 3)), "X must have three axes")
    check_rejected(layer(kind, {}), changed(1, uniform(1, g * 3, 5)), "W must have shape")
    check_rejected(layer(kind, {}), changed(3, uniform(1, 5)), "B must have shape")
    check_rejected(layer(kind, {}), changed(4, np.ones(2, np.int32)), "sequence_lens must be int32")
    check_rejected(
        layer(kind, {}), changed(4, np.array([4, 5, 1], np.int32)), r"sequence_lens\[1\] must be in"
    )
    check_rejected(layer(kind, {}), changed(5, uniform(1, 2, 3)), "initial_h must have shape")
    check_rejected(layer(kind, {"hidden_size": 4}), inputs, "hidden_size is 4")
    check_rejected(layer(kind, {"direction": "sideways"}), inputs, "direction must be")
    check_rejected(layer(kind, {"clip": -1.0}), inputs, "clip must be positive")
    check_rejected(layer(kind, {"activations": ["Tanh"] * 4}), inputs, "activations must name")
    names = ["Gelu"] * len(DEFAULTS[kind])
    check_rejected(layer(kind, {"activations": names}), inputs, "no activation function 'Gelu'")
    check_rejected(layer(kind, {"activation_alpha": [1.0]}), inputs, "more values of activation_alpha")


def test_padding_that_is_not_a_number_changes_nothing_behind_it() -> None:
    for kind in GATES:
        inputs = arguments(kind, {"direction": "bidirectional"})
        wanted = run(layer(kind, {"direction": "bidirectional"}), inputs)
        x, lengths = inputs[0], inputs[4]
        assert x is not None
        assert lengths is not None
        for s, length in enumerate(lengths):
            x[length:, s] = np.nan
        for a, b in zip(run(layer(kind, {"direction": "bidirectional"}), inputs), wanted, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_gradient_of_the_form_in_training_models(kind: str) -> None:
    inputs = arguments(kind, {})
    op = Op(
        f"{kind}Training", {"hidden_size": 3}, MICROSOFT, outputs=outputs(kind) + (2 if kind == "LSTM" else 1)
    )
    check_gradient(op, inputs, outputs=list(range(outputs(kind))), step=1e-6)
