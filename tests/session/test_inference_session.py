"""Forward sessions, used like those of onnxruntime."""

from __future__ import annotations

import pathlib
import threading
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

FIXTURES = pathlib.Path(__file__).parents[1] / "data" / "fixtures"
MODELS = sorted(path.parent.name for path in FIXTURES.glob("*/model.onnx"))


def model_of(nodes: list, inputs: list, outputs: list, initializers: list | None = None) -> bytes:
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers or [])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()


def tensor(name: str, shape: list | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@pytest.fixture
def affine() -> bytes:
    """Return y = x w + b and z = sum(y), with a batch of any size."""
    weights = [
        numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w"),
        numpy_helper.from_array(np.array([1, -1], np.float32), "b"),
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    return model_of(nodes, [tensor("x", ["batch", 3])], [tensor("y", ["batch", 2]), tensor("z", [])], weights)


def both(model: bytes | str) -> tuple[ortrain.InferenceSession, onnxruntime.InferenceSession]:
    return ortrain.InferenceSession(model), onnxruntime.InferenceSession(
        model, providers=["CPUExecutionProvider"]
    )


@pytest.mark.parametrize("name", MODELS)
def test_a_model_declares_and_computes_what_it_does_in_onnxruntime(name: str) -> None:
    path = FIXTURES / name / "model.onnx"
    ours, theirs = both(str(path))
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in other]
    rng = np.random.default_rng(0)
    feeds = {}
    for value in ours.get_inputs():
        shape = [size if isinstance(size, int) else 4 for size in value.shape]
        whole = value.type == "tensor(int64)"
        feeds[value.name] = rng.integers(0, 2, shape) if whole else rng.random(shape, np.float32)
    for found, expected in zip(ours.run(None, feeds), theirs.run(None, feeds), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_session_is_made_from_a_path_a_path_object_and_bytes(affine: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "affine.onnx"
    path.write_bytes(affine)
    x = np.ones((1, 3), np.float32)
    for given in (affine, path, str(path)):
        np.testing.assert_array_equal(ortrain.InferenceSession(given).run(["y"], {"x": x})[0], [[7, 8]])


def test_external_data_is_found_beside_the_file(affine: bytes, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "affine.onnx"
    onnx.save(
        onnx.load_from_string(affine),
        path,
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    assert (tmp_path / "weights.bin").exists()
    [y] = ortrain.InferenceSession(path).run(["y"], {"x": np.ones((1, 3), np.float32)})
    np.testing.assert_array_equal(y, [[7, 8]])


def test_names_types_and_shapes_are_those_that_onnxruntime_says() -> None:
    kinds = [
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT64,
    ]
    kinds += [TensorProto.INT32, TensorProto.INT16, TensorProto.INT8, TensorProto.UINT64, TensorProto.UINT32]
    kinds += [TensorProto.UINT16, TensorProto.UINT8, TensorProto.BOOL]
    shapes = [[], [2], ["n", 3], [None, "m", 1], ["n"], [0]]
    inputs = [tensor(f"x{i}", shapes[i % len(shapes)], kind) for i, kind in enumerate(kinds)]
    outputs = [tensor(f"y{i}", shapes[i % len(shapes)], kind) for i, kind in enumerate(kinds)]
    nodes = [helper.make_node("Identity", [a.name], [b.name]) for a, b in zip(inputs, outputs, strict=True)]
    ours, theirs = both(model_of(nodes, inputs, outputs))
    for mine, other in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(a.name, a.type, a.shape) for a in mine] == [(a.name, a.type, a.shape) for a in other]


def test_what_a_model_does_not_state_of_its_outputs_is_inferred() -> None:
    weights = [
        numpy_helper.from_array(np.ones((3, 2), np.float32), "w"),
        numpy_helper.from_array(np.array([2], np.int64), "k"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("TopK", ["y", "k"], ["largest", "places"]),
        helper.make_node("Greater", ["y", "y"], ["more"]),
        helper.make_node("Transpose", ["y"], ["t"], perm=[1, 0]),
        helper.make_node("Cast", ["y"], ["half"], to=TensorProto.FLOAT16),
        helper.make_node("ReduceSum", ["y"], ["total"], keepdims=0),
        helper.make_node("Shape", ["y"], ["sizes"]),
    ]
    names = ["y", "largest", "places", "more", "t", "half", "total", "sizes"]
    outputs = [onnx.ValueInfoProto(name=name) for name in names]
    ours, theirs = both(model_of(nodes, [tensor("x", ["batch", 3])], outputs, weights))
    said = [(a.name, a.type, a.shape) for a in ours.get_outputs()]
    assert said == [(a.name, a.type, a.shape) for a in theirs.get_outputs()]
    assert said[4] == ("t", "tensor(float)", [2, "batch"])


def test_the_number_of_what_the_data_choose_is_unknown_but_its_rank_is_not() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"])]
    model = model_of(nodes, [tensor("x", ["a", "b"])], [onnx.ValueInfoProto(name="where")], [])
    [where] = ortrain.InferenceSession(model).get_outputs()
    assert (where.type, where.shape) == ("tensor(int64)", [2, None])


def test_one_value_may_be_several_outputs(affine: bytes) -> None:
    model = onnx.load_from_string(affine)
    model.graph.output.append(model.graph.output[0])
    session = ortrain.InferenceSession(model.SerializeToString())
    assert [output.name for output in session.get_outputs()] == ["y", "z", "y"]
    x = np.ones((2, 3), np.float32)
    y, z, again = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, [[7, 8], [7, 8]])
    np.testing.assert_array_equal(again, y)
    assert z == y.sum()
    again[:] = 0
    assert y.any(), "each output has separate memory"
    y, other = session.run(["y", "y"], {"x": x})
    np.testing.assert_array_equal(other, y)


def test_a_value_of_unknown_size_may_be_several_outputs() -> None:
    nodes = [helper.make_node("NonZero", ["x"], ["where"])]
    outputs = [tensor("where", [1, "n"], TensorProto.INT64)] * 2
    session = ortrain.InferenceSession(model_of(nodes, [tensor("x", ["a"])], outputs, []))
    for x in ([0, 1, 1], [1, 0, 0]):
        first, second = session.run(None, {"x": np.array(x, np.float32)})
        np.testing.assert_array_equal(first, [np.nonzero(x)[0]])
        np.testing.assert_array_equal(second, first)


def test_outputs_are_chosen_by_name_and_in_the_order_asked_for(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    feed = {"x": np.ones((2, 3), np.float32)}
    z, y = session.run(["z", "y"], feed)
    assert z.shape == ()
    np.testing.assert_array_equal(y.sum(), z)
    assert [a.shape for a in session.run([], feed)] == [(2, 2), ()]
    with pytest.raises(ortrain.InvalidArgumentError, match=r"no output 'w'.*y, z"):
        session.run(["w"], feed)


def test_shapes_may_change_from_run_to_run(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    for batch in (1, 5, 0, 3, 1):
        x = np.random.default_rng(batch).random((batch, 3), np.float32)
        [y] = session.run(["y"], {"x": x})
        np.testing.assert_allclose(y, x @ np.arange(6).reshape(3, 2) + [1, -1], rtol=1e-6)


def test_python_numbers_are_converted_and_arrays_of_another_type_refused(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    np.testing.assert_array_equal(session.run(["y"], {"x": [[1, 1, 1]]})[0], [[7, 8]])
    with pytest.raises(ortrain.InvalidArgumentError, match=r"'x'.*expected float32, found float64"):
        session.run(["y"], {"x": np.ones((1, 3))})


def test_wrong_names_and_shapes_say_what_was_expected(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    x = np.ones((2, 3), np.float32)
    with pytest.raises(ortrain.InvalidArgumentError, match="no input 'v'; its inputs: x"):
        session.run(None, {"v": x})
    with pytest.raises(ortrain.InvalidArgumentError, match="no input 'v'; its inputs: x"):
        session.run_with_ort_values(None, {"v": ortrain.OrtValue.ortvalue_from_numpy(x)})
    with pytest.raises(ortrain.InvalidArgumentError, match="input 'x' was not given"):
        session.run(None, {})
    with pytest.raises(
        ortrain.InvalidArgumentError, match=r"'x'.*expected float32\[batch, 3\], found float32\[2, 4\]"
    ):
        session.run(None, {"x": np.ones((2, 4), np.float32)})
    with pytest.raises(ortrain.InvalidArgumentError, match=r"'x'.*ranks differ"):
        session.run(None, {"x": np.ones(3, np.float32)})


def test_one_name_is_one_size() -> None:
    nodes = [helper.make_node("Add", ["a", "b"], ["c"])]
    session = ortrain.InferenceSession(
        model_of(nodes, [tensor("a", ["n"]), tensor("b", ["n"])], [tensor("c", ["n"])])
    )
    with pytest.raises(ortrain.InvalidArgumentError, match=r"'n' is 2 in input 'a'"):
        session.run(None, {"a": np.ones(2, np.float32), "b": np.ones(1, np.float32)})


def test_a_question_mark_names_no_dimension() -> None:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ["?", 3, "?"])], [tensor("y", ["?", 3, "?"])]
    )
    for session in both(model):
        assert session.run(None, {"x": np.ones((2, 3, 4), np.float32)})[0].shape == (2, 3, 4)


def test_given_tensors_receive_outputs(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    x = ortrain.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32))
    room = np.zeros((2, 2), np.float32)
    y = ortrain.OrtValue.ortvalue_from_numpy(room)
    results = session.run_with_ort_values(["z", "y"], {"x": x}, output_values={"y": y})
    assert results[1] is y
    np.testing.assert_array_equal(room, [[7, 8], [7, 8]])
    np.testing.assert_array_equal(results[0].numpy(), 30)
    small = ortrain.OrtValue.ortvalue_from_numpy(np.zeros((1, 2), np.float32))
    with pytest.raises(ortrain.InvalidArgumentError, match=r"'y'.*float32\[2, 2\].*float32\[1, 2\]"):
        session.run_with_ort_values(["y"], {"x": x}, output_values={"y": small})


def test_outputs_outlive_session_and_inputs(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    x = np.ones((1, 3), np.float32)
    [y] = session.run(["y"], {"x": x})
    x[:] = 5
    session.run(["y"], {"x": x})
    del session, x
    np.testing.assert_array_equal(y, [[7, 8]])


def test_an_output_may_be_an_input_or_a_constant() -> None:
    constant = numpy_helper.from_array(np.array([3.0], np.float32), "c")
    nodes = [helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Identity", ["c"], ["d"])]
    session = ortrain.InferenceSession(
        model_of(nodes, [tensor("x", [2])], [tensor("y", [2]), tensor("d", [1])], [constant])
    )
    x = np.array([1, 2], np.float32)
    y, d = session.run(None, {"x": x})
    x[:] = 0
    np.testing.assert_array_equal(y, [1, 2])
    d[:] = 0
    np.testing.assert_array_equal(session.run(["d"], {"x": x})[0], [3])


def test_bfloat16_is_that_of_ml_dtypes() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
    there = ortrain.InferenceSession(
        model_of(nodes, [tensor("x", [3])], [tensor("y", [3], TensorProto.BFLOAT16)])
    )
    x = np.array([1, 2.5, 1e30], np.float32)
    [y] = there.run(None, {"x": x})
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, x.astype(ml_dtypes.bfloat16))
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT)]
    back = ortrain.InferenceSession(
        model_of(nodes, [tensor("x", [3], TensorProto.BFLOAT16)], [tensor("y", [3])])
    )
    np.testing.assert_array_equal(back.run(None, {"x": y})[0], y.astype(np.float32))


def test_providers_that_there_are_not_are_left_out_with_a_warning(affine: bytes) -> None:
    with pytest.warns(UserWarning, match=r"not available: CUDAExecutionProvider.*CPUExecutionProvider"):
        ortrain.InferenceSession(affine, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ortrain.InferenceSession(affine, None, [("CPUExecutionProvider", {})])
        ortrain.InferenceSession(affine, None, ["CPUExecutionProvider"], [{}])
    with pytest.raises(
        ortrain.InvalidArgumentError, match="expected 1 dictionary of options, one for each provider, found 2"
    ):
        ortrain.InferenceSession(affine, None, ["CPUExecutionProvider"], [{}, {}])


def test_a_run_that_is_told_to_end_ends(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    options = ortrain.RunOptions()
    assert not options.terminate
    feed = {"x": np.ones((1, 3), np.float32)}
    options.terminate = True
    with pytest.raises(ortrain.OrtrainError, match=r"terminate|end"):
        session.run(None, feed, options)
    options.terminate = False
    assert len(session.run(None, feed, options)) == 2


def test_a_run_without_a_step_ends_too(affine: bytes) -> None:
    constant = helper.make_node("Constant", [], ["y"], value_floats=[1.0, 2.0])
    passed_on = model_of([], [tensor("x", [1])], [tensor("x", [1])])
    options = ortrain.RunOptions()
    for model, feed in (
        (model_of([constant], [], [tensor("y", [2])]), {}),
        (passed_on, {"x": np.ones(1, "f")}),
    ):
        ours, theirs = both(model)
        options.terminate = True
        with pytest.raises(
            ortrain.OrtrainError, match="Exiting due to terminate flag being set to true"
        ) as error:
            ours.run(None, feed, options)
        assert error.value.code == ortrain.OrtErrorCode.ORT_FAIL
        options.terminate = False
        np.testing.assert_array_equal(ours.run(None, feed, options)[0], theirs.run(None, feed)[0])
    options.terminate = True
    ended = onnxruntime.RunOptions()
    ended.terminate = True
    ours, theirs = both(affine)
    feed = {"x": np.ones((1, 3), np.float32)}
    with pytest.raises(Exception, match="Exiting due to terminate flag being set to true"):
        theirs.run(None, feed, ended)
    with pytest.raises(ortrain.OrtrainError, match="Exiting due to terminate flag being set to true"):
        ours.run(None, feed, options)


def test_inputs_that_the_wanted_outputs_do_not_need_may_be_left_out() -> None:
    nodes = [
        helper.make_node("Relu", ["a"], ["ya"]),
        helper.make_node("Add", ["a", "b"], ["yb"]),
    ]
    values = [tensor(name, ["n"]) for name in ("a", "b", "ya", "yb")]
    ours, theirs = both(model_of(nodes, values[:2], values[2:]))
    feed = {"a": np.array([-1, 2], np.float32)}
    expected = theirs.run(["ya"], feed | {"b": np.ones(2, np.float32)})[0]
    for _ in range(2):
        np.testing.assert_array_equal(ours.run(["ya"], feed)[0], expected)
        for outputs in (["yb"], ["ya", "yb"], None):
            with pytest.raises(ortrain.InvalidArgumentError, match="input 'b' was not given"):
                ours.run(outputs, feed)
    # All given inputs are checked, needed or not.
    for wrong in (np.ones(2, np.int64), np.ones((2, 2), np.float32)):
        with pytest.raises(ortrain.InvalidArgumentError, match="'b'"):
            ours.run(["ya"], feed | {"b": wrong})
    np.testing.assert_array_equal(ours.run(["yb"], feed | {"b": np.ones(2, np.float32)})[0], [0, 3])


def test_settings_of_the_session_are_taken(affine: bytes) -> None:
    options = ortrain.SessionOptions()
    options.intra_op_num_threads = 1
    session = ortrain.InferenceSession(affine, options)
    np.testing.assert_array_equal(session.run(["y"], {"x": np.ones((1, 3), np.float32)})[0], [[7, 8]])


def test_models_that_cannot_run_are_refused_when_the_session_is_made(tmp_path: pathlib.Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.onnx"):
        ortrain.InferenceSession(tmp_path / "absent.onnx")
    with pytest.raises(ortrain.OrtrainError, match="ONNX"):
        ortrain.InferenceSession(b"no model")
    nodes = [helper.make_node("Fancy", ["x"], ["y"], "first", domain="d"),
             helper.make_node("Odd", ["y"], ["z"], "second", domain="d")]  # fmt: skip
    model = onnx.load_from_string(model_of(nodes, [tensor("x", [2])], [tensor("z", [2])]))
    model.opset_import.append(helper.make_opsetid("d", 1))
    with pytest.raises(ortrain.NotImplementedInOrtrainError, match=r"(?s)first.*second"):
        ortrain.InferenceSession(model.SerializeToString())


def test_runs_from_several_threads_follow_one_another(affine: bytes) -> None:
    session = ortrain.InferenceSession(affine)
    wrong: list[int] = []

    def work(number: int) -> None:
        for turn in range(50):
            x = np.full((1 + turn % 3, 3), number, np.float32)
            [y] = session.run(["y"], {"x": x})
            if not np.array_equal(y, x @ np.arange(6, dtype=np.float32).reshape(3, 2) + [1, -1]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
