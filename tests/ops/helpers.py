"""Everything that operator tests import: models of one node, an outside oracle for values, finite differences for gradients.

Whole models (models.py), running them (runner.py) and finite differences are imported here, so that a test needs one
import. A test names an operator and its inputs::

    check_forward(Op("Softmax", {"axis": 1}), [x])                  # against onnx.reference
    check_forward(Op("Gelu", domain=MICROSOFT), [x], [gelu(x)])  # against a formula of the test's own
    check_gradient(Op("Softmax", {"axis": 1}), [x])                 # against central differences in double
    check_rejected(Op("Add"), [x, y], "do not broadcast")           # a clear error and no crash

Inputs are positional and named ``x0, x1, ...``; ``None`` omits one. Outputs are ``y0, y1, ...``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gradient_coverage as coverage
import numpy as np
import onnx
import pytest
from models import check_model, check_model_gradient, differences_of, model_of  # noqa: F401
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from runner import gradient_model, repeatable, run_in_turn, run_model  # noqa: F401

Array = NDArray[Any]

MICROSOFT = "com.microsoft"


@dataclass(frozen=True)
class Op:
    """An operator under test.

    Parameters
    ----------
    type, attributes, domain
        As in the node.
    opset
        Version of the ONNX domain in the model (``com.microsoft`` is always 1).
    version
        Version of any other domain.
    outputs
        How many outputs the node has, or which are named: ``(True, False, True)`` omits the second.
    """

    type: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    opset: int = 17
    outputs: int | tuple[bool, ...] = 1
    version: int = 1

    @property
    def output_names(self) -> list[str]:
        """``y0, y1, ...``, empty if an output is omitted."""
        wanted = (True,) * self.outputs if isinstance(self.outputs, int) else self.outputs
        return [f"y{i}" if named else "" for i, named in enumerate(wanted)]

    def __str__(self) -> str:
        settings = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.domain + '.' if self.domain else ''}{self.type}-{self.opset}({settings})"


def single(x: Array) -> Array:
    """Return an array in single precision."""
    return x.astype(np.float32)


def integers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> Array:
    """Return random integers over the whole range of their type."""
    info = np.iinfo(dtype)
    return np.random.default_rng([seed, *shape]).integers(info.min, info.max, shape, dtype, endpoint=True)


def uniform(
    *shape: int, low: float = -1.0, high: float = 1.0, dtype: Any = np.float64, seed: int = 0
) -> Array:
    """Uniform random values in [low, high), the same for the same arguments."""
    return np.random.default_rng([seed, *shape]).uniform(low, high, shape).astype(dtype)


def apart(*shape: int, dtype: Any = np.float64, scale: float = 1.0, seed: int = 0) -> Array:
    """Distinct values around zero, at least 0.1 * scale from each other and from zero, shuffled.

    For functions with kinks or ties (Relu, Max, MaxPool): finite differences never cross one.
    """
    count = int(np.prod(shape, dtype=np.int64))
    values = (np.arange(count) - count // 2 + 0.5) * 0.2 * scale
    return np.random.default_rng([seed, *shape]).permutation(values).reshape(shape).astype(dtype)


def make_model(
    op: Op,
    inputs: Sequence[Array | None],
    *,
    constants: Collection[int] = (),
    extra_nodes: Sequence[onnx.NodeProto] = (),
    extra_constants: Mapping[str, Array] | None = None,
    outputs: Sequence[str] | None = None,
) -> onnx.ModelProto:
    """The model of one node, or of the node followed by others.

    Parameters
    ----------
    constants
        Indices of the inputs that are initializers of the model; the others are its inputs.
    extra_nodes, extra_constants
        Nodes after the operator and their initializers.
    outputs
        Names of the model's outputs; by default the operator's own.
    """
    names = [f"x{i}" if value is not None else "" for i, value in enumerate(inputs)]
    node = helper.make_node(
        op.type, names, op.output_names, name="under_test", domain=op.domain, **op.attributes
    )
    imports = [helper.make_opsetid("", op.opset), helper.make_opsetid(MICROSOFT, 1)]
    if op.domain not in ("", MICROSOFT):
        imports.append(helper.make_opsetid(op.domain, op.version))
    graph_inputs, initializers = [], []
    for i, (name, value) in enumerate(zip(names, inputs, strict=True)):
        if value is None:
            continue
        if i in constants:
            initializers.append(numpy_helper.from_array(np.asarray(value), name))
        else:
            dtype = helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
            graph_inputs.append(helper.make_tensor_value_info(name, dtype, np.shape(value)))
    for name, value in (extra_constants or {}).items():
        initializers.append(numpy_helper.from_array(value, name))
    wanted = [name for name in (outputs or op.output_names) if name]
    # Types of outputs are omitted: the core infers them, which is part of the test.
    graph_outputs = [onnx.ValueInfoProto(name=name) for name in wanted]
    graph = helper.make_graph([node, *extra_nodes], "test", graph_inputs, graph_outputs, initializers)
    return helper.make_model(
        graph, opset_imports=imports, ir_version=helper.find_min_ir_version_for(imports, ignore_unknown=True)
    )


def _feeds(model: onnx.ModelProto, inputs: Sequence[Array | None]) -> dict[str, Array]:
    wanted = {value.name for value in model.graph.input}
    return {f"x{i}": np.asarray(x) for i, x in enumerate(inputs) if x is not None and f"x{i}" in wanted}


def run(op: Op, inputs: Sequence[Array | None], constants: Collection[int] = ()) -> list[Array]:
    """The named outputs of the operator, computed by ortrain."""
    model = make_model(op, inputs, constants=constants)
    results = run_model(model.SerializeToString(), _feeds(model, inputs))
    return [np.asarray(results[name]) for name in op.output_names if name]


def tolerance(dtype: Any, rtol: float | None = None) -> float:
    """The given relative tolerance, or one that fits the type: float 1e-6, double 1e-12, others 0."""
    if rtol is not None:
        return rtol
    return {np.dtype(np.float64): 1e-12, np.dtype(np.float32): 1e-6, np.dtype(np.float16): 1e-3}.get(
        np.dtype(dtype), 0
    )


def check_forward(
    op: Op,
    inputs: Sequence[Array | None],
    expected: Sequence[Array] | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    constants: Collection[int] = (),
) -> list[Array]:
    """Runs the operator and compares every named output with the expected one; returns the outputs.

    Parameters
    ----------
    expected
        One array per named output; by default what ``onnx.reference`` computes.
    rtol, atol
        Relative (default: `tolerance`) and absolute tolerance (default: rtol times the largest magnitude).
    """
    if expected is None:
        model = make_model(op, inputs, constants=constants)
        expected = ReferenceEvaluator(model).run(None, _feeds(model, inputs))
    found = run(op, inputs, constants)
    assert len(found) == len(expected), f"{op}: {len(found)} outputs, expected {len(expected)}"
    for i, (f, e) in enumerate(zip(found, expected, strict=True)):
        assert f.dtype == e.dtype, f"{op}: output {i} has type {f.dtype}, expected {e.dtype}"
        assert f.shape == e.shape, f"{op}: output {i} has shape {f.shape}, expected {e.shape}"
        limit = tolerance(e.dtype, rtol)
        finite = np.abs(e[np.isfinite(e)]).max(initial=0.0) if np.issubdtype(e.dtype, np.floating) else 0.0
        absolute = atol if atol is not None else limit * finite
        np.testing.assert_allclose(f, e, limit, absolute, err_msg=f"{op}: output {i}")
    return found


def check_gradient(
    op: Op,
    inputs: Sequence[Array | None],
    wrt: Sequence[int] | None = None,
    outputs: Sequence[int] | None = None,
    rtol: float = 1e-5,
    step: float = 1e-5,
    constants: Collection[int] = (),
    second_order: bool | None = None,
) -> dict[int, Array]:
    """Compares the gradient of a weighted sum of the outputs with central finite differences, all in double.

    The loss is sum_o <w_o, y_o> with fixed weights w_o, so that every entry of the Jacobian counts. If the gradient
    consists of operators that have gradients themselves, the second derivative is compared too. What was covered is
    recorded for test_gradient_coverage.py.

    Parameters
    ----------
    wrt
        Inputs whose gradient is checked; by default every floating one that is not a constant.
    outputs
        Outputs that enter the loss; by default every floating one that is named.
    step
        Half the distance of the two points of a difference, in units of the input. Operators that return float for any
        input type need a larger step and tolerance.
    second_order
        Whether the second derivative is compared; by default where that of few other cases of the operator has been.

    Returns
    -------
    dict
        The gradients that ortrain computed, by input.
    """
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    if wrt is None:
        wrt = [
            i
            for i, x in enumerate(arrays)
            if x is not None and i not in constants and np.issubdtype(x.dtype, np.floating)
        ]
    for i in wrt:
        x = arrays[i]
        assert x is not None
        assert x.dtype == np.float64, f"{op}: input {i} must be float64 for finite differences"

    names = [name for name in op.output_names if name]
    values = dict(zip(names, run(op, arrays, constants), strict=True))
    if outputs is None:
        entering = [name for name in names if np.issubdtype(values[name].dtype, np.floating)]
    else:
        entering = [f"y{i}" for i in outputs]
    shapes = {name: values[name].shape for name in entering}
    floats = [name for name in entering if values[name].dtype != np.float64]
    model = _with_loss(op, arrays, constants, shapes, floats)
    forward = model.SerializeToString()
    backward = gradient_model(forward, [f"x{i}" for i in wrt], "loss")
    feeds = _feeds(model, arrays)
    computed = run_model(backward, feeds)

    numerics = differences_of(forward, feeds, [f"x{i}" for i in wrt], step=step)
    gradients = {}
    for i, numeric in zip(wrt, numerics, strict=True):
        x = feeds[f"x{i}"]
        found = np.asarray(computed[f"x{i}_grad"])
        assert found.shape == x.shape, (
            f"{op}: the gradient of input {i} has shape {found.shape}, expected {x.shape}"
        )
        assert found.dtype == x.dtype, (
            f"{op}: the gradient of input {i} has type {found.dtype}, expected {x.dtype}"
        )
        largest = float(np.abs(numeric).max(initial=0.0))
        np.testing.assert_allclose(
            found, numeric, rtol, rtol * max(largest, 1e-3), err_msg=f"{op}: gradient of input {i}"
        )
        gradients[i] = found
    second = None
    if second_order or (second_order is None and coverage.of(op).second[op.opset] < _MOST_SECOND):
        curved = _with_loss(op, arrays, constants, shapes, floats, curved=True).SerializeToString()
        second = _check_second_order(op, curved, [f"x{i}" for i in wrt], feeds, 10 * rtol, step)
    arguments = {"wrt": wrt, "outputs": outputs, "rtol": rtol, "step": step, "constants": constants}
    coverage.note(coverage.Case(op, arrays, arguments), [arrays[i] for i in wrt], second)
    return gradients


#: The number of cases of an operator in an opset whose second derivative is compared.
_MOST_SECOND = 8


def _with_loss(
    op: Op,
    inputs: Sequence[Array | None],
    constants: Collection[int],
    shapes: Mapping[str, tuple[int, ...]],
    floats: Collection[str] = (),
    curved: bool = False,
) -> onnx.ModelProto:
    """The model of the operator and the loss sum_o <w_o, y_o>; curved, sum_o <w_o, y_o + y_o^2>.

    `floats` are the outputs that are not double whatever the operator is given.
    """
    weights = {f"{name}_weight": uniform(*shape, low=0.5, high=1.5, seed=7) for name, shape in shapes.items()}
    nodes, terms = [], []
    for name in shapes:
        value = name
        if name in floats:
            value = f"{name}_double"
            nodes.append(helper.make_node("Cast", [name], [value], to=TensorProto.DOUBLE))
        nodes.append(helper.make_node("Mul", [value, f"{name}_weight"], [f"{name}_weighted"]))
        nodes.append(helper.make_node("ReduceSum", [f"{name}_weighted"], [f"{name}_sum"], keepdims=0))
        terms.append(f"{name}_sum")
        if curved:
            nodes.append(helper.make_node("Mul", [f"{name}_weighted", value], [f"{name}_square"]))
            nodes.append(
                helper.make_node("ReduceSum", [f"{name}_square"], [f"{name}_square_sum"], keepdims=0)
            )
            terms.append(f"{name}_square_sum")
    nodes.append(helper.make_node("Sum", terms, ["loss"]))
    model = make_model(
        op, inputs, constants=constants, extra_nodes=nodes, extra_constants=weights, outputs=["loss"]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []))
    return model


def _check_second_order(
    op: Op, forward: bytes, names: Sequence[str], feeds: Mapping[str, Array], rtol: float, step: float
) -> set[str]:
    """Compares the derivative of the gradient along some directions with finite differences of the gradient.

    The gradient is that of a loss that is curved, so that the incoming gradient of the operator depends on the inputs.
    The loss here is sum_i <v_i, dx_i> + |x_i|^2 / 2 with fixed weights v_i and the gradients dx_i; the second term
    makes it depend on inputs in which the operator is linear.

    Returns
    -------
    set
        The operators whose gradient the second derivative lacks.
    """
    model = onnx.load_from_string(gradient_model(forward, names, "loss"))
    firsts = {f"{name}_grad": f"first_{name}" for name in names}
    for node in model.graph.node:
        for values in (node.input, node.output):
            values[:] = [firsts.get(value, value) for value in values]
    for value in model.graph.output:
        if value.name in firsts:  # gradients of pooling take their shape from the model's declaration
            value.name = firsts[value.name]
            model.graph.value_info.append(value)
    del model.graph.output[:]
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.5), "second_half"))
    terms = []
    for name in names:
        x = feeds[name]
        weight = uniform(*x.shape, low=0.5, high=1.5, seed=8)
        model.graph.initializer.append(numpy_helper.from_array(weight, f"second_{name}_weight"))
        for term, factors in (
            ("weighted", [f"first_{name}", f"second_{name}_weight"]),
            ("square", [name, name]),
        ):
            product, total = f"second_{name}_{term}", f"second_{name}_{term}_sum"
            model.graph.node.append(helper.make_node("Mul", factors, [product]))
            model.graph.node.append(helper.make_node("ReduceSum", [product], [total], keepdims=0))
            if term == "square":
                model.graph.node.append(helper.make_node("Mul", [total, "second_half"], [f"{total}_half"]))
                total += "_half"
            terms.append(total)
    model.graph.node.append(helper.make_node("Sum", terms, ["second_loss"]))
    model.graph.output.append(helper.make_tensor_value_info("second_loss", TensorProto.DOUBLE, []))
    first = model.SerializeToString()
    try:
        second = gradient_model(first, names, "second_loss")
    except RuntimeError as error:
        found = re.findall(
            r"\(([\w.]+)\), domain [\w.]+, opset \d+: .*(no gradient yet|rank .* not known)", str(error)
        )
        if not found:
            raise
        return {type + (" of unknown rank" if "rank" in why else "") for type, why in found}
    # Those of the gradient itself; the rest belongs to the forward model and to the loss of the test.
    own = {
        (node.domain, node.op_type) for node in model.graph.node if node.name.startswith("under_test_Grad")
    }
    computed = run_model(second, feeds)
    with repeatable(first) as run_first:
        for seed in range(3):
            directions = {name: uniform(*feeds[name].shape, low=-1, high=1, seed=20 + seed) for name in names}
            losses = []
            for sign in (1, -1):
                moved = {name: feeds[name] + sign * step * directions[name] for name in names}
                losses.append(float(run_first({**feeds, **moved})["second_loss"]))
            numeric = (losses[0] - losses[1]) / (2 * step)
            parts = [computed[f"{name}_grad"] * directions[name] for name in names]
            scale = max(sum(float(np.abs(part).sum()) for part in parts), 1e-3)
            total = sum(float(part.sum()) for part in parts)
            assert abs(total - numeric) <= rtol * scale, (
                f"{op}: the second derivative along direction {seed} is {total}, finite differences give {numeric}"
            )
    coverage.note_in_gradient(own)
    return set()


def gradients_of_sum(op: Op, inputs: Sequence[Array | None], wrt: Sequence[int]) -> list[Array]:
    """The gradient of the sum of output 0 as computed by ortrain: for ties, where finite differences do not apply."""
    total = helper.make_node("ReduceSum", ["y0"], ["loss"], keepdims=0)
    model = make_model(op, inputs, extra_nodes=[total], outputs=["loss"])
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", TensorProto.DOUBLE, []))
    backward = gradient_model(model.SerializeToString(), [f"x{i}" for i in wrt], "loss")
    found = run_model(backward, _feeds(model, inputs))
    return [np.asarray(found[f"x{i}_grad"]) for i in wrt]


def check_rejected(
    op: Op, inputs: Sequence[Array | None], match: str, constants: Collection[int] = ()
) -> None:
    """The operator must reject the inputs with a message that names the node and matches `match`."""
    with pytest.raises(Exception, match=match) as caught:
        run(op, inputs, constants)
    assert "under_test" in str(caught.value), f"the message does not name the node: {caught.value}"
