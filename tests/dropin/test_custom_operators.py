"""A library of custom operators, compiled without our headers, runs here as in onnxruntime, and is trained."""

from __future__ import annotations

from pathlib import Path

import both
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

DOMAIN = "test.custom"


def save(
    folder: Path,
    name: str,
    nodes: list[onnx.NodeProto],
    element: int = TensorProto.FLOAT,
    initializers: list[onnx.TensorProto] | None = None,
) -> None:
    x, y = (helper.make_tensor_value_info(n, element, None) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], initializers or [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder / f"{name}.onnx")


def scaled(inputs: list[str], outputs: list[str], **attributes: object) -> onnx.NodeProto:
    return helper.make_node("Scaled", inputs, outputs, domain=DOMAIN, **attributes)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of operators."""
    folder = tmp_path_factory.mktemp("library")
    return both.compile_program(folder, "custom_library.c", "libcustom.so", ["-shared", "-fPIC"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that the client runs."""
    folder = tmp_path_factory.mktemp("models")
    offset = numpy_helper.from_array(np.array([0.5], np.float32), "offset")
    told = {
        "describe": 1,
        "integer": -7,
        "text": "a text",
        "numbers": [1.5, 2.5],
        "integers": [1, 2, 3],
        "texts": ["one", "two"],
        "tensor": numpy_helper.from_array(np.array([3, 4], np.float32)),
    }
    relu = helper.make_node("Relu", ["a"], ["b"])
    save(
        folder,
        "scaled",
        [
            scaled(["x", "offset"], ["a"], scale=2.0, name="first", **told),
            relu,
            scaled(["b"], ["y"], scale=0.5),
        ],
        initializers=[offset],
    )
    save(folder, "negative", [scaled(["x"], ["y"], scale=-1.0)])
    save(folder, "wrong_type", [scaled(["x"], ["y"], scale=1.0)], TensorProto.INT64)
    save(folder, "total", [helper.make_node("Total", ["x", "x", "x"], ["y"], domain=DOMAIN)])
    save(folder, "shout", [helper.make_node("Shout", ["x"], ["y"], domain=DOMAIN)], TensorProto.STRING)
    return folder


def test_the_client_finds_what_it_finds_in_onnxruntime(library: Path, models: Path, tmp_path: Path) -> None:
    client = both.compile_program(tmp_path, "custom_client.c", "client")
    printed = both.run_on_both(client, library, models)
    assert "run with 3: code 0 1.25 2.25 3.25" in printed
    assert "[a!] [!] [long enough to need memory of its own!] [d!] " in printed
