"""Operators of training graphs, against what onnxruntime-training computed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import numpy as np
import pytest
from helpers import MICROSOFT, Array, run_model
from onnx import helper, numpy_helper

_FOLDER = pathlib.Path(__file__).parents[2] / "data" / "training_ops"


_CASES: list[dict[str, Any]] = json.loads((_FOLDER / "cases.json").read_text())


def _arrays() -> list[dict[str, Array]]:
    """The inputs and outputs of each case by name."""
    with np.load(_FOLDER / "cases.npz") as file:
        data = file["data"].tobytes()
    found, at = [], 0
    for case in _CASES:
        arrays = {}
        for name, (dtype, *shape) in case["arrays"].items():
            count = int(np.prod(shape, dtype=np.int64))
            arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
            at += arrays[name].nbytes
        found.append(arrays)
    assert at == len(data)
    return found


_ARRAYS = _arrays()


@pytest.mark.parametrize("number", range(len(_CASES)), ids=lambda n: f"{n}-{_CASES[n]['op']}")
def test_recorded(number: int) -> None:
    case, arrays = _CASES[number], _ARRAYS[number]
    node = helper.make_node(
        case["op"], case["inputs"], case["outputs"], domain=case["domain"], **case["attributes"]
    )
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in arrays.items()
    ]
    graph = helper.make_graph(
        [node],
        "case",
        [i for i in infos if i.name.startswith("x") and i.name not in case["constants"]],
        [i for i in infos if i.name.startswith("y")],
        [numpy_helper.from_array(arrays[name], name) for name in case["constants"]],
    )
    imports = [helper.make_opsetid("", case["opset"]), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    feeds = {i.name: arrays[i.name].copy() for i in graph.input}
    found = run_model(model.SerializeToString(), feeds)
    for name, expected in arrays.items():
        if not name.startswith("y"):
            continue
        assert found[name].dtype == expected.dtype, name
        assert found[name].shape == expected.shape, name
        largest = float(np.abs(expected.astype(np.float64)).max(initial=0))
        np.testing.assert_allclose(found[name], expected, 1e-5, 2e-6 * largest, err_msg=name)
