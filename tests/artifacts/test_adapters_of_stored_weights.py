"""Adapters beside weights in every form in which models store them, in every form in which a trained model is written.

The weights are what onnxruntime computes from unit vectors. Losses, gradients and outputs follow from them by the formulas in
double precision.
"""

from __future__ import annotations

import pathlib
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic
from ortrain import artifacts
from ortrain.artifacts import LoRA
from ortrain.artifacts.graph import dora
from training import Training

Array = np.ndarray[Any, Any]
MICROSOFT = "com.microsoft"
INPUTS, OUTPUTS, R, ALPHA = 32, 16, 3, 6.0


@dataclass
class Form:
    """A model of one layer."""

    nodes: list[onnx.NodeProto]
    tensors: dict[str, Array]
    kind: str = "product"
    """Also: look-up, convolution."""
    opset: int = 17
    bits: int = 0
    """The bits of codes; 0 for float weights."""
    rounds: bool = False
    """Whether the layer rounds its input."""
    refusal: str = ""
    """Why quantized weights cannot be written again."""
    made: list[onnx.ModelProto] = field(default_factory=list)

    @property
    def model(self) -> onnx.ModelProto:
        if self.made:
            return self.made[0]
        element = TensorProto.INT64 if self.kind == "look-up" else TensorProto.FLOAT
        dims: dict[str, tuple[list[Any], list[Any]]] = {
            "product": (["n", INPUTS], ["n", OUTPUTS]),
            "look-up": (["n"], ["n", OUTPUTS]),
            "convolution": (["n", INPUTS, 1, 1], ["n", OUTPUTS, 1, 1]),
        }
        given, returned = dims[self.kind]
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", element, given)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, returned)],
            [numpy_helper.from_array(value, name) for name, value in self.tensors.items()],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid(MICROSOFT, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def input(self, rows: Array) -> Array:
        """The input of the model for rows of numbers, which are unit vectors for a look-up."""
        if self.kind == "look-up":
            return np.asarray(rows.argmax(1))
        found: Array = rows.astype(np.float32)
        return found.reshape(*found.shape, 1, 1) if self.kind == "convolution" else found


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(0, 0.5, shape).astype(np.float32)


def codes(low: int, high: int, *shape: int, seed: int = 0) -> Array:
    """Integers of a range, which have both ends."""
    found = np.random.default_rng([seed, *shape]).integers(low, high + 1, shape)
    found.flat[:2] = low, high
    return found


def scales(*shape: int, seed: int = 1, step: float = 0.01) -> Array:
    return (np.random.default_rng([seed, *shape]).uniform(0.5, 1, shape) * step).astype(np.float32)


def product(operator: str, inputs: list[str], tensors: dict[str, Array], **settings: Any) -> Form:
    own = {
        key: settings.pop(key) for key in ("opset", "bits", "rounds", "refusal", "kind") if key in settings
    }
    domain = "" if operator in ("Gemm", "MatMul", "Conv", "Gather") else MICROSOFT
    node = helper.make_node(operator, inputs, ["y"], "fc", domain=domain, **settings)
    return Form([node], tensors, **own)


def behind(form: Form, operator: str, tensors: dict[str, Array], inputs: list[str], **settings: Any) -> Form:
    """The form with its weights computed by another node."""
    own = {key: settings.pop(key) for key in ("opset", "bits", "refusal") if key in settings}
    node = helper.make_node(operator, inputs, ["fc.weight"], "made", **settings)
    if inputs == ["turned"]:  # another node computes what this one reads
        form.nodes[0].name, form.nodes[0].output[0] = "decode", "turned"
        form.nodes.insert(1, node)
        return form
    return Form([node, *form.nodes], form.tensors | tensors, form.kind, **{"opset": form.opset, **own})


def matmul(**settings: Any) -> Form:
    return product("MatMul", ["x", "fc.weight"], {}, **settings)


def of_blocks(bits: int, zeros: str = "", groups: bool = False) -> Form:
    per_byte, blocks = 8 // bits, INPUTS // 16
    tensors = {
        "fc.codes": codes(0, 255, OUTPUTS, blocks, 16 // per_byte).astype(np.uint8),
        "fc.scales": scales(OUTPUTS, blocks, step=2.0 / 2**bits),
    }
    names = ["x", *tensors, "", ""]
    if zeros:
        names[3] = "fc.zeros"
        tensors[names[3]] = (
            codes(0, 255, OUTPUTS, -(-blocks // per_byte), seed=2).astype(np.uint8)
            if zeros == "packed"
            else numbers(OUTPUTS, blocks, seed=2) + 2 ** (bits - 1)
        )
    if groups:
        names[4] = "fc.groups"  # onnxruntime ignores zero points then
        tensors[names[4]] = (np.arange(INPUTS) % blocks).astype(np.int32)
    while not names[-1]:
        names.pop()
    refusal = "columns out of order" if groups else ""
    sizes = {"K": INPUTS, "N": OUTPUTS, "block_size": 16}
    form = product("MatMulNBits", names, tensors, refusal=refusal, **sizes)
    form.nodes[0].attribute.append(helper.make_attribute("bits", bits))
    form.bits = bits
    return form


def of_codebook(kind: int, turned: bool = True) -> Form:
    tensors = {
        "fc.codes": codes(0, 255, OUTPUTS * INPUTS // 2).astype(np.uint8),
        "fc.scales": scales(OUTPUTS * INPUTS // 16, step=1),
    }
    sizes = {"K": INPUTS, "N": OUTPUTS, "block_size": 16, "quant_type": kind}
    return product("MatMulBnb4", ["x", *tensors], tensors, bits=4, **sizes)


def of_dynamic(kind: Any, columns: bool, zeros: bool, bias: bool) -> Form:
    # Seven bits with a sign, as in dynamic_of().
    low, high = (-64, 63) if kind is np.int8 else (0, 255)
    count = [OUTPUTS] if columns else []
    tensors = {"fc.weight": codes(low, high, INPUTS, OUTPUTS).astype(kind), "fc.scale": scales(*count)}
    if zeros:
        tensors["fc.zero"] = (
            codes(low // 2 + 60, high // 2 + 64, *(count or [1]), seed=3).astype(kind).reshape(count)
        )
    names = ["x", *tensors]
    if bias:
        names = [*names, *([] if zeros else [""]), "fc.bias"]
        tensors["fc.bias"] = numbers(OUTPUTS, seed=4)
    return product("DynamicQuantizeMatMul", names, tensors, bits=8, rounds=True)


def of_tool(operator: str, kind: Any, columns: bool = False) -> Form:
    """What onnxruntime's quantize_dynamic writes for a float layer."""
    weight = numbers(INPUTS, OUTPUTS) + 0.2
    float_form = (
        product("Gather", ["fc.weight", "x"], {"fc.weight": weight}, kind="look-up")
        if operator == "Gather"
        else product("MatMul", ["x", "fc.weight"], {"fc.weight": weight})
    )
    form = Form([], {}, float_form.kind, bits=8, rounds=operator == "MatMul")
    form.made = [dynamic_of(float_form.model, kind, columns)]
    return form


def dynamic_of(model: onnx.ModelProto, kind: Any, columns: bool) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        onnx.save(model, path / "float.onnx")
        # Seven bits: without VNNI, onnxruntime adds products of signed weights of eight bits in 16 bits, which overflow.
        quantize_dynamic(
            path / "float.onnx",
            path / "small.onnx",
            weight_type=kind,
            per_channel=columns,
            reduce_range=kind == QuantType.QInt8,
        )
        return onnx.load(path / "small.onnx")


def of_table(bits: int, zeros: bool, kind: Any = np.uint8) -> Form:
    per_byte, blocks = (8 // bits if kind is np.uint8 else 1), OUTPUTS // 16
    low, high = {np.uint8: (0, 255), ml_dtypes.int4: (-8, 7), ml_dtypes.uint4: (0, 15)}[kind]
    tensors = {
        "fc.codes": codes(low, high, INPUTS, OUTPUTS // per_byte).astype(kind),
        "fc.scales": scales(INPUTS, blocks, step=2.0 / 2**bits),
    }
    if zeros:
        tensors["fc.zeros"] = codes(low, high, INPUTS, blocks, seed=2).astype(kind)
        if bits == 4 and kind is np.uint8:
            tensors["fc.zeros"] &= 15
    names = ["fc.codes", "x", *list(tensors)[1:]]
    settings = {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "kind": "look-up", "opset": 21}
    form = product("GatherBlockQuantized", names, tensors, **settings)
    form.nodes[0].attribute.append(helper.make_attribute("bits", bits))
    form.bits = bits
    return form


def decoded(
    form: Form, kind: Any, shape: tuple[int, ...], count: tuple[int, ...], zeros: bool, **settings: Any
) -> Form:
    """The form behind a DequantizeLinear."""
    low, high, bits = {
        np.int8: (-128, 127, 8), np.uint8: (0, 255, 8), np.int16: (-(2**15), 2**15 - 1, 16),
        ml_dtypes.int4: (-8, 7, 4), ml_dtypes.uint4: (0, 15, 4),
    }[kind]  # fmt: skip
    tensors = {
        "fc.weight_q": codes(low, high, *shape).astype(kind),
        "fc.weight_scale": scales(*count, step=2.0 / 2**bits),
    }
    if zeros:
        middle = (low + high + 1) // 2
        spread = codes(middle - 3, middle + 3, *(count or (1, 1)), seed=2).astype(kind)
        tensors["fc.weight_zero"] = spread if count else spread[0, 0].reshape(())
    return behind(form, "DequantizeLinear", tensors, list(tensors), bits=bits, **settings)


def rounded_weights(columns: bool) -> Form:
    """Float weights that nodes round, as exports of quantization-aware training have them."""
    weight = numbers(*WIDE)
    count = [OUTPUTS] if columns else []
    form = matmul(bits=8)
    form.tensors = {
        "w": weight,
        "s": np.full(count, np.abs(weight).max() / 127, np.float32),
        "z": np.zeros(count, np.int8),
    }
    form.nodes[:0] = [
        helper.make_node("QuantizeLinear", ["w", "s", "z"], ["q"], "encode", axis=1),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["fc.weight"], "decode", axis=1),
    ]
    return form


def look_up() -> Form:
    return product("Gather", ["fc.weight", "x"], {}, kind="look-up")


def convolution() -> Form:
    return product(
        "Conv", ["x", "fc.weight", "fc.bias"], {"fc.bias": numbers(OUTPUTS, seed=4)}, kind="convolution"
    )


def gemm(weight: bool, **settings: Any) -> Form:
    shape = (OUTPUTS, INPUTS) if settings.get("transB") else (INPUTS, OUTPUTS)
    tensors = {"fc.bias": numbers(OUTPUTS, seed=4)} | ({"fc.weight": numbers(*shape)} if weight else {})
    return product("Gemm", ["x", "fc.weight", "fc.bias"], tensors, **settings)


WIDE, HIGH = (INPUTS, OUTPUTS), (OUTPUTS, INPUTS)
FORMS: dict[str, Callable[[], Form]] = {
    "MatMul": lambda: product("MatMul", ["x", "fc.weight"], {"fc.weight": numbers(*WIDE)}),
    "Gemm": lambda: gemm(True, transB=1),
    "Gemm with factors": lambda: gemm(True, alpha=-0.5, beta=2.0),
    "FusedMatMul": lambda: product(
        "FusedMatMul", ["x", "fc.weight"], {"fc.weight": numbers(*HIGH)}, transB=1, alpha=0.5
    ),
    "Transpose": lambda: behind(matmul(), "Transpose", {"w": numbers(*HIGH)}, ["w"], perm=[1, 0]),
    "Cast": lambda: behind(matmul(), "Cast", {"w": numbers(*WIDE).astype(np.float16)}, ["w"], to=1),
    "Conv": lambda: Form(
        convolution().nodes,
        convolution().tensors | {"fc.weight": numbers(OUTPUTS, INPUTS, 1, 1)},
        "convolution",
    ),
    "Gather": lambda: product("Gather", ["fc.weight", "x"], {"fc.weight": numbers(*WIDE)}, kind="look-up"),
    "MatMulNBits 4": lambda: of_blocks(4),
    "MatMulNBits 4 zeros": lambda: of_blocks(4, "packed"),
    "MatMulNBits 4 float zeros": lambda: of_blocks(4, "float"),
    "MatMulNBits 4 groups": lambda: of_blocks(4, groups=True),
    "MatMulNBits 2 zeros": lambda: of_blocks(2, "packed"),
    "MatMulNBits 8": lambda: of_blocks(8),
    "MatMulNBits 8 zeros": lambda: of_blocks(8, "packed"),
    "MatMulBnb4 FP4": lambda: of_codebook(0),
    "MatMulBnb4 NF4": lambda: of_codebook(1),
    "DynamicQuantizeMatMul": lambda: of_dynamic(np.int8, columns=False, zeros=False, bias=False),
    "DynamicQuantizeMatMul columns": lambda: of_dynamic(np.uint8, columns=True, zeros=True, bias=True),
    "DynamicQuantizeMatMul bias": lambda: of_dynamic(np.int8, columns=True, zeros=False, bias=True),
    "quantize_dynamic MatMul": lambda: of_tool("MatMul", QuantType.QInt8),
    "quantize_dynamic MatMul columns": lambda: of_tool("MatMul", QuantType.QUInt8, columns=True),
    "DequantizeLinear": lambda: decoded(matmul(), np.int8, WIDE, (), zeros=False),
    "DequantizeLinear zero": lambda: decoded(matmul(), np.uint8, WIDE, (), zeros=True),
    "DequantizeLinear unsigned": lambda: decoded(
        matmul(), np.uint8, WIDE, (), zeros=False, refusal="its codes have no sign and no zero point"
    ),
    "DequantizeLinear 16 bits": lambda: decoded(matmul(), np.int16, WIDE, (), zeros=False, opset=21),
    "QuantizeLinear": lambda: rounded_weights(columns=False),
    "QuantizeLinear columns": lambda: rounded_weights(columns=True),
    "DequantizeLinear Transpose": lambda: behind(
        decoded(matmul(), np.int8, HIGH, (OUTPUTS,), zeros=False, axis=0),
        "Transpose",
        {},
        ["turned"],
        perm=[1, 0],
    ),
    "DequantizeLinear columns": lambda: decoded(matmul(), np.int8, WIDE, (OUTPUTS,), zeros=False, axis=1),
    "DequantizeLinear rows": lambda: decoded(
        gemm(False, transB=1), np.uint8, HIGH, (OUTPUTS,), zeros=True, axis=0
    ),
    "DequantizeLinear blocks": lambda: decoded(
        matmul(), ml_dtypes.int4, WIDE, (2, OUTPUTS), zeros=False, axis=0, block_size=16, opset=21
    ),
    "DequantizeLinear blocks zeros": lambda: decoded(
        gemm(False, transB=1),
        ml_dtypes.uint4,
        HIGH,
        (OUTPUTS, 2),
        zeros=True,
        axis=-1,
        block_size=16,
        opset=21,
    ),
    "DequantizeLinear Conv": lambda: decoded(
        convolution(), np.int8, (OUTPUTS, INPUTS, 1, 1), (OUTPUTS,), zeros=False, axis=0
    ),
    "DequantizeLinear Gather": lambda: decoded(look_up(), np.int8, WIDE, (), zeros=False),
    "DequantizeLinear Gather rows": lambda: decoded(look_up(), np.uint8, WIDE, (INPUTS,), zeros=True, axis=0),
    "quantize_dynamic Gather": lambda: of_tool("Gather", QuantType.QUInt8),
    "GatherBlockQuantized 4": lambda: of_table(4, zeros=False),
    "GatherBlockQuantized 4 zeros": lambda: of_table(4, zeros=True),
    "GatherBlockQuantized 8": lambda: of_table(8, zeros=False),
    "GatherBlockQuantized 8 zeros": lambda: of_table(8, zeros=True),
    "GatherBlockQuantized int4": lambda: of_table(4, zeros=False, kind=ml_dtypes.int4),
    "GatherBlockQuantized int4 zeros": lambda: of_table(4, zeros=True, kind=ml_dtypes.int4),
    "GatherBlockQuantized uint4": lambda: of_table(4, zeros=False, kind=ml_dtypes.uint4),
}


def run(model: onnx.ModelProto, x: Array, run_options: Any = None) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    # By default, onnxruntime rounds the input of a MatMul whose weights a DequantizeLinear computes.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Array = session.run(["y"], {"x": x}, run_options)[0]
    return found.reshape(len(found), -1).astype(np.float64)


def weights_in(form: Form, model: onnx.ModelProto) -> tuple[Array, Array]:
    """The weights ``[outputs, inputs]`` and the bias of a layer, by onnxruntime."""
    units = np.eye(INPUTS)
    if form.kind == "look-up":
        return run(model, form.input(units)).T, np.zeros(OUTPUTS)
    bias = run(model, form.input(np.zeros((1, INPUTS))))[0]
    return (run(model, form.input(units)) - bias).T, bias


def rounded(x: Array) -> Array:
    """What DynamicQuantizeLinear and DequantizeLinear make of numbers."""
    x = x.astype(np.float32)
    low, high = min(x.min(), np.float32(0)), max(x.max(), np.float32(0))
    scale = (high - low) / np.float32(255)
    zero = np.rint(-low / scale)
    return np.asarray((np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * np.float64(scale))


class Formula:
    """The layer with an adapter, in double precision."""

    def __init__(self, form: Form, values: dict[str, Array], scale: float) -> None:
        self.form, self.scale = form, scale
        self.weight, self.bias = weights_in(form, form.model)
        self.a, self.b, self.m = np.zeros((R, INPUTS)), np.zeros((OUTPUTS, R)), None
        for name, value in values.items():
            kind = "m" if "magnitude" in name else "a" if "_A" in name else "b"
            wide = value.astype(np.float64)
            setattr(self, kind, wide.ravel() if kind == "m" else wide.reshape(wide.shape[:2]))

    @property
    def merged(self) -> Array:
        changed = self.weight + self.scale * self.b @ self.a
        if self.m is None:
            return changed
        return np.asarray(self.m[:, None] * changed / np.linalg.norm(changed, axis=1, keepdims=True))

    def parts(self, rows: Array) -> tuple[Array, Array]:
        """The result without the norms, and their factor."""
        bare = (rounded(rows) if self.form.rounds else rows) @ self.weight.T
        bare = bare + self.scale * rows @ self.a.T @ self.b.T
        changed = self.weight + self.scale * self.b @ self.a
        return bare, np.ones(OUTPUTS) if self.m is None else self.m / np.linalg.norm(changed, axis=1)

    def __call__(self, rows: Array) -> Array:
        bare, ratio = self.parts(rows)
        return np.asarray(ratio * bare + self.bias)

    def gradients(self, rows: Array, target: Array) -> dict[str, Array]:
        bare, ratio = self.parts(rows)
        error = 2 * (self(rows) - target) / target.size
        found = {
            "_A": self.scale * self.b.T @ (ratio * error).T @ rows,
            "_B": self.scale * (ratio * error).T @ rows @ self.a.T,
        }
        if self.m is not None:
            found["magnitude"] = (error * bare).sum(0) * ratio / self.m
        return found


KINDS = {"LoRA": {}, "rsLoRA": {"use_rslora": True}, "DoRA": {"use_dora": True}}
CASES = [(name, kind) for name in FORMS for kind in KINDS]


def rows_of(form: Form) -> Array:
    rng = np.random.default_rng(7)
    if form.kind == "look-up":
        return np.eye(INPUTS)[rng.integers(0, INPUTS, 12)]
    return rng.normal(size=(12, INPUTS)).astype(np.float32).astype(np.float64)


def start_of(form: Form) -> dict[str, Array]:
    """Values of A and B that are not zero."""
    if form.kind == "look-up":
        return {"fc.lora_embedding_A": numbers(R, INPUTS) / 5, "fc.lora_embedding_B": numbers(OUTPUTS, R) / 5}
    kernel = (1, 1) if form.kind == "convolution" else ()
    return {
        "fc.lora_A.weight": numbers(R, INPUTS, *kernel) / 5,
        "fc.lora_B.weight": numbers(OUTPUTS, R, *kernel) / 5,
    }


def trained(form: Form, kind: str, folder: pathlib.Path) -> tuple[Training, float]:
    """A session over artifacts of a form, whose adapter is not zero."""
    start = start_of(form)
    lora = LoRA(r=R, alpha=ALPHA, targets="fc", values=start, **KINDS[kind])  # type: ignore[arg-type]
    report = artifacts.generate_artifacts(
        form.model, adapter=lora, loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.SGD, artifact_directory=folder,
    )  # fmt: skip
    assert report.adapters is not None
    assert [layer.module for layer in report.adapters.layers] == ["fc"]
    training = Training(folder)
    training.optimizer.set_learning_rate(0.05)
    return training, lora.scale


def close(found: Array, expected: Array, bound: float) -> None:
    np.testing.assert_allclose(found, expected, rtol=0, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_form_trains_and_is_exported(name: str, kind: str, tmp_path: pathlib.Path) -> None:
    form = FORMS[name]()
    training, scale = trained(form, kind, tmp_path)
    rows = rows_of(form)
    target = np.random.default_rng(8).normal(size=(len(rows), OUTPUTS)).astype(np.float32)
    x, y = form.input(rows), target.reshape(*target.shape, 1, 1) if form.kind == "convolution" else target
    bound = 1e-5 if not form.rounds else 1e-4
    for _ in range(3):
        formula = Formula(form, training.parameters(), scale)
        training.module.train()
        assert training.loss(x, y) == pytest.approx(((formula(rows) - target) ** 2).mean(), rel=bound)
        expected = formula.gradients(rows, target)
        for parameter, found in training.gradients().items():
            wanted = next(value for key, value in expected.items() if key in parameter)
            close(found.reshape(wanted.shape), wanted, 1e-4)
        training.optimizer.step()
        training.module.lazy_reset_grad()
    formula = Formula(form, training.parameters(), scale)
    training.module.export_model_for_inferencing(str(tmp_path / "inside.onnx"), ["y"])
    inside = onnx.load(tmp_path / "inside.onnx")
    onnx.checker.check_model(inside)
    close(run(inside, x), formula(rows), 1e-4)
    check_apart(form, training, inside, x, formula(rows), tmp_path)
    check_merged(form, inside, x, formula, rows)
    check_requantized(form, inside, formula)


def check_apart(
    form: Form, training: Training, inside: onnx.ModelProto, x: Array, expected: Array, folder: pathlib.Path
) -> None:
    apart = artifacts.with_adapter_inputs(inside)
    artifacts.write_onnx_adapter(training.state, folder / "task.onnx_adapter")
    adapter = onnxruntime.LoraAdapter()
    adapter.Load(str(folder / "task.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(adapter)
    close(run(apart, x, options), expected, 1e-4)
    close(run(apart, x), run(form.model, x), 1e-5)


def check_merged(form: Form, inside: onnx.ModelProto, x: Array, formula: Formula, rows: Array) -> None:
    if form.bits:
        remedy = (
            "which is quantized$" if form.refusal else "which is quantized; `requantized` merges into such"
        )
        with pytest.raises(ValueError, match=f"cannot merge the adapter of fc: .*{remedy}"):
            artifacts.merged(inside)
        check_dequantized(form, inside, x, formula(rows))
        return
    together = artifacts.merged(inside)
    bound = 1e-3 if any(t.data_type == TensorProto.FLOAT16 for t in together.graph.initializer) else 1e-5
    close(run(together, x), formula(rows), bound)
    assert operators(together) == operators(form.model)


#: Operators and types of weights that are quantized.
QUANTIZED = {"DequantizeLinear", "GatherBlockQuantized", "MatMulBnb4", "MatMulNBits", "QuantizeLinear"}


def check_dequantized(form: Form, inside: onnx.ModelProto, x: Array, expected: Array) -> None:
    if "DynamicQuantizeMatMul" in operators(inside):
        with pytest.raises(
            ValueError, match="into float weights: it also quantizes its input; `requantized`"
        ):
            artifacts.merged(inside, dequantize=True)
        return
    together = artifacts.merged(inside, dequantize=True)
    onnx.checker.check_model(together)
    close(run(together, x), expected, 1e-4)
    assert not set(operators(together)) & QUANTIZED - (
        {"DequantizeLinear", "QuantizeLinear"} if form.rounds else set()
    )
    tensors = {tensor.name: numpy_helper.to_array(tensor) for tensor in together.graph.initializer}
    assert not any("lora" in name and not name.endswith(".merged") for name in tensors)
    assert sum(value.size for value in tensors.values() if value.ndim > 1) == INPUTS * OUTPUTS


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def check_requantized(form: Form, inside: onnx.ModelProto, formula: Formula) -> None:
    if form.refusal:
        with pytest.raises(ValueError, match=f"cannot merge the adapter of fc into .*{form.refusal}"):
            artifacts.requantized(inside)
        return
    done = artifacts.requantized(inside)
    onnx.checker.check_model(done.model)
    assert not any("lora" in tensor.name for tensor in done.model.graph.initializer)
    weight, bias = weights_in(form, done.model)
    close(bias, formula.bias, 1e-5)
    if not form.bits:
        assert done.layers == ()
        close(weight, formula.merged, 1e-3)
        return
    (layer,) = done.layers
    assert layer.bits == form.bits
    difference = weight - formula.merged
    error = np.linalg.norm(difference) / np.linalg.norm(formula.merged)
    assert layer.error == pytest.approx(error, rel=0.01)
    assert layer.largest == pytest.approx(np.abs(difference).max(), rel=0.01)
    assert 0 < error < {2: 0.5, 4: 0.15, 8: 0.02, 16: 1e-4}[form.bits]


def tied_model(rounded: bool) -> onnx.ModelProto:
    """A table of codes that a node decodes for a look-up and a product, and a product that is applied twice."""
    tensors = {
        "embed.weight_q": codes(-127, 127, INPUTS, OUTPUTS).astype(np.int8),
        "embed.weight_scale": scales(INPUTS, step=0.01),
        "up.weight_q": codes(-127, 127, OUTPUTS, OUTPUTS, seed=2).astype(np.int8),
        "up.weight_scale": np.array(0.005, np.float32),
    }
    node = helper.make_node
    nodes = [
        node(
            "DequantizeLinear", ["embed.weight_q", "embed.weight_scale"], ["embed.weight"], "decode", axis=0
        ),
        node("Gather", ["embed.weight", "x"], ["rows"], "embed"),
        node("DequantizeLinear", ["up.weight_q", "up.weight_scale"], ["up.weight"], "decode_up"),
        node("MatMul", ["rows", "up.weight"], ["first"], "up"),
        node("Tanh", ["first"], ["active"]),
        node("MatMul", ["active", "up.weight"], ["second"], "up_again"),
        node("Transpose", ["embed.weight"], ["turned"], "turn", perm=[1, 0]),
        node("MatMul", ["second", "turned"], ["y"], "head"),
    ]
    if rounded:  # the table is float, and a node makes the codes
        tensors["embed.weight_q"] = numbers(INPUTS, OUTPUTS)
        tensors["embed.weight_zero"] = np.zeros(INPUTS, np.int8)
        nodes[0].input[0] = "codes"
        nodes[0].input.append("embed.weight_zero")
        inputs = ["embed.weight_q", *nodes[0].input[1:]]
        nodes.insert(0, node("QuantizeLinear", inputs, ["codes"], "encode", axis=0))
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", INPUTS])],
        [numpy_helper.from_array(value, name) for name, value in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def adapted(model: onnx.ModelProto, lora: LoRA, folder: pathlib.Path) -> tuple[onnx.ModelProto, Training]:
    """An export of a model with trained adapters, and the session."""
    artifacts.generate_artifacts(
        model, adapter=lora, loss=artifacts.LossType.MSELoss, artifact_directory=folder
    )
    training = Training(folder)
    training.optimizer.set_learning_rate(0.02)
    x = np.arange(INPUTS)
    target = numbers(*run(model, x).shape, seed=6)
    losses = [training.step(x, target) for _ in range(6)]
    assert losses[-1] < losses[0]
    training.module.export_model_for_inferencing(str(folder / "inside.onnx"), ["y"])
    return onnx.load(folder / "inside.onnx"), training


@pytest.mark.parametrize(
    ("target", "rounded"),
    [("Gather", False), ("up", False), ("head", False), ("Gather", True), ("head", True)],
)
def test_codes_that_other_layers_read_stay(target: str, rounded: bool, tmp_path: pathlib.Path) -> None:
    model, x = tied_model(rounded), np.arange(INPUTS)
    inside, _ = adapted(model, LoRA(r=R, targets=target), tmp_path)
    done = artifacts.requantized(inside)
    onnx.checker.check_model(done.model)
    if target == "up":  # both applications read the sum
        assert len(done.layers) == 2
    else:
        assert {node.name for node in done.model.graph.node} > {node.name for node in model.graph.node}
        found = {t.name: numpy_helper.to_array(t) for t in done.model.graph.initializer}
        for tensor in model.graph.initializer:
            np.testing.assert_array_equal(found[tensor.name], numpy_helper.to_array(tensor))
        added = {name for name in found if name not in {tensor.name for tensor in model.graph.initializer}}
        assert added == {"embed.weight_q.merged", "embed.weight_scale.merged"}  # zero points did not change
    before, after, base = (run(each, x) for each in (inside, done.model, model))
    assert np.abs(after - before).max() < 0.1 * np.abs(before - base).max()


def table_model(kind: Any = np.uint8) -> onnx.ModelProto:
    """A look-up of codes and two products."""
    model = of_table(4, True, kind).model
    look_up = model.graph.node[0]
    look_up.name, look_up.output[0] = "words", "rows"
    nodes = [
        helper.make_node("MatMul", ["rows", "up.weight"], ["h"], "up"),
        helper.make_node("Tanh", ["h"], ["a"]),
        helper.make_node("MatMul", ["a", "head.weight"], ["y"], "head"),
    ]
    model.graph.node.extend(nodes)
    for name in ("up.weight", "head.weight"):
        value = numbers(OUTPUTS, OUTPUTS, seed=len(name))
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


@pytest.mark.parametrize(
    ("target", "modules"),
    [
        ("all-linear", ["up"]),
        ("GatherBlockQuantized", ["fc"]),
        ("words", ["fc"]),
        ("f*", ["fc"]),
        (["fc", "up"], ["fc", "up"]),
    ],
)
def test_targets_name_look_ups_of_codes(target: Any, modules: list[str], tmp_path: pathlib.Path) -> None:
    lora = LoRA(r=R, targets=target)
    report = artifacts.generate_artifacts(
        table_model(), adapter=lora, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    assert report.adapters is not None
    assert [layer.module for layer in report.adapters.layers] == modules
    assert report.adapters.skipped == ()
    # rows of codes, two matrices, and a scale for each row
    assert report.adapters.base_parameters == INPUTS * OUTPUTS + 2 * OUTPUTS**2 + INPUTS


@pytest.mark.parametrize(
    "name", ["GatherBlockQuantized 4 zeros", "GatherBlockQuantized int4", "quantize_dynamic Gather"]
)
def test_norms_of_a_table_in_codes_are_computed_from_parts(
    name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dora, "ROWS", 12)
    test_every_form_trains_and_is_exported(name, "DoRA", tmp_path)
    nodes = onnx.load(tmp_path / "training_model.onnx").graph.node
    assert sum(node.name.startswith("fc/lora/a_through_rows") for node in nodes) == 3


def convolution_model(zero_channel: bool = False, **settings: Any) -> onnx.ModelProto:
    weight = numbers(6, 3, 3, 2)
    if zero_channel:
        weight[2] = 0
    nodes = [
        helper.make_node("Conv", ["x", "fc.weight", "fc.bias"], ["h"], "fc", **settings),
        helper.make_node("GlobalAveragePool", ["h"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 9, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 6])],
        [numpy_helper.from_array(weight, "fc.weight"), numpy_helper.from_array(numbers(6), "fc.bias")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"strides": [2, 1], "pads": [1, 0, 2, 1]},
        {"dilations": [2, 3], "pads": [2, 1, 2, 1], "kernel_shape": [3, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"zero_channel": True},
    ],
    ids=str,
)
def test_convolutions_of_every_geometry_have_norms(settings: dict[str, Any], tmp_path: pathlib.Path) -> None:
    model = convolution_model(**settings)
    start = {"fc.lora_A.weight": numbers(R, 3, 3, 2), "fc.lora_B.weight": numbers(6, R, 1, 1)}
    if settings.get("zero_channel"):
        start["fc.lora_B.weight"][2] = 0
    x, y = numbers(4, 3, 9, 8, seed=2), numbers(4, 6, seed=3)

    def session(magnitude: Array | None, folder: str) -> Training:
        values = start | ({} if magnitude is None else {"fc.lora_magnitude_vector": magnitude})
        artifacts.generate_artifacts(
            model, adapter=LoRA(r=R, alpha=ALPHA, targets="fc", use_dora=True, values=values),
            loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path / folder,
        )  # fmt: skip
        return Training(tmp_path / folder)

    training = session(None, "first")
    training.optimizer.set_learning_rate(0.05)
    losses = [training.step(x, y) for _ in range(4)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    training.module.export_model_for_inferencing(str(tmp_path / "inside.onnx"), ["y"])
    inside = onnx.load(tmp_path / "inside.onnx")
    merged = artifacts.merged(inside)
    assert operators(merged) == operators(model)
    close(run(merged, x), run(inside, x), 1e-5)
    # The loss is a polynomial of degree 2 in the norms.
    norms = np.linalg.norm(numpy_helper.to_array(model.graph.initializer[0]).reshape(6, -1), axis=1)
    norms = (norms + 0.5).astype(np.float32).reshape(1, 6, 1, 1)
    training = session(norms, "base")
    training.loss(x, y)
    found = training.gradients()["fc.lora_magnitude_vector"].ravel()
    for channel in range(6) if not settings.get("zero_channel") else (0, 5):
        moved = []
        for step in (-0.5, 0.5):
            changed = norms.copy()
            changed[0, channel] += step
            moved.append(session(changed, f"{channel}{step}").loss(x, y))
        assert found[channel] == pytest.approx(moved[1] - moved[0], rel=1e-3, abs=1e-5)


def test_quantized_kernels_with_groups_are_not_written_again(tmp_path: pathlib.Path) -> None:
    model = convolution_model(group=3)
    model.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(codes(-127, 127, 6, 1, 3, 2).astype(np.int8), "codes")
    )
    model.graph.initializer.append(numpy_helper.from_array(scales(6), "scales"))
    model.graph.node.insert(
        0, helper.make_node("DequantizeLinear", ["codes", "scales"], ["fc.weight"], "decode", axis=0)
    )
    lora = LoRA(r=3, targets="fc", use_dora=True)
    artifacts.generate_artifacts(
        model, adapter=lora, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path
    )
    training, x = Training(tmp_path), numbers(4, 3, 9, 8, seed=2)
    training.optimizer.set_learning_rate(0.05)
    losses = [training.step(x, numbers(4, 6, seed=3)) for _ in range(4)]
    assert losses[-1] < losses[0]
    training.module.export_model_for_inferencing(str(tmp_path / "inside.onnx"), ["y"])
    with pytest.raises(ValueError, match=r"cannot merge the adapter of fc: .* which is quantized$"):
        artifacts.merged(tmp_path / "inside.onnx")
    with pytest.raises(
        ValueError, match="cannot merge the adapter of fc into 'codes': its convolution has groups"
    ):
        artifacts.requantized(tmp_path / "inside.onnx")
    together = artifacts.merged(tmp_path / "inside.onnx", dequantize=True)
    close(run(together, x), run(onnx.load(tmp_path / "inside.onnx"), x), 1e-4)
    assert "DequantizeLinear" not in operators(together)


def test_a_network_of_convolutions_says_which_target_adapts_them(tmp_path: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"all-linear stands for matrix products: .*, name the target Conv$"):
        artifacts.generate_artifacts(
            convolution_model(group=1),
            adapter=LoRA(),
            loss=artifacts.LossType.MSELoss,
            artifact_directory=tmp_path,
        )


def test_groups_that_do_not_divide_the_rank_are_named(tmp_path: pathlib.Path) -> None:
    model = convolution_model(group=3)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(numbers(6, 1, 3, 2), "fc.weight"))
    with pytest.raises(ValueError, match=r"fc \(Conv\): its 3 groups do not divide the rank 4"):
        artifacts.generate_artifacts(
            model,
            adapter=LoRA(r=4, targets="fc"),
            loss=artifacts.LossType.MSELoss,
            artifact_directory=tmp_path,
        )


@pytest.mark.parametrize("use_dora", [False, True])
def test_adapters_of_codes_are_files_of_peft(use_dora: bool, tmp_path: pathlib.Path) -> None:
    tensors = pytest.importorskip("safetensors.numpy")
    lora = LoRA(r=R, alpha=ALPHA, targets=["fc", "up"], use_dora=use_dora)
    _, training = adapted(table_model(), lora, tmp_path / "one")
    artifacts.write_peft(training.state, tmp_path / "peft")
    written = tensors.load_file(str(tmp_path / "peft" / "adapter_model.safetensors"))
    assert set(written) == {
        "base_model.model.fc.lora_embedding_A", "base_model.model.fc.lora_embedding_B",
        "base_model.model.up.lora_A.weight", "base_model.model.up.lora_B.weight",
    } | {f"base_model.model.{name}.lora_magnitude_vector" for name in ("fc", "up") if use_dora}  # fmt: skip
    read = artifacts.read_peft(tmp_path / "peft")
    artifacts.generate_artifacts(
        table_model(), adapter=read, loss=artifacts.LossType.MSELoss, artifact_directory=tmp_path / "two"
    )
    again = Training(tmp_path / "two").parameters()
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(again[name], value)


@pytest.mark.parametrize("kind", [np.uint8, ml_dtypes.int4])
def test_adapters_of_codes_are_added_to_the_given_model(kind: Any, tmp_path: pathlib.Path) -> None:
    model, x = table_model(kind), np.arange(INPUTS)
    inside, _ = adapted(model, LoRA(r=R, targets=["fc", "up"]), tmp_path)
    onnx.save(model, tmp_path / "given.onnx")
    made = artifacts.with_weights_of(tmp_path / "given.onnx", tmp_path / "inside.onnx")
    np.testing.assert_allclose(run(made, x), run(inside, x), rtol=1e-6)
    close(run(artifacts.requantized(made).model, x), run(artifacts.requantized(inside).model, x), 1e-6)
