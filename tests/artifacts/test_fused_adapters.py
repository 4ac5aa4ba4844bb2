"""Adapters beside the layers in fused operators of onnxruntime, against formulas in double precision, PEFT and onnxruntime.

Gradients are compared with finite differences of the formula, and models with what onnxruntime computes.
"""

from __future__ import annotations

import json
import pathlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from ortrain import artifacts
from ortrain.artifacts import LoRA
from ortrain.artifacts.graph.adapters import adapters_of, add_adapters
from test_adapters import DATA, recorded_of
from test_adapters import start_of as start_of_peft
from training import Training

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
BATCH, LENGTH, WIDTH, HEADS, SIZE = 2, 5, 6, 2, 3
R, ALPHA = 2, 3.0
SCALE = ALPHA / R


def values(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).uniform(-1, 1, shape).astype(np.float32)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Array],
    weights: dict[str, Array],
    output: list[Any],
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of nodes whose output is y, with the first dimension of its inputs free."""
    graph = helper.make_graph(
        nodes,
        "graph",
        [
            helper.make_tensor_value_info(
                n, helper.np_dtype_to_tensor_dtype(x.dtype), ["batch", *x.shape[1:]]
            )
            for n, x in inputs.items()
        ],
        [helper.make_tensor_value_info("y", 1, output)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def run(model: onnx.ModelProto, inputs: dict[str, Array]) -> Array:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: Array = session.run(["y"], inputs)[0]
    return found


# ---- Formulas: the output of a layer as a function of what is added to its weights, [outputs, inputs] for each part. ----


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def attention(
    x: Array,
    weight: Array,
    bias: Array,
    sizes: list[int],
    seen: Array | None = None,
    past: Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Array:
    """com.microsoft.Attention in double precision; `seen` is [batch, keys], or [batch, queries, keys]."""
    q, k, v = np.split(x @ weight + bias, np.cumsum(sizes)[:2], axis=-1)
    q, k, v = (a.reshape(*a.shape[:2], HEADS, -1).transpose(0, 2, 1, 3) for a in (q, k, v))
    if past is not None:
        k, v = (np.concatenate([old, new], axis=2) for old, new in zip(past, (k, v), strict=True))
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / np.sqrt(q.shape[-1]))
    if seen is not None:
        mask = seen[:, None, None] if seen.ndim == 2 else seen[:, None]
        scores = scores + np.where(mask != 0, 0, -10000.0)
    if causal:
        places = np.arange(scores.shape[-1]) - (scores.shape[-1] - scores.shape[-2])
        scores = np.where(places <= np.arange(scores.shape[-2])[:, None], scores, -np.inf)
    y = softmax(scores) @ v
    return np.asarray(y.transpose(0, 2, 1, 3).reshape(*x.shape[:2], -1))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


@dataclass
class Case:
    """A model with a fused operator, and a formula for it."""

    model: onnx.ModelProto
    inputs: dict[str, Array]
    targets: Any
    modules: list[str]
    formula: Callable[..., Array]
    """The output for matrices that are added to the weights of the modules."""
    runs: bool = True
    """Whether onnxruntime has a kernel for the processor."""


def attention_case(
    targets: Any = "all-linear",
    modules: tuple[str, ...] = ("attn.c_attn",),
    sizes: tuple[int, ...] = (6, 6, 6),
    mask: str = "",
    past: bool = False,
    opset: int = 17,
    bias: bool = True,
    named: bool = True,
    **attributes: Any,
) -> Case:
    x = values(BATCH, LENGTH, WIDTH)
    weight, offset = values(WIDTH, sum(sizes), seed=1), values(sum(sizes), seed=2)
    prefix = "attn.c_attn." if named else "Attention_0_qkv_"
    names = {"weight": f"{prefix}weight", "bias": f"{prefix}bias"}
    inputs, slots, keys = {"x": x}, ["x", names["weight"], names["bias"] if bias else "", "", "", ""], LENGTH
    seen = None
    settings: dict[str, Any] = {"num_heads": HEADS, **attributes}
    if sizes[0] != sizes[2]:
        settings["qkv_hidden_sizes"] = list(sizes)
    cache = None
    if past:
        inputs["past"] = values(BATCH, 2, HEADS, 3, SIZE, seed=3)
        slots[4], keys, cache = "turned", LENGTH + 3, inputs["past"].astype(np.float64).swapaxes(0, 1)
    if mask == "keys":
        inputs["mask"] = np.ones((BATCH, keys), np.int32)
        inputs["mask"][0, -2:] = 0
        seen = inputs["mask"]
    elif mask == "lengths":
        inputs["mask"] = np.array([keys - 2, keys], np.int32)
        seen = (np.arange(keys) < inputs["mask"][:, None]).astype(int)
    elif mask == "queries":
        inputs["mask"] = (np.random.default_rng(5).uniform(size=(BATCH, LENGTH, keys)) < 0.7).astype(np.int32)
        inputs["mask"][..., 0] = 1
        seen = inputs["mask"]
    if mask:
        slots[3] = "mask"
    while not slots[-1]:
        slots.pop()
    outputs = ["a", "present"] if past else ["a"]
    nodes = [helper.make_node("Transpose", ["past"], ["turned"], perm=[1, 0, 2, 3, 4])] if past else []
    name = "Attention_0" if not named else "GptAttention_0"
    nodes += [
        helper.make_node("Attention", slots, outputs, name, domain=MICROSOFT, **settings),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    tensors = {names["weight"]: weight} | ({names["bias"]: offset} if bias else {})
    model = model_of(nodes, inputs, tensors, ["batch", LENGTH, sizes[2]], opset)
    letters = [module.rpartition(".")[2] for module in modules]
    begins = dict(zip("qkv", np.cumsum([0, *sizes]), strict=False))

    def formula(*deltas: Array) -> Array:
        changed = weight.astype(np.float64)
        for letter, delta in zip(letters, deltas, strict=True):
            first = int(begins.get(letter[0], 0)) if len(modules) > 1 or letter[0] in begins else 0
            changed = changed.copy()
            changed[:, first : first + len(delta)] += delta.T
        y = attention(
            x.astype(np.float64), changed, offset if bias else np.zeros(1), list(sizes), seen, cache,
            bool(attributes.get("unidirectional")), attributes.get("scale"),
        )  # fmt: skip
        return np.maximum(y, 0)

    return Case(model, inputs, targets, list(modules), formula)


def product_case(operator: str, runs: bool = True, outer: Any = None, **attributes: Any) -> Case:
    """x W, with what a fused operator adds."""
    x, bias = values(4, 6), values(5, seed=2)
    turned = bool(attributes.get("transB"))
    weight = values(5, 6, seed=1) if turned else values(6, 5, seed=1)
    alpha, beta = attributes.get("alpha", 1.0), attributes.get("beta", 1.0)
    domain = "" if operator in ("Gemm", "MatMul") else MICROSOFT
    inputs = ["x", "fc.weight", *(["fc.bias"] if operator in ("Gemm", "FusedGemm", "GemmFastGelu") else [])]
    nodes = [
        helper.make_node(operator, inputs, ["h"], "fused", domain=domain, **attributes),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    tensors = {"fc.weight": weight} | ({"fc.bias": bias} if len(inputs) > 2 else {})

    def formula(delta: Array) -> Array:
        matrix = weight.T.astype(np.float64) if not turned else weight.astype(np.float64)
        y = x @ (alpha * matrix + delta).T + (beta * bias if len(inputs) > 2 else 0)
        return np.tanh(outer(y) if outer else y)

    return Case(model_of(nodes, {"x": x}, tensors, ["batch", 5]), {"x": x}, "fc", ["fc"], formula, runs)


def convolution(x: Array, w: Array, stride: int) -> Array:
    """A convolution without padding."""
    rows, columns = ((size - 2) // stride + 1 for size in x.shape[2:])
    y = np.zeros((len(x), len(w), rows, columns))
    for i in range(rows):
        for j in range(columns):
            window = x[:, :, i * stride : i * stride + 2, j * stride : j * stride + 2]
            y[:, :, i, j] = np.tensordot(window, w, ([1, 2, 3], [1, 2, 3]))
    return y


def conv_case(activation: str, params: list[float], function: Any, addend: bool = False) -> Case:
    x, weight, bias, z = (
        values(3, 2, 5, 5),
        values(4, 2, 2, 2, seed=1),
        values(4, seed=2),
        values(3, 4, 2, 2, seed=3),
    )
    settings: dict[str, Any] = {"strides": [2, 2], "activation": activation}
    if params:
        settings["activation_params"] = params
    names = ["x", "conv.weight", "conv.bias", *(["z"] if addend else [])]
    node = helper.make_node("FusedConv", names, ["h"], "fused", domain=MICROSOFT, **settings)
    inputs = {"x": x} | ({"z": z} if addend else {})
    tensors = {"conv.weight": weight, "conv.bias": bias}
    nodes = [node, helper.make_node("Tanh", ["h"], ["y"])]

    def formula(delta: Array) -> Array:
        y = convolution(x.astype(np.float64), weight + delta, 2) + bias[:, None, None] + (z if addend else 0)
        return np.tanh(function(y))

    model = model_of(nodes, inputs, tensors, ["batch", 4, 2, 2])
    return Case(model, inputs, "Conv", ["conv"], formula)


def embedding_case(targets: Any, modules: list[str], positions: bool = False, segments: bool = True) -> Case:
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 7, (3, 4)).astype(np.int32)
    kinds = rng.integers(0, 2, (3, 4)).astype(np.int32)
    places = rng.integers(0, 6, (3, 4)).astype(np.int32)
    tables = {
        "embeddings.word.weight": values(7, WIDTH, seed=1),
        "embeddings.place.weight": values(6, WIDTH, seed=2),
        "embeddings.kind.weight": values(2, WIDTH, seed=3),
        "norm.weight": values(WIDTH, seed=4) + 1.5,
        "norm.bias": values(WIDTH, seed=5),
    }
    if not segments:
        del tables["embeddings.kind.weight"]
    inputs = {"ids": ids} | ({"kinds": kinds} if segments else {}) | ({"places": places} if positions else {})
    names = ["ids", "kinds" if segments else "", *list(tables)[:2]]
    names += ["embeddings.kind.weight" if segments else "", "norm.weight", "norm.bias"]
    names += ["", "places"] if positions else []
    node = helper.make_node(
        "EmbedLayerNormalization",
        names,
        ["h", "mask_index", "sum"],
        "Embed_0",
        domain=MICROSOFT,
        epsilon=1e-5,
    )
    nodes = [
        node,
        helper.make_node("Cast", ["mask_index"], ["m"], to=1),
        helper.make_node("ReduceSum", ["m"], ["count"], keepdims=0),
        helper.make_node("Add", ["h", "count"], ["t"]),
        helper.make_node("Add", ["t", "sum"], ["y"]),
    ]

    def formula(*deltas: Array) -> Array:
        own = {name: table.astype(np.float64) for name, table in tables.items()}
        for module, delta in zip(modules, deltas, strict=True):
            own[f"{module}.weight"] = own[f"{module}.weight"] + delta.T
        total = own["embeddings.word.weight"][ids]
        total = total + (
            own["embeddings.place.weight"][places] if positions else own["embeddings.place.weight"][:4]
        )
        total = total + (own["embeddings.kind.weight"][kinds] if segments else 0)
        centred = total - total.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return np.asarray(normal * own["norm.weight"] + own["norm.bias"] + total)

    model = model_of(nodes, inputs, tables, ["batch", 4, WIDTH])
    return Case(model, inputs, targets, modules, formula)


CASES: dict[str, Callable[[], Case]] = {
    "attention": attention_case,
    "attention_without_bias": lambda: attention_case(bias=False),
    "attention_of_an_old_opset": lambda: attention_case(opset=12),
    "attention_causal": lambda: attention_case(unidirectional=1, scale=0.4),
    "attention_mask_of_keys": lambda: attention_case(mask="keys"),
    "attention_mask_of_lengths": lambda: attention_case(mask="lengths"),
    "attention_mask_of_queries": lambda: attention_case(mask="queries"),
    "attention_with_the_past": lambda: attention_case(past=True, unidirectional=1),
    "attention_with_the_past_and_a_mask": lambda: attention_case(past=True, mask="keys", opset=12),
    "attention_values_of_another_size": lambda: attention_case(sizes=(6, 6, 4)),
    "attention_by_node": lambda: attention_case("Attention_0", ("Attention_0",), named=False),
    "queries_and_values": lambda: attention_case(["q", "v"], ("attn.c_attn.q", "attn.c_attn.v")),
    "queries_by_their_usual_name": lambda: attention_case("query", ("Attention_0.query",), named=False),
    "keys_and_values": lambda: attention_case(
        ["k_proj", "v_proj"],
        ("attn.c_attn.k_proj", "attn.c_attn.v_proj"),
        sizes=(6, 6, 4),
        mask="keys",
        bias=False,
    ),
    "gemm": lambda: product_case("Gemm", transB=1, alpha=0.5, beta=2.0),
    "fused_gemm": lambda: product_case(
        "FusedGemm", outer=lambda y: np.where(y > 0, y, 0.2 * y), activation="LeakyRelu", activation_alpha=0.2
    ),
    "fused_gemm_turned": lambda: product_case(
        "FusedGemm", outer=lambda y: np.maximum(y, 0), activation="Relu", transB=1, alpha=0.5, beta=2.0
    ),
    "fused_matmul": lambda: product_case("FusedMatMul", alpha=0.5),
    "fused_matmul_turned": lambda: product_case("FusedMatMul", alpha=0.5, transB=1),
    "transpose_matmul": lambda: product_case("TransposeMatMul", runs=False, alpha=0.5, transB=1),
    "fused_matmul_activation": lambda: product_case(
        "FusedMatMulActivation", runs=False, outer=np.tanh, activation="Tanh", alpha=0.5
    ),
    "gemm_fast_gelu": lambda: product_case("GemmFastGelu", runs=False, outer=gelu),
    "fused_conv": lambda: conv_case("Relu", [], lambda y: np.maximum(y, 0)),
    "fused_conv_and_addend": lambda: conv_case(
        "Clip", [-0.2, 0.7], lambda y: np.clip(y, -0.2, 0.7), addend=True
    ),
    "embeddings": lambda: embedding_case(
        "Gather", [f"embeddings.{name}" for name in ("word", "place", "kind")]
    ),
    "embeddings_of_words": lambda: embedding_case("word", ["embeddings.word"], positions=True),
    "embeddings_without_kinds": lambda: embedding_case("place", ["embeddings.place"], segments=False),
}


def start_of(case: Case, **settings: Any) -> tuple[LoRA, dict[str, Array]]:
    """Settings with random values of A and B, so that all gradients differ from zero."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    lora = LoRA(r=R, alpha=ALPHA, targets=case.targets, **settings)
    found = adapters_of(record_of(model, lora))
    tensors = {t.name: t for t in model.graph.initializer}
    chosen = {
        name: values(*tensors[name].dims, seed=7 + place)
        for place, name in enumerate(name for layer in found.layers for name in (layer.a, layer.b))
    }
    return LoRA(r=R, alpha=ALPHA, targets=case.targets, values=chosen, **settings), chosen


