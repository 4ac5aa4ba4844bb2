"""An adapter of quantized weights is computed with their product: against NumPy in double precision, and which sums are fused."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain import artifacts, models
from ortrain.artifacts import LoRA
from training import Training

Array = NDArray[Any]
N, K, BLOCK = 80, 96, 32


@dataclass
class Adapted:
    """x W + scale x D U, with W in 4 bits."""

    rows: tuple[int, ...] = (2, 20)
    of_gradient: bool = False  # MatMulNBitsGrad
    rank: int = 8
    dtype: Any = np.float32
    scale: Array | None = None
    turned: bool = False
    biased: bool = False
    further: int = 0  # operands of the sum
    order: int = 1
    elsewhere: bool = False  # the adapter reads another input
    up_shape: tuple[int, ...] | None = None
    read_twice: str = ""  # a value that is an output too

    def model(self) -> tuple[onnx.ModelProto, dict[str, Array], Array]:
        """Return the model, its inputs, and the exact result."""
        rng = np.random.default_rng(5)
        inner, outer = (N, K) if self.of_gradient else (K, N)
        codes = rng.integers(0, 16, (N, K))
        scales = rng.uniform(0.01, 0.1, (N, K // BLOCK)).astype(self.dtype)
        weights = (codes - 8) * np.repeat(scales.astype(np.float64), BLOCK, 1)
        down = rng.normal(size=(inner, self.rank)).astype(self.dtype)
        up = rng.normal(size=self.up_shape or (self.rank, outer)).astype(self.dtype)
        x = rng.normal(size=(*self.rows, inner)).astype(self.dtype)
        given: dict[str, Array] = {
            "codes": (codes[:, ::2] | codes[:, 1::2] << 4)
            .astype(np.uint8)
            .reshape(N, K // BLOCK, BLOCK // 2),
            "scales": scales.ravel(),
            "down": down,
            "up": np.ascontiguousarray(up.T) if self.turned else up,
        }
        quantized = "MatMulNBitsGrad" if self.of_gradient else "MatMulNBits"
        inputs = ["x", "codes", "scales"]
        if self.biased:
            inputs += ["", "", "bias"]
            given["bias"] = rng.normal(size=outer).astype(self.dtype)
        nodes = [
            helper.make_node(
                quantized, inputs, ["without"], domain="com.microsoft", N=N, K=K, bits=4, block_size=BLOCK
            ),
            helper.make_node("MatMul", ["z" if self.elsewhere else "x", "down"], ["low"]),
        ]
        low = "low"
        if self.scale is not None:
            given["scale"] = self.scale.astype(self.dtype)
            nodes.append(helper.make_node("Mul", ["low", "scale"], ["scaled"]))
            low = "scaled"
        if self.turned:
            nodes.append(helper.make_node("Transpose", ["up"], ["turned_up"], perm=[1, 0]))
        nodes.append(helper.make_node("MatMul", [low, "turned_up" if self.turned else "up"], ["adapter"]))
        values = {"x": x} | ({"z": x} if self.elsewhere else {})
        exact = x.astype(np.float64) @ (weights if self.of_gradient else weights.T)
        exact = exact + given.get("bias", 0)
        scale = 1 if self.scale is None else self.scale.astype(np.float64)
        exact = exact + (x.astype(np.float64) @ down * scale) @ up
        for i in range(self.further):
            values[f"more{i}"] = rng.normal(size=exact.shape).astype(self.dtype)
            exact = exact + values[f"more{i}"]
        terms = ["without", "adapter"][:: self.order] + [f"more{i}" for i in range(self.further)]
        nodes.append(helper.make_node("Sum" if self.further else "Add", terms, ["y"]))
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        graph = helper.make_graph(
            nodes,
            "adapted",
            [helper.make_tensor_value_info(name, kind, value.shape) for name, value in values.items()],
            [helper.make_tensor_value_info(name, kind, None) for name in ("y", self.read_twice) if name],
            [numpy_helper.from_array(value, name) for name, value in given.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8), values, exact

    def run(self, folder: Path) -> set[str]:
        """Compare with the exact result, and return the operators that the session ran."""
        model, values, exact = self.model()
        options = ortrain.SessionOptions()
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        session = ortrain.InferenceSession(model.SerializeToString(), options)
        bound = 1e-12 if self.dtype == np.float64 else 1e-5
        found = session.run(["y"], values)[0]
        assert found.shape == exact.shape
        np.testing.assert_allclose(found, exact, rtol=bound, atol=bound * np.abs(exact).max())
        return {node.op_type for node in onnx.load(folder / "optimized.onnx").graph.node}


SCALE = np.array(0.5)
FUSED = {
    "rows": Adapted(),
    "few rows": Adapted(rows=(5,)),
    "one row": Adapted(rows=(1, 1)),
    "a vector": Adapted(rows=()),
    "many rows": Adapted(rows=(700,)),
    "double": Adapted(dtype=np.float64),
    "scaled": Adapted(scale=SCALE),
    "gradient": Adapted(of_gradient=True, scale=SCALE),
    "gradient, few rows": Adapted(of_gradient=True, rows=(3,)),
    "gradient, double": Adapted(of_gradient=True, dtype=np.float64),
    "transposed": Adapted(turned=True),
    "transposed, few rows": Adapted(turned=True, rows=(2, 3)),
    "bias": Adapted(biased=True),
    "bias, few rows": Adapted(biased=True, rows=(3,)),
    "swapped": Adapted(order=-1),
    "longer sum": Adapted(further=2, order=-1),
    "rank 1": Adapted(rank=1),
    "rank 64": Adapted(rank=64),
}
APART = {
    "rank 65": Adapted(rank=65),
    "another input": Adapted(elsewhere=True),
    "a scale for each column": Adapted(scale=np.linspace(1, 2, 8)),
    "a scale with more axes": Adapted(rows=(20,), scale=np.full((1, 1, 1), 0.5)),
    "one column": Adapted(up_shape=(8, 1)),
    "a batch of matrices": Adapted(up_shape=(2, 8, N)),
    "an adapter that is read elsewhere": Adapted(read_twice="adapter"),
    "a product that is read elsewhere": Adapted(read_twice="without"),
}


@pytest.mark.parametrize("case", FUSED)
def test_an_adapter_is_part_of_the_product(case: str, tmp_path: Path) -> None:
    operators = FUSED[case].run(tmp_path)
    assert "AdaptedMatMulNBits" in operators
    assert not operators & {"Add", "MatMulNBits", "MatMulNBitsGrad"}


@pytest.mark.parametrize("case", APART)
def test_other_sums_are_computed_as_they_are(case: str, tmp_path: Path) -> None:
    assert "AdaptedMatMulNBits" not in APART[case].run(tmp_path)


@pytest.mark.parametrize("tokens", [4, 64])
@pytest.mark.parametrize(("precision", "bound"), [("none", 1e-5), ("bf16", 0.1)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradients_are_those_of_separate_products(
    dropout: float, precision: str, bound: float, tokens: int, tmp_path: Path
) -> None:
    artifacts.generate_artifacts(
        artifacts.quantize_weights(models.gpt(64, tokens, 32, 2, 2)).model,
        loss=artifacts.LossType.TokenCrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        adapter=LoRA(r=4, dropout=dropout),
        artifact_directory=tmp_path,
    )
    ids = np.random.default_rng(6).integers(0, 64, (2, tokens))
    batch = ids, np.ones_like(ids), ids
    apart = {"ortrain.disable_pass.fuse_adapter": "1"}
    before = Training(tmp_path, apart)
    for _ in range(3):  # before the first step, the second matrix of each adapter is zero
        before.step(*batch)
    before.state.save_checkpoint(before.state, tmp_path / "trained")

    def run(config: dict[str, str]) -> tuple[float, Array]:
        ortrain.set_seed(8)  # of dropout
        training = Training(tmp_path, config, checkpoint="trained")
        loss = training.loss(*batch)
        return loss, np.concatenate([value.ravel() for value in training.gradients().values()])

    loss, gradient = run(apart)
    graphs = tmp_path / "graphs"
    found, other = run(
        {
            "ortrain.mixed_precision": precision,
            "ortrain.bf16_products": "bf16",
            "ortrain.dump_graph": str(graphs),
        }
    )
    last = max(graphs.rglob("*training*.onnx"))
    nodes = onnx.load(last, load_external_data=False).graph.node
    turned = [
        helper.get_node_attr_value(node, "transposed")
        for node in nodes
        if node.op_type == "AdaptedMatMulNBits"
    ]
    assert turned.count(0) == 12  # of the forward pass: six layers in each of two blocks
    assert (turned.count(1) > 0) == (dropout == 0)
    assert found == pytest.approx(loss, rel=bound)
    assert np.linalg.norm(other - gradient) <= bound * np.linalg.norm(gradient)
