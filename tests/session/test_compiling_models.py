"""Compiling models, and files of initializers in memory: the same program in ortrain and in onnxruntime."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

X = np.arange(8, dtype=np.float32).reshape(2, 4) - 3
W = np.arange(12, dtype=np.float32).reshape(4, 3)
B = np.array([1, 2, -300], np.float32)


@pytest.fixture(params=["ortrain", "onnxruntime"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    return ortrain if request.param == "ortrain" else pytest.importorskip("onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["s"]),
        helper.make_node("Identity", ["s"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    weights = [numpy_helper.from_array(W, "w"), numpy_helper.from_array(B, "b")]
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def computed(library: ModuleType, model: Any, options: Any = None) -> np.ndarray[Any, Any]:
    session = library.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": X})[0]


EXPECTED = np.maximum(X @ W + B, 0)


def test_a_compiled_model_computes_the_same(library: ModuleType, model: Path, tmp_path: Path) -> None:
    options = library.SessionOptions()
    for level in library.GraphOptimizationLevel.__members__.values():
        compiler = library.ModelCompiler(options, str(model), graph_optimization_level=level)
        np.testing.assert_allclose(computed(library, compiler.compile_to_bytes()), EXPECTED)
    parts: list[bytes] = []
    library.ModelCompiler(options, str(model)).compile_to_stream(parts.append)
    np.testing.assert_allclose(computed(library, b"".join(parts)), EXPECTED)
    compiled = tmp_path / "compiled.onnx"
    library.ModelCompiler(options, model.read_bytes()).compile_to_file(str(compiled))
    np.testing.assert_allclose(computed(library, str(compiled)), EXPECTED)


def test_what_is_compiled_here_runs_in_onnxruntime(model: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    for level in ortrain.GraphOptimizationLevel:
        made = ortrain.ModelCompiler(ortrain.SessionOptions(), model, graph_optimization_level=level)
        np.testing.assert_allclose(computed(onnxruntime, made.compile_to_bytes()), EXPECTED)
    # From the basic level on, without the node that does nothing.
    basic = ortrain.ModelCompiler(
        ortrain.SessionOptions(),
        model,
        graph_optimization_level=ortrain.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    )
    assert [n.op_type for n in onnx.load_from_string(basic.compile_to_bytes()).graph.node] == [
        "MatMul",
        "Add",
        "Relu",
    ]


def test_large_initializers_go_to_a_file(library: ModuleType, model: Path, tmp_path: Path) -> None:
    compiled = tmp_path / "compiled.onnx"
    library.ModelCompiler(
        library.SessionOptions(),
        str(model),
        external_initializers_file_path="weights.bin",
        external_initializers_size_threshold=32,
    ).compile_to_file(str(compiled))
    assert (tmp_path / "weights.bin").stat().st_size == W.nbytes
    stored = onnx.load(compiled, load_external_data=False)
    assert {t.name: t.data_location for t in stored.graph.initializer} == {"w": TensorProto.EXTERNAL, "b": 0}
    np.testing.assert_allclose(computed(library, str(compiled)), EXPECTED)


def test_a_function_places_initializers(library: ModuleType, model: Path, tmp_path: Path) -> None:
    asked: list[str] = []

    def place(name: str, value: Any, known: Any) -> Any:
        asked.append(name)
        assert known is None
        if name != "w":
            return None
        (tmp_path / "placed.bin").write_bytes(b"." * 16 + value.numpy().tobytes())
        return library.OrtExternalInitializerInfo("placed.bin", 16, W.nbytes)

    compiled = tmp_path / "compiled.onnx"
    library.ModelCompiler(
        library.SessionOptions(), str(model), get_initializer_location_func=place
    ).compile_to_file(str(compiled))
    assert sorted(asked) == ["b", "w"]
    np.testing.assert_allclose(computed(library, str(compiled)), EXPECTED)


def test_the_function_learns_where_an_initializer_was(
    library: ModuleType, model: Path, tmp_path: Path
) -> None:
    split = tmp_path / "split.onnx"
    onnx.save(onnx.load(model), split, save_as_external_data=True, location="w.bin", size_threshold=0)
    places: dict[str, Any] = {}

    def place(name: str, value: Any, known: Any) -> Any:
        places[name] = known and (known.filepath, known.file_offset, known.byte_size)
        return None

    compiler = library.ModelCompiler(
        library.SessionOptions(), str(split), get_initializer_location_func=place
    )
    np.testing.assert_allclose(computed(library, compiler.compile_to_bytes()), EXPECTED)
    assert {Path(file).name for file, _, _ in places.values()} == {"w.bin"}
    assert places["w"][1:] == (0, W.nbytes)
    assert places["b"][1:] == (W.nbytes, B.nbytes)


def test_flags_and_what_is_wrong_are_errors(library: ModuleType, model: Path, tmp_path: Path) -> None:
    flags, options = library.OrtCompileApiFlags, library.SessionOptions()
    with pytest.raises(Exception, match="compile"):
        library.ModelCompiler(options, str(model), flags=flags.ERROR_IF_NO_NODES_COMPILED).compile_to_bytes()
    with pytest.raises(Exception, match="exist"):
        library.ModelCompiler(options, str(model), flags=flags.ERROR_IF_OUTPUT_FILE_EXISTS).compile_to_file(
            str(model)
        )
    with pytest.raises(Exception, match="ghost"):
        library.ModelCompiler(options, str(tmp_path / "ghost.onnx")).compile_to_bytes()
    with pytest.raises(Exception, match=r"(?i)protobuf|ONNX"):
        library.ModelCompiler(options, b"nothing").compile_to_bytes()


def test_what_a_function_raises_reaches_the_caller(model: Path) -> None:
    def place(name: str, value: Any, known: Any) -> Any:
        raise LookupError(f"no place for {name}")

    compiler = ortrain.ModelCompiler(ortrain.SessionOptions(), model, get_initializer_location_func=place)
    with pytest.raises(LookupError, match="no place for w"):
        compiler.compile_to_bytes()


def test_the_default_output_is_beside_the_model(model: Path) -> None:
    ortrain.ModelCompiler(ortrain.SessionOptions(), model).compile_to_file()
    np.testing.assert_allclose(computed(ortrain, model.with_name("model_ctx.onnx")), EXPECTED)
    with pytest.raises(ValueError, match="path of the output"):
        ortrain.ModelCompiler(ortrain.SessionOptions(), model.read_bytes()).compile_to_file()


def test_files_of_initializers_are_read_from_memory(library: ModuleType, model: Path, tmp_path: Path) -> None:
    whole = onnx.load(model)
    onnx.save(whole, tmp_path / "split.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    contents = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").unlink()
    options = library.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [contents], [len(contents)])
    np.testing.assert_allclose(computed(library, (tmp_path / "split.onnx").read_bytes(), options), EXPECTED)


def test_buffers_that_are_too_small_are_rejected() -> None:
    options = ortrain.SessionOptions()
    with pytest.raises(ortrain.InvalidArgumentError, match="the buffer has 4 bytes"):
        options.add_external_initializers_from_files_in_memory(["w.bin"], [b"four"], [5])
    with pytest.raises(ValueError, match="buffers has 0 entries"):
        options.add_external_initializers_from_files_in_memory(["w.bin"], [], [])


def test_nodes_are_listed_by_provider(library: ModuleType, model: Path) -> None:
    options = library.SessionOptions()
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = library.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    parts = session.get_provider_graph_assignment_info()
    told = [(part.ep_name, node.domain, node.op_type) for part in parts for node in part.get_nodes()]
    assert told == [("CPUExecutionProvider", "", op) for op in ("MatMul", "Add", "Identity", "Relu")]
    plain = library.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    with pytest.raises(Exception, match="record_ep_graph_assignment_info"):
        plain.get_provider_graph_assignment_info()
    assert len(plain.get_input_memory_infos()) == len(plain.get_input_epdevices()) == 1


def test_loading_is_canceled(library: ModuleType, model: Path) -> None:
    options = library.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(Exception, match=r"(?i)cancel"):
        library.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    options.set_load_cancellation_flag(False)
    np.testing.assert_allclose(computed(library, str(model), options), EXPECTED)


def test_the_place_of_compiled_nodes_is_checked(library: ModuleType, model: Path, tmp_path: Path) -> None:
    compiler = library.ModelCompiler(library.SessionOptions(), str(model))
    if not hasattr(compiler, "set_ep_context_binary_information"):
        pytest.skip("onnxruntime has it from 1.32 on")
    compiler.set_ep_context_binary_information(f"{tmp_path}/", "net")
    for wrong in ((f"{tmp_path}/", ""), ("", "net")):
        with pytest.raises(Exception, match="empty"):
            compiler.set_ep_context_binary_information(*wrong)
    for arguments in ((3, "net"), (f"{tmp_path}/", 3)):
        with pytest.raises(TypeError):
            compiler.set_ep_context_binary_information(*arguments)
    np.testing.assert_allclose(computed(library, compiler.compile_to_bytes()), EXPECTED)
