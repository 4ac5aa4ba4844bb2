"""The members of onnxruntime's forward API: they are all there, with its signatures, and one program has one result."""

from __future__ import annotations

import ast
import inspect
import json
import os
import pathlib
import threading
import time
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import ortrain
import pytest
from onnx import TensorProto, helper, numpy_helper

BOTH = pytest.mark.parametrize("library", [ortrain, onnxruntime], ids=["ortrain", "onnxruntime"])
CPU = ["CPUExecutionProvider"]


def affine_proto() -> onnx.ModelProto:
    """Return y = x w + b and z = sum(y), where b is an input with a default value."""
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=0),
    ]
    value = helper.make_tensor_value_info
    inputs = [value("x", TensorProto.FLOAT, ["batch", 3]), value("b", TensorProto.FLOAT, [2])]
    outputs = [value("y", TensorProto.FLOAT, ["batch", 2]), value("z", TensorProto.FLOAT, [])]
    weights = [
        numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(3, 2), "w"),
        numpy_helper.from_array(np.array([1, -1], np.float32), "b"),
    ]
    graph = helper.make_graph(nodes, "affine", inputs, outputs, weights, doc_string="of the graph")
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="a test",
        domain="org.example",
        doc_string="of the model",
        model_version=7,
    )
    helper.set_model_props(model, {"key": "value", "another": "äöü"})
    return model


AFFINE = affine_proto().SerializeToString()


def constant_bias() -> bytes:
    """Return the same with b as a constant."""
    model = affine_proto()
    del model.graph.input[1]
    return model.SerializeToString()


def made(library: ModuleType, model: bytes | str = AFFINE, **options: Any) -> Any:
    """Return a session whose options have some fields set."""
    settings = library.SessionOptions()
    for name, value in options.items():
        setattr(settings, name, value)
    return library.InferenceSession(model, settings, CPU)


def same(program: Callable[[ModuleType], Any]) -> Any:
    """Return the result of a program, which is the same with both libraries."""
    ours, theirs = program(ortrain), program(onnxruntime)
    np.testing.assert_equal(ours, theirs)
    return ours


# ---- what is there ----

LEFT_OUT = {
    # Execution providers that are plugins, and are tuned.
    "InferenceSession": {"get_tuning_results", "set_tuning_results"},
    "SessionOptions": {
        "clear_ep_context_data_read_func",
        "set_ep_context_data_read_func",
        "set_provider_selection_policy_delegate",
    },
}
CLASSES = [
    "InferenceSession",
    "IOBinding",
    "SessionIOBinding",
    "ModelMetadata",
    "OrtDevice",
    "OrtMemoryInfo",
    "OrtValue",
    "RunOptions",
    "SessionOptions",
]


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_has_the_members_of_onnxruntime(name: str) -> None:
    ours = set(getattr(getattr(ortrain, name), "__dataclass_fields__", {})) | public(getattr(ortrain, name))
    missing = public(getattr(onnxruntime, name)) - ours
    assert missing <= LEFT_OUT.get(name, set())


# What must be there whatever the installed release of onnxruntime has.
REQUIRED = {
    "InferenceSession": """
        io_binding run_with_iobinding run_with_ort_values run_with_ortvaluevector run_async get_providers set_providers
        get_provider_options get_session_options get_modelmeta end_profiling get_profiling_start_time_ns enable_fallback
        disable_fallback""",
    "OrtValue": "update_inplace",
    "RunOptions": "training_mode only_execute_path_to_fetches",
}
FUNCTIONS = """
    get_available_providers get_all_providers get_device get_version_string get_build_info set_default_logger_severity
    set_default_logger_verbosity"""


@pytest.mark.parametrize("name", REQUIRED)
def test_a_class_has_what_programs_need(name: str) -> None:
    assert set(REQUIRED[name].split()) <= public(getattr(ortrain, name))


@pytest.mark.parametrize("name", FUNCTIONS.split())
def test_a_function_has_the_parameters_of_onnxruntime(name: str) -> None:
    ours, theirs = getattr(ortrain, name), getattr(onnxruntime, name)
    try:
        expected = signature(theirs)
    except ValueError:  # a function of the extension, which only states how many there are
        count = theirs.__doc__.split("->")[0].count(":")
        assert len(signature(ours)) == count
    else:
        assert signature(ours) == expected


