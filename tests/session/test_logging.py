"""Messages of the library in Python: who gets them, and what happens if the function that does fails."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime
import ortrain
import pytest
from onnx import TensorProto, helper

X = np.ones((2, 3), np.float32)


def relu_model() -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


MODEL = relu_model()


@pytest.fixture(params=["ortrain", "onnxruntime"])
def library(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    chosen = ortrain if request.param == "ortrain" else onnxruntime
    if not hasattr(chosen, "set_default_logger_callback"):
        pytest.skip("onnxruntime has it from 1.32 on")
    yield chosen
    chosen.set_default_logger_callback(None)
    chosen.set_default_logger_severity(2)


def written(capfd: pytest.CaptureFixture[str]) -> str:
    """Return what was written to standard error. On Windows, stock onnxruntime writes UTF-16."""
    return capfd.readouterr().err.replace("\0", "")


def session(library: ModuleType, **options: Any) -> Any:
    settings = library.SessionOptions()
    for name, value in options.items():
        setattr(settings, name, value)
    return library.InferenceSession(MODEL, settings, providers=["CPUExecutionProvider"])


def test_a_function_gets_the_messages(library: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[Any, ...]] = []
    existing = session(library, log_severity_level=0, logid="early")
    capfd.readouterr()
    library.set_default_logger_callback(lambda *message: seen.append(message), 0)
    existing.run(None, {"x": X})
    if library is ortrain:  # a session from before; onnxruntime logs no run
        assert {name for _, _, name, _, _ in seen} == {"early"}
    session(library, logid="late")
    assert "late" in {name for _, _, name, _, _ in seen}
    for message in seen:
        assert [type(part) for part in message] == [int, str, str, str, str]
        assert message[0] in (0, 1)
        assert message[3]
        assert message[4]
    # Threads that Python does not know write to standard error; here those are no more than the pool's.
    assert library is onnxruntime or capfd.readouterr().err == ""


def test_the_severity_is_set_with_the_function(library: ModuleType) -> None:
    seen: list[tuple[Any, ...]] = []
    library.set_default_logger_severity(0)
    library.set_default_logger_callback(lambda *message: seen.append(message))  # warnings
    session(library).run(None, {"x": X})
    assert not seen
    library.set_default_logger_callback(lambda *message: seen.append(message), severity=0)
    session(library)
    assert seen


def test_without_a_function_messages_are_written_again(
    library: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    seen: list[tuple[Any, ...]] = []
    library.set_default_logger_callback(lambda *message: seen.append(message), 0)
    library.set_default_logger_callback(None, 3)  # the severity stays
    session(library, logid="spoken")
    assert not seen
    assert "spoken" in written(capfd)


def test_what_the_function_raises_ends_nothing(
    library: ModuleType, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raised: list[BaseException | None] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: raised.append(found.exc_value))

    def fail(*message: object) -> None:
        raise ValueError("no more paper")

    library.set_default_logger_callback(fail, 0)
    made = session(library, logid="spoken")
    np.testing.assert_array_equal(made.run(None, {"x": X})[0], X)
    assert raised
    assert all(isinstance(error, ValueError) for error in raised)
    assert "spoken" in written(capfd)


def test_messages_that_arise_in_the_function_are_written(
    library: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    depth = deepest = 0

    def nested(*message: object) -> None:
        nonlocal depth, deepest
        depth += 1
        deepest = max(deepest, depth)
        session(library, log_severity_level=0, logid="inner")
        depth -= 1

    library.set_default_logger_callback(nested, 0)
    session(library, logid="outer")
    assert deepest == 1
    assert "inner" in written(capfd)


def test_messages_come_from_the_thread_that_runs(library: ModuleType) -> None:
    threads: set[int] = set()
    made = session(library, log_severity_level=0)
    library.set_default_logger_callback(lambda *message: threads.add(threading.get_ident()), 0)
    thread = threading.Thread(target=made.run, args=(None, {"x": X}))
    thread.start()
    thread.join()
    assert threads
    assert threading.get_ident() not in threads


def test_wrong_arguments_are_refused(library: ModuleType) -> None:
    for arguments in ((print, -1), (print, 5), (None, 9), (3, 2)):
        with pytest.raises(RuntimeError):
            library.set_default_logger_callback(*arguments)
    for arguments in ((print, 2.5), ()):
        with pytest.raises(TypeError):
            library.set_default_logger_callback(*arguments)
    with pytest.raises(ortrain.InvalidArgumentError, match="found int"):
        ortrain.set_default_logger_callback(3)  # type: ignore[arg-type]
