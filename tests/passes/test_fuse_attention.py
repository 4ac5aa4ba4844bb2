"""Attention written as separate steps is trained as one node, with the same results."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from ortrain import SessionOptions, artifacts
from ortrain.api import CheckpointState, Module, Optimizer

BATCH, LENGTH, WIDTH = 3, 5, 8


@dataclass(frozen=True)
class Form:
    """How an exporter writes attention."""

    scale: str = "div"  # div, mul, operands: of the scores or of both operands; shape: computed from it; none
    mask: str = ""  # input, learned, both, where, where_inverted, bool
    dropout: bool = False
    guard: bool = False  # rows of NaN become zeros
    heads: bool = True
    transposes: str = "one"  # of the keys: one, two, through three axes
    size: int = 4  # of a head; if it is much less than LENGTH, no probabilities are kept
    computed: bool = False  # dimensions are computed from those of x, so that they are not known in advance
    learned_queries: bool = False  # the same for the whole batch
    extra: str = (
        ""  # which of its values is also read elsewhere: scores, weights, transposed; or their shapes
    )

    @property
    def fuses(self) -> bool:
        return self.extra != "weights"


class Attention:
    """The nodes of attention in a form, and their constants."""

    def __init__(self, form: Form):
        self.form = form
        self.heads_count = WIDTH // form.size
        self.rng = np.random.default_rng(5)
        self.constants: dict[str, Any] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.rows_first, self.swap = ([0, 2, 1, 3], [0, 1, 3, 2]) if form.heads else ([0, 1, 2], [0, 2, 1])

    def node(self, kind: str, inputs: list[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output

    def rows(self) -> dict[str, str]:
        """Add queries, keys and values before their heads are apart."""
        form, size = self.form, self.form.size
        for name in ("wq", "wk", "wv", "wo"):
            weights = (self.rng.normal(size=(WIDTH, WIDTH)) / np.sqrt(WIDTH)).astype(np.float32)
            self.constants[name] = weights
        apart = np.array([-1, LENGTH, self.heads_count, size] if form.heads else [0, LENGTH, WIDTH])
        self.constants.update(apart=apart, together=np.array([-1, LENGTH, WIDTH]))
        if form.computed:
            self.constants.update(
                first=np.array([0]),
                second=np.array([1]),
                heads=np.array([self.heads_count]),
                size=np.array([size]),
            )
            dims = self.node("Shape", ["x"], "dims")
            batch, length = (self.node("Gather", [dims, n], f"{n}_dim") for n in ("first", "second"))
            del self.constants["apart"]
            self.node("Concat", [batch, length, "heads", "size"], "apart", axis=0)
        rows = {}
        for name in "qkv":
            if name == "q" and form.learned_queries:
                queries = self.rng.normal(size=(1, LENGTH, self.heads_count, size))
                self.constants["b_queries"] = queries.astype(np.float32)
                rows[name] = "b_queries"
                continue
            product = self.node("MatMul", ["x", f"w{name}"], f"{name}_product")
            rows[name] = self.node("Reshape", [product, "apart"], f"{name}_rows")
        return rows

    def across(self, rows: str, heads: str) -> str:
        """Add the transposed keys."""
        size = self.form.size
        if self.form.transposes == "one":
            order = [0, 2, 3, 1] if self.form.heads else self.swap
            return self.node("Transpose", [rows], "k_across", perm=order)
        if self.form.transposes == "two":
            return self.node("Transpose", [heads], "k_across", perm=self.swap)
        self.constants.update(
            flat=np.array([-1, LENGTH, size]), four=np.array([-1, self.heads_count, size, LENGTH])
        )
        flat = self.node("Reshape", [heads, "flat"], "k_flat")
        flat = self.node("Transpose", [flat], "k_flat_across", perm=[0, 2, 1])
        return self.node("Reshape", [flat, "four"], "k_across")

    def scores(self, q: str, across: str) -> tuple[str, str]:
        """Add the scores; returns those of the product, and the masked ones."""
        form, factor = self.form, 1 / np.sqrt(self.form.size)
        if form.scale == "operands":
            self.constants["root"] = np.array([np.sqrt(factor)], np.float32)
        elif form.scale == "shape":
            self.computed_root(q)
        if form.scale in ("operands", "shape"):
            q, across = (
                self.node("Mul", [q, "root"], "q_scaled"),
                self.node("Mul", ["root", across], "k_scaled"),
            )
        scores = product = self.node("MatMul", [q, across], "scores")
        if form.scale == "div":
            self.constants["divisor"] = np.array(1 / factor, np.float32)
            scores = self.node("Div", [scores, "divisor"], "scores_scaled")
        elif form.scale == "mul":
            self.constants["factor"] = np.array(factor, np.float32)
            scores = self.node("Mul", ["factor", scores], "scores_scaled")
        return product, self.masked(scores)

    def computed_root(self, q: str) -> None:
        """Add the root of the factor, as torch.export writes it: from the size of the heads."""
        self.constants.update(last=np.array([-1]), unit=np.array(1, np.float32))
        self.node("Shape", [q], "q_dims")
        self.node("Gather", ["q_dims", "last"], "q_size")
        self.node("CastLike", ["q_size", q], "q_size_float")
        self.node("Sqrt", ["q_size_float"], "q_size_root")
        self.node("Div", ["unit", "q_size_root"], "q_factor")
        self.node("CastLike", ["q_factor", q], "q_factor_float")
        self.node("Sqrt", ["q_factor_float"], "root")

    def masked(self, scores: str) -> str:
        mask = self.form.mask
        if mask in ("learned", "both"):
            learned_shape = (self.heads_count, LENGTH, LENGTH) if self.form.heads else (1, LENGTH, LENGTH)
            self.constants["bias"] = self.rng.normal(size=learned_shape).astype(np.float32)
            scores = self.node("Add", ["bias", scores], "scores_biased")
        if mask in ("input", "both"):
            scores = self.node("Add", [scores, "mask"], "scores_masked")
        elif mask.startswith("where"):
            self.constants["low"] = np.array(-1e4, np.float32)
            pair = ["low", scores] if mask == "where_inverted" else [scores, "low"]
            scores = self.node("Where", ["mask", *pair], "scores_masked")
        elif mask == "bool":
            self.constants.update(zero=np.array(0, np.float32), lowest=np.array(-np.inf, np.float32))
            added = self.node("Where", ["mask", "zero", "lowest"], "mask_added")
            scores = self.node("Add", [scores, added], "scores_masked")
        return scores

    def weights(self, scores: str) -> str:
        weights = self.node("Softmax", [scores], "weights", axis=-1)
        if self.form.guard:
            self.constants["nothing"] = np.array(0, np.float32)
            nan = self.node("IsNaN", [weights], "weights_nan")
            weights = self.node("Where", [nan, "nothing", weights], "weights_guarded")
        if self.form.dropout:
            self.constants.update(ratio=np.array(0.3, np.float32), training=np.array(True))
            weights = self.node("Dropout", [weights, "ratio", "training"], "weights_dropped")
        return weights

    def build(self) -> None:
        """Add all nodes, from x to y."""
        rows = self.rows()
        heads = {
            name: self.node("Transpose", [row], f"{name}_heads", perm=self.rows_first)
            for name, row in rows.items()
        }
        product, scores = self.scores(heads["q"], self.across(rows["k"], heads["k"]))
        weights = self.weights(scores)
        attended = self.node("MatMul", [weights, heads["v"]], "attended")
        back = self.node("Transpose", [attended], "attended_rows", perm=self.rows_first)
        joined = self.node("Reshape", [back, "together"], "joined")
        result = self.node("MatMul", [joined, "wo"], "result")
        if self.form.extra == "shapes":
            for value in (product, scores, attended, weights):
                shape = self.node("Shape", [value], f"{value}_shape")
                dims = self.node("Cast", [shape], f"{value}_dims", to=TensorProto.FLOAT)
                sum_of_dims = self.node("ReduceMean", [dims], f"{value}_mean", keepdims=0)
                result = self.node("Add", [result, sum_of_dims], f"result_and_{value}")
        elif self.form.extra:
            value = {"scores": scores, "weights": weights, "transposed": back}[self.form.extra]
            mean = self.node("ReduceMean", [value], "extra_mean", keepdims=0)
            result = self.node("Add", [result, mean], "result_and_more")
        self.node("Identity", [result], "y")


def model_of(form: Form) -> onnx.ModelProto:
    attention = Attention(form)
    attention.build()
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", LENGTH, WIDTH])]
    if form.mask in ("input", "both", "where", "where_inverted", "bool"):
        kind = TensorProto.FLOAT if form.mask in ("input", "both") else TensorProto.BOOL
        shape = ["batch", 1, LENGTH, LENGTH] if form.heads else ["batch", LENGTH, LENGTH]
        inputs.append(helper.make_tensor_value_info("mask", kind, shape))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", LENGTH, WIDTH])]
    initializers = [
        numpy_helper.from_array(np.asarray(value), name) for name, value in attention.constants.items()
    ]
    graph = helper.make_graph(attention.nodes, "attention", inputs, outputs, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(form: Form, unseen: bool = False) -> list[np.ndarray]:
    rng = np.random.default_rng(6)
    given = [rng.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)]
    seen = rng.uniform(size=(BATCH, 1, LENGTH, LENGTH) if form.heads else (BATCH, LENGTH, LENGTH)) < 0.7
    seen[1, ..., 2, :] = not unseen  # a query that sees nothing
    seen[..., 0] |= not unseen
    if form.mask in ("input", "both"):
        given.append(np.where(seen, 0, -3).astype(np.float32))
    elif form.mask in ("where", "bool"):
        given.append(seen)
    elif form.mask == "where_inverted":
        given.append(~seen)
    return [*given, rng.normal(size=(BATCH, LENGTH, WIDTH)).astype(np.float32)]


@dataclass
class Run:
    losses: list[float]
    evaluated: float
    parameters: dict[str, np.ndarray]
    operators: set[str]


def train(folder: Any, form: Form, fuse: bool, unseen: bool = False) -> Run:
    options = SessionOptions()
    if not fuse:
        options.add_session_config_entry("ortrain.disable_pass.fuse_attention", "1")
    if unseen:
        options.add_session_config_entry("ortrain.nonfinite_gradients", "apply")
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(
        folder / "training_model.onnx",
        state,
        folder / "eval_model.onnx",
        session_options=options,
    )
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    values = feeds(form, unseen)
    module.train()
    found = []
    for _ in range(4):
        found.append(float(module(*values)))
        optimizer.step()
        module.lazy_reset_grad()
    module.start_profiling()
    module(*values)
    trace = json.loads(module.end_profiling())
    module.eval()
    evaluated = float(module(*values)) if not form.dropout else 0.0
    parameters = {name: np.array(parameter.data) for name, parameter in state.parameters}
    return Run(found, evaluated, parameters, {e["name"] for e in trace["traceEvents"]})


FORMS = [
    Form(),
    *[Form(scale=s) for s in ("mul", "operands", "shape", "none")],
    Form(transposes="three", scale="shape", mask="bool"),
    *[Form(mask=m) for m in ("input", "learned", "where", "where_inverted", "bool")],
    Form(mask="bool", guard=True, scale="operands", transposes="two"),
    Form(mask="bool", guard=True, dropout=True),
    Form(dropout=True),
    Form(dropout=True, mask="input", scale="operands"),
    Form(transposes="two"),
    Form(transposes="three"),
    Form(transposes="three", scale="operands", mask="bool"),
    Form(heads=False),
    Form(heads=False, mask="learned"),
    Form(mask="both"),
    Form(mask="both", dropout=True, computed=True),
    Form(extra="shapes"),
    Form(extra="shapes", mask="both", computed=True, transposes="two"),
    Form(heads=False, mask="where", dropout=True, scale="mul"),
    Form(size=1),
    Form(size=1, mask="input", dropout=True),
    Form(size=2, mask="where", transposes="three"),
    Form(computed=True),
    Form(computed=True, mask="learned", scale="operands", dropout=True),
    Form(computed=True, mask="where", scale="mul"),
    Form(learned_queries=True),
    Form(learned_queries=True, mask="input", computed=True),
    Form(extra="weights"),
    Form(extra="transposed"),
]


def make_artifacts(form: Form, folder: Any) -> None:
    model = model_of(form)
    artifacts.generate_artifacts(
        onnx.shape_inference.infer_shapes(model),
        requires_grad=[
            i.name
            for i in model.graph.initializer
            if i.name[0] in "wb" and not (form.learned_queries and i.name == "wq")
        ],
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_fused_attention_trains_the_same(form, tmp_path):
    make_artifacts(form, tmp_path)
    fused, plain = (train(tmp_path, form, fuse) for fuse in (True, False))
    np.testing.assert_allclose(fused.losses, plain.losses, rtol=2e-5)
    np.testing.assert_allclose(fused.evaluated, plain.evaluated, rtol=2e-5)
    for name, value in plain.parameters.items():
        np.testing.assert_allclose(fused.parameters[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
    assert {"Softmax", "SoftmaxGrad_13"} <= plain.operators
    if form.fuses:
        assert {
            "AttentionGrad",
            "FusedDropoutAttention" if form.dropout else "FusedAttention",
        } <= fused.operators
        assert not {"Softmax", "SoftmaxGrad_13"} & fused.operators
    else:
        assert fused.operators == plain.operators


@pytest.mark.parametrize("mask", ["where", "where_inverted"])
def test_a_query_that_sees_nothing_looks_at_all_alike(mask, tmp_path):
    """The value that replaces its scores is finite: all of them are the same, and do not depend on Q and K."""
    make_artifacts(Form(mask=mask), tmp_path)
    fused, plain = (train(tmp_path, Form(mask=mask), fuse, unseen=True) for fuse in (True, False))
    np.testing.assert_allclose(fused.losses, plain.losses, rtol=2e-5)


def test_a_guarded_query_that_sees_nothing_has_a_gradient_of_zero(tmp_path):
    """The separate steps multiply the zero by the softmax, which is NaN there."""
    form = Form(mask="bool", guard=True)
    make_artifacts(form, tmp_path)
    fused, plain = (train(tmp_path, form, fuse, unseen=True) for fuse in (True, False))
    np.testing.assert_allclose(fused.losses[0], plain.losses[0], rtol=2e-5)
    assert all(np.isfinite(value).all() for value in fused.parameters.values())
    assert fused.losses[-1] < fused.losses[0]


def test_nothing_of_it_is_written(tmp_path):
    model = onnx.shape_inference.infer_shapes(model_of(Form()))
    artifacts.generate_artifacts(
        model,
        requires_grad=["wq"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    written = onnx.load(tmp_path / "training_model.onnx")
    assert not [n.op_type for n in written.graph.node if "Attention" in n.op_type]