def stub_signatures(name: str) -> dict[str, list[tuple[str, Any]]]:
    """Return parameters and defaults of the methods of a class of the extension, from its stubs."""
    stubs = pathlib.Path(ortrain.__file__).parent / "_ortrain.pyi"
    cls = next(n for n in ast.parse(stubs.read_text()).body if isinstance(n, ast.ClassDef) and n.name == name)
    found = {}
    for method in cls.body:
        if isinstance(method, ast.FunctionDef):
            arguments = method.args.posonlyargs + method.args.args
            defaults = [inspect.Parameter.empty] * (len(arguments) - len(method.args.defaults))
            defaults += [ast.literal_eval(default) for default in method.args.defaults]
            names = [argument.arg for argument in arguments]
            found[method.name] = [pair for pair in zip(names, defaults, strict=True) if pair[0] != "self"]
    return found


def signature(function: Any) -> list[tuple[str, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in parameters if p.name != "self"]


@pytest.mark.parametrize("name", ["InferenceSession", "IOBinding", "OrtDevice", "OrtValue"])
def test_parameters_and_defaults_are_those_of_onnxruntime(name: str) -> None:
    theirs, ours = getattr(onnxruntime, name), getattr(ortrain, name)
    stubs = stub_signatures(name) if name == "OrtValue" else {}
    compared = 0
    for member in public(theirs) & (set(stubs) or public(ours)):
        if not inspect.isroutine(getattr(theirs, member)):
            continue
        expected = signature(getattr(theirs, member))
        found = stubs[member] if stubs else signature(getattr(ours, member))
        assert found[: len(expected)] == expected, member
        assert all(default is not inspect.Parameter.empty for _, default in found[len(expected) :]), member
        compared += 1
    assert compared >= 5
    if name != "OrtValue":
        created, expected = signature(ours.__init__), signature(theirs.__init__)
        assert name == "OrtDevice" or created == expected


@pytest.mark.parametrize("name", ["SessionOptions", "RunOptions"])
def test_options_begin_with_the_values_of_onnxruntime(name: str) -> None:
    theirs, ours = getattr(onnxruntime, name)(), getattr(ortrain, name)()
    fields = [n for n in public(type(theirs)) if not callable(getattr(theirs, n))]
    for field in fields:
        expected = getattr(theirs, field)
        assert getattr(ours, field) == (int(expected) if hasattr(expected, "value") else expected), field
        if field != "optimized_model_filepath":  # an empty path is refused
            setattr(ours, field, getattr(ours, field))
    assert len(fields) >= 5
    assert name != "RunOptions" or ours.training_mode is True


def test_the_functions_of_the_module(capfd: pytest.CaptureFixture[str]) -> None:
    assert ortrain.get_device() == onnxruntime.get_device() == "CPU"
    assert ortrain.get_available_providers() == CPU
    assert set(ortrain.get_available_providers()) <= set(onnxruntime.get_available_providers())
    assert set(ortrain.get_all_providers()) <= set(onnxruntime.get_all_providers())
    assert ortrain.get_version_string().startswith("1.32.0+ortrain.")
    assert ortrain.__version__ in ortrain.get_build_info()
    ortrain.set_default_logger_verbosity(3)
    for wrong in (-1, 5):
        with pytest.raises(RuntimeError, match=str(wrong)):
            ortrain.set_default_logger_severity(wrong)
        with pytest.raises(RuntimeError, match="severity"):
            onnxruntime.set_default_logger_severity(wrong)
    ortrain.set_default_logger_severity(2)


def test_devices_and_locations_of_memory() -> None:
    def program(library: ModuleType) -> list[Any]:
        device = library.OrtDevice.make("cpu", 0)
        kind, use = library.OrtAllocatorType.ORT_ARENA_ALLOCATOR, library.OrtMemType.DEFAULT
        memory = library.OrtMemoryInfo("Cpu", kind, 0, use)
        parts = [memory.allocator_type, memory.mem_type, memory.device_mem_type]
        numbers = [getattr(part, "value", part) for part in parts]
        where = [
            device.device_type(),
            device.device_id(),
            device.device_mem_type(),
            device.device_vendor_id(),
        ]
        return [*where, memory.name, memory.device_id, *numbers, memory.device_vendor_id]

    same(program)
    for library in (ortrain, onnxruntime):
        with pytest.raises(Exception, match="mars"):
            library.OrtDevice.make("mars", 0)
        with pytest.raises(RuntimeError):
            library.OrtMemoryInfo(
                "mars", library.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, library.OrtMemType.CPU
            )


# ---- what a session says of itself ----


def test_metadata() -> None:
    def program(library: ModuleType) -> dict[str, Any]:
        meta = made(library).get_modelmeta()
        return {name: getattr(meta, name) for name in public(onnxruntime.ModelMetadata)}

    assert same(program)["custom_metadata_map"] == {"key": "value", "another": "äöü"}


def test_initializers_that_are_inputs_can_be_replaced() -> None:
    x, b = np.ones((2, 3), np.float32), np.array([10, 20], np.float32)

    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        declared = [(a.name, a.type, a.shape) for a in session.get_overridable_initializers()]
        names = [a.name for a in session.get_inputs()]
        runs = [session.run(None, {"x": x, **more}) for more in ({}, {"b": b}, {}, {"b": 2 * b})]
        return [declared, names, runs]

    declared, names, runs = same(program)
    assert declared == [("b", "tensor(float)", [2])]
    assert names == ["x"]
    np.testing.assert_array_equal(runs[1][0], [[16, 29], [16, 29]])
    with pytest.raises(ortrain.InvalidArgumentError, match="'b'"):
        made(ortrain).run(None, {"x": x, "b": b[:1]})


def test_providers() -> None:
    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        said = [session.get_providers(), session.get_provider_options()]
        for chosen in (CPU, [("CPUExecutionProvider", {})], None, []):
            session.set_providers(chosen)
            said.append(session.get_providers())
        session.disable_fallback()
        session.enable_fallback()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            session.set_providers(["CUDAExecutionProvider"])
        return [
            *said,
            session.get_providers(),
            len(seen),
            session.run(["z"], {"x": np.ones((1, 3), np.float32)}),
        ]

    same(program)
    for library in (ortrain, onnxruntime):
        with pytest.raises(ValueError, match="provider"):
            made(library).set_providers([1])


def test_a_session_is_made_with_what_onnxruntime_takes() -> None:
    x = np.ones((1, 3), np.float32)
    for library in (ortrain, onnxruntime):
        session = library.InferenceSession(
            AFFINE, None, CPU, [{}], enable_fallback=0, disabled_optimizers=["ConstantFolding"]
        )
        assert session.run(["z"], {"x": x})[0] == 15
        with pytest.raises(TypeError, match="int"):
            library.InferenceSession(3)
        settings = library.SessionOptions()
        settings.intra_op_num_threads = 1
        made_with = library.InferenceSession(AFFINE, settings, CPU).get_session_options()
        assert made_with.intra_op_num_threads == 1
        assert isinstance(library.InferenceSession(AFFINE).get_session_options(), library.SessionOptions)
        settings.set_load_cancellation_flag(True)
        with pytest.raises(Exception, match=r"(?i)cancel"):
            library.InferenceSession(AFFINE, settings, CPU)
    with pytest.raises(TypeError, match="'enable_falback'"):
        ortrain.InferenceSession(AFFINE, enable_falback=1)


def test_requesting_a_provider_by_the_options() -> None:
    settings = ortrain.SessionOptions()
    assert not settings.has_providers()
    for library in (ortrain, onnxruntime):
        with pytest.raises(RuntimeError, match="Mars"):
            library.SessionOptions().add_provider("MarsExecutionProvider", {})
    settings.add_provider("CPUExecutionProvider", {})
    assert settings.has_providers()


def test_entries_of_the_run_configuration() -> None:
    def program(library: ModuleType) -> str:
        options = library.RunOptions()
        options.add_run_config_entry("a key", "a value")
        with pytest.raises(RuntimeError, match="another"):
            options.get_run_config_entry("another")
        return str(options.get_run_config_entry("a key"))

    same(program)


def test_options_of_runs_that_train_change_no_forward_run() -> None:
    options = ortrain.RunOptions()
    options.training_mode = False
    options.only_execute_path_to_fetches = True
    x = np.ones((2, 3), np.float32)
    np.testing.assert_equal(made(ortrain).run(None, {"x": x}, options), made(ortrain).run(None, {"x": x}))


# ---- dimensions and initializers ----


def test_free_dimensions_are_fixed() -> None:
    model = affine_proto()
    model.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"

    def program(library: ModuleType) -> list[Any]:
        said = []
        for way, name in [("name", "batch"), ("denotation", "DATA_BATCH"), ("name", "unknown")]:
            settings = library.SessionOptions()
            add = getattr(settings, f"add_free_dimension_override_by_{way}")
            add(name, 4)
            add(name, 5)  # the first one counts
            session = library.InferenceSession(model.SerializeToString(), settings, CPU)
            said.append([(a.name, a.shape) for a in (*session.get_inputs(), *session.get_outputs())])
            if name != "unknown":
                with pytest.raises(Exception, match="4"):
                    session.run(None, {"x": np.ones((2, 3), np.float32)})
            said.append(session.run(["z"], {"x": np.ones((4, 3), np.float32)}))
        return said

    assert same(program)[0] == [("x", [4, 3]), ("y", [4, 2]), ("z", [])]
    with pytest.raises(ortrain.InvalidArgumentError, match="-1"):
        ortrain.SessionOptions().add_free_dimension_override_by_name("batch", -1)


def test_sessions_share_an_initializer_of_the_caller() -> None:
    x = np.ones((1, 3), np.float32)

    def program(library: ModuleType) -> list[Any]:
        value = library.OrtValue.ortvalue_from_numpy(np.full((3, 2), 2, np.float32))
        settings = library.SessionOptions()
        settings.add_initializer("w", value)  # onnxruntime reads the value itself, so it has to stay
        settings.add_initializer("unknown", value)
        with pytest.raises(RuntimeError, match="w"):
            settings.add_initializer("w", value)
        return [
            library.InferenceSession(constant_bias(), settings, CPU).run(None, {"x": x}) for _ in range(2)
        ]

    assert same(program)[0][1] == 12
    settings = ortrain.SessionOptions()
    settings.add_initializer("w", ortrain.OrtValue.ortvalue_from_numpy(np.ones((2, 3), np.float32)))
    with pytest.raises(ortrain.InvalidArgumentError, match=r'"w".*\[3, 2\].*\[2, 3\]'):
        ortrain.InferenceSession(AFFINE, settings)


def test_the_memory_of_a_shared_initializer_stays() -> None:
    """The array that a session reads outlives the options and everything else that knew it."""
    settings = ortrain.SessionOptions()
    settings.add_initializer("w", ortrain.OrtValue.ortvalue_from_numpy(np.full((3, 2), 2, np.float32)))
    session = ortrain.InferenceSession(AFFINE, settings)
    del settings
    clutter = [np.full((3, 2), 9, np.float32) for _ in range(100)]
    assert session.run(["z"], {"x": np.ones((1, 3), np.float32)})[0] == 12
    del clutter


def test_values_for_external_initializers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(
        onnx.load_from_string(constant_bias()),
        path,
        save_as_external_data=True,
        location="w.bin",
        size_threshold=0,
    )
    (tmp_path / "w.bin").unlink()
    w, b = np.full((3, 2), 2, np.float32), np.array([1, 2], np.float32)

    def program(library: ModuleType) -> list[Any]:
        value = library.OrtValue.ortvalue_from_numpy
        settings = library.SessionOptions()
        settings.add_external_initializers(["w", "b"], [value(w), value(b)])
        x = np.ones((1, 3), np.float32)
        results = [
            library.InferenceSession(m, settings, CPU).run(None, {"x": x})
            for m in (str(path), path.read_bytes())
        ]
        for names, values in ((["w", "b", "q"], [w, b, b]), (["w", "b"], [w, w]), (["w", "w"], [w, w])):
            with pytest.raises(Exception, match=r"q|match|expected|w"):
                wrong = library.SessionOptions()
                wrong.add_external_initializers(names, [value(v) for v in values])
                library.InferenceSession(str(path), wrong, CPU)
        inside = library.SessionOptions()
        inside.add_external_initializers(["w"], [value(w)])
        with pytest.raises(Exception, match=r"non-external|itself holds"):
            library.InferenceSession(constant_bias(), inside, CPU)
        return results

    np.testing.assert_array_equal(same(program)[0][0], [[7, 8]])


# ---- bindings ----


def test_outputs_that_the_run_allocates() -> None:
    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        binding = session.io_binding()
        x = np.ones((2, 3), np.float32)
        binding.bind_cpu_input("x", x)
        binding.bind_output("z")
        binding.bind_output("y", "cpu")
        said = [[value.has_value() for value in binding.get_outputs()]]
        session.run_with_iobinding(binding)
        first = binding.get_outputs()
        said += [binding.copy_outputs_to_cpu(), [value.shape() for value in first]]
        x[:] = 2  # nothing was copied, so the next run sees it
        session.run_with_iobinding(binding)
        again = binding.get_outputs()
        said += [binding.copy_outputs_to_cpu(), first[1].numpy().copy()]
        said.append([a.data_ptr() == b.data_ptr() for a, b in zip(first, again, strict=True)])
        binding.clear_binding_outputs()
        said.append(list(binding.get_outputs()))
        with pytest.raises(Exception, match=r"(?i)output"):
            session.run_with_iobinding(binding)
        return said

    said = same(program)
    assert said[5] == [True, True], "the second run writes into the memory of the first"


def test_an_output_of_another_shape_gets_other_memory() -> None:
    session = made(ortrain)
    binding = session.io_binding()
    binding.bind_output("y")
    seen = []
    for rows in (2, 3, 3, 1):
        binding.bind_cpu_input("x", np.ones((rows, 3), np.float32))
        session.run_with_iobinding(binding)
        seen.append(binding.get_outputs()[0])
        np.testing.assert_array_equal(seen[-1].numpy(), [[7, 8]] * rows)
    np.testing.assert_array_equal(seen[0].numpy(), [[7, 8]] * 2)


def test_an_output_is_computed_in_the_array_that_is_bound_to_it() -> None:
    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        binding = session.io_binding()
        x = np.arange(6, dtype=np.float32).reshape(2, 3)
        y, other = np.zeros((2, 2), np.float32), np.zeros((2, 2), np.float32)
        binding.bind_input("x", "cpu", 0, np.float32, [2, 3], x.ctypes.data)
        binding.bind_output("y", "cpu", 0, np.float32, [2, 2], y.ctypes.data)
        session.run_with_iobinding(binding)
        said = [y.copy(), binding.get_outputs()[0].data_ptr() == y.ctypes.data]
        x += 1
        session.run_with_iobinding(binding, library.RunOptions())
        said.append(y.copy())
        value = library.OrtValue.ortvalue_from_numpy(other)
        binding.bind_ortvalue_output("y", value)
        binding.bind_ortvalue_input("x", library.OrtValue.ortvalue_from_numpy(2 * x))
        session.run_with_iobinding(binding)
        binding.synchronize_inputs()
        binding.synchronize_outputs()
        said += [y.copy(), other.copy(), len(binding.get_outputs_as_ortvaluevector())]
        binding.clear_binding_inputs()
        return said

    assert same(program)[1]


def test_an_input_that_is_not_contiguous_is_copied() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2].T

    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        return list(binding.copy_outputs_to_cpu())

    same(program)