def record_of(model: onnx.ModelProto, lora: LoRA) -> str:
    return add_adapters(model, lora, "model").to_json()


def deltas_of(modules: list[str], parameters: dict[str, Array]) -> list[Array]:
    """s B A for each module, in double precision."""
    found = []
    for module in modules:
        a, b = (
            next(
                v
                for n, v in parameters.items()
                if n in (f"{module}.lora_{x}.weight", f"{module}.lora_embedding_{x}")
            )
            for x in "AB"
        )
        product = b.reshape(b.shape[:2]).astype(np.float64) @ a.reshape(len(a), -1).astype(np.float64)
        found.append(SCALE * product.reshape(len(b), *a.shape[1:]))
    return found


def training_of(case: Case, folder: pathlib.Path, lora: LoRA) -> tuple[Training, artifacts.ArtifactReport]:
    report = artifacts.generate_artifacts(
        case.model,
        adapter=lora,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=folder,
    )
    return Training(folder), report


def exported_from(training: Training, folder: pathlib.Path) -> onnx.ModelProto:
    training.module.export_model_for_inferencing(str(folder / "exported.onnx"), ["y"])
    return onnx.load(folder / "exported.onnx")


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_formula(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]()
    lora, start = start_of(case)
    training, report = training_of(case, tmp_path, lora)
    assert report.adapters is not None
    assert [layer.module for layer in report.adapters.layers] == case.modules
    batch = list(case.inputs.values())
    target = values(*case.formula(*deltas_of(case.modules, start)).shape, seed=9)

    def loss(parameters: dict[str, Array]) -> float:
        return float(((case.formula(*deltas_of(case.modules, parameters)) - target) ** 2).mean())

    assert training.loss(*batch, target) == pytest.approx(loss(start), rel=2e-5)
    for parameter, gradient in training.gradients().items():
        expected = np.zeros(gradient.shape)
        for index in np.ndindex(gradient.shape):
            moved = {key: value.astype(np.float64) for key, value in start.items()}
            for step in (1e-6, -1e-6):
                moved[parameter][index] = float(start[parameter][index]) + step
                expected[index] += loss(moved) / (2 * step)
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("name", CASES)
def test_the_merged_model_has_the_fused_operator_again(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]()
    lora, start = start_of(case)
    training, _ = training_of(case, tmp_path, lora)
    adapted = exported_from(training, tmp_path)
    together = artifacts.merged(adapted)

    def form(model: onnx.ModelProto) -> list[tuple[str, list[str], str]]:
        return [
            (n.op_type, list(n.input), str(sorted(n.attribute, key=lambda a: a.name)))
            for n in model.graph.node
        ]

    before = {t.name: tuple(t.dims) for t in case.model.graph.initializer}
    assert {t.name: tuple(t.dims) for t in together.graph.initializer} == before
    assert form(together) == form(case.model)
    assert not any("lora" in t.name or "unfused" in t.name for t in together.graph.value_info)
    expected = case.formula(*deltas_of(case.modules, start))
    for model in (adapted, together) if case.runs else ():
        np.testing.assert_allclose(run(model, case.inputs), expected, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["attention_mask_of_keys", "queries_and_values", "embeddings"])
