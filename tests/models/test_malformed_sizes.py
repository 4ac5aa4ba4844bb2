"""Attributes that ask for more than there is are refused, or cost no more than the data does."""

from __future__ import annotations

from typing import Any

import numpy as np
import ortrain
import pytest
from malformed import Array, check_refused, check_taken, opset_imports
from onnx import TensorProto, helper, numpy_helper

F32, I64 = np.float32, np.int64
IMAGE = np.ones((1, 2, 4, 4), F32)
GRADIENT = {"domain": "com.microsoft"}
ML, DIMENSIONS = "ai.onnx.ml", "inputdimensions"

REFUSED: dict[str, tuple[Any, dict[str, Array], str]] = {
    "a kernel beyond 32 bits": (
        helper.make_node("MaxPool", ["x"], ["y"], "bad", kernel_shape=[2**31, 1], pads=[2**31 - 1, 0, 0, 0]),
        {"x": IMAGE}, "every value of attribute kernel_shape",
    ),
    "a window that overflows": (
        helper.make_node("AveragePool", ["x"], ["y"], "bad", kernel_shape=[2**62, 4], pads=[2**62, 0, 2**62, 0]),
        {"x": IMAGE}, "every value of attribute",
    ),
    "strides that overflow": (
        helper.make_node("Conv", ["x", "w"], ["y"], "bad", strides=[2**62, 2**62]),
        {"x": IMAGE, "w": np.ones((1, 2, 2, 2), F32)}, "every value of attribute strides",
    ),
    "groups that overflow": (
        helper.make_node("Conv", ["x", "w"], ["y"], "bad", group=2**62),
        {"x": IMAGE, "w": np.ones((4, 8, 2, 2), F32)}, "groups",
    ),
    "a transposed convolution beyond 32 bits": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], "bad", strides=[2**31 - 1, 2**31 - 1]),
        {"x": IMAGE, "w": np.ones((2, 1, 2, 2), F32)}, "too long",
    ),
    "a transposed convolution to a shape beyond 32 bits": (
        helper.make_node("ConvTranspose", ["x", "w"], ["y"], "bad", output_shape=[2**33, 4]),
        {"x": IMAGE, "w": np.ones((2, 1, 2, 2), F32)}, " are supported",
    ),
    "a gradient of pooling without axes": (
        helper.make_node("AveragePoolGrad", ["s"], ["y"], "bad", kernel_shape=[2, 2]),
        {"s": np.float32(1)}, "dY must have shape [N, C, D1, ...]",
    ),
    "a gradient of pooling to an empty shape": (
        helper.make_node("AveragePoolGrad", ["s", "n"], ["y"], "bad", kernel_shape=[2, 2]),
        {"s": np.float32(1), "n": np.zeros(0, I64)}, "dY must have shape [N, C, D1, ...]",
    ),
    "a gradient of pooling with a stride that does not tell the size": (
        helper.make_node("AveragePoolGrad", ["x"], ["y"], "bad", kernel_shape=[2, 2], strides=[2**31 - 1, 1]),
        {"x": IMAGE}, "is not known",
    ),
    "an integer convolution of scalars": (
        helper.make_node("ConvInteger", ["s", "s", "z", "z"], ["y"], "bad"),
        {"s": np.asarray(np.uint8(1)), "z": np.asarray(np.uint8(1))}, "its input X must have shape",
    ),
    "DepthToSpace of nothing": (
        helper.make_node("DepthToSpace", ["x"], ["y"], "bad", blocksize=0), {"x": IMAGE}, "blocksize",
    ),
    "a RoiAlign of many points": (
        helper.make_node("RoiAlign", ["x", "rois", "i"], ["y"], "bad", sampling_ratio=2**62),
        {"x": IMAGE, "rois": np.ones((1, 4), F32), "i": np.zeros(1, I64)}, "sampling_ratio",
    ),
    "a MaxUnpool that overflows": (
        helper.make_node("MaxUnpool", ["x", "at"], ["y"], "bad", kernel_shape=[2, 2], strides=[2**62, 2**62]),
        {"x": IMAGE, "at": np.zeros(IMAGE.shape, I64)}, "32 bits",
    ),
    "a DeformConv with more groups than channels": (
        helper.make_node("DeformConv", ["e", "w", "o"], ["y"], "bad", offset_group=2**62),
        {"e": np.ones((1, 0, 4, 4), F32), "w": np.ones((1, 0, 2, 2), F32), "o": np.ones((1, 8, 3, 3), F32)}, "offset_group",
    ),
    "support vectors that overflow": (
        helper.make_node("SVMRegressor", ["v"], ["y"], "bad", domain=ML, n_supports=2**62,
                         coefficients=[1.0], rho=[0.0], support_vectors=[1.0]),
        {"v": np.ones((1, 4), F32)}, "support vectors",
    ),
    "support vectors of classes that overflow": (
        helper.make_node("SVMClassifier", ["v"], ["y", "z"], "bad", domain=ML, coefficients=[1.0],
                         vectors_per_class=[2**62, 2**62, 2**62], classlabels_ints=[0, 1, 2], rho=[0.0] * 3),
        {"v": np.ones((1, 4), F32)}, "support vectors",
    ),
    "weights of bits that overflow": (
        helper.make_node("MatMulNBits", ["v", "p", "c"], ["y"], "bad", K=2**62, N=2**62, bits=4, block_size=32, **GRADIENT),
        {"v": np.ones((1, 4), F32), "p": np.zeros(4, np.uint8), "c": np.ones(1, F32)}, "too large",
    ),
    "an order of attention that is none": (
        helper.make_node("FusedAttention", ["q", "q", "q"], ["y"], "bad", y_order=[0, 7, 2, 3], **GRADIENT),
        {"q": np.ones((1, 2, 4, 8), F32)}, "permutation",
    ),
    "a gradient of quantization to a type that is none": (
        helper.make_node("QuantizeLinearGrad", ["v", "v", "s"], ["y"], "bad", output_dtype=7, **GRADIENT),
        {"v": np.ones((1, 4), F32), "s": np.float32(1)}, "cannot quantize",
    ),
    "features that overflow": (
        helper.make_node("FeatureVectorizer", ["v", "v", "v"], ["y"], "bad", domain=ML, inputdimensions=[2**62] * 3),
        {"v": np.ones((1, 4), F32)}, "inputdimensions",
    ),
    "heads of no elements in a rotation": (
        helper.make_node("RotaryEmbedding", ["e", "c", "c"], ["y"], "bad", num_heads=2**62, domain=""),
        {"e": np.ones((1, 4, 0), F32), "c": np.ones((1, 4, 0), F32)}, "num_heads",
    ),
    "heads of no elements in attention": (
        helper.make_node("MultiHeadAttention", ["e", "e", "e"], ["y"], "bad", num_heads=2**62, **GRADIENT),
        {"e": np.ones((1, 4, 0), F32)}, "num_heads",
    ),
    "heads of no elements in linear attention": (
        helper.make_node("LinearAttention", ["e", "e", "e"], ["y"], "bad", q_num_heads=2**62, kv_num_heads=2**62,
                         update_rule="linear"),
        {"e": np.ones((2, 4, 0), F32)}, "query must have shape",
    ),
    "n-grams at places that overflow": (
        helper.make_node("TfIdfVectorizer", ["t"], ["y"], "bad", mode="TF", min_gram_length=1, max_gram_length=1,
                         max_skip_count=0, ngram_counts=[0], ngram_indexes=[2**63 - 1], pool_int64s=[1]),
        {"t": np.ones(4, I64)}, "ngram_indexes",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_an_attribute_without_measure_is_refused(name: str) -> None:
    node, values, part = REFUSED[name]
    check_refused(node, {key: np.asarray(value) for key, value in values.items()}, 'node "bad"', part)


@pytest.mark.timeout(60)  # rather than 2^40 indices
def test_windows_of_more_elements_than_can_be_listed_are_refused() -> None:
    node = helper.make_node("UnfoldTensor", ["x"], ["y"], "bad", size=4, step=1, domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2**40])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "windows", [x], [y])
    model = helper.make_model(graph, opset_imports=opset_imports(17), ir_version=9)
    with pytest.raises(ortrain.OrtrainError, match=r"bad.*windows of 4 elements must have at most"):
        ortrain.InferenceSession(model.SerializeToString())


