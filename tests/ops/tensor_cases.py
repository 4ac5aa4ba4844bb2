"""What the tests of operators that create and move tensors share: cases, and the node cases of the onnx package."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
from helpers import Array, Op, gradient_model, make_model, run_model, uniform
from hypothesis import strategies as st
from node_cases import node_cases
from onnx import helper, numpy_helper

TENSOR_TYPES = {
    helper.np_dtype_to_tensor_dtype(np.dtype(t))
    for t in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}

X = uniform(2, 3, 4, 5)

SHAPES = st.lists(st.integers(0, 19), min_size=1, max_size=5).map(tuple).filter(lambda s: np.prod(s) < 50_000)
DTYPES = st.sampled_from([np.uint8, np.float16, np.float32, np.float64])


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def counted(shape: tuple[int, ...], dtype: Any) -> Array:
    return (np.arange(np.prod(shape)) % 2039).astype(dtype).reshape(shape)


def pair(op_type: str, x: Array, *constants: Array | None, opset: int = 17, **attributes: Any) -> Any:
    """An operator with its first input and the constants that follow."""
    return Op(op_type, attributes, opset=opset), [x, *constants], tuple(range(1, 1 + len(constants)))


@cache
def cases_of_one_node() -> list[Any]:
    """The node cases of the onnx package with one node, over tensors that NumPy can hold."""

    def fits(case: Any) -> bool:
        nodes = case.model.graph.node
        if len(nodes) != 1 or nodes[0].domain not in ("", "ai.onnx"):
            return False
        values = [*case.model.graph.input, *case.model.graph.output]
        return all(
            v.type.HasField("tensor_type") and v.type.tensor_type.elem_type in TENSOR_TYPES for v in values
        )

    return [case for case in node_cases() if fits(case)]


def onnx_cases(*types: str) -> list[Any]:
    """The node cases of the onnx package for these operators."""
    return [case for case in cases_of_one_node() if case.model.graph.node[0].op_type in types]


def check_onnx_case(case: Any, shape_inputs: dict[str, tuple[int, ...]] | None = None) -> None:
    """Check a node case; the inputs with these indices, by operator, are constants."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    node = model.graph.node[0]
    constants = (shape_inputs or {}).get(node.op_type, ())
    constant_names = {node.input[i] for i in constants if i < len(node.input)}
    for inputs, outputs in case.data_sets:
        feeds = {v.name: np.asarray(x) for v, x in zip(case.model.graph.input, inputs, strict=True)}
        del model.graph.input[:]
        del model.graph.initializer[:]
        for value in case.model.graph.input:
            if value.name in constant_names:
                model.graph.initializer.append(numpy_helper.from_array(feeds.pop(value.name), value.name))
            else:
                model.graph.input.append(value)
        found = run_model(model.SerializeToString(), feeds)
        for value, expected in zip(case.model.graph.output, outputs, strict=True):
            assert found[value.name].dtype == expected.dtype
            np.testing.assert_allclose(found[value.name], expected, case.rtol, case.atol)
            assert found[value.name].shape == expected.shape


def check_named_dimensions(
    op: Op, inputs: list[Array | None], constants: tuple[int, ...], emitted: set[str]
) -> None:
    """Check that gradients built without knowing the dimensions are those with known ones.

    Without them the rules take the general path, which emits these operators.
    """
    losses = [helper.make_node("ReduceSum", [y], [f"{y}_sum"], keepdims=0) for y in op.output_names]
    squares = [helper.make_node("Mul", [y, y], [f"{y}_square"]) for y in op.output_names]
    for loss, square in zip(losses, squares, strict=True):
        loss.input[0] = square.output[0]
    total = helper.make_node("Sum", [loss.output[0] for loss in losses], ["loss"])
    model = make_model(
        op, inputs, constants=constants, extra_nodes=[*squares, *losses, total], outputs=["loss"]
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("loss", onnx.TensorProto.DOUBLE, []))
    trained = [value.name for value in model.graph.input]
    feeds = {name: np.asarray(inputs[int(name[1:])]) for name in trained}
    expected = run_model(gradient_model(model.SerializeToString(), trained, "loss"), feeds)
    for value in model.graph.input:
        for i, dim in enumerate(value.type.tensor_type.shape.dim):
            dim.dim_param = f"{value.name}_{i}"
    backward = gradient_model(model.SerializeToString(), trained, "loss")
    assert emitted <= {node.op_type for node in onnx.ModelProto.FromString(backward).graph.node}
    found = run_model(backward, feeds)
    for name in trained:
        np.testing.assert_allclose(found[f"{name}_grad"], expected[f"{name}_grad"], 1e-12)