def test_onnxruntime_runs_the_base_with_an_adapter(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]()
    lora, start = start_of(case)
    training, _ = training_of(case, tmp_path, lora)
    base = artifacts.with_adapter_inputs(exported_from(training, tmp_path))
    artifacts.write_onnx_adapter(training.state, tmp_path / "task.onnx_adapter")
    session = onnxruntime.InferenceSession(base.SerializeToString(), providers=["CPUExecutionProvider"])
    zeros = [np.zeros_like(delta) for delta in deltas_of(case.modules, start)]
    np.testing.assert_allclose(session.run(["y"], case.inputs)[0], case.formula(*zeros), rtol=1e-4, atol=2e-5)
    adapter, options = onnxruntime.LoraAdapter(), onnxruntime.RunOptions()
    adapter.Load(str(tmp_path / "task.onnx_adapter"))
    options.add_active_adapter(adapter)
    found = session.run(["y"], case.inputs, options)[0]
    np.testing.assert_allclose(found, case.formula(*deltas_of(case.modules, start)), rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["attention", "queries_and_values"])
def test_dora_scales_the_outputs_of_the_parts(name: str, tmp_path: pathlib.Path) -> None:
    case = CASES[name]()
    lora, start = start_of(case, use_dora=True)
    training, report = training_of(case, tmp_path, lora)
    assert report.adapters is not None
    trained = training.parameters()
    weight = numpy_helper.to_array(case.model.graph.initializer[0]).astype(np.float64)
    changes = []
    for layer, delta in zip(report.adapters.layers, deltas_of(case.modules, start), strict=True):
        first = {"q": 0, "v": 12}.get(layer.module[-1], 0) if name == "queries_and_values" else 0
        own = weight[:, first : first + len(delta)].T
        norms = np.linalg.norm(own, axis=1)
        np.testing.assert_allclose(trained[layer.magnitude], norms, rtol=1e-6)
        full = own + delta
        changes.append(full * (norms / np.linalg.norm(full, axis=1))[:, None] - own)
    adapted = exported_from(training, tmp_path)
    for model in (adapted, artifacts.merged(adapted)):
        np.testing.assert_allclose(run(model, case.inputs), case.formula(*changes), rtol=1e-4, atol=2e-5)