@pytest.mark.timeout(60)  # rather than 2^44 rows
def test_dimensions_beside_a_zero_count_as_elements() -> None:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"], "bad")
    check_refused(node, {"s": np.array([2**22, 2**22, 0], I64)}, 'node "bad"', "session.max_elements")


@pytest.mark.parametrize("given_as", ["input", "initializer"])
def test_dimensions_beside_a_zero_count_as_elements_of_given_values(given_as: str) -> None:
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    shape = [2**22, 0, 2**22]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["a", "b", "c"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    stored = helper.make_tensor("x", TensorProto.FLOAT, shape, b"", raw=True)
    is_input = given_as == "input"
    graph = helper.make_graph([node], "given", [x] * is_input, [y], [stored] * (not is_input))
    model = helper.make_model(graph, opset_imports=opset_imports(17), ir_version=9)
    session = ortrain.InferenceSession(model.SerializeToString())
    inputs = {"x": np.zeros(shape, F32)} if is_input else {}
    with pytest.raises(
        ortrain.OrtrainError, match=r'"x" has shape \[4194304, 0, 4194304\].*session\.max_elements'
    ):
        session.run(None, inputs)


@pytest.mark.timeout(60)  # rather than 2^38 pieces
@pytest.mark.parametrize("split", [[], ["one"]])
def test_a_sequence_of_more_pieces_than_fit_into_memory_is_refused(split: list[str]) -> None:
    node = helper.make_node("SplitToSequence", ["e", *split], ["s"], "bad")
    last = helper.make_node("SequenceLength", ["s"], ["y"])
    values = {"e": np.zeros((2**38, 0), F32), "one": np.int64(1)}
    graph = helper.make_graph(
        [node, last],
        "pieces",
        [],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=opset_imports(17), ir_version=9)
    with pytest.raises(ortrain.OrtrainError, match=r"bad.*session\.max_"):
        ortrain.InferenceSession(model.SerializeToString()).run(None, {})


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_the_mean_of_more_values_than_the_type_counts(dtype: type) -> None:
    """Of 65,536 values, a number that is 0 in these types."""
    x = np.zeros(65536, dtype)
    x[0] = 7
    node = helper.make_node("ReduceMean", ["x"], ["y"], keepdims=0)
    value = helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
    result = helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(x.dtype), [])
    graph = helper.make_graph([node], "mean", [value], [result])
    model = helper.make_model(graph, opset_imports=opset_imports(17), ir_version=9)
    session = ortrain.InferenceSession(model.SerializeToString())
    assert session.run(None, {"x": x})[0] == 0


