"""Malformed models through every way into the library: inference, a train step and an eval step, with defaults."""

from __future__ import annotations

import pathlib
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import ortrain
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from ortrain.api import CheckpointState, Module
from recorded import Fixture

Array = NDArray[Any]

DOMAINS = {"": 17, "com.microsoft": 1, "ai.onnx.ml": 5, "ortrain.session": 1}


def opset_imports(opset: int) -> list[onnx.OperatorSetIdProto]:
    """Every domain that has operators, that of ONNX in the given version."""
    return [helper.make_opsetid(domain, version if domain else opset) for domain, version in DOMAINS.items()]


def model_of(
    nodes: Sequence[onnx.NodeProto], values: dict[str, Array], opset: int, constants: bool
) -> onnx.ModelProto:
    """Return a model of the nodes, whose first output it gives; the values are initializers or inputs."""
    outputs = [
        helper.make_value_info(name, onnx.TypeProto()) for node in nodes[-1:] for name in node.output if name
    ]
    if not outputs:  # a model has an output, whatever the node lacks
        nodes = [*nodes, helper.make_node("Identity", ["spare"], ["kept"])]
        values = {**values, "spare": np.zeros(1, np.float32)}
        outputs = [helper.make_value_info("kept", onnx.TypeProto())]
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in values.items()
    ]
    initializers = [numpy_helper.from_array(value, name) for name, value in values.items()]
    graph = helper.make_graph(
        list(nodes), "malformed", [] if constants else inputs, outputs[:1], initializers if constants else []
    )
    return helper.make_model(graph, opset_imports=opset_imports(opset), ir_version=9)


def grafted(
    path: str, nodes: Sequence[onnx.NodeProto], values: dict[str, Array], opset: int
) -> onnx.ModelProto:
    """Return the model in a file with the nodes beside its own, and what they give as its last outputs."""
    model = onnx.load(path)
    del model.opset_import[:]
    model.opset_import.extend(opset_imports(opset))
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in values.items())
    for name in [name for node in nodes[-1:] for name in node.output if name][:1]:
        model.graph.output.append(helper.make_value_info(name, onnx.TypeProto()))
    return model


def attempts(nodes: Sequence[onnx.NodeProto], values: dict[str, Array], opset: int = 17) -> Iterator[str]:
    """Take the nodes through every way into the library, and yield how each ended, "" for none.

    Parameters
    ----------
    nodes
        The last one is the malformed one, or leads to it; its first output is an output of the model.
    values
        What the nodes read, by name.
    """
    for constants in (False, True):
        model = model_of(nodes, values, opset, constants).SerializeToString()
        try:
            ortrain.InferenceSession(model).run(None, {} if constants else values)
            yield ""
        except ortrain.OrtrainError as error:
            yield str(error)
    fixture = Fixture("mlp_sgd_sched")
    with tempfile.TemporaryDirectory() as folder:
        for name in ("training_model.onnx", "eval_model.onnx"):
            path = pathlib.Path(folder) / name
            path.write_bytes(grafted(fixture.path(name), nodes, values, opset).SerializeToString())
        for train, evaluate in (("training_model.onnx", None), (None, "eval_model.onnx")):
            state = CheckpointState.load_checkpoint(fixture.path("checkpoint"))
            try:
                module = Module(
                    str(pathlib.Path(folder) / train) if train else fixture.path("training_model.onnx"),
                    state,
                    str(pathlib.Path(folder) / evaluate) if evaluate else fixture.path("eval_model.onnx"),
                )
                module.train() if train else module.eval()
                module(*fixture.batches[0])
                yield ""
            except ortrain.OrtrainError as error:
                yield str(error)


def check_refused(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto],
    values: dict[str, Array],
    *parts: str,
    opset: int = 17,
) -> None:
    """Check that every way ends in an error that has these parts in its message."""
    ends = list(attempts([nodes] if isinstance(nodes, onnx.NodeProto) else nodes, values, opset))
    assert len(ends) == 4
    for end in ends:
        assert end, f"one way took the model: {ends}"
        for part in parts:
            assert part in end, end


def check_taken(
    nodes: onnx.NodeProto | Sequence[onnx.NodeProto], values: dict[str, Array], opset: int = 17
) -> None:
    """Check that every way takes the nodes."""
    ends = list(attempts([nodes] if isinstance(nodes, onnx.NodeProto) else nodes, values, opset))
    if any(ends):
        pytest.fail("\n".join(ends))