def test_biases_of_fused_layers_are_trained_on_request(tmp_path: pathlib.Path) -> None:
    whole = attention_case()
    training, report = training_of(whole, tmp_path / "whole", LoRA(r=R, targets="c_attn", bias="lora_only"))
    assert report.adapters is not None
    assert report.adapters.biases == ("attn.c_attn.bias",)
    parts = attention_case(["q", "v"], ("attn.c_attn.q", "attn.c_attn.v"))
    training, report = training_of(parts, tmp_path / "parts", LoRA(r=R, targets=["q", "v"], bias="lora_only"))
    assert report.adapters is not None
    assert report.adapters.biases == ("attn.c_attn.q.bias", "attn.c_attn.v.bias")
    training.optimizer.set_learning_rate(0.1)
    batch = [parts.inputs["x"], values(BATCH, LENGTH, WIDTH, seed=4)]
    losses = [training.step(*batch) for _ in range(4)]
    assert losses[-1] < losses[0]
    adapted = exported_from(training, tmp_path)
    together = artifacts.merged(adapted)
    before, after = (
        {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}["attn.c_attn.bias"]
        for m in (parts.model, together)
    )
    moved = before != after
    assert moved[:6].all()
    assert not moved[6:12].any()
    np.testing.assert_allclose(run(together, parts.inputs), run(adapted, parts.inputs), rtol=1e-4, atol=1e-5)