TAKEN: dict[str, tuple[Any, dict[str, Array]]] = {
    "a window over much padding, largest": (
        helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2**31 - 1, 1], pads=[2**31 - 5, 0, 0, 0]), {"x": IMAGE},
    ),
    "a window over much padding, mean": (
        helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[2**31 - 1, 1], pads=[2**31 - 5, 0, 0, 0]), {"x": IMAGE},
    ),
    "a window over much padding, norm": (
        helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[2**31 - 1, 1], pads=[2**31 - 5, 0, 0, 0]), {"x": IMAGE},
    ),
    "n-grams with skips beyond the text": (
        helper.make_node("TfIdfVectorizer", ["t"], ["y"], mode="TF", min_gram_length=1, max_gram_length=2,
                         max_skip_count=2**40, ngram_counts=[0, 1], ngram_indexes=[0, 1], pool_int64s=[1, 1, 2]),
        {"t": np.array([1, 2, 3], I64)},
    ),
    "a window of attention beyond all keys": (
        helper.make_node("Attention", ["q", "q", "q"], ["y"], left_window_size=2**63 - 1, right_window_size=2**63 - 1),
        {"q": np.ones((1, 2, 4, 8), F32)},
    ),
    "a block of quantization beyond the axis": (
        helper.make_node("DequantizeLinear", ["b", "s"], ["y"], axis=0, block_size=2**63 - 1),
        {"b": np.ones((4, 2), np.int8), "s": np.ones((1, 2), F32)},
    ),
    "imputed values beyond the type": (
        helper.make_node("Imputer", ["t"], ["y"], domain=ML, imputed_value_int64s=[2**63 - 1],
                         replaced_value_int64=2**63 - 1),
        {"t": np.ones((1, 3), I64)},
    ),
}  # fmt: skip