def test_the_output_of_a_run_may_be_the_input_of_the_next() -> None:
    """In a loop over a state whose memory the runs own, no run overwrites what it still reads."""
    node = helper.make_node("MatMul", ["state", "w"], ["next"])
    value = helper.make_tensor_value_info
    w = np.array([[0, 1], [1, 1]], np.float32)
    graph = helper.make_graph(
        [node],
        "g",
        [value("state", TensorProto.FLOAT, [1, 2])],
        [value("next", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ortrain.InferenceSession(model.SerializeToString())
    binding = session.io_binding()
    binding.bind_cpu_input("state", np.array([[0, 1]], np.float32))
    binding.bind_output("next")
    for _ in range(8):
        session.run_with_iobinding(binding)
        binding.bind_ortvalue_input("state", binding.get_outputs()[0])
    np.testing.assert_array_equal(binding.get_outputs()[0].numpy(), [[21, 34]])  # of Fibonacci's numbers


def test_what_cannot_be_bound_is_said() -> None:
    session = made(ortrain)
    binding = session.io_binding()
    x = np.ones((2, 3), np.float32)
    for library in (ortrain, onnxruntime):
        theirs = made(library).io_binding()
        with pytest.raises(RuntimeError, match="nope"):
            theirs.bind_cpu_input("nope", x)
        with pytest.raises(ValueError, match="shape"):
            theirs.bind_output("y", "cpu", 0, np.float32, None, x.ctypes.data)
    with pytest.raises(ortrain.InvalidArgumentError, match=r"'nope'.*y, z"):
        binding.bind_output("nope")
    with pytest.raises(ortrain.InvalidArgumentError, match="cuda"):
        binding.bind_output("y", "cuda")
    binding.bind_output("y")
    with pytest.raises(ortrain.InvalidArgumentError, match="'x' was not given"):
        session.run_with_iobinding(binding)
    binding.bind_cpu_input("x", x.astype(np.float64))
    with pytest.raises(ortrain.InvalidArgumentError, match="element types differ"):
        session.run_with_iobinding(binding)
    with pytest.raises(ortrain.InvalidArgumentError, match="another session"):
        made(ortrain).run_with_iobinding(binding)
    fixed = ortrain.OrtValue.ortvalue_from_numpy(np.frombuffer(bytes(16), np.float32).reshape(2, 2))
    with pytest.raises(ValueError, match="cannot be written"):
        binding.bind_ortvalue_output("y", fixed)
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", ortrain.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32)))
    with pytest.raises(ortrain.InvalidArgumentError, match=r"\[2, 2\].*\[2, 3\]"):
        session.run_with_iobinding(binding)


def test_a_binding_stands_on_a_session_binding() -> None:
    x, y = np.ones((2, 3), np.float32), np.zeros((2, 2), np.float32)
    session = made(ortrain)
    bound = ortrain.SessionIOBinding(session)
    device = ortrain.OrtDevice.make("cpu", 0)
    bound.bind_input("x", x)
    bound.bind_output("y", device, np.float32, [2, 2], y.ctypes.data)
    bound.bind_output("z", device)
    binding = ortrain.IOBinding(session)
    binding._iobinding = bound
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(y, [[7, 8]] * 2)
    assert bound.copy_outputs_to_cpu()[1] == 30
    bound.bind_input("x", device, 1, [2, 3], x.ctypes.data)
    x[:] = 0
    session.run_with_iobinding(binding)
    assert bound.get_outputs()[1].numpy() == 0


def test_lists_of_values() -> None:
    state = onnxruntime.capi.onnxruntime_pybind11_state
    x = np.ones((2, 3), np.float32)

    def program(library: ModuleType) -> list[Any]:
        session = made(library)
        vector = ortrain.OrtValueVector if library is ortrain else state.OrtValueVector
        feeds, fetches = vector(), vector()
        value = library.OrtValue.ortvalue_from_numpy(x)
        feeds.push_back(value if library is ortrain else value._get_c_value())
        device = library.OrtDevice.make("cpu", 0)
        devices = [device, device] if library is ortrain else [device._get_c_device()] * 2
        session.run_with_ortvaluevector(library.RunOptions(), ["x"], feeds, ["z", "y"], fetches, devices)
        return [len(feeds), feeds.element_type_at(0), [fetched.numpy() for fetched in fetches]]

    same(program)


# ---- runs in the background ----


@BOTH
def test_runs_in_the_background(library: ModuleType) -> None:
    session = made(library, intra_op_num_threads=2)
    seen: list[Any] = []
    ended = threading.Semaphore(0)

    def record(outputs: list[Any], data: Any, error: str) -> None:
        seen.append((outputs, data, error, threading.current_thread() is threading.main_thread()))
        ended.release()

    x = np.ones((2, 3), np.float32)
    for data in range(5):
        session.run_async(["z"], {"x": x}, record, data)
    assert all(ended.acquire(timeout=60) for _ in range(5))
    assert sorted(data for _, data, _, _ in seen) == list(range(5))
    assert all(outputs == [30] and error == "" and not main for outputs, _, error, main in seen)
    session.run_async(None, {"x": x.astype(np.float64)}, record, "wrong")
    assert ended.acquire(timeout=60)
    outputs, data, error, _ = seen[-1]
    assert (outputs, data) == ([], "wrong")
    assert "double" in error or "float64" in error


# ---- profiles ----


@BOTH
def test_a_profile(library: ModuleType, tmp_path: pathlib.Path) -> None:
    before = time.time_ns()
    session = made(
        library, constant_bias(), enable_profiling=True, profile_file_prefix=str(tmp_path / "profile")
    )
    started = session.get_profiling_start_time_ns()
    if (
        library is not onnxruntime or os.name != "nt"
    ):  # on Windows, stock onnxruntime counts from the start of the system
        assert before <= started <= time.time_ns()
    for _ in range(3):
        session.run(None, {"x": np.ones((2, 3), np.float32)})
    path = pathlib.Path(session.end_profiling())
    assert path.parent == tmp_path
    assert path.name.startswith("profile_")
    assert path.suffix == ".json"
    events = json.loads(path.read_text())
    for event in events:
        assert {"cat", "pid", "tid", "dur", "ts", "ph", "name", "args"} <= set(event)
        assert event["ph"] == "X"
    runs = [event for event in events if event["name"] == "model_run"]
    kernels = [event for event in events if event["cat"] == "Node" and event["name"].endswith("_kernel_time")]
    assert len(runs) == 3
    assert {event["cat"] for event in runs} == {"Session"}
    assert [event["args"]["op_name"] for event in kernels] == ["Gemm", "ReduceSum"] * 3
    assert {event["args"]["provider"] for event in kernels} == set(CPU)
    assert any(event["name"] == "session_initialization" for event in events)
    assert session.end_profiling() == ""
    session.run(None, {"x": np.ones((2, 3), np.float32)})


def test_a_session_that_ends_writes_its_profile(tmp_path: pathlib.Path) -> None:
    session = made(ortrain, enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    session.run(None, {"x": np.ones((2, 3), np.float32)})
    del session
    [path] = tmp_path.iterdir()
    assert any(event["name"] == "model_run" for event in json.loads(path.read_text()))


def test_without_a_profile_there_is_no_file() -> None:
    same(lambda library: [made(library).end_profiling(), made(library).get_profiling_start_time_ns()])


# ---- OrtValue ----


def test_elements_are_replaced_in_place() -> None:
    def program(library: ModuleType) -> list[Any]:
        array = np.zeros((2, 3), np.float32)
        value = library.OrtValue.ortvalue_from_numpy(array)
        said = []
        numbers = np.arange(6, dtype=np.float32)
        for new in (numbers.reshape(2, 3), numbers.reshape(3, 2) + 1, numbers.reshape(3, 2).T):
            value.update_inplace(new)
            said.append(array.copy())
        value.update_inplace(library.OrtValue.ortvalue_from_numpy(-np.ones((2, 3), np.float32)))
        with pytest.raises(RuntimeError):
            value.update_inplace(np.zeros((3, 3), np.float32))
        with pytest.raises(TypeError):
            value.update_inplace([1, 2, 3])
        return [*said, array, value.tensor_size_in_bytes(), value.is_sparse_tensor(), value.data_type()]

    same(program)
    value = ortrain.OrtValue.ortvalue_from_numpy(np.zeros(3, np.float32))
    with pytest.raises(ortrain.InvalidArgumentError, match=r"3 elements of type float32.*float64"):
        value.update_inplace(np.zeros(3))
    fixed = ortrain.OrtValue.ortvalue_from_numpy(np.frombuffer(bytes(4), np.float32))
    with pytest.raises(ValueError, match="cannot be written"):
        fixed.update_inplace(np.zeros(1, np.float32))


def test_types_that_numpy_lacks_are_given_by_their_bits() -> None:
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)

    def program(library: ModuleType) -> list[Any]:
        value = library.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
        with pytest.raises(RuntimeError, match=r"(?i)size"):
            library.OrtValue.ortvalue_from_numpy_with_onnx_type(bits.astype(np.float32), TensorProto.BFLOAT16)
        empty = library.OrtValue.ortvalue_from_shape_and_type([2, 3], TensorProto.BFLOAT16)
        return [value.data_type(), value.shape(), value.element_type(), empty.data_type(), empty.shape()]

    same(program)
    value = ortrain.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, TensorProto.BFLOAT16)
    assert value.data_ptr() == bits.ctypes.data


def test_a_value_from_dlpack_shares_the_memory() -> None:
    def program(library: ModuleType) -> list[Any]:
        array = np.zeros((2, 3), np.float32)
        value = library.OrtValue.from_dlpack(array)
        array[:] = 7
        return [value.numpy(), value.shape()]

    same(program)