def test_dropout_is_of_train_steps_alone(tmp_path: pathlib.Path) -> None:
    case = attention_case()
    lora, start = start_of(case, dropout=0.5)
    training, _ = training_of(case, tmp_path, lora)
    target = values(BATCH, LENGTH, WIDTH, seed=9)
    losses = {training.loss(case.inputs["x"], target) for _ in range(4)}
    assert len(losses) == 4
    expected = ((case.formula(*deltas_of(case.modules, start)) - target) ** 2).mean()
    assert training.evaluate(case.inputs["x"], target) == pytest.approx(expected, rel=2e-5)


def test_files_of_peft_are_those_of_the_parts(tmp_path: pathlib.Path) -> None:
    """A file for BERT, whose layers for queries and values are modules of their own."""
    pytest.importorskip("safetensors")
    case = attention_case(["query", "value"], ("Attention_0.query", "Attention_0.value"), named=False)
    path = "bert.encoder.layer.0.attention.self"
    node = case.model.graph.node[0]
    node.output[0] = case.model.graph.node[1].input[0] = (
        "/bert/encoder/layer.0/attention/self/Reshape_3_output_0"
    )
    training, report = training_of(case, tmp_path, LoRA(r=R, alpha=ALPHA, targets=["query", "value"]))
    assert report.adapters is not None
    assert [layer.module for layer in report.adapters.layers] == [f"{path}.query", f"{path}.value"]
    artifacts.write_peft(training.state, tmp_path / "peft")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["target_modules"] == [f"{path}.query", f"{path}.value"]
    lora = artifacts.read_peft(tmp_path / "peft")
    assert {name.removeprefix(f"{path}.") for name in lora.values} == {
        f"{part}.lora_{letter}.weight" for part in ("query", "value") for letter in "AB"
    }
    again, _ = training_of(case, tmp_path / "again", lora)
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(again.parameters()[name], value)


def test_two_nodes_with_one_matrix_have_one_adapter(tmp_path: pathlib.Path) -> None:
    case = attention_case(["q"], ("attn.c_attn.q",))
    graph = case.model.graph
    graph.node[1].input[0], graph.node[1].output[0] = "b", "y"
    second = onnx.NodeProto()
    second.CopyFrom(graph.node[0])
    second.name, second.input[0], second.output[0] = "GptAttention_1", "a", "b"
    graph.node.insert(1, second)
    lora, start = start_of(case)
    training, report = training_of(case, tmp_path, lora)
    assert report.adapters is not None
    assert len(report.adapters.layers) == 1
    adapted = exported_from(training, tmp_path)
    together = artifacts.merged(adapted)
    assert [n.op_type for n in together.graph.node] == ["Attention", "Attention", "Relu"]
    weight = numpy_helper.to_array(graph.initializer[0]).astype(np.float64)
    bias = numpy_helper.to_array(graph.initializer[1])
    weight[:, :6] += deltas_of(case.modules, start)[0].T
    hidden = attention(case.inputs["x"].astype(np.float64), weight, bias, [6, 6, 6])
    expected = np.maximum(attention(hidden, weight, bias, [6, 6, 6]), 0)
    for model in (adapted, together):
        np.testing.assert_allclose(run(model, case.inputs), expected, rtol=1e-4, atol=2e-5)