@pytest.mark.timeout(60)  # rather than 2^31 elements of a window
@pytest.mark.parametrize("name", TAKEN)
def test_an_attribute_beyond_the_data_costs_no_more_than_the_data(name: str) -> None:
    node, values = TAKEN[name]
    opset = {"Attention": 25, "DequantizeLinear": 21}.get(node.op_type, 17)
    check_taken(node, {key: np.asarray(value) for key, value in values.items()}, opset)


def loss_of(node: Any, inputs: list[tuple[str, list[int]]], opset: int = 17) -> bytes:
    """Return a model whose loss is the sum of what a node gives."""
    nodes = [node, helper.make_node("ReduceSum", [node.output[0]], ["loss"], keepdims=0)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs]
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "loss", infos, [loss])
    return helper.make_model(graph, opset_imports=opset_imports(opset), ir_version=9).SerializeToString()


@pytest.mark.parametrize(
    ("node", "shape", "part"),
    [
        (helper.make_node("DepthToSpace", ["x"], ["y"], "bad", blocksize=0, mode="CRD"), [1, 4, 2, 2], "blocksize"),
        (helper.make_node("DepthToSpace", ["x"], ["y"], "bad", blocksize=2**33, mode="CRD"), [1, 4, 2, 2], "blocksize"),
        (helper.make_node("LinearRegressor", ["x"], ["y"], "bad", domain=ML, coefficients=[1.0]), [1, 0], "features"),
        (helper.make_node("FeatureVectorizer", ["x", "x"], ["y"], "bad", domain=ML, inputdimensions=[1]), [1, 2], DIMENSIONS),
        (helper.make_node("FeatureVectorizer", ["x"], ["y"], "bad", domain=ML, inputdimensions=[2**63 - 1]), [1, 2], DIMENSIONS),
    ],
)  # fmt: skip
def test_a_gradient_rule_checks_what_it_reads(node: Any, shape: list[int], part: str) -> None:
    with pytest.raises(ortrain.OrtrainError, match=part):
        builder = ortrain.GradientGraphBuilder(loss_of(node, [("x", shape)]), {"loss"}, {"x"}, "loss")
        builder.build()


def test_a_selection_that_is_none_is_refused() -> None:
    """Slices with one start and no end, and with the largest start, before nodes that it could move in front of."""
    for ends, part in ((np.zeros(0, I64), "same length"), (np.array([-(2**63)], I64), "")):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Slice", ["h", "starts", "ends", "axes"], ["y"], "bad"),
        ]
        values = {
            "x": np.ones((1, 3, 4), F32),
            "w": np.ones((4, 4), F32),
            "starts": np.array([2**63 - 1], I64),
            "ends": ends,
            "axes": np.array([1], I64),
        }
        if part:
            check_refused(nodes, values, 'node "bad"', part)
        else:
            check_taken(nodes, values)


def test_a_permutation_that_is_none_is_refused_before_a_selection_moves() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Transpose", ["h"], ["t"], "bad", perm=[0]),
        helper.make_node("Gather", ["t", "i"], ["y"], axis=2),
    ]
    values = {"x": np.ones((1, 3, 4), F32), "w": np.ones((4, 4), F32), "i": np.array(0, I64)}
    check_refused(nodes, values, "perm")
