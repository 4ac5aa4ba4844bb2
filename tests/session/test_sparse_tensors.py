"""Sparse tensors in Python: the same program in ortrain and in onnxruntime."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper

VALUES = np.array([1.5, 2, -3], np.float32)
PAIRS = np.array([[0, 2], [1, 0], [1, 2]], np.int64)
FLAT = np.array([2, 3, 5], np.int64)
COLUMNS, STARTS = np.array([2, 0, 2], np.int64), np.array([0, 1, 3, 3], np.int64)


@pytest.fixture(params=["ortrain", "onnxruntime"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    """Each of the two libraries in turn: what is stated of one has to hold for the other."""
    return ortrain if request.param == "ortrain" else pytest.importorskip("onnxruntime")


def product(*outputs: str) -> bytes:
    types = {
        "A": helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [3, "k"]),
        "B": helper.make_tensor_type_proto(TensorProto.FLOAT, ["k", "n"]),
        "Y": helper.make_tensor_type_proto(TensorProto.FLOAT, None),
    }
    node = helper.make_node("SparseToDenseMatMul", ["A", "B"], ["Y"], domain="com.microsoft")
    infos = {name: helper.make_value_info(name, kind) for name, kind in types.items()}
    graph = helper.make_graph([node], "g", [infos["A"], infos["B"]], [infos[name] for name in outputs])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def coo(
    library: ModuleType, places: np.ndarray[Any, Any] = PAIRS, values: np.ndarray[Any, Any] = VALUES
) -> Any:
    return library.SparseTensor.sparse_coo_from_numpy(
        [3, 3], values, places, library.OrtDevice.make("cpu", 0)
    )


def csr(library: ModuleType) -> Any:
    cpu = library.OrtDevice.make("cpu", 0)
    return library.SparseTensor.sparse_csr_from_numpy([3, 3], VALUES, COLUMNS, STARTS, cpu)


def test_what_is_given_can_be_read(library: ModuleType) -> None:
    tensor = coo(library)
    assert tensor.format() == library.OrtSparseFormat.ORT_SPARSE_COO
    assert tensor.dense_shape() == [3, 3]
    assert (tensor.data_type(), tensor.device_name()) == ("sparse_tensor(float)", "cpu")
    np.testing.assert_array_equal(tensor.values(), VALUES)
    np.testing.assert_array_equal(tensor.as_coo_view().indices(), PAIRS)
    np.testing.assert_array_equal(coo(library, FLAT).as_coo_view().indices(), FLAT)
    rows = csr(library)
    assert rows.format() == library.OrtSparseFormat.ORT_SPARSE_CSRC
    np.testing.assert_array_equal(rows.as_csrc_view().inner(), COLUMNS)
    np.testing.assert_array_equal(rows.as_csrc_view().outer(), STARTS)
    words = coo(library, FLAT, np.array(["one", "two", "three"]))
    assert words.data_type() == "sparse_tensor(string)"
    assert words.values().tolist() == ["one", "two", "three"]
    for view in (rows.as_coo_view, tensor.as_csrc_view, tensor.as_blocksparse_view):
        with pytest.raises(RuntimeError):
            view()


def test_a_value_says_that_it_is_sparse(library: ModuleType) -> None:
    value = library.OrtValue.ort_value_from_sparse_tensor(csr(library))
    assert value.is_sparse_tensor()
    assert not value.is_tensor()
    assert value.has_value()
    assert (value.data_type(), value.shape()) == ("sparse_tensor(float)", [3, 3])
    np.testing.assert_array_equal(value.as_sparse_tensor().values(), VALUES)
    assert not library.OrtValue.ortvalue_from_numpy(VALUES).is_sparse_tensor()


def test_indices_that_do_not_fit_are_rejected() -> None:
    for places, message in (
        (FLAT[:2], "needs 3 indices, or twice as many, found 2"),
        (FLAT + 7, "the index of value 0 is 9, expected a number of 0 or more and below 9"),
        (PAIRS + 1, "the column of value 0 is 3"),
    ):
        with pytest.raises(ortrain.InvalidArgumentError, match=message):
            coo(ortrain, places)
    cpu = ortrain.OrtDevice()
    with pytest.raises(ortrain.InvalidArgumentError, match="start 2 of 4 is 0"):
        ortrain.SparseTensor.sparse_csr_from_numpy([3, 3], VALUES, COLUMNS, np.array([0, 1, 0, 3]), cpu)


def test_values_are_those_of_the_array(library: ModuleType) -> None:
    values = VALUES.copy()
    tensor = coo(library, PAIRS, values)
    values[0] = 9
    assert tensor.values()[0] == 9
    kept = tensor.values()
    del tensor, values
    gc.collect()
    np.testing.assert_array_equal(kept, [9, 2, -3])


def test_a_model_multiplies_a_sparse_matrix(library: ModuleType) -> None:
    session = library.InferenceSession(product("Y"), providers=["CPUExecutionProvider"])
    a = session.get_inputs()[0]
    assert (a.name, a.type, a.shape) == ("A", "sparse_tensor(float)", [3, "k"])
    b = np.arange(6, dtype=np.float32).reshape(3, 2)
    dense = np.zeros((3, 3), np.float32)
    dense[PAIRS[:, 0], PAIRS[:, 1]] = VALUES
    for tensor in (coo(library), csr(library)):
        feed = {
            "A": library.OrtValue.ort_value_from_sparse_tensor(tensor),
            "B": library.OrtValue.ortvalue_from_numpy(b),
        }
        (y,) = session.run_with_ort_values(["Y"], feed)
        np.testing.assert_allclose(y.numpy(), dense @ b, rtol=1e-6)


def test_a_sparse_input_is_passed_through(library: ModuleType) -> None:
    session = library.InferenceSession(product("Y", "A"), providers=["CPUExecutionProvider"])
    assert [output.name for output in session.get_outputs()] == ["Y", "A"]
    feed = {
        "A": library.OrtValue.ort_value_from_sparse_tensor(csr(library)),
        "B": library.OrtValue.ortvalue_from_numpy(np.ones((3, 2), np.float32)),
    }
    _, a = session.run_with_ort_values(None, feed)
    np.testing.assert_array_equal(a.as_sparse_tensor().as_csrc_view().inner(), COLUMNS)


def test_indices_that_change_after_they_were_given_are_checked_again() -> None:
    session = ortrain.InferenceSession(product("Y"))
    places = PAIRS.copy()
    b = np.ones((3, 2), np.float32)
    value = ortrain.OrtValue.ort_value_from_sparse_tensor(coo(ortrain, places))
    binding = session.io_binding()
    binding.bind_ortvalue_input("A", value)
    binding.bind_cpu_input("B", b)
    binding.bind_output("Y")
    session.run_with_iobinding(binding)
    places[1, 1] = 1_000_000
    with pytest.raises(ortrain.InvalidArgumentError, match="value 1 of A is in column 1000000"):
        session.run_with_iobinding(binding)
    with pytest.raises(ortrain.InvalidArgumentError, match="value 1 of A is in column 1000000"):
        session.run(None, {"A": value, "B": b})


def test_a_large_sparse_matrix_takes_no_more_memory_than_its_values() -> None:
    types = [
        helper.make_value_info("A", helper.make_sparse_tensor_type_proto(TensorProto.FLOAT, [None, None])),
        helper.make_tensor_value_info("B", TensorProto.FLOAT, [None, 1]),
    ]
    node = helper.make_node("SparseToDenseMatMul", ["A", "B"], ["Y"], domain="com.microsoft", transA=1)
    graph = helper.make_graph(
        [node], "g", types, [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    n = 1_000_000  # with all elements, four terabytes
    places = np.stack([np.arange(3), np.array([7, n - 1, 7])], axis=1).astype(np.int64)
    a = ortrain.SparseTensor.sparse_coo_from_numpy([n, n], VALUES, places, ortrain.OrtDevice())
    feed = {"A": ortrain.OrtValue.ort_value_from_sparse_tensor(a), "B": np.ones((n, 1), np.float32)}
    y = ortrain.InferenceSession(model.SerializeToString()).run(None, feed)[0]
    assert y.shape == (n, 1)
    assert (y[7, 0], y[n - 1, 0], np.count_nonzero(y)) == (-1.5, 2, 2)


def test_a_sparse_matrix_without_indices_of_rows_and_columns_is_named() -> None:
    session = ortrain.InferenceSession(product("Y"))
    feed = {
        "A": ortrain.OrtValue.ort_value_from_sparse_tensor(coo(ortrain, FLAT)),
        "B": np.ones((3, 2), np.float32),
    }
    with pytest.raises(
        ortrain.OrtrainError, match="input 'A': expected a pair of row and column for each value"
    ):
        session.run(None, feed)
    with pytest.raises(
        ortrain.InvalidArgumentError, match="input 'A': expected a sparse tensor, found float32"
    ):
        session.run(None, feed | {"A": np.ones((3, 3), np.float32)})


def test_nodes_that_take_no_sparse_tensor_are_named() -> None:
    model = onnx.load_from_string(product("Y"))
    model.graph.node[0].op_type, model.graph.node[0].domain = "MatMul", ""
    with pytest.raises(ortrain.OrtrainError, match=r"MatMul.*its input 0, 'A', is a sparse tensor"):
        ortrain.InferenceSession(model.SerializeToString())