# ---- Models that onnxruntime's transformer optimizer wrote (tests/data/lora/optimize.py). ----


@pytest.mark.parametrize("case", ["gpt2", "gpt2_dora", "gpt2_embedding", "gpt2_rslora", "vit"])
def test_adapters_in_optimized_models_train_as_those_of_peft(case: str, tmp_path: pathlib.Path) -> None:
    record, lora = recorded_of(case), start_of_peft(case)
    path = DATA / f"{case.partition('_')[0]}_optimized.onnx"
    report = artifacts.generate_artifacts(
        path,
        adapter=lora,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    assert {layer.fused for layer in report.adapters.layers} >= {"Attention"}
    training = Training(tmp_path)
    training.optimizer.set_learning_rate(0.05)
    training.loss(record["x"], record["y"])
    expected = {name.removeprefix("grad/"): v for name, v in record.items() if name.startswith("grad/")}
    gradients = training.gradients()
    assert set(gradients) == set(expected)
    for name, gradient in gradients.items():
        largest = np.abs(expected[name]).max()
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-4, atol=1e-4 * largest)
    training.module.lazy_reset_grad()
    losses = [training.step(record["x"], record["y"]) for _ in record["losses"]]
    np.testing.assert_allclose(losses, record["losses"], rtol=1e-4)
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["output"])
    adapted, base = onnx.load(tmp_path / "exported.onnx"), onnx.load(path)
    together = artifacts.merged(adapted)
    assert [n.op_type for n in together.graph.node] == [n.op_type for n in base.graph.node]
    for model in (adapted, together):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        found = session.run(["output"], {"input": record["x"]})[0]
        np.testing.assert_allclose(found, record["output"], rtol=1e-4, atol=1e-5)


def test_parts_of_an_optimized_bert_train_as_the_layers_of_the_export(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    ids, kinds = rng.integers(1, 60, (3, 10)), rng.integers(0, 2, (3, 10))
    seen = np.ones((3, 10), np.int64)
    seen[1, 7:] = 0
    batch, target = [ids, seen, kinds], rng.integers(0, 3, 3)
    targets = ["query", "value", "intermediate", "word"]
    found: dict[str, list[float]] = {}
    start: dict[str, Array] = {}
    export = DATA.parents[1] / "models" / "data" / "bert" / "torchscript_14.onnx"
    for name, path in (("optimized", DATA / "bert_optimized.onnx"), ("exported", export)):
        order = [value.name for value in onnx.load(path).graph.input]
        given = dict(zip(("input_ids", "attention_mask", "token_type_ids"), batch, strict=True))
        folder = tmp_path / name
        artifacts.generate_artifacts(
            path,
            adapter=LoRA(r=R, alpha=ALPHA, targets=targets, bias="lora_only", values=start),
            loss=artifacts.LossType.CrossEntropyLoss,
            artifact_directory=folder,
        )
        training = Training(folder)
        start = start or training.parameters()
        assert set(training.parameters()) == set(start)
        training.optimizer.set_learning_rate(1e-2)
        found[name] = [training.step(*(given[key] for key in order), target) for _ in range(8)]
    assert found["optimized"] == pytest.approx(found["exported"], rel=1e-4)
    assert found["optimized"][-1] < 0.9 * found["optimized"][0]


def test_all_weights_of_an_optimized_bert_are_trained(tmp_path: pathlib.Path) -> None:
    """ONNX knows no shape behind the fused operators, and before opset 17 none behind a normalization."""
    rng = np.random.default_rng(0)
    batch = [rng.integers(1, 60, (3, 10)), np.ones((3, 10), np.int64), rng.integers(0, 2, (3, 10))]
    target = rng.integers(0, 3, 3)
    path = DATA / "bert_optimized.onnx"
    artifacts.generate_artifacts(
        path,
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
    )
    training = Training(tmp_path)
    logits = onnxruntime.InferenceSession(str(path)).run(
        ["output"], dict(zip(("input_ids", "attention_mask", "token_type_ids"), batch, strict=True))
    )[0]
    expected = -np.log(softmax(logits.astype(np.float64))[range(3), target]).mean()
    losses = [training.step(*batch, target) for _ in range(5)]
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    assert losses[-1] < losses[0]


def test_requantized_weights_are_beside_the_fused_operators(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    ids, target = rng.integers(1, 60, (3, 10)), rng.integers(0, 3, 3)
    batch = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    base = artifacts.quantize_weights(
        DATA / "bert_optimized.onnx", bits=8, block_size=16, skip=["Attention_*"]
    ).model
    report = artifacts.generate_artifacts(
        base,
        adapter=LoRA(r=R, alpha=ALPHA),
        loss=artifacts.LossType.CrossEntropyLoss,
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    operators = [layer.fused or layer.operator for layer in report.adapters.layers]
    assert Counter(operators) == {"Attention": 2, "MatMulNBits": 7}
    training = Training(tmp_path)
    training.optimizer.set_learning_rate(1e-2)
    losses = [training.step(*batch.values(), target) for _ in range(5)]
    assert losses[-1] < losses[0]
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["output"])
    adapted = onnx.load(tmp_path / "exported.onnx")
    done = artifacts.requantized(adapted)
    assert [n.op_type for n in done.model.graph.node] == [n.op_type for n in base.graph.node]
    assert len(done.layers) == 7
    assert done.error < 0.01
    outputs = [
        onnxruntime.InferenceSession(model.SerializeToString()).run(["output"], batch)[0]
        for model in (base, adapted, done.model)
    ]
    moved = np.abs(outputs[1] - outputs[0]).max()
    assert np.abs(outputs[2] - outputs[1]).max() < 0.1 * moved


def test_present_keys_and_values_are_outputs_still(tmp_path: pathlib.Path) -> None:
    case = attention_case(past=True, unidirectional=1)
    case.model.graph.output.append(
        helper.make_tensor_value_info("present", 1, [2, "batch", HEADS, LENGTH + 3, SIZE])
    )
    lora, start = start_of(case)
    report = artifacts.generate_artifacts(
        case.model,
        adapter=lora,
        loss=artifacts.LossType.MSELoss,
        loss_input_names=["y"],
        additional_output_names=["present"],
        optimizer=artifacts.OptimType.SGD,
        artifact_directory=tmp_path,
    )
    assert report.adapters is not None
    training = Training(tmp_path)
    training.module.export_model_for_inferencing(str(tmp_path / "exported.onnx"), ["y", "present"])
    adapted = onnx.load(tmp_path / "exported.onnx")
    together = artifacts.merged(adapted)
    assert [n.op_type for n in together.graph.node] == ["Transpose", "Attention", "Relu"]
    found = []
    for model in (adapted, together):
        session = onnxruntime.InferenceSession(model.SerializeToString())
        found.append(session.run(["y", "present"], case.inputs))
    np.testing.assert_allclose(
        found[0][0], case.formula(*deltas_of(case.modules, start)), rtol=1e-4, atol=2e-5
    )
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5)
    np.testing.assert_allclose(found[1][1][:, :, :, :3], case.inputs["past"].swapaxes(0, 1), rtol=1e-6)


# ---- Operators whose weights are in codes, or that have none. ----


def test_dynamic_quantization_takes_adapters(tmp_path: pathlib.Path) -> None:
    x, rng = values(4, 6), np.random.default_rng(1)
    weight = rng.integers(-100, 100, (6, 5)).astype(np.int8)
    nodes = [
        helper.make_node("DynamicQuantizeMatMul", ["x", "w", "s"], ["h"], "fc", domain=MICROSOFT),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    model = model_of(nodes, {"x": x}, {"w": weight, "s": np.array([0.01], np.float32)}, ["batch", 5])
    case = Case(model, {"x": x}, "fc", ["fc"], lambda *_: values(1))
    lora, start = start_of(case)
    training, _ = training_of(case, tmp_path, lora)
    adapted = exported_from(training, tmp_path)
    y, target = run(adapted, case.inputs), values(4, 5, seed=9)
    assert np.abs(y - run(model, case.inputs)).max() > 0.1
    assert training.loss(x, target) == pytest.approx(((y - target) ** 2).mean(), rel=1e-5)
    error = 2 * (y - target) * (1 - y**2) / y.size
    gradients = training.gradients()
    a, b = (start[f"fc.lora_{letter}.weight"] for letter in "AB")
    np.testing.assert_allclose(
        gradients["fc.lora_B.weight"], SCALE * error.T @ (x @ a.T), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(gradients["fc.lora_A.weight"], SCALE * (error @ b).T @ x, rtol=1e-4, atol=1e-6)
    with pytest.raises(
        ValueError, match=r"cannot merge the adapter of fc: .* which is quantized; `requantized`"
    ):
        artifacts.merged(adapted)


def test_codebooks_take_adapters(tmp_path: pathlib.Path) -> None:
    x, rng = values(4, 32), np.random.default_rng(1)
    codes = rng.integers(0, 256, 5 * 32 // 2).astype(np.uint8)
    settings = {"K": 32, "N": 5, "block_size": 16, "quant_type": 1}
    nodes = [
        helper.make_node("MatMulBnb4", ["x", "w", "s"], ["h"], "fc", domain=MICROSOFT, **settings),
        helper.make_node("Tanh", ["h"], ["y"]),
    ]
    scales = rng.uniform(0.1, 0.3, 10).astype(np.float32)
    model = model_of(nodes, {"x": x}, {"w": codes, "s": scales}, ["batch", 5])
    case = Case(model, {"x": x}, "all-linear", ["fc"], lambda *_: values(1))
    lora, start = start_of(case)
    training, report = training_of(case, tmp_path, lora)
    assert report.adapters is not None
    assert report.adapters.base_parameters >= 160
    bare = np.arctanh(run(model, case.inputs).astype(np.float64))
    expected = np.tanh(bare + x @ deltas_of(["fc"], start)[0].T)
    np.testing.assert_allclose(
        run(exported_from(training, tmp_path), case.inputs), expected, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("kind", ["MultiHeadAttention", "Attention"])
def test_attention_without_weights_reads_products_with_adapters(kind: str, tmp_path: pathlib.Path) -> None:
    x = values(BATCH, LENGTH, WIDTH)
    weights = {f"attn.{letter}_proj.weight": values(6, 6, seed=ord(letter)) for letter in "qkv"}
    bias = values(18, seed=3)
    nodes = [helper.make_node("MatMul", ["x", f"attn.{p}_proj.weight"], [p], f"{p}_proj") for p in "qkv"]
    if kind == "MultiHeadAttention":
        nodes.append(helper.make_node(kind, [*"qkv", "b"], ["a"], "mha", domain=MICROSOFT, num_heads=HEADS))
    else:
        nodes.append(
            helper.make_node(kind, [*"qkv"], ["a"], "attention", q_num_heads=HEADS, kv_num_heads=HEADS)
        )
        bias = bias * 0
    nodes.append(helper.make_node("Relu", ["a"], ["y"]))
    tensors = weights | ({"b": bias} if kind == "MultiHeadAttention" else {})
    model = model_of(nodes, {"x": x}, tensors, ["batch", LENGTH, WIDTH], 23)
    model.ir_version = 10
    case = Case(model, {"x": x}, ["q_proj", "v_proj"], ["attn.q_proj", "attn.v_proj"], lambda *_: values(1))
    lora, start = start_of(case)
    training, _ = training_of(case, tmp_path, lora)
    joined = np.concatenate(list(weights.values()), axis=1).astype(np.float64)
    of_q, of_v = deltas_of(case.modules, start)
    joined[:, :6] += of_q.T
    joined[:, 12:] += of_v.T
    expected = np.maximum(attention(x.astype(np.float64), joined, bias, [6, 6, 6]), 0)
    adapted = exported_from(training, tmp_path)
    for each in (adapted, artifacts.merged(adapted)):
        np.testing.assert_allclose(run(each, case.inputs), expected, rtol=1e-4, atol=2e-5)
    training.optimizer.set_learning_rate(0.1)
    losses = [training.step(x, values(BATCH, LENGTH, WIDTH, seed=9)) for _ in range(4)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("operator", "slots", "reason"),
    [
        ("QOrderedAttention", ["x", *"abcd", "w"], "the training core does not have the operator"),
        ("PackedAttention", ["x", "w"], "the training core does not have the operator"),
        ("NhwcFusedConv", ["x", "w"], "the training core does not have the operator"),
        ("MatMulIntegerToFloat", ["x", "w"], "its input is quantized"),
        ("QMoE", ["x", "x", "w"], "the training core does not have the operator"),
    ],
)
def test_other_operators_with_weights_are_named(operator: str, slots: list[str], reason: str) -> None:
    node = helper.make_node(operator, slots, ["y"], "layer_3", domain=MICROSOFT)
    model = model_of([node], {"x": values(2, 4)}, {"w": values(4, 4)}, ["batch", 4])
    for targets in ("all-linear", operator, "layer_3"):
        with pytest.raises(ValueError, match=rf"fits no layer .*; layer_3 \({operator}\): {reason}"):
            record_of(model, LoRA(targets=targets))


def test_a_damaged_record_is_named(tmp_path: pathlib.Path) -> None:
    case = attention_case()
    training, _ = training_of(case, tmp_path, start_of(case)[0])
    adapted = exported_from(training, tmp_path)
    entry = next(entry for entry in adapted.metadata_props if entry.key == "ortrain.adapter")
    record = json.loads(entry.value)
    record["fused"][0]["node"] = "ab$"
    entry.value = json.dumps(record)
    with pytest.raises(ValueError, match="the record of the fused operators with adapters is damaged"):
        artifacts.merged(adapted)


def test_what_attention_cannot_be_without_its_node_is_named() -> None:
    case = attention_case(do_rotary=1)
    with pytest.raises(ValueError, match=r"attn\.c_attn \(Attention\): it rotates its operands"):
        record_of(case.model, LoRA())
    with pytest.raises(ValueError, match=r"target 'nothing' fits no layer .* attn\.c_attn \(Attention\)"):
        record_of(attention_case().model, LoRA(targets="nothing"))
    unknown = product_case("FusedGemm", activation="Cubic")
    with pytest.raises(ValueError, match="its activation 'Cubic' is unknown"):
        record_of(unknown.model, LoRA(targets="fc"))
    assert Counter(n.op_type for n in case.model.graph.node)["Attention"] == 1
